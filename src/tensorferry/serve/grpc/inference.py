"""The call that infers, and what it has in common with a stream of them.

What is large is read and written in a thread: the event loop must not be busy for longer than others should wait.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from tensorferry.errors import FerryError
from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.faults import RequestFault
from tensorferry.serve.core.limits import INLINE_NBYTES
from tensorferry.serve.core.logs import log_request
from tensorferry.serve.core.memory import Charge
from tensorferry.serve.core.requests import InferRequest, InferResponse
from tensorferry.serve.core.tensors import DTYPES
from tensorferry.serve.core.tracing import HEADER, TraceContext, read_trace
from tensorferry.serve.grpc.calls import Call, Cancellable
from tensorferry.serve.grpc.infer_messages import (
    ArrivedInputs,
    Outline,
    find_inputs,
    outline,
    read_request,
    write_response,
)
from tensorferry.serve.grpc.messages import Status, parse, status_of
from tensorferry.serve.proto import inference as pb

_LOG = logging.getLogger("tensorferry.serve")
Outcome = InferResponse | RequestFault


def infer(plane: DataPlane, call: Call, data: bytes) -> None:
    """Answer ModelInfer."""
    trace = read_trace(call.headers.traceparent) if call.headers.traceparent else None
    if trace is not None:
        call.trailers = ((HEADER.encode(), trace.header.encode()),)
    inference = UnaryInference(plane, call, trace)
    call.work = inference
    inference.start(data)


class Inference:
    """One message that asks for an inference, from its bytes to those of its answer."""

    __slots__ = ("charge", "plane", "started", "trace", "work")

    plane: DataPlane
    charge: Charge
    trace: TraceContext | None
    work: Cancellable | None  # the ticket of the data plane, or a task that reads or writes
    started: float

    def start(self, data: bytes) -> None:
        """Read the request and submit it; raises what is wrong with it, where it is found at once."""
        found = outline(data) if len(data) > INLINE_NBYTES else None
        if found is not None:
            self.plane.find(found.model_name, found.model_version)  # before much is read for a model that is not there
            if not found.is_quick_to_read:
                self.work = _start_task(self._parse_and_submit(data, found))
                return
        message, arrived = self._read(data)
        if not arrived.is_quick_to_read:
            self._check(message, arrived)
            self.work = _start_task(self._read_and_submit(message, arrived))
            return
        self._submit(read_request(message, arrived, self.plane.regions, self.charge))

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        work, self.work = self.work, None
        if work is not None:
            work.cancel()

    def identify(self, message: Any) -> None:
        """Note what the parsed message says of itself."""

    def write(self, response: InferResponse) -> bytes:
        """The bytes of an answer."""
        raise NotImplementedError

    def reply(self, message: bytes) -> None:
        """Answer with these bytes."""
        raise NotImplementedError

    def fail(self, error: Exception) -> Status:
        """Answer with an error."""
        raise NotImplementedError

    def _read(self, data: bytes) -> tuple[Any, ArrivedInputs]:
        message = parse(pb.ModelInferRequest, data)
        self.identify(message)
        return message, find_inputs(message)

    def _check(self, message: Any, arrived: ArrivedInputs) -> None:
        """Raise what is wrong with a request before its inputs are read from shared memory."""
        spec = self.plane.find(message.model_name, message.model_version).spec
        for each in arrived.inputs:
            spec.check_input(each.name, DTYPES[each.datatype], each.shape)

    async def _parse_and_submit(self, data: bytes, found: Outline) -> None:
        def read() -> InferRequest:
            self.charge.add(found.parsed_nbytes)
            message, arrived = self._read(data)
            if not arrived.is_quick_to_read:
                self._check(message, arrived)
            request = read_request(message, arrived, self.plane.regions, self.charge)
            self.charge.add(-found.parsed_nbytes)
            return request

        await self._submit_from(read)

    async def _read_and_submit(self, message: Any, arrived: ArrivedInputs) -> None:
        await self._submit_from(lambda: read_request(message, arrived, self.plane.regions, self.charge))

    async def _submit_from(self, read: Callable[[], InferRequest]) -> None:
        """Submit what is read in a thread."""
        try:
            self._submit(await asyncio.to_thread(read))
        except Exception as error:
            self.work = None  # it is this task, which ends by itself
            self.fail(error)

    def _submit(self, request: InferRequest) -> None:
        """Start it; it stands in the log when it is answered, where that is wanted."""
        request.trace = self.trace
        if not self.plane.settings.logs(request.model_name):
            self.work = self.plane.submit(request, self._answer)
            return
        self.started = time.perf_counter()
        try:
            self.work = self.plane.submit(request, lambda outcome: self._answer(outcome, request))
        except FerryError as error:
            self._log(request, error, status_of(error))
            raise

    def _answer(self, outcome: Outcome, logged: InferRequest | None = None) -> None:
        if isinstance(outcome, InferResponse) and not outcome.is_quick_to_write(_is_always):
            self.work = _start_task(self._answer_later(outcome, logged))
            return
        self.work = None
        status = Status.OK
        try:
            if isinstance(outcome, RequestFault):
                status = self.fail(outcome)
            else:
                self.reply(self.write(outcome))
        except Exception as error:
            status = self.fail(error)
        if logged is not None:
            self._log(logged, outcome, status)

    async def _answer_later(self, response: InferResponse, logged: InferRequest | None) -> None:
        status = Status.OK
        try:
            message = await asyncio.to_thread(self.write, response)
            self.work = None  # it is this task, which ends by itself
            self.reply(message)
        except Exception as error:
            self.work = None
            status = self.fail(error)
        if logged is not None:
            self._log(logged, response, status)

    def _log(self, request: InferRequest, outcome: InferResponse | FerryError, status: Status) -> None:
        log_request(request, outcome, "grpc", status.name, time.perf_counter() - self.started, self.trace)


class UnaryInference(Inference):
    """The message of a call of ModelInfer."""

    __slots__ = ("call",)

    def __init__(self, plane: DataPlane, call: Call, trace: TraceContext | None) -> None:
        self.plane = plane
        self.charge = call.stream.charge
        self.trace = trace
        self.work = None
        self.call = call

    def write(self, response: InferResponse) -> bytes:
        """The bytes of a ModelInferResponse."""
        message: bytes = write_response(response).SerializeToString()
        return message

    def reply(self, message: bytes) -> None:
        """The one answer of the call."""
        self.call.reply(message)

    def fail(self, error: Exception) -> Status:
        """The call's status."""
        return self.call.fail(error)


def _start_task(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    return asyncio.get_running_loop().create_task(work)


def _is_always(_: str) -> bool:
    return True
