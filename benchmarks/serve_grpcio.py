"""`ferry serve` with grpcio's server in front of the same data plane: what our own HTTP/2 is measured against.

    python benchmarks/serve_grpcio.py aio REPOSITORY HTTP_PORT GRPC_PORT

"aio" answers in coroutines on the server's event loop, "sync" in a pool of threads.
"""

import asyncio
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import uvloop

from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.faults import RequestFault
from tensorferry.serve.core.memory import Charge, MemoryBudget
from tensorferry.serve.core.requests import InferRequest, InferResponse
from tensorferry.serve.grpc.infer_messages import find_inputs, read_request, write_response
from tensorferry.serve.grpc.service import Methods
from tensorferry.serve.options import ServeOptions
from tensorferry.serve.proto import inference as pb
from tensorferry.serve.server import Server

_SERVICE = "inference.GRPCInferenceService"
_BUDGET = MemoryBudget(2**40)
_NUM_THREADS = 32  # as many as requests are under way at a time


async def run(kind: str, options: ServeOptions, grpc_port: int) -> None:
    """Serve until SIGTERM."""
    server = Server(options)
    front: Any = grpc.aio.server() if kind == "aio" else grpc.server(ThreadPoolExecutor(_NUM_THREADS))
    infer = _infer_in_coroutine(server.plane) if kind == "aio" else _infer_in_thread(server.plane)
    handlers = {"ModelInfer": _handle(infer, pb.ModelInferRequest)}
    for name in ("ModelMetadata", "ModelConfig"):
        message, answer = Methods(server.plane).list_methods()[name]
        handlers[name] = _handle(_answer_in_coroutine(answer) if kind == "aio" else _answer_in_thread(answer), message)
    front.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    front.add_insecure_port(f"127.0.0.1:{grpc_port}")
    await server.start()
    started = front.start()
    if kind == "aio":
        await started
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()
    stopped = front.stop(0)
    if kind == "aio":
        await stopped
    await server.stop()


def _handle(answer: Callable[[Any, Any], Any], kind: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(answer, kind.FromString, lambda message: message.SerializeToString())


def _read(message: Any, plane: DataPlane) -> InferRequest:
    return read_request(message, find_inputs(message), plane.regions, Charge(_BUDGET))


def _infer_in_coroutine(plane: DataPlane) -> Callable[[Any, Any], Awaitable[Any]]:
    async def infer(message: Any, _: Any) -> Any:
        return write_response(await plane.infer(_read(message, plane)))

    return infer


def _infer_in_thread(plane: DataPlane) -> Callable[[Any, Any], Any]:
    """The data plane is called on its loop; the thread only waits for the answer."""
    loop = asyncio.get_running_loop()

    def infer(message: Any, _: Any) -> Any:
        request = _read(message, plane)
        arrived = threading.Lock()
        arrived.acquire()
        outcomes: list[InferResponse | Exception] = []

        def tell(outcome: InferResponse | Exception) -> None:
            outcomes.append(outcome)
            arrived.release()

        def submit() -> None:
            try:
                plane.submit(request, tell)
            except RequestFault as fault:
                tell(fault)

        loop.call_soon_threadsafe(submit)
        arrived.acquire()
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]
        return write_response(outcomes[0])

    return infer


def _answer_in_coroutine(answer: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(message: Any, _: Any) -> Any:
        return await answer(message)

    return call


def _answer_in_thread(answer: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    loop = asyncio.get_running_loop()
    return lambda message, _: asyncio.run_coroutine_threadsafe(answer(message), loop).result()


if __name__ == "__main__":
    _, chosen, repository, http_port, port = sys.argv
    uvloop.run(run(chosen, ServeOptions(repository=Path(repository), http_port=int(http_port), grpc_port=None), int(port)))
