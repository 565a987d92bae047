"""An inference as REST carries it: JSON, with tensors inside it or as bytes behind it."""

import base64
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from tensorferry.serve.core.faults import InvalidRequest, TooLarge
from tensorferry.serve.core.limits import INLINE_NBYTES, INLINE_RAW_NBYTES, MAX_JSON_VALUES
from tensorferry.serve.core.memory import Charge
from tensorferry.serve.core.requests import (
    InferRequest,
    InferResponse,
    OutputTensor,
    RegionSlice,
    RequestOptions,
    WantedOutput,
    read_options,
)
from tensorferry.serve.core.shared_memory import Regions
from tensorferry.serve.core.spec import ModelSpec
from tensorferry.serve.core.tensors import (
    DTYPES,
    Array,
    check_datatype,
    check_shape,
    decode_bytes,
    decode_json,
    encode_bytes,
    encode_json,
)

_MAX_INT64 = 2**63 - 1
_MAX_NUM_DIGITS = 18  # of a length
_MAX_KNOWN_NBYTES = 1024  # longer JSON is not remembered
_COUNT_NBYTES = 2**20  # of JSON, in which values are counted at a time
_NOTHING: dict[str, Any] = {}
_NO_BYTES = memoryview(b"")


@dataclass(frozen=True, slots=True)
class OutputForms:
    """How the outputs are to be sent: as bytes or within the JSON."""

    by_default: bool
    by_name: dict[str, bool]

    def is_binary(self, name: str) -> bool:
        """Whether an output goes as bytes."""
        return self.by_name.get(name, self.by_default)


_ALL_BINARY = OutputForms(True, {})
_ALL_JSON = OutputForms(False, {})


@dataclass(frozen=True, slots=True)
class InputLayout:
    """One input, and where its elements are: behind the JSON, in shared memory or in the JSON itself."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    begin: int = 0
    end: int | None = None
    place: RegionSlice | None = None
    data: Any = None

    def read(self, rest: memoryview, regions: Regions) -> Array:
        """Its array; `rest` is what follows the JSON."""
        if self.end is not None:
            if self.end > len(rest):
                needed, left = self.end - self.begin, max(0, len(rest) - self.begin)
                raise InvalidRequest(f"input '{self.name}' needs {needed} bytes behind the JSON, {left} are left")
            return decode_bytes(self.datatype, self.shape, rest[self.begin : self.end], self.name)
        if self.place is not None:
            return decode_bytes(self.datatype, self.shape, regions.read(self.place), self.name)
        return decode_json(self.datatype, self.shape, self.data, self.name)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the JSON of a request says."""

    inputs: tuple[InputLayout, ...]
    nbytes: int  # that follow it
    wanted: tuple[WantedOutput, ...]
    forms: OutputForms
    id: str
    options: RequestOptions


def read_json(data: bytes) -> dict[str, Any]:
    """The JSON object in a body; an empty body is an empty object."""
    if not data:
        return {}
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"failed to parse the request JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidRequest("the request JSON must be an object")
    return found


def read_load(body: bytes, charge: Charge) -> tuple[str, dict[str, bytes]]:
    """The configuration and the files that come with a request to load a model; for a thread."""
    charge.add(check_json(body))  # its files among them, which are shorter than their base64
    parameters = read_json(body).get("parameters", {})
    if not isinstance(parameters, dict) or not all(isinstance(value, str) for value in parameters.values()):
        raise InvalidRequest("the parameters of a load must be texts: 'config', and 'file:...' in base64")
    try:
        files = {key: base64.b64decode(value, validate=True) for key, value in parameters.items() if key.startswith("file:")}
    except ValueError as error:
        raise InvalidRequest(f"a file of the load is not base64: {error}") from None
    return parameters.get("config", ""), files


def is_quick_to_read(body: bytes, header_length: str) -> bool:
    """Whether a body takes no longer to read than the event loop may be busy: numbers behind the JSON are hardly looked at."""
    if len(body) <= INLINE_NBYTES or header_length == "0":
        return len(body) <= INLINE_RAW_NBYTES
    length = _read_length(header_length) if header_length else None
    if length is None or length > INLINE_NBYTES or len(body) > INLINE_RAW_NBYTES:
        return False
    head = body[:length]
    return b"BYTES" not in head and b"\\" not in head  # which could write it in another way


