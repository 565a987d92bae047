"""Calls in this process, where it can be seen what they leave behind."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hyperframe.frame import GoAwayFrame
from wire import Wire, pack

from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.limits import RpcLimits
from tensorferry.serve.core.memory import MemoryBudget
from tensorferry.serve.front import Front
from tensorferry.serve.grpc.calls import Call, Unary
from tensorferry.serve.grpc.connection import Http2Connection
from tensorferry.serve.grpc.frames import MAX_WINDOW, RST_STREAM, Setting
from tensorferry.serve.grpc.headers import CallHeaders
from tensorferry.serve.grpc.messages import Status
from tensorferry.serve.grpc.streams import Stream


class RpcEcho:
    """Answers `wrong` with an error, `never` not at all, and anything else with itself."""

    def open(self, stream: Stream, head: CallHeaders) -> Call:
        """Begin a call."""
        call = Call(stream, head, 100_000)
        call.start(Unary(call, self.answer))
        return call

    def answer(self, call: Call, message: bytes) -> None:
        """Answer a call, now or in the next turn of the loop."""
        if message == b"wrong":
            raise InvalidRequest("wrong")
        if message != b"never":
            asyncio.get_running_loop().call_soon(call.reply, message)


def serve(client: Callable[[str], Any], limits: RpcLimits, *, is_draining: bool = False) -> Any:
    """What a client, in a thread of its own, makes of it."""

    async def run() -> Any:
        front: Front[Http2Connection] = Front(
            lambda connections: Http2Connection(RpcEcho(), limits, MemoryBudget(2**30), connections)
        )
        port = await front.start("127.0.0.1", 0, None)
        front.is_draining = is_draining
        try:
            return await asyncio.to_thread(client, f"127.0.0.1:{port}")
        finally:
            await front.stop(1)

    return asyncio.run(run())


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_calls_leave_no_circle_that_would_keep_their_bytes() -> None:
    def client(address: str) -> None:
        with Wire(address) as wire:
            assert wire.call(b"x" * 60_000).data == pack(b"x" * 60_000)
            assert wire.call(b"wrong").status == Status.INVALID_ARGUMENT
            assert wire.call(b"late", "ModelInfer", ("grpc-timeout", "1H")).status == Status.OK
            assert wire.call(b"never", "ModelInfer", ("grpc-timeout", "1m")).status == Status.DEADLINE_EXCEEDED
            for message in (b"never", b"hung up on"):
                stream = wire.begin()
                wire.data(stream, pack(message)[:-1], ends=False)
                wire.frame(RST_STREAM, 0, stream, bytes(4))
            stream = wire.begin()
            wire.data(stream, pack(b"x" * 200_000)[:100])  # refused before it is whole
            assert wire.answer(stream).status == Status.RESOURCE_EXHAUSTED
            wire.ping()

    serve(client, RpcLimits(max_message_nbytes=100_000))
    # by type: asking some objects of other packages what they are an instance of makes them warn
    assert not [found for found in gc.get_objects() if type(found) in (Call, Stream)]


def test_an_answer_larger_than_every_window_and_frame_comes_whole() -> None:
    def client(address: str) -> bytes:
        with Wire(address, {Setting.INITIAL_WINDOW_SIZE: 2**20}) as wire:
            wire.frame(8, 0, 0, (2**20).to_bytes(4, "big"))
            return wire.call(bytes(range(250)) * 400).data

    assert serve(client, RpcLimits()) == pack(bytes(range(250)) * 400)


def test_a_client_that_comes_while_the_server_stops_is_told_to_leave_with_its_first_call() -> None:
    def client(address: str) -> tuple[int, list[int]]:
        with Wire(address) as wire:
            wire.ping()
            # grpc's own client would not send the call at all, and connect again when nobody listens any more
            assert not any(isinstance(frame, GoAwayFrame) for frame in wire.seen)
            answer = wire.call(b"late")
            return answer.status, [frame.last_stream_id for frame in wire.seen if isinstance(frame, GoAwayFrame)]

    assert serve(client, RpcLimits(), is_draining=True) == (Status.OK, [MAX_WINDOW])
