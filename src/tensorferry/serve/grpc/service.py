"""The gRPC service: which call is answered by what, and who may make it."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from tensorferry.serve.core.access import Access
from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.faults import Unsupported
from tensorferry.serve.core.limits import INLINE_NBYTES, MAX_CONTROL_NBYTES
from tensorferry.serve.grpc import health
from tensorferry.serve.grpc.calls import Call, Listener, Run, Unary
from tensorferry.serve.grpc.heads import Head, write_first_block
from tensorferry.serve.grpc.infer import count_fields
from tensorferry.serve.grpc.infer_calls import StreamInfer, infer, parse
from tensorferry.serve.grpc.messages import Status
from tensorferry.serve.grpc.methods import Answer, Methods
from tensorferry.serve.grpc.streams import Stream

_SERVICE = "inference.GRPCInferenceService"
_OPEN = frozenset({"ServerLive", "ServerReady", "ModelReady"})  # answered without a key, for probes
_WITH_DATA = frozenset({"ModelInfer", "ModelStreamInfer", "RepositoryModelLoad"})  # messages of others are small
_CONTROL = frozenset(
    (
        *("RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings"),
        *(f"{kind}SharedMemory{what}" for kind in ("System", "Cuda") for what in ("Status", "Register", "Unregister")),
    )
)
_NOT_POST = write_first_block([(b":status", b"405"), (b"allow", b"POST")])
_NOT_GRPC = write_first_block([(b":status", b"415")])


class Service:
    """Answers gRPC calls out of the data plane."""

    def __init__(self, plane: DataPlane, access: Access, max_message_nbytes: int) -> None:
        self.access = access
        self.max_message_nbytes = max_message_nbytes
        self.max_control_nbytes = min(MAX_CONTROL_NBYTES, max_message_nbytes)
        probe = health.Health(plane, frozenset({"", _SERVICE, health.SERVICE}))
        runs: dict[str, Run] = {
            f"/{_SERVICE}/{name}": partial(_answer_later, kind, answer)
            for name, (kind, answer) in Methods(plane).list_methods().items()
        }
        runs[f"/{_SERVICE}/ModelInfer"] = partial(infer, plane)
        runs[f"/{health.SERVICE}/Check"] = probe.check
        runs[f"/{health.SERVICE}/Watch"] = probe.watch
        self.listeners: dict[str, Callable[[Call], Listener]] = {path: partial(Unary, run=run) for path, run in runs.items()}
        self.listeners[f"/{_SERVICE}/ModelStreamInfer"] = partial(StreamInfer, plane)
        self.data_paths = {f"/{_SERVICE}/{name}" for name in _WITH_DATA}
        self.control_paths = {f"/{_SERVICE}/{name}" for name in _CONTROL}
        self.open_paths = {f"/{_SERVICE}/{name}" for name in _OPEN} | {f"/{health.SERVICE}/{name}" for name in ("Check", "Watch")}

    def open(self, stream: Stream, head: Head) -> Call:
        """Begin a call, or end it at once."""
        call = Call(stream, head, self.max_message_nbytes if head.path in self.data_paths else self.max_control_nbytes)
        if head.method != "POST":
            call.refuse(_NOT_POST)
        elif not _is_grpc(head.content_type):
            call.refuse(_NOT_GRPC)
        else:
            try:
                call.start(self._find(head)(call))
            except Exception as error:
                call.fail(error)
        return call

    def refuse(self, stream: Stream, message: str) -> None:
        """End a call whose metadata are too large."""
        Call(stream, Head("", ""), 0).finish(Status.RESOURCE_EXHAUSTED, message)

    def _find(self, head: Head) -> Callable[[Call], Listener]:
        listener = self.listeners.get(head.path)
        if listener is None:
            raise Unsupported(f"this server has no method {head.path[:200]}")
        self.access.hosts.check(head.authority)
        if head.origin:  # a browser's, which can speak no gRPC but to what it takes for its own site
            self.access.hosts.check(head.origin.partition("://")[2])
        is_open = head.path in self.open_paths
        self.access.check(head.key, is_control=head.path in self.control_paths, needs_key=not is_open)
        return listener


def _is_grpc(content_type: str) -> bool:
    kind, _, _ = content_type.lower().partition(";")
    return kind.strip() == "application/grpc" or kind.startswith("application/grpc+")


def _answer_later(kind: Any, answer: Answer, call: Call, data: bytes) -> None:
    call.work = asyncio.get_running_loop().create_task(_answer(call, answer, kind, data))


async def _answer(call: Call, answer: Answer, kind: Any, data: bytes) -> None:
    try:
        if len(data) <= INLINE_NBYTES:
            request = parse(kind, data)
        else:
            count_fields(data)
            call.stream.charge.add(len(data))
            request = await asyncio.to_thread(parse, kind, data)
        message = await answer(request)
        call.reply(message.SerializeToString())
    except Exception as error:
        call.work = None  # it is this task, which ends by itself
        call.fail(error)
