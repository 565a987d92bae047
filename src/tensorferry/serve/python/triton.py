"""What files made for Triton know as `triton_python_backend_utils`, as far as it is about tensors on the CPU.

Names and behaviour are Triton's; what stands behind them is the context of `api.py`.
"""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tensorferry.serve.core.faults import (
    Conflict,
    InvalidRequest,
    ModelFault,
    NotFound,
    RequestFault,
    Unavailable,
    Unsupported,
)
from tensorferry.serve.python.api import Answer, Context, Request
from tensorferry.serve.python.wire import Array, datatype_of, dtype_of, to_array

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_GPU = 2


class TritonModelException(Exception):
    """What a model raises."""


class TritonError:
    """An error as a response carries it."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str = "", code: int = INTERNAL) -> None:
        self._message = message
        self._code = code

    def message(self) -> str:
        """The text."""
        return self._message

    def code(self) -> int:
        """One of the codes above."""
        return self._code

    def as_fault(self) -> RequestFault:
        """What the client is told."""
        return _FAULTS.get(self._code, ModelFault)(self._message)


_FAULTS: dict[int, type[RequestFault]] = {
    TritonError.NOT_FOUND: NotFound,
    TritonError.INVALID_ARG: InvalidRequest,
    TritonError.UNAVAILABLE: Unavailable,
    TritonError.UNSUPPORTED: Unsupported,
    TritonError.ALREADY_EXISTS: Conflict,
}


class Tensor:
    """A name and an array."""

    def __init__(self, name: str, array: Any) -> None:
        if not isinstance(array, np.ndarray):
            raise TritonModelException(f"tensor '{name}' needs a numpy array, received {type(array).__name__}")
        self._name = name
        self._array = to_array(array, datatype_of(array.dtype))

    def name(self) -> str:
        """Its name."""
        return self._name

    def as_numpy(self) -> Array:
        """Its array."""
        return self._array

    def shape(self) -> list[int]:
        """Its sizes."""
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """The number of its datatype in a configuration."""
        return numpy_to_triton_type(self._array.dtype)

    def is_cpu(self) -> bool:
        """Tensors are always in the memory of the process."""
        return True

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def to_dlpack(self) -> Any:
        """Its array for another library."""
        return self._array.__dlpack__()

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> "Tensor":
        """The tensor of another library, which must be in the memory of the process."""
        return Tensor(name, np.from_dlpack(tensor))


class InferenceResponse:
    """Outputs, or an error."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: Any = None, parameters: Any = None) -> None:
        self._tensors = list(output_tensors)
        self._error = TritonError(str(error)) if error is not None and not isinstance(error, TritonError) else error
        self._parameters = parameters or {}

    def output_tensors(self) -> list[Tensor]:
        """The outputs."""
        return self._tensors

    def has_error(self) -> bool:
        """Whether it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error, if it is one."""
        return self._error

    def parameters(self) -> str:
        """Its parameters as JSON; they stay in this process."""
        return json.dumps(self._parameters)

    def as_outcome(self) -> Any:
        """What the worker tells the server of it."""
        if self._error is not None:
            return self._error.as_fault()
        return {tensor.name(): tensor.as_numpy() for tensor in self._tensors}


