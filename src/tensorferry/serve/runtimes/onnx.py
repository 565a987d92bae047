"""ONNX files in onnxruntime. All runners share one session: it may be called from many threads at once."""

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.tensors import DTYPES, Array
from tensorferry.serve.runtimes.runtime import LoadOptions, Signature, TensorSignature, in_one_line

_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}
_MAX_THREADS = 1024  # no machine has more cores for one model, and thousands take minutes to start
_ONNX_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16


def load(options: LoadOptions) -> "OnnxRuntime":
    """The session of an ONNX file."""
    return OnnxRuntime(options)


class OnnxRuntime:
    """One session for all runners."""

    def __init__(self, options: LoadOptions) -> None:
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = _read_num_threads(options, "intra_op_thread_count", options.num_threads)
        settings.inter_op_num_threads = _read_num_threads(options, "inter_op_thread_count", 1)
        settings.log_severity_level = 4  # what goes wrong is raised; logged as well it would be said twice
        # idle threads that spin would take the cores from other models
        settings.add_session_config_entry(
            "session.intra_op.allow_spinning", options.parameters.get("session.intra_op.allow_spinning", "0")
        )
        providers: list[str | tuple[str, dict[str, int]]] = ["CPUExecutionProvider"]
        if options.device == "gpu":
            if "CUDAExecutionProvider" not in ort.get_available_providers():
                raise BadModel(
                    "the model wants a GPU, and this onnxruntime has no CUDAExecutionProvider; install onnxruntime-gpu"
                )
            providers.insert(0, ("CUDAExecutionProvider", {"device_id": options.device_id}))
            if options.parameters.get("gpu_execution_accelerator") == "tensorrt":
                providers.insert(0, ("TensorrtExecutionProvider", {"device_id": options.device_id}))
        try:
            self.session = ort.InferenceSession(str(options.path), settings, providers=providers)
        except Exception as error:  # onnxruntime has one class for each status, none with a common root of its own
            raise BadModel(f"onnxruntime cannot load {options.path.name}: {in_one_line(error)}") from None
        self.signature = Signature(_read(self.session.get_inputs()), _read(self.session.get_outputs()))

    def new_runner(self) -> "OnnxRunner":
        """One more runner on the same session."""
        if "BF16" in {tensor.datatype for tensor in self.signature.inputs + self.signature.outputs}:
            return Bfloat16Runner(self.session, self.signature)
        return OnnxRunner(self.session, self.signature)

    def close(self) -> None:
        """Drop the session; its weights go with its last runner."""
        del self.session


class OnnxRunner:
    """Runs the session on numpy arrays."""

    def __init__(self, session: ort.InferenceSession, signature: Signature) -> None:
        self.session = session
        self.text_inputs = [tensor.name for tensor in signature.inputs if tensor.datatype == "BYTES"]
        self.has_text_outputs = any(tensor.datatype == "BYTES" for tensor in signature.outputs)

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """The named outputs."""
        if self.text_inputs:
            inputs = {name: _decode(array, name) if name in self.text_inputs else array for name, array in inputs.items()}
        try:
            results = self.session.run(outputs, inputs)
        except Exception as error:  # the session loaded and warmed up: a kernel that fails now fails on these inputs
            raise InvalidRequest(f"the model cannot run these inputs: {in_one_line(error)}") from None
        return [_encode(result) for result in results] if self.has_text_outputs else results

    def close(self) -> None:
        """Drop the session."""
        del self.session


class Bfloat16Runner(OnnxRunner):
    """The same where bfloat16 takes part, for which onnxruntime has no numpy arrays."""

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """The named outputs."""
        try:
            values = {name: _to_value(_decode(array, name) if array.dtype.hasobject else array) for name, array in inputs.items()}
            results = self.session.run_with_ort_values(outputs, values)
        except InvalidRequest:
            raise
        except Exception as error:
            raise InvalidRequest(f"the model cannot run these inputs: {in_one_line(error)}") from None
        return [_encode(_from_value(result)) for result in results]


def _read(tensors: Sequence[ort.NodeArg]) -> tuple[TensorSignature, ...]:
    found = []
    for tensor in tensors:
        datatype = _DATATYPES.get(tensor.type)
        if datatype is None:
            raise BadModel(f"'{tensor.name}' is a {tensor.type}; only tensors can be served (export without ZipMap, for example)")
        shape = tuple(size if isinstance(size, int) else -1 for size in tensor.shape or ())
        found.append(TensorSignature(tensor.name, datatype, shape, has_rank=tensor.shape is not None))
    return tuple(found)


def _decode(array: Array, name: str) -> Array:
    # onnxruntime would take bytes, but write their Python repr into the tensor
    try:
        texts = [element.decode() for element in array.reshape(-1).tolist()]
    except UnicodeDecodeError:
        raise InvalidRequest(f"input '{name}' holds bytes that are not UTF-8 text, which is what ONNX strings are") from None
    result = np.empty(len(texts), np.object_)
    result[:] = texts
    return result.reshape(array.shape)


def _encode(array: Array) -> Array:
    if not array.dtype.hasobject:
        return array
    result = np.empty(array.size, np.object_)
    result[:] = [text.encode() for text in array.reshape(-1).tolist()]
    return result.reshape(array.shape)


def _to_value(array: Array) -> ort.OrtValue:
    if array.dtype == DTYPES["BF16"]:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array).view(np.uint16), _ONNX_BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _from_value(value: ort.OrtValue) -> Array:
    if value.element_type() != _ONNX_BFLOAT16:
        return value.numpy()
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(data, DTYPES["BF16"]).reshape(value.shape())


def _read_num_threads(options: LoadOptions, name: str, default: int) -> int:
    text = options.parameters.get(name, str(default))
    if not text.isdecimal() or int(text) > _MAX_THREADS:
        raise BadModel(f"the parameter '{name}' is {text[:40]!r}; expected a whole number of at most {_MAX_THREADS} threads")
    return int(text)
