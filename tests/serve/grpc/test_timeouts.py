"""Time on a connection, with limits that a test can wait for: silence, idleness, pings."""

import asyncio
from collections.abc import Callable
from typing import Any

from hyperframe.frame import GoAwayFrame, PingFrame
from wire import Wire, make_request, pack

from tensorferry.serve.core.limits import RpcLimits
from tensorferry.serve.core.memory import MemoryBudget
from tensorferry.serve.front import Front
from tensorferry.serve.grpc.calls import Call, Unary
from tensorferry.serve.grpc.connection import Http2Connection
from tensorferry.serve.grpc.frames import ACK, PING, Code
from tensorferry.serve.grpc.headers import CallHeaders
from tensorferry.serve.grpc.streams import Stream


class Never:
    """Takes calls and answers none."""

    def open(self, stream: Stream, head: CallHeaders) -> Call:
        """Begin one."""
        call = Call(stream, head, 1000)
        call.start(Unary(call, lambda *_: None))
        return call


def serve(limits: RpcLimits, client: Callable[[str], Any]) -> Any:
    """What a client, in a thread of its own, makes of a server with such limits."""

    async def run() -> Any:
        front: Front[Http2Connection] = Front(
            lambda connections: Http2Connection(Never(), limits, MemoryBudget(2**30), connections)
        )
        port = await front.start("127.0.0.1", 0, None)
        try:
            return await asyncio.to_thread(client, f"127.0.0.1:{port}")
        finally:
            await front.stop(0.1)

    return asyncio.run(run())


def is_question(frame: Any) -> bool:
    return isinstance(frame, PingFrame) and "ACK" not in frame.flags


def test_a_client_that_is_silent_during_a_call_is_asked_and_hung_up_on() -> None:
    def client(address: str) -> list[Any]:
        with Wire(address) as wire:
            wire.data(wire.begin(), pack(make_request()))
            wire.until(is_question)
            while wire.read() is not None:
                pass
            return wire.seen

    seen = serve(RpcLimits(ping_seconds=0.3, pong_seconds=1.2), client)
    assert sum(map(is_question, seen)) == 1
    assert not any(isinstance(frame, GoAwayFrame) for frame in seen)  # nobody is there to read one


def test_a_client_that_answers_is_kept() -> None:
    def client(address: str) -> int:
        with Wire(address) as wire:
            wire.data(wire.begin(), pack(make_request()))
            for _ in range(3):
                question = wire.until(is_question)
                wire.frame(PING, ACK, 0, question.opaque_data)
            return len(wire.answers)

    assert serve(RpcLimits(ping_seconds=0.3, pong_seconds=0.7), client)


def test_a_connection_without_calls_is_ended_in_peace_and_one_with_a_call_is_not() -> None:
    def client(address: str) -> Code:
        with Wire(address) as idle, Wire(address) as busy:
            busy.data(busy.begin(), pack(make_request()))
            code = idle.goaway()
            busy.ping()
            return code

    assert serve(RpcLimits(idle_seconds=0.3, ping_seconds=100), client) is Code.NO_ERROR
