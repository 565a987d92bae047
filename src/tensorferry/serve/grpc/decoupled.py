"""A request of ModelStreamInfer to a model that may answer it many times: its answers go as they come, beside those of others."""

import time
from typing import TYPE_CHECKING, Any

from tensorferry.serve.core.faults import RequestFault, as_fault
from tensorferry.serve.core.logs import log_request
from tensorferry.serve.core.requests import InferRequest, InferResponse
from tensorferry.serve.core.streaming import AnswerWriter
from tensorferry.serve.grpc.calls import Status, status_of
from tensorferry.serve.grpc.infer import write_response
from tensorferry.serve.proto import inference as pb

if TYPE_CHECKING:
    from tensorferry.serve.grpc.infer_calls import StreamInfer

FINAL = "triton_final_response"  # the parameter that tells the last answer from others
EMPTY_FINAL = "triton_enable_empty_final_response"  # the one with which a client asks for it where it has no outputs


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