def read_request(
    name: str, version: str, body: bytes, header_length: str, regions: Regions, charge: Charge | None = None
) -> tuple[InferRequest, OutputForms]:
    """The request of a body whose JSON is `header_length` bytes long (all of it, where that is empty)."""
    head, rest = body, _NO_BYTES
    if header_length:
        length = _read_length(header_length)
        if length is None or length > len(body):
            raise InvalidRequest(
                f"the Inference-Header-Content-Length {header_length[:20]!r} does not fit a body of {len(body)} bytes"
            )
        head, rest = body[:length], memoryview(body)[length:]
    is_short = header_length and len(head) <= _MAX_KNOWN_NBYTES
    nbytes = 0
    if charge is not None and len(head) > INLINE_NBYTES:
        nbytes = check_json(head)
        charge.add(nbytes)
    layout = _read_known_layout(head) if is_short else _read_layout(head)
    inputs = {tensor.name: tensor.read(rest, regions) for tensor in layout.inputs}
    if nbytes and charge is not None:
        charge.add(-nbytes)
    if layout.nbytes != len(rest):
        raise InvalidRequest(f"{len(rest) - layout.nbytes} bytes are left after the last binary input")
    return InferRequest(name, version, inputs, layout.wanted, layout.id, layout.options, charge), layout.forms


def check_json(text: bytes) -> int:
    """The memory that JSON takes at most as objects of Python and as arrays beside them; raises TooLarge for too many values."""
    num_values = num_nbytes = 0
    for begin in range(0, len(text), _COUNT_NBYTES):
        part = begin, begin + _COUNT_NBYTES
        numbers, texts = text.count(b",", *part), text.count(b'"', *part) // 2
        lists, objects, keys = text.count(b"[", *part), text.count(b"{", *part), text.count(b":", *part)
        num_values += numbers + texts + 3 * lists + 8 * objects + 6 * keys
        num_nbytes += 48 * numbers + 64 * texts + 96 * lists + 320 * objects + 96 * keys
        if num_values > MAX_JSON_VALUES:
            raise TooLarge(f"the JSON holds more than {MAX_JSON_VALUES} values; send tensors as binary data behind it")
    return len(text) + num_nbytes


def read_raw_request(
    name: str, version: str, body: bytes, spec: ModelSpec, charge: Charge | None = None
) -> tuple[InferRequest, OutputForms]:
    """The request of a body that is one row of a model's only input and nothing else; outputs go back as bytes.

    A size that the model leaves open is what the number of bytes makes it; a text is the whole body.
    """
    if len(spec.inputs) != 1:
        raise InvalidRequest(
            f"an Inference-Header-Content-Length of 0 sends the only input of a model, and '{name}' has {len(spec.inputs)}; "
            "name them in JSON before their bytes"
        )
    (tensor,) = spec.inputs
    sizes = (1, *tensor.shape[1:]) if spec.is_batched else tensor.shape
    num_known = math.prod(size for size in sizes if size != -1)
    if tensor.datatype == "BYTES" and num_known == 1:
        array: Array = np.full([1] * len(sizes), body, np.object_)
    elif tensor.datatype == "BYTES" or sizes.count(-1) > 1:
        raise InvalidRequest(
            f"{len(body)} bytes do not tell the shape of input '{tensor.name}', {tensor.datatype} {list(tensor.shape)}; "
            "say it in JSON before them"
        )
    else:
        open_size = len(body) // max(1, num_known * DTYPES[tensor.datatype].itemsize)
        shape = tuple(open_size if size == -1 else size for size in sizes)
        array = decode_bytes(tensor.datatype, shape, body, tensor.name)
    return InferRequest(name, version, {tensor.name: array}, charge=charge), _ALL_BINARY


def write_response(response: InferResponse, forms: OutputForms) -> tuple[int | None, list[bytes]]:
    """The length of the JSON where bytes follow it, and the parts of the body."""
    tail: list[bytes] = []
    outputs = [_write_output(output, forms, tail) for output in response.outputs]
    head: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        head["id"] = response.id
    head["outputs"] = outputs
    text = orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    return (len(text) if tail else None), [text, *tail]