class ResponseSender:
    """The way back to the client of one request, for any number of answers."""

    def __init__(self, answer: Answer, request: Request) -> None:
        self._answer = answer
        self.request = request
        self._is_over = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Tell an answer, the end, or both; waits while the client does not read."""
        if self._is_over:
            raise TritonModelException("the response sender is closed: its final response was sent")
        self._is_over = bool(flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        if response is None and not self._is_over:
            raise TritonModelException("a response is needed, except with TRITONSERVER_RESPONSE_COMPLETE_FINAL")
        self._answer(self.request, None if response is None else response.as_outcome(), self._is_over)

    def is_cancelled(self) -> bool:
        """Whether the client has gone."""
        return self.request.is_cancelled


class InferenceRequest:
    """A request that came, or one for another model."""

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str | bytes = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: Any = None,
        trace: Any = None,
        parameters: Any = None,
    ) -> None:
        _ = preferred_memory, trace  # everything is in the memory of the process, and traces are the server's
        self._id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._wanted = list(requested_output_names)
        self._model_name = model_name.decode() if isinstance(model_name, bytes) else str(model_name)
        self._model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._parameters = json.loads(parameters) if isinstance(parameters, str) else dict(parameters or {})
        self._sender: ResponseSender | None = None

    def inputs(self) -> list[Tensor]:
        """The inputs."""
        return self._inputs

    def request_id(self) -> str:
        """The client's name for it."""
        return self._id

    def correlation_id(self) -> int | str:
        """The sequence that it belongs to; 0: none."""
        return self._correlation_id

    def requested_output_names(self) -> list[str]:
        """The outputs that are wanted."""
        return self._wanted

    def model_name(self) -> str:
        """Which model it is for."""
        return self._model_name

    def model_version(self) -> int:
        """Which version of it; -1: the newest."""
        return self._model_version

    def flags(self) -> int:
        """Whether it begins or ends a sequence."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Say whether it begins or ends a sequence."""
        self._flags = flags

    def set_release_flags(self, flags: int) -> None:
        """Say whether the model wants to see it again, which needs an `iterative_sequence`."""
        if flags not in (TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException(f"unknown release flags {flags}")
        if self._sender is None:
            raise TritonModelException("only a request that came from a client can be rescheduled")
        self._sender.request.comes_again = flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE

    def timeout(self) -> int:
        """How many microseconds it may wait."""
        return self._timeout

    def parameters(self) -> str:
        """Its parameters as JSON."""
        return json.dumps(self._parameters)

    def is_cancelled(self) -> bool:
        """Whether the client has gone."""
        return self._sender is not None and self._sender.is_cancelled()

    def get_response_sender(self) -> ResponseSender:
        """The way to answer it in several parts."""
        if self._sender is None:
            raise TritonModelException("only a request that came from a client has a response sender")
        return self._sender

    def exec(self, decoupled: bool = False) -> Any:
        """What the other model answers: a response, or an iterator of them from a model that streams."""
        return self._exec_all() if decoupled else self._exec_one()

    async def async_exec(self, decoupled: bool = False) -> Any:
        """The same, beside others."""
        return await asyncio.to_thread(self.exec, decoupled)

    def _exec_one(self) -> InferenceResponse:
        try:
            return self._wrap(_context().infer(self._model_name, self._arrays(), **self._options()))
        except RequestFault as fault:
            return InferenceResponse(error=TritonError(str(fault), _code_of(fault)))

    def _exec_all(self) -> Iterator[InferenceResponse]:
        try:
            for outputs in _context().stream(self._model_name, self._arrays(), **self._options()):
                yield self._wrap(outputs)
        except RequestFault as fault:
            yield InferenceResponse(error=TritonError(str(fault), _code_of(fault)))

    def _arrays(self) -> dict[str, Array]:
        return {tensor.name(): tensor.as_numpy() for tensor in self._inputs}

    def _options(self) -> dict[str, Any]:
        return {
            "version": str(self._model_version) if self._model_version > 0 else "",
            "id": self._id,
            "parameters": self._parameters,
            "timeout_microseconds": self._timeout,
            "sequence_id": self._correlation_id,
            "sequence_start": bool(self._flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
            "sequence_end": bool(self._flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
        }

    def _wrap(self, outputs: dict[str, Array]) -> InferenceResponse:
        missing = [name for name in self._wanted if name not in outputs]
        if missing:
            return InferenceResponse(error=TritonError(f"model '{self._model_name}' has no output {missing[0]!r}"))
        return InferenceResponse([Tensor(name, outputs[name]) for name in self._wanted or outputs])


class PreferredMemory:
    """Where outputs should be; here they are always in the memory of the process."""

    def __init__(self, memory_type: int, memory_id: int = 0) -> None:
        _ = memory_type, memory_id


class Logger:
    """Lines for the server's log."""

    @staticmethod
    def log(message: str, level: int = 0) -> None:
        """One line."""
        _ = level
        print(message, file=sys.stderr, flush=True)

    INFO = WARNING = ERROR = VERBOSE = 0
    log_info = log_warn = log_error = log_verbose = log


class MetricFamily:
    """Metrics of a model's own, which this server does not have."""

    COUNTER, GAUGE, HISTOGRAM = range(3)

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TritonModelException("this server has no metrics of a model's own (pb_utils.MetricFamily)")


class ModelConfig:
    """A configuration that `auto_complete_config` fills in."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def as_dict(self) -> dict[str, Any]:
        """All of it."""
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """The most rows of a batch, where the configuration does not say it."""
        self._config["max_batch_size"] = self._config.get("max_batch_size") or max_batch_size

    def set_dynamic_batching(self) -> None:
        """Requests share batches, unless another way to batch is configured."""
        if not self._config.get("sequence_batching"):
            self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, policy: dict[str, Any]) -> None:
        """Whether there may be many answers to a request."""
        self._config.setdefault("model_transaction_policy", dict(policy))

    def add_input(self, tensor: dict[str, Any]) -> None:
        """An input, where the configuration does not have it."""
        self._add("input", tensor)

    def add_output(self, tensor: dict[str, Any]) -> None:
        """An output, where the configuration does not have it."""
        self._add("output", tensor)

    def _add(self, word: str, tensor: dict[str, Any]) -> None:
        listed = self._config.setdefault(word, [])
        if all(each["name"] != tensor["name"] for each in listed):
            listed.append(dict(tensor))


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """An input; None where it did not come."""
    return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """An output; None where there is none of that name."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """What a configuration says of an input."""
    return next((tensor for tensor in model_config.get("input", []) if tensor["name"] == name), None)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """What a configuration says of an output."""
    return next((tensor for tensor in model_config.get("output", []) if tensor["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Whether there may be many answers to a request."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


# in the order of a configuration's numbers
_NUMBERS = (
    *("", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BYTES", "BF16"),
)


def triton_to_numpy_type(data_type: int) -> Any:
    """numpy's type for the number of a datatype in a configuration."""
    return dtype_of(_NUMBERS[data_type]).type


def numpy_to_triton_type(data_type: Any) -> int:
    """The number of numpy's type in a configuration."""
    return _NUMBERS.index(datatype_of(np.dtype(data_type)))


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """numpy's type for a datatype of a configuration, such as TYPE_FP32."""
    word = triton_type_string.removeprefix("TYPE_")
    return dtype_of("BYTES" if word == "STRING" else word).type


_current: Context | None = None


def set_context(context: Context) -> None:
    """The way to other models, for requests that are not bound to one that came."""
    global _current
    _current = context


def _context() -> Context:
    assert _current is not None
    return _current


def _code_of(fault: RequestFault) -> int:
    return next((code for code, kind in _FAULTS.items() if isinstance(fault, kind)), TritonError.INTERNAL)


def wrap_request(answer: Answer, request: Request, outputs: Sequence[str], model_name: str, version: int) -> InferenceRequest:
    """A request that came, as Triton's files know it."""
    flags = (request.sequence_start and TRITONSERVER_REQUEST_FLAG_SEQUENCE_START) | (
        request.sequence_end and TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
    )
    wrapped = InferenceRequest(
        request.id,
        request.sequence_id,
        [Tensor(name, array) for name, array in request.inputs.items()],
        outputs,
        model_name,
        version,
        int(flags),
        request.timeout_microseconds,
        parameters=request.parameters,
    )
    wrapped._sender = ResponseSender(answer, request)
    return wrapped
