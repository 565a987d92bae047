"""The call that takes a stream of inferences, answered in the order of the requests, or as a model makes the answers."""

import logging
import time
from collections import deque
from typing import Any

from tensorferry.errors import FerryError
from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.faults import RequestFault, as_fault
from tensorferry.serve.core.logs import log_request
from tensorferry.serve.core.memory import SMALL_NBYTES, STREAM_NBYTES, Charge
from tensorferry.serve.core.requests import InferRequest, InferResponse
from tensorferry.serve.core.streaming import AnswerWriter
from tensorferry.serve.core.tracing import read_trace
from tensorferry.serve.grpc.calls import Call
from tensorferry.serve.grpc.infer_messages import write_response
from tensorferry.serve.grpc.inference import Inference
from tensorferry.serve.grpc.messages import Status, status_of
from tensorferry.serve.proto import inference as pb

FINAL = "triton_final_response"  # the parameter that tells the last answer from others
EMPTY_FINAL = "triton_enable_empty_final_response"  # the one with which a client asks for it where it has no outputs
_MAX_AHEAD = 64  # requests of one stream that may be under way, or whose answers wait to be read
_LOG = logging.getLogger("tensorferry.serve")


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