@lru_cache(maxsize=256)
def _read_length(text: str) -> int | None:
    """A length in a header; None where it is no number, or beyond all memory."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_NUM_DIGITS else None


def _read_layout(head: bytes) -> Layout:
    found = read_json(head)
    listed = found.get("inputs")
    if not isinstance(listed, list) or not listed:
        raise InvalidRequest("the request JSON needs a list 'inputs' with at least one tensor")
    inputs: dict[str, InputLayout] = {}
    nbytes = 0
    for tensor in listed:
        layout = _read_input(tensor, nbytes)
        if layout.name in inputs:
            raise InvalidRequest(f"input '{layout.name}' came twice")
        inputs[layout.name] = layout
        nbytes = nbytes if layout.end is None else layout.end
    parameters = _read_parameters(found, "the request")
    is_binary = parameters.get("binary_data_output", False) is True
    if found.get("outputs"):
        wanted, forms = _read_outputs(found["outputs"], is_binary)
    else:
        wanted, forms = (), _ALL_BINARY if is_binary else _ALL_JSON
    request_id = found.get("id", "")
    if not isinstance(request_id, str):
        raise InvalidRequest("the request 'id' must be text")
    return Layout(
        inputs=tuple(inputs.values()),
        nbytes=nbytes,
        wanted=wanted,
        forms=forms,
        id=request_id,
        options=read_options(parameters, request_id),
    )


# where tensors follow as bytes, a client sends the same JSON with each of its requests
_read_known_layout = lru_cache(maxsize=256)(_read_layout)


def _read_input(tensor: Any, begin: int) -> InputLayout:
    if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
        raise InvalidRequest("every input needs a 'name'")
    name = tensor["name"]
    datatype = check_datatype(tensor.get("datatype"), name)
    shape = check_shape(tensor.get("shape"), name)
    parameters = _read_parameters(tensor, f"input '{name}'")
    if "binary_data_size" in parameters:
        if "data" in tensor:
            raise InvalidRequest(f"input '{name}' has data both in the JSON and behind it")
        return InputLayout(name, datatype, shape, begin, begin + _read_count(parameters, "binary_data_size"))
    place = read_place(parameters)
    if place is None and "data" not in tensor:
        raise InvalidRequest(f"input '{name}' has no data")
    return InputLayout(name, datatype, shape, place=place, data=tensor.get("data"))


def _read_outputs(listed: Any, by_default: bool) -> tuple[tuple[WantedOutput, ...], OutputForms]:
    if not isinstance(listed, list):
        raise InvalidRequest("'outputs' must be a list")
    wanted, forms = [], {}
    for output in listed:
        if not isinstance(output, dict) or not isinstance(output.get("name"), str):
            raise InvalidRequest("every output needs a 'name'")
        name = output["name"]
        parameters = _read_parameters(output, f"output '{name}'")
        if "binary_data" in parameters:
            if not isinstance(parameters["binary_data"], bool):
                raise InvalidRequest(f"'binary_data' of output '{name}' must be true or false")
            forms[name] = parameters["binary_data"]
        wanted.append(WantedOutput(name, _read_count(parameters, "classification"), read_place(parameters)))
    return tuple(wanted), OutputForms(by_default, forms)


def _write_output(output: OutputTensor, forms: OutputForms, tail: list[bytes]) -> dict[str, Any]:
    written: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.array.shape}
    if output.target is not None:
        return written  # clients take parameters here for those of bytes that follow
    if forms.is_binary(output.name):
        data = encode_bytes(output.array)
        tail.append(data)
        written["parameters"] = {"binary_data_size": len(data)}
    else:
        written["data"] = encode_json(output.array, output.name)
    return written


def read_place(parameters: dict[str, Any]) -> RegionSlice | None:
    """The place in shared memory that parameters name, if they do."""
    region = parameters.get("shared_memory_region")
    if region is None:
        return None
    if not isinstance(region, str):
        raise InvalidRequest("'shared_memory_region' must be text")
    if "shared_memory_byte_size" not in parameters:
        raise InvalidRequest(f"'shared_memory_byte_size' must be given with the region '{region}'")
    return RegionSlice(
        region, _read_count(parameters, "shared_memory_offset"), _read_count(parameters, "shared_memory_byte_size")
    )


def _read_parameters(holder: dict[str, Any], what: str) -> dict[str, Any]:
    parameters = holder.get("parameters") or _NOTHING
    if not isinstance(parameters, dict):
        raise InvalidRequest(f"the parameters of {what} must be an object")
    return parameters


def _read_count(parameters: dict[str, Any], key: str) -> int:
    value = parameters.get(key)
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= _MAX_INT64:
        raise InvalidRequest(f"'{key}' must be a whole number from zero up, received {value!r}")
    return value
