"""What the JSON of an inference says of its tensors, before any of them is read."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.requests import RegionSlice, RequestOptions, WantedOutput, read_options
from tensorferry.serve.core.shared_memory import Regions
from tensorferry.serve.core.tensors import (
    Array,
    check_datatype,
    check_shape,
    check_size,
    decode_bytes,
    decode_json,
    decoded_nbytes,
    listed_nbytes,
)
from tensorferry.serve.rest.json_body import read_json

_MAX_INT64 = 2**63 - 1
_NOTHING: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class OutputForms:
    """How the outputs are to be sent: as bytes or within the JSON."""

    by_default: bool
    by_name: dict[str, bool]

    def is_binary(self, name: str) -> bool:
        """Whether an output goes as bytes."""
        return self.by_name.get(name, self.by_default)


ALL_BINARY = OutputForms(True, {})
ALL_JSON = OutputForms(False, {})


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

    def count(self, json_nbytes: int) -> int:
        """The memory that its array takes at most, and what is read for it; the request's bytes are counted already."""
        if self.end is not None:
            return decoded_nbytes(self.datatype, self.shape, self.end - self.begin)
        if self.place is not None:
            check_size(self.datatype, self.shape, self.place.nbytes, self.name)
            return self.place.nbytes + decoded_nbytes(self.datatype, self.shape, self.place.nbytes)
        return listed_nbytes(self.datatype, self.shape, json_nbytes)

    def read(self, rest: memoryview, regions: Regions) -> Array:
        """Its array; `rest` is what follows the JSON."""
        if self.end is not None:
            return decode_bytes(self.datatype, self.shape, rest[self.begin : self.end], self.name)
        if self.place is not None:
            return decode_bytes(self.datatype, self.shape, regions.read(self.place), self.name)
        return decode_json(self.datatype, self.shape, self.data, self.name)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the JSON of a request says."""

    inputs: tuple[InputLayout, ...]
    nbytes: int  # that follow it
    held_nbytes: int  # that its arrays take at most
    has_places: bool
    wanted: tuple[WantedOutput, ...]
    forms: OutputForms
    id: str
    options: RequestOptions


def check_rest(layout: Layout, nbytes: int) -> None:
    """Raise InvalidRequest unless what follows the JSON is as long as it says."""
    for tensor in layout.inputs:
        if tensor.end is not None and tensor.end > nbytes:
            needed, left = tensor.end - tensor.begin, max(0, nbytes - tensor.begin)
            raise InvalidRequest(f"input '{tensor.name}' needs {needed} bytes behind the JSON, {left} are left")
    if layout.nbytes != nbytes:
        raise InvalidRequest(f"{nbytes - layout.nbytes} bytes are left after the last binary input")


def read_layout(head: bytes) -> Layout:
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
        wanted, forms = (), ALL_BINARY if is_binary else ALL_JSON
    request_id = found.get("id", "")
    if not isinstance(request_id, str):
        raise InvalidRequest("the request 'id' must be text")
    return Layout(
        inputs=tuple(inputs.values()),
        nbytes=nbytes,
        held_nbytes=sum(tensor.count(len(head)) for tensor in inputs.values()),
        has_places=any(tensor.place is not None for tensor in inputs.values()),
        wanted=wanted,
        forms=forms,
        id=request_id,
        options=read_options(parameters, request_id),
    )


# where tensors follow as bytes, a client sends the same JSON with each of its requests
read_known_layout = lru_cache(maxsize=256)(read_layout)


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
