"""An inference as gRPC carries it: ModelInferRequest and ModelInferResponse."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from tensorferry.serve.core.faults import InvalidRequest, TooLarge
from tensorferry.serve.core.limits import INLINE_NBYTES, INLINE_RAW_NBYTES, MAX_FIELDS, MAX_TYPED_NBYTES
from tensorferry.serve.core.memory import Charge
from tensorferry.serve.core.requests import InferRequest, InferResponse, RegionSlice, WantedOutput, read_options
from tensorferry.serve.core.shared_memory import Regions
from tensorferry.serve.core.tensors import (
    Array,
    check_datatype,
    check_shape,
    check_size,
    decode_bytes,
    decode_typed,
    decoded_nbytes,
    encode_bytes,
    listed_nbytes,
)
from tensorferry.serve.proto import inference as pb

# the field of InferTensorContents for each datatype; the 16-bit floats only travel raw
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_EMPTY: dict[str, Any] = {}
# the numbers of ModelInferRequest's fields, and how protobuf writes a field
_NAME, _VERSION, _INPUT, _RAW = 1, 2, 5, 7
_VARINT, _FIXED64, _TEXT, _FIXED32 = 0, 1, 2, 5
_PARSED_FACTOR = 16  # the memory that a byte of a message takes at most when it is parsed, except of raw contents


@dataclass(slots=True)
class Outline:
    """What a message says of itself before it is parsed."""

    model_name: str = ""
    model_version: str = ""
    raw_nbytes: int = 0
    has_texts: bool = False
    nbytes: int = 0

    @property
    def is_quick_to_read(self) -> bool:
        """Whether it takes no longer than the event loop may be busy: raw numbers are hardly looked at."""
        return self.nbytes - self.raw_nbytes <= INLINE_NBYTES and self.nbytes <= INLINE_RAW_NBYTES and not self.has_texts

    @property
    def parsed_nbytes(self) -> int:
        """The memory that it takes at most when it is parsed."""
        return self.raw_nbytes + _PARSED_FACTOR * (self.nbytes - self.raw_nbytes)


def outline(data: bytes) -> Outline:
    """The outline of a ModelInferRequest's bytes; raises TooLarge for one that takes too long to parse."""
    found = Outline(nbytes=len(data))
    for number, begin, end in _iterate(data):
        if number == _RAW:
            found.raw_nbytes += end - begin
        elif number == _INPUT:
            found.has_texts |= data.find(b"BYTES", begin, end) >= 0
        elif number == _NAME:
            found.model_name = data[begin:end].decode(errors="replace")
        elif number == _VERSION:
            found.model_version = data[begin:end].decode(errors="replace")
    return _check_typed(found)


def count_fields(data: bytes) -> int:
    """How many fields a message has; raises InvalidRequest for more than any has that means no harm."""
    return sum(1 for _ in _iterate(data))


def _iterate(data: bytes) -> Iterator[tuple[int, int, int]]:
    """The number, begin and end of a message's fields.

    Parsing makes an object of every field, and a field can be as short as two bytes: of very many, none is parsed.
    """
    at = num_fields = 0
    while at < len(data):
        num_fields += 1
        if num_fields > MAX_FIELDS:
            raise InvalidRequest(f"the message has more than {MAX_FIELDS} fields")
        tag, at = _read_varint(data, at)
        kind, number = tag & 7, tag >> 3
        if kind == _TEXT:
            length, at = _read_varint(data, at)
            end = at + length
        elif kind == _VARINT:
            _, end = _read_varint(data, at)
        else:
            end = {_FIXED64: at + 8, _FIXED32: at + 4}.get(kind, len(data) + 1)
        if end > len(data):
            raise InvalidRequest("the bytes are not a message")
        yield number, at, end
        at = end


def _check_typed(found: Outline) -> Outline:
    nbytes = found.nbytes - found.raw_nbytes
    if nbytes > MAX_TYPED_NBYTES:
        raise TooLarge(
            f"the message has {nbytes} bytes beside raw_input_contents, the most this server takes is {MAX_TYPED_NBYTES}; "
            "send tensors as raw contents"
        )
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    value = shift = 0
    for end in range(at, min(at + 10, len(data))):
        value |= (data[end] & 0x7F) << shift
        if data[end] < 0x80:
            return value, end + 1
        shift += 7
    raise InvalidRequest("the bytes are not a message")


