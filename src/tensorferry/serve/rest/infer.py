"""An inference as REST carries it: JSON, with tensors inside it or as bytes behind it."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.limits import INLINE_NBYTES, INLINE_RAW_NBYTES
from tensorferry.serve.core.memory import Charge
from tensorferry.serve.core.requests import InferRequest, InferResponse, OutputTensor
from tensorferry.serve.core.shared_memory import Regions
from tensorferry.serve.core.spec import ModelSpec
from tensorferry.serve.core.tensors import DTYPES, Array, decode_bytes, encode_bytes, encode_json
from tensorferry.serve.rest.json_body import check_json
from tensorferry.serve.rest.layout import ALL_BINARY, Layout, OutputForms, check_rest, read_known_layout, read_layout

_MAX_NUM_DIGITS = 18  # of a length
_MAX_KNOWN_NBYTES = 1024  # longer JSON is not remembered
_NO_BYTES = memoryview(b"")


def is_quick_to_read(body: bytes, header_length: str) -> bool:
    """Whether a body takes no longer to read than the event loop may be busy: numbers behind the JSON are hardly looked at."""
    if len(body) <= INLINE_NBYTES or header_length == "0":
        return len(body) <= INLINE_RAW_NBYTES
    length = _read_length(header_length) if 0 < len(header_length) <= _MAX_NUM_DIGITS else None
    if length is None or length > INLINE_NBYTES or len(body) > INLINE_RAW_NBYTES:
        return False
    head = body[:length]
    return b"BYTES" not in head and b"\\" not in head  # which could write it in another way


@dataclass(slots=True)
class Arrived:
    """A request whose JSON is read, and whose tensors are not."""

    layout: Layout
    rest: memoryview  # what follows the JSON
    json_nbytes: int = 0  # charged for the JSON, while it is needed

    @property
    def is_quick_to_read(self) -> bool:
        """Whether what it names in shared memory takes no longer to read than the event loop may be busy."""
        return not self.layout.has_places or self.layout.held_nbytes <= INLINE_NBYTES

    def read(self, name: str, version: str, regions: Regions, charge: Charge) -> InferRequest:
        """The request with its tensors."""
        layout = self.layout
        charge.hold(layout.held_nbytes)
        inputs = {tensor.name: tensor.read(self.rest, regions) for tensor in layout.inputs}
        if self.json_nbytes:
            charge.add(-self.json_nbytes)
        return InferRequest(name, version, inputs, layout.wanted, layout.id, layout.options, charge)


def arrive(body: bytes, header_length: str, charge: Charge) -> Arrived:
    """Read the JSON of a body, which is `header_length` bytes long (all of it, where that is empty)."""
    head, rest = body, _NO_BYTES
    if header_length:
        length = _read_length(header_length) if len(header_length) <= _MAX_NUM_DIGITS else None
        if length is None or length > len(body):
            raise InvalidRequest(
                f"the Inference-Header-Content-Length {header_length[:20]!r} does not fit a body of {len(body)} bytes"
            )
        head, rest = body[:length], memoryview(body)[length:]
    json_nbytes = 0
    if len(head) > INLINE_NBYTES:
        json_nbytes = check_json(head)
        charge.add(json_nbytes)
    layout = read_known_layout(head) if header_length and len(head) <= _MAX_KNOWN_NBYTES else read_layout(head)
    if layout.nbytes != len(rest):
        check_rest(layout, len(rest))
    return Arrived(layout, rest, json_nbytes)


def read_raw_request(name: str, version: str, body: bytes, spec: ModelSpec, charge: Charge) -> tuple[InferRequest, OutputForms]:
    """The request of a body that is one row of a model's only input and nothing else; outputs go back as bytes.

    A size that the model leaves open is what the number of bytes makes it; a text is the whole body.
    """
    charge.hold(len(body))
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
    return InferRequest(name, version, {tensor.name: array}, charge=charge), ALL_BINARY


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
    """A length in a header; None where it is no number."""
    return int(text) if text.isascii() and text.isdecimal() else None


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
