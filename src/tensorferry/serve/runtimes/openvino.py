"""OpenVINO IR files. All runners share one compiled model; each has an infer request of its own."""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import openvino as ov

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.tensors import DTYPES, Array
from tensorferry.serve.runtimes.runtime import LoadOptions, Signature, TensorSignature, in_one_line
from tensorferry.serve.runtimes.table import BACKENDS, OWN_PARAMETERS
from tensorferry.units import format_bytes

_MAX_TEXT_NBYTES = 64 * 2**20
_COUNT = re.compile(r"\d{1,9}|-[12]|AUTO|NUMA", re.ASCII)  # the negative numbers are words of OpenVINO as well
_MAX_COUNTS = {"INFERENCE_NUM_THREADS": 1024, "NUM_STREAMS": 256, "PERFORMANCE_HINT_NUM_REQUESTS": 1024}
_DATATYPES = {
    "boolean": "BOOL",
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "u64": "UINT64",
    "i8": "INT8",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "f16": "FP16",
    "bf16": "BF16",
    "f32": "FP32",
    "f64": "FP64",
    "string": "BYTES",
}


def load(options: LoadOptions) -> "OpenvinoRuntime":
    """The compiled model of an IR file."""
    return OpenvinoRuntime(options)


class OpenvinoRuntime:
    """One compiled model for all runners."""

    def __init__(self, options: LoadOptions) -> None:
        settings = {"INFERENCE_NUM_THREADS": str(options.num_threads), "NUM_STREAMS": "1"}
        settings |= _read_properties(options)
        if not options.trust:
            _check_kind(options.path)
        device = "CPU" if options.device == "cpu" else f"GPU.{options.device_id}"
        try:
            self.compiled = open_core().compile_model(str(options.path), device, settings)
        except RuntimeError as error:
            raise BadModel(f"OpenVINO cannot load {options.path.name}: {in_one_line(error)}") from None
        self.signature = Signature(_read(self.compiled.inputs), _read(self.compiled.outputs))

    def new_runner(self) -> "OpenvinoRunner":
        """One more infer request."""
        return OpenvinoRunner(self.compiled)

    def close(self) -> None:
        """Drop the compiled model; its weights go with its last runner."""
        del self.compiled


class OpenvinoRunner:
    """Runs one infer request."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self.request = compiled.create_infer_request()
        self.outputs = {_name(port): index for index, port in enumerate(compiled.outputs)}
        self.names = [_name(port) for port in compiled.inputs]

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """The named outputs, copied: the request writes over its own at the next run."""
        try:
            for index, name in enumerate(self.names):
                self.request.set_input_tensor(index, _to_tensor(inputs[name], name))
            self.request.infer()
            return [_from_tensor(self.request.get_output_tensor(self.outputs[name])) for name in outputs]
        except RuntimeError as error:
            raise InvalidRequest(f"the model cannot run these inputs: {in_one_line(error)}") from None

    def close(self) -> None:
        """Drop the infer request."""
        del self.request


@functools.cache
def open_core() -> ov.Core:
    """One for all models, open as long as the process.

    A core gives the thread that first uses it a stack for signals. When it goes in another thread, or before a younger core,
    that stack is unmapped but still in use: the next SIGTERM or Ctrl-C would end the process with a segmentation fault.
    """
    return ov.Core()


def _check_kind(path: Path) -> None:
    # OpenVINO takes files of other frameworks as well, with rules of its own about what they may reach
    try:
        with open(path, "rb") as file:
            is_xml = file.read(64).lstrip().startswith(b"<")
    except OSError as error:
        raise BadModel(f"OpenVINO cannot load {path.name}: {error.strerror}") from None
    if not is_xml:
        raise BadModel(f"OpenVINO cannot load {path.name}: it is not XML; a file of another framework needs --trust")


def _read_properties(options: LoadOptions) -> dict[str, str]:
    found = {key: value for key, value in options.parameters.items() if key not in OWN_PARAMETERS}
    unknown = found.keys() - BACKENDS["openvino"].parameters
    if unknown and not options.trust:
        raise BadModel(
            f"the configuration sets {', '.join(sorted(unknown))}, which may reach files; add --trust to load it all the same"
        )
    for name in found.keys() & _MAX_COUNTS.keys():
        if not _COUNT.fullmatch(found[name]) or (found[name].isdecimal() and int(found[name]) > _MAX_COUNTS[name]):
            raise BadModel(f"the parameter '{name}' is {found[name][:40]!r}; expected a number of at most {_MAX_COUNTS[name]}")
    return found


def _read(ports: Sequence[ov.ConstOutput]) -> tuple[TensorSignature, ...]:
    found = []
    for port in ports:
        datatype = _DATATYPES.get(port.get_element_type().get_type_name())
        if datatype is None:
            raise BadModel(f"'{_name(port)}' holds {port.get_element_type().get_type_name()}, which the protocol does not have")
        shape = port.get_partial_shape()
        has_rank = not shape.rank.is_dynamic
        sizes = tuple(-1 if size.is_dynamic else size.get_length() for size in shape) if has_rank else ()
        found.append(TensorSignature(_name(port), datatype, sizes, has_rank))
    return tuple(found)


def _name(port: ov.ConstOutput) -> str:
    # a port may have several names or none; the first in order is the same in every run
    return min(port.get_names(), default=port.get_node().get_friendly_name())


def _to_tensor(array: Array, name: str) -> ov.Tensor:
    if array.dtype.hasobject:
        if any(element.endswith(b"\0") for element in array.flat):
            # text goes through arrays of fixed width, which drop zeros at the end
            raise InvalidRequest(f"input '{name}' holds text that ends with a zero byte, which OpenVINO would lose")
        widest_nbytes = max((len(element) for element in array.flat), default=0)
        if array.size * widest_nbytes > _MAX_TEXT_NBYTES:  # every element would be as wide as the widest
            raise InvalidRequest(
                f"input '{name}' holds {array.size:,} texts of up to {format_bytes(widest_nbytes)}; OpenVINO needs "
                f"{format_bytes(array.size * widest_nbytes)} for them, and at most {format_bytes(_MAX_TEXT_NBYTES)} are taken"
            )
        return ov.Tensor(np.array(array, dtype=np.bytes_))
    if array.dtype == DTYPES["BF16"]:
        return ov.Tensor(np.ascontiguousarray(array).view(np.uint16), ov.Shape(array.shape), ov.Type.bf16)
    return ov.Tensor(np.require(array, requirements=["C", "W"]), shared_memory=True)


def _from_tensor(tensor: ov.Tensor) -> Array:
    kind = tensor.get_element_type().get_type_name()
    if kind == "string":
        return tensor.bytes_data.astype(np.object_)
    if kind == "bf16":
        return tensor.data.view(DTYPES["BF16"]).copy()
    return tensor.data.copy()
