"""The two calls that infer: one request, or a stream of them that is answered in its order.

What is large is read and written in a thread: the event loop must not be busy for longer than others should wait.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from tensorferry.errors import FerryError
from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.faults import RequestFault, as_fault
from tensorferry.serve.core.limits import INLINE_NBYTES
from tensorferry.serve.core.logs import log_request
from tensorferry.serve.core.memory import SMALL_NBYTES, STREAM_NBYTES, Charge
from tensorferry.serve.core.requests import InferRequest, InferResponse
from tensorferry.serve.core.streaming import AnswerWriter
from tensorferry.serve.core.tensors import DTYPES
from tensorferry.serve.core.tracing import HEADER, TraceContext, read_trace
from tensorferry.serve.grpc.calls import Call, Cancellable, Status, parse, status_of
from tensorferry.serve.grpc.infer_messages import (
    ArrivedInputs,
    Outline,
    find_inputs,
    outline,
    read_request,
    write_response,
)
from tensorferry.serve.proto import inference as pb

FINAL = "triton_final_response"  # the parameter that tells the last answer from others
EMPTY_FINAL = "triton_enable_empty_final_response"  # the one with which a client asks for it where it has no outputs
_LOG = logging.getLogger("tensorferry.serve")
_MAX_AHEAD = 64  # requests of one stream that may be under way, or whose answers wait to be read
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


class StreamedInference(Inference):
    """One message of a stream, and its answer when it is there."""

    __slots__ = ("answer", "id", "model_name", "nbytes", "stream", "wants_empty_final")

    def __init__(self, stream: "StreamInfer", nbytes: int) -> None:
        self.plane = stream.plane
        self.charge = Charge(stream.call.stream.charge.budget, SMALL_NBYTES)
        self.trace = stream.trace
        self.work = None
        self.stream = stream
        self.nbytes = nbytes
        self.model_name = self.id = ""
        self.wants_empty_final = False
        self.answer: bytes | None = None

    def identify(self, message: Any) -> None:
        """Clients tell by the id which of their requests failed."""
        self.model_name, self.id = message.model_name, message.id
        self.wants_empty_final = EMPTY_FINAL in message.parameters and message.parameters[EMPTY_FINAL].bool_param

    def write(self, response: InferResponse) -> bytes:
        """The bytes of a ModelStreamInferResponse."""
        return _write_final(pb.ModelStreamInferResponse(infer_response=write_response(response)))

    def reply(self, message: bytes) -> None:
        """The answer waits for those before it."""
        self.answer = message
        self.stream.send()

    def _submit(self, request: InferRequest) -> None:
        if not self.plane.find(request.model_name, request.model_version).is_decoupled:
            super()._submit(request)
            return
        request.trace = self.trace
        DecoupledInference(self.stream, request, self.wants_empty_final)
        self.stream.leave(self)

    def fail(self, error: Exception) -> Status:
        """An error is the answer of this message alone, and the stream goes on."""
        if not isinstance(error, FerryError):
            _LOG.error("an error of the server itself", exc_info=error)
        response = pb.ModelStreamInferResponse(error_message=str(error))
        if self.model_name or self.id:
            response.infer_response.id = self.id
            response.infer_response.model_name = self.model_name
        self.reply(_write_final(response))
        return status_of(error)


class StreamInfer:
    """ModelStreamInfer: requests that wait are under way together, and so share batches.

    Models with one answer to a request answer in the order of the requests; those of others come as they are made.
    """

    __slots__ = ("call", "decoupled", "has_ended", "num_nbytes", "plane", "slots", "trace")

    is_unary = False

    def __init__(self, plane: DataPlane, call: Call) -> None:
        self.plane = plane
        self.call = call
        self.trace = read_trace(call.headers.traceparent) if call.headers.traceparent else None
        self.slots: deque[StreamedInference] = deque()
        self.decoupled: set[DecoupledInference] = set()
        self.num_nbytes = 0
        self.has_ended = False

    @property
    def wants_more(self) -> bool:
        """Whether there is room for another request; many clients write some before they read."""
        stream = self.call.stream
        num_ahead = len(self.slots) + len(self.decoupled) + len(stream.pending)
        return num_ahead < _MAX_AHEAD and self.num_nbytes + stream.num_pending_nbytes < self.call.reader.max_nbytes

    def take(self, message: bytes) -> None:
        """One request; what is wrong with it is its own answer, and the stream goes on."""
        slot = StreamedInference(self, len(message))
        self.slots.append(slot)
        self.num_nbytes += slot.nbytes
        try:
            slot.charge.add(STREAM_NBYTES + len(message))
            slot.start(message)
        except Exception as error:
            slot.fail(error)

    def end(self) -> None:
        """The client has said everything."""
        self.has_ended = True
        self.send()

    def cancel(self) -> None:
        """Nobody waits any more."""
        slots, self.slots = self.slots, deque()
        for slot in slots:
            slot.charge.close()
            slot.cancel()
        decoupled, self.decoupled = self.decoupled, set()
        for inference in decoupled:
            inference.cancel()

    def sent(self) -> None:
        """The client has read what waited for it: models may go on."""
        for inference in list(self.decoupled):
            inference.answers.read()

    def leave(self, slot: StreamedInference) -> None:
        """A request is answered beside the others."""
        self.slots.remove(slot)
        self.num_nbytes -= slot.nbytes
        slot.charge.release()
        self.send()

    def drain(self) -> None:
        """Where the server itself ends, the stream ends once nothing of it is under way."""
        if self.plane.is_draining:
            self.send()

    def send(self) -> None:
        """Send the answers whose turn it is."""
        while self.slots and (answer := self.slots[0].answer) is not None:
            slot = self.slots.popleft()
            self.num_nbytes -= slot.nbytes
            slot.charge.release()
            self.call.send(answer)
        if self.slots or self.decoupled:
            self.call.resume()
        elif self.has_ended:
            self.call.finish()
        elif self.plane.is_draining and self.call.stream.connection.is_ending and not self.call.num_missing:
            self.call.finish(Status.UNAVAILABLE, "the server is shutting down")
        else:
            self.call.resume()


class DecoupledInference(AnswerWriter):
    """One request on its way, from when it is read to its last answer."""

    def __init__(self, stream: "StreamInfer", request: InferRequest, wants_empty_final: bool) -> None:
        super().__init__(stream.plane, request, stream.call.stream.charge.budget)
        self.stream = stream
        self.request = request
        self.wants_empty_final = wants_empty_final
        self.started = time.perf_counter()
        self.answers.start()
        stream.decoupled.add(self)

    def is_binary(self, name: str) -> bool:
        """Outputs go raw."""
        _ = name
        return True

    def write(self, response: InferResponse, is_last: bool) -> bytes | RequestFault:
        """The bytes of a ModelStreamInferResponse."""
        try:
            return _mark(pb.ModelStreamInferResponse(infer_response=write_response(response)), is_last)
        except Exception as error:
            return as_fault(error)

    def send(self, answer: bytes | RequestFault | None, is_last: bool) -> None:
        """Send an answer, and leave the stream of requests after the last."""
        if isinstance(answer, RequestFault):
            message = pb.ModelStreamInferResponse(error_message=str(answer), infer_response=self._empty())
            self.stream.call.send(_mark(message, is_last))
        elif answer is not None:
            self.stream.call.send(answer)
        elif self.wants_empty_final:
            self.stream.call.send(_mark(pb.ModelStreamInferResponse(infer_response=self._empty()), True))
        if is_last:
            self._log(answer)
            self.stream.decoupled.discard(self)
            self.stream.send()
        elif not self.stream.call.stream.pending:
            self.answers.read()

    def _empty(self) -> Any:
        version = "" if self.answers.model is None else str(self.answers.model.version)
        return pb.ModelInferResponse(model_name=self.request.model_name, model_version=version, id=self.request.id)

    def _log(self, answer: bytes | RequestFault | None) -> None:
        if not self.stream.plane.settings.logs(self.request.model_name):
            return
        seconds = time.perf_counter() - self.started
        if isinstance(answer, RequestFault):
            log_request(self.request, answer, "grpc", status_of(answer).name, seconds, self.stream.trace)
        else:
            response = InferResponse(self.request.model_name, "", self.request.id)
            log_request(self.request, response, "grpc", Status.OK.name, seconds, self.stream.trace)


def _mark(message: Any, is_last: bool) -> bytes:
    message.infer_response.parameters[FINAL].bool_param = is_last
    data: bytes = message.SerializeToString()
    return data


def _write_final(response: Any) -> bytes:
    """A stream's answer; clients of models with many answers wait for the last one, and here the first is."""
    response.infer_response.parameters[FINAL].bool_param = True
    message: bytes = response.SerializeToString()
    return message


def _start_task(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    return asyncio.get_running_loop().create_task(work)


def _is_always(_: str) -> bool:
    return True
