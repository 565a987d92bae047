"""The two calls that infer: one request, or a stream of them that is answered in its order."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from tensorferry.errors import FerryError
from tensorferry.serve.dataplane import DataPlane
from tensorferry.serve.faults import InvalidRequest, RequestFault
from tensorferry.serve.logs import log_request
from tensorferry.serve.requests import InferRequest, InferResponse
from tensorferry.serve.rpc.calls import Call, Cancellable
from tensorferry.serve.rpc.infer import read_request, write_response
from tensorferry.serve.rpc.messages import Status, status_of
from tensorferry.serve.tracing import HEADER, TraceContext, read_trace

_LOG = logging.getLogger("tensorferry.serve")
_MAX_AHEAD = 64  # requests of one stream that may be under way, or whose answers wait to be read
Outcome = InferResponse | RequestFault


def parse(kind: Any, data: bytes) -> Any:
    """The message that bytes are; what is none is the client's fault."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidRequest(f"the bytes are not a {kind.DESCRIPTOR.name}") from None


def infer(plane: DataPlane, call: Call, data: bytes) -> None:
    """Answer ModelInfer."""
    request = read_request(parse(pb.ModelInferRequest, data), plane.regions)
    trace = read_trace(call.head.traceparent) if call.head.traceparent else None
    if trace is not None:
        call.trailers = ((HEADER.encode(), trace.header.encode()),)

    def answer(outcome: Outcome) -> Status:
        if isinstance(outcome, RequestFault):
            return call.fail(outcome)
        try:
            call.reply(write_response(outcome).SerializeToString())
        except Exception as error:
            return call.fail(error)
        return Status.OK

    call.work = _submit(plane, request, trace, answer)


def _submit(
    plane: DataPlane, request: InferRequest, trace: TraceContext | None, answer: Callable[[Outcome], Status]
) -> Cancellable:
    """Start an inference; it stands in the log when it is answered, where that is wanted."""
    settings = plane.settings
    if not settings.logs(request.model_name):
        return plane.submit(request, answer)
    started = time.perf_counter()

    def log(outcome: InferResponse | FerryError, status: Status) -> None:
        log_request(request, outcome, "grpc", status.name, time.perf_counter() - started, trace)

    try:
        return plane.submit(request, lambda outcome: log(outcome, answer(outcome)))
    except FerryError as error:
        log(error, status_of(error))
        raise


class StreamedRequest:
    """One request of a stream, and its answer when it is there."""

    __slots__ = ("answer", "nbytes", "work")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.work: Cancellable | None = None
        self.answer: bytes | None = None


class StreamInfer:
    """ModelStreamInfer: requests that wait are under way together, and so share batches."""

    __slots__ = ("call", "has_ended", "num_nbytes", "plane", "slots", "trace")

    is_unary = False

    def __init__(self, plane: DataPlane, call: Call) -> None:
        self.plane = plane
        self.call = call
        self.trace = read_trace(call.head.traceparent) if call.head.traceparent else None
        self.slots: deque[StreamedRequest] = deque()
        self.num_nbytes = 0
        self.has_ended = False

    @property
    def wants_more(self) -> bool:
        """Whether there is room for another request; many clients write some before they read."""
        stream = self.call.stream
        num_ahead = len(self.slots) + len(stream.pending)
        return num_ahead < _MAX_AHEAD and self.num_nbytes + stream.num_pending_nbytes < self.call.reader.max_nbytes

    def take(self, message: bytes) -> None:
        """One request; what is wrong with it is its own answer, and the stream goes on."""
        slot = StreamedRequest(len(message))
        self.slots.append(slot)
        self.num_nbytes += slot.nbytes
        parsed = None
        try:
            parsed = parse(pb.ModelInferRequest, message)
            name, identity = parsed.model_name, parsed.id
            request = read_request(parsed, self.plane.regions)
            slot.work = _submit(self.plane, request, self.trace, lambda outcome: self._answer(slot, outcome, name, identity))
        except Exception as error:
            self._fail(slot, error, *(("", "") if parsed is None else (parsed.model_name, parsed.id)))

    def end(self) -> None:
        """The client has said everything."""
        self.has_ended = True
        self._send()

    def cancel(self) -> None:
        """Nobody waits any more."""
        slots, self.slots = self.slots, deque()
        for slot in slots:
            if slot.work is not None:
                slot.work.cancel()
                slot.work = None

    def drain(self) -> None:
        """Where the server itself ends, the stream ends once nothing of it is under way."""
        if self.plane.is_draining:
            self._send()

    def _answer(self, slot: StreamedRequest, outcome: Outcome, name: str, identity: str) -> Status:
        if isinstance(outcome, RequestFault):
            return self._fail(slot, outcome, name, identity)
        try:
            response = pb.ModelStreamInferResponse(infer_response=write_response(outcome))
            self._fill(slot, response)
        except Exception as error:
            return self._fail(slot, error, name, identity)
        return Status.OK

    def _fail(self, slot: StreamedRequest, error: Exception, name: str, identity: str) -> Status:
        if not isinstance(error, FerryError):
            _LOG.error("an error of the server itself", exc_info=error)
        response = pb.ModelStreamInferResponse(error_message=str(error))
        if name or identity:  # clients tell by the id which of their requests failed
            response.infer_response.id = identity
            response.infer_response.model_name = name
        self._fill(slot, response)
        return status_of(error)

    def _fill(self, slot: StreamedRequest, response: Any) -> None:
        # clients of models with many answers wait for the last one; here the first is
        response.infer_response.parameters["triton_final_response"].bool_param = True
        slot.answer = response.SerializeToString()
        slot.work = None
        self._send()

    def _send(self) -> None:
        """Send the answers whose turn it is."""
        while self.slots and (answer := self.slots[0].answer) is not None:
            self.num_nbytes -= self.slots.popleft().nbytes
            self.call.send(answer)
        if self.slots:
            self.call.resume()
        elif self.has_ended:
            self.call.finish()
        elif self.plane.is_draining and not self.call.num_missing:
            self.call.finish(Status.UNAVAILABLE, "the server is shutting down")
        else:
            self.call.resume()