@dataclass(slots=True)
class ArrivedInput:
    """One input of a message, and where its elements are: its raw bytes, shared memory or the message itself."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes | None
    place: RegionSlice | None
    tensor: Any

    @property
    def nbytes(self) -> int:
        """The memory that its array takes at most, and what is read for it; the message is counted already."""
        if self.raw is not None:
            return decoded_nbytes(self.datatype, self.shape, len(self.raw))
        if self.place is not None:
            check_size(self.datatype, self.shape, self.place.nbytes, self.name)
            return self.place.nbytes + decoded_nbytes(self.datatype, self.shape, self.place.nbytes)
        return listed_nbytes(self.datatype, self.shape, 8 * self.tensor.ByteSize())

    def read(self, regions: Regions) -> Array:
        """Its array."""
        if self.raw is not None:
            return decode_bytes(self.datatype, self.shape, self.raw, self.name)
        if self.place is not None:
            return decode_bytes(self.datatype, self.shape, regions.read(self.place), self.name)
        return _read_contents(self.tensor, self.datatype, self.shape)


@dataclass(frozen=True, slots=True)
class ArrivedInputs:
    """All inputs of a message."""

    inputs: Collection[ArrivedInput]
    nbytes: int  # that their arrays take at most
    is_quick_to_read: bool  # whether what they name in shared memory takes no longer than the event loop may be busy


def find_inputs(message: Any) -> ArrivedInputs:
    """The inputs of a ModelInferRequest, none of which is read yet."""
    raw = message.raw_input_contents
    at = nbytes = 0
    has_places = False
    found: dict[str, ArrivedInput] = {}
    for tensor in message.inputs:
        name = tensor.name
        if name in found:
            raise InvalidRequest(f"input '{name}' came twice")
        place = _read_place(tensor.parameters) if tensor.parameters else None
        contents = None
        if place is None and raw:
            if at >= len(raw):
                raise InvalidRequest(f"input '{name}' has no entry in raw_input_contents")
            contents = raw[at]
            at += 1
        datatype = check_datatype(tensor.datatype, name)
        arrived = found[name] = ArrivedInput(name, datatype, check_shape(list(tensor.shape), name), contents, place, tensor)
        nbytes += arrived.nbytes
        has_places |= place is not None
    if at != len(raw):
        raise InvalidRequest(f"{len(raw) - at} entries of raw_input_contents belong to no input")
    if not found:
        raise InvalidRequest("the request has no inputs")
    return ArrivedInputs(found.values(), nbytes, not has_places or nbytes <= INLINE_NBYTES)


def read_request(message: Any, arrived: ArrivedInputs, regions: Regions, charge: Charge) -> InferRequest:
    """The request of a ModelInferRequest and its inputs; its arrays and its answer are charged to `charge`."""
    charge.hold(arrived.nbytes)
    inputs = {each.name: each.read(regions) for each in arrived.inputs}
    parameters = {key: _value(value) for key, value in message.parameters.items()} if message.parameters else _EMPTY
    return InferRequest(
        model_name=message.model_name,
        model_version=message.model_version,
        inputs=inputs,
        wanted=tuple(_read_output(output) for output in message.outputs),
        id=message.id,
        options=read_options(parameters, message.id),
        charge=charge,
    )


def write_response(response: InferResponse) -> Any:
    """The ModelInferResponse of an answer; outputs always go raw, those in shared memory leave an empty entry."""
    message = pb.ModelInferResponse(model_name=response.model_name, model_version=response.model_version, id=response.id)
    for output in response.outputs:
        tensor = message.outputs.add(name=output.name, datatype=output.datatype, shape=output.array.shape)
        if output.target is None:
            message.raw_output_contents.append(encode_bytes(output.array))
            continue
        message.raw_output_contents.append(b"")
        tensor.parameters["shared_memory_region"].string_param = output.target.region
        tensor.parameters["shared_memory_offset"].int64_param = output.target.offset
        tensor.parameters["shared_memory_byte_size"].int64_param = output.nbytes
    return message


def _read_contents(tensor: Any, datatype: str, shape: tuple[int, ...]) -> Array:
    field = _CONTENTS.get(datatype)
    if field is None:
        raise InvalidRequest(f"input '{tensor.name}' of {datatype} must come in raw_input_contents")
    filled = [descriptor.name for descriptor, _ in tensor.contents.ListFields()]
    if any(name != field for name in filled):
        raise InvalidRequest(f"input '{tensor.name}' of {datatype} must use {field} alone, received {', '.join(filled)}")
    return decode_typed(datatype, shape, getattr(tensor.contents, field), tensor.name)


def _read_output(output: Any) -> WantedOutput:
    if not output.parameters:
        return WantedOutput(output.name)
    parameters = {key: _value(value) for key, value in output.parameters.items()}
    return WantedOutput(output.name, _count(parameters, "classification"), _read_place(output.parameters))


def _read_place(parameters: Any) -> RegionSlice | None:
    found = {key: _value(value) for key, value in parameters.items()}
    region = found.get("shared_memory_region")
    if region is None:
        return None
    if not isinstance(region, str) or "shared_memory_byte_size" not in found:
        raise InvalidRequest("shared memory needs 'shared_memory_region' as text and 'shared_memory_byte_size'")
    return RegionSlice(region, _count(found, "shared_memory_offset"), _count(found, "shared_memory_byte_size"))


def _value(parameter: Any) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    return getattr(parameter, kind) if kind else None


def _count(parameters: dict[str, Any], key: str) -> int:
    value = parameters.get(key, 0)
    if type(value) is not int or value < 0:
        raise InvalidRequest(f"'{key}' must be a whole number from zero up, received {value!r}")
    return value
