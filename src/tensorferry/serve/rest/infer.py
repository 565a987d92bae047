"""An inference as REST carries it: JSON, with tensors inside it or as bytes behind it."""

from dataclasses import dataclass
from typing import Any

import orjson

from tensorferry.serve.faults import InvalidRequest
from tensorferry.serve.requests import InferRequest, InferResponse, OutputTensor, RegionSlice, WantedOutput
from tensorferry.serve.shared_memory import Regions
from tensorferry.serve.tensors import Array, check_datatype, check_shape, decode_bytes, decode_json, encode_bytes, encode_json

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


_ALL_BINARY = OutputForms(True, {})
_ALL_JSON = OutputForms(False, {})


def read_json(data: bytes | memoryview) -> dict[str, Any]:
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


def read_request(name: str, version: str, body: bytes, header_length: str, regions: Regions) -> tuple[InferRequest, OutputForms]:
    """The request of a body whose JSON is `header_length` bytes long (all of it, where that is empty)."""
    rest = memoryview(b"")
    head: bytes | memoryview = body
    if header_length:
        if not header_length.isascii() or not header_length.isdecimal() or int(header_length) > len(body):
            raise InvalidRequest(
                f"the Inference-Header-Content-Length {header_length!r} does not fit a body of {len(body)} bytes"
            )
        view = memoryview(body)
        head, rest = view[: int(header_length)], view[int(header_length) :]
    found = read_json(head)
    listed = found.get("inputs")
    if not isinstance(listed, list) or not listed:
        raise InvalidRequest("the request JSON needs a list 'inputs' with at least one tensor")
    inputs: dict[str, Array] = {}
    at = 0
    for tensor in listed:
        tensor_name, array, at = _read_input(tensor, rest, at, regions)
        if tensor_name in inputs:
            raise InvalidRequest(f"input '{tensor_name}' came twice")
        inputs[tensor_name] = array
    if at != len(rest):
        raise InvalidRequest(f"{len(rest) - at} bytes are left after the last binary input")
    parameters = _read_parameters(found, "the request")
    is_binary = parameters.get("binary_data_output", False) is True
    if found.get("outputs"):
        wanted, forms = _read_outputs(found["outputs"], is_binary)
    else:
        wanted, forms = (), _ALL_BINARY if is_binary else _ALL_JSON
    request_id = found.get("id", "")
    if not isinstance(request_id, str):
        raise InvalidRequest("the request 'id' must be text")
    return InferRequest(
        model_name=name,
        model_version=version,
        inputs=inputs,
        wanted=wanted,
        id=request_id,
        priority=_read_count(parameters, "priority"),
        timeout_microseconds=_read_count(parameters, "timeout"),
    ), forms


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


def _read_input(tensor: Any, rest: memoryview, at: int, regions: Regions) -> tuple[str, Array, int]:
    if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
        raise InvalidRequest("every input needs a 'name'")
    name = tensor["name"]
    datatype = check_datatype(tensor.get("datatype"), name)
    shape = check_shape(tensor.get("shape"), name)
    parameters = tensor.get("parameters") or _NOTHING
    if not isinstance(parameters, dict):
        raise InvalidRequest(f"the parameters of input '{name}' must be an object")
    if "binary_data_size" in parameters:
        if "data" in tensor:
            raise InvalidRequest(f"input '{name}' has data both in the JSON and behind it")
        end = at + _read_count(parameters, "binary_data_size")
        if end > len(rest):
            raise InvalidRequest(f"input '{name}' needs {end - at} bytes behind the JSON, {len(rest) - at} are left")
        return name, decode_bytes(datatype, shape, rest[at:end], name), end
    place = read_place(parameters)
    if place is not None:
        return name, decode_bytes(datatype, shape, regions.read(place), name), at
    if "data" not in tensor:
        raise InvalidRequest(f"input '{name}' has no data")
    return name, decode_json(datatype, shape, tensor["data"], name), at


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
