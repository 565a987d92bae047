"""Tensors as they travel: the protocol's datatypes, and bytes or JSON to arrays and back.

Nothing here trusts a length: memory is only taken for bytes that have arrived.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np
import orjson
from numpy.typing import NDArray

from tensorferry.serve.core.faults import InvalidRequest, TooLarge
from tensorferry.serve.core.limits import MAX_TEXTS, PIECE_VALUES

Array = NDArray[Any]

DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
DATATYPES = {dtype: datatype for datatype, dtype in DTYPES.items()}
_FLOATS = frozenset({"FP16", "BF16", "FP32", "FP64"})
_MAX_RANK = 32
_MAX_ELEMENTS = 2**56  # more cannot be addressed, even where a zero among the sizes leaves nothing to address
_LENGTH = struct.Struct("<I")
_TEXT_NBYTES = 48  # of an object of Python around each text


def check_datatype(datatype: object, name: str) -> str:
    """`datatype` if the protocol has it."""
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise InvalidRequest(f"tensor '{name}' has an unknown datatype {datatype!r}; expected one of {', '.join(DTYPES)}")
    return datatype


def check_shape(shape: object, name: str) -> tuple[int, ...]:
    """`shape` as a tuple of whole numbers that are not negative."""
    if not isinstance(shape, list) or len(shape) > _MAX_RANK:
        raise InvalidRequest(f"tensor '{name}' needs a shape of at most {_MAX_RANK} whole numbers")
    for size in shape:
        if type(size) is not int or size < 0:
            raise InvalidRequest(f"tensor '{name}' has a shape with something else than whole numbers from zero up")
    if math.prod(size or 1 for size in shape) > _MAX_ELEMENTS:
        raise InvalidRequest(f"tensor '{name}' has the shape {shape}, which is beyond any memory")
    return tuple(shape)


def check_size(datatype: str, shape: tuple[int, ...], nbytes: int, name: str) -> None:
    """Raise InvalidRequest where the number of bytes is not that of such a tensor; that of texts is not known before."""
    wanted = math.prod(shape) * DTYPES[datatype].itemsize
    if datatype != "BYTES" and wanted != nbytes:
        raise InvalidRequest(f"tensor '{name}' of {datatype} and shape {list(shape)} takes {wanted} bytes, received {nbytes}")


def decode_bytes(datatype: str, shape: tuple[int, ...], data: bytes | memoryview, name: str) -> Array:
    """The array that `data` holds: row-major, little-endian; BYTES elements each follow their length of four bytes."""
    num_elements = math.prod(shape)
    if datatype == "BYTES":
        return _decode_strings(num_elements, memoryview(data), name).reshape(shape)
    dtype = DTYPES[datatype]
    check_size(datatype, shape, len(data), name)
    if num_elements == 0:
        return np.empty(shape, dtype)
    if datatype == "BOOL":
        # any byte but zero is true; numpy's own booleans may only be 0 or 1
        return np.not_equal(np.frombuffer(data, np.uint8), 0).reshape(shape)
    array: Array = np.ndarray(shape, dtype, data)
    # behind a JSON header the bytes start anywhere, and runtimes may use aligned loads
    return array if array.flags.aligned else array.copy()


def encode_bytes(array: Array) -> bytes:
    """The bytes of `array` as the protocol sends them."""
    if array.dtype.hasobject:
        elements = array.reshape(-1).tolist()
        pieces = (elements[begin : begin + PIECE_VALUES] for begin in range(0, len(elements), PIECE_VALUES))
        return b"".join([_encode_texts(piece) for piece in pieces])
    return array.tobytes()


def _encode_texts(elements: list[bytes]) -> bytes:
    return b"".join(chain.from_iterable(zip(map(_LENGTH.pack, map(len, elements)), elements, strict=True)))


def held_nbytes(arrays: Iterable[Array]) -> int:
    """The memory that arrays take; texts count what is around each of them, not their bytes."""
    held = 0
    for array in arrays:  # as a loop, since every request comes by here
        held += array.nbytes
        if array.dtype.hasobject:
            held += _TEXT_NBYTES * array.size
    return held


def decoded_nbytes(datatype: str, shape: tuple[int, ...], nbytes: int) -> int:
    """The memory that bytes take at most when they are decoded, beside themselves."""
    return 2 * nbytes + (_TEXT_NBYTES + 8) * min(math.prod(shape), nbytes // 4) if datatype == "BYTES" else nbytes


def listed_nbytes(datatype: str, shape: tuple[int, ...], nbytes: int) -> int:
    """The memory of an array whose elements came as so many bytes of JSON: two at least for each, or three for a text."""
    if datatype == "BYTES":
        return nbytes + (_TEXT_NBYTES + 8) * min(math.prod(shape), nbytes // 3)
    return DTYPES[datatype].itemsize * min(math.prod(shape), nbytes // 2)


def decode_json(datatype: str, shape: tuple[int, ...], data: object, name: str) -> Array:
    """The array of a JSON list, flat or nested."""
    if not isinstance(data, list):
        raise InvalidRequest(f"tensor '{name}' needs its data as a list")
    values = _strings_of_json(data, name) if datatype == "BYTES" else _numbers_of_json(datatype, data, name)
    if values.size != math.prod(shape):
        raise InvalidRequest(f"tensor '{name}' of shape {list(shape)} takes {math.prod(shape)} elements, received {values.size}")
    return values.reshape(shape)


def encode_json(array: Array, name: str) -> Array | list[str] | orjson.Fragment:
    """The elements of `array`, row-major, as something that orjson writes as a list."""
    if array.dtype.hasobject:
        try:
            return [element.decode() for element in array.reshape(-1).tolist()]
        except UnicodeDecodeError:
            raise InvalidRequest(f"output '{name}' holds bytes that are not UTF-8 text; ask for it as binary data") from None
    if array.dtype.kind != "f" and array.dtype != DTYPES["BF16"]:
        return _write_pieces(np.ascontiguousarray(array).reshape(-1))
    if not np.isfinite(array).all():
        raise InvalidRequest(f"output '{name}' holds NaN or infinity, which JSON cannot carry; ask for it as binary data")
    flat = np.ascontiguousarray(array).reshape(-1)
    return _write_pieces(flat.astype(np.float32) if array.dtype.itemsize == 2 else flat)


def _write_pieces(flat: Array) -> Array | orjson.Fragment:
    """Many numbers piece by piece, so that others have their turn in between."""
    if flat.size <= PIECE_VALUES:
        return flat
    pieces = (flat[begin : begin + PIECE_VALUES] for begin in range(0, flat.size, PIECE_VALUES))
    written = [orjson.dumps(piece, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1] for piece in pieces]
    return orjson.Fragment(b"[%s]" % b",".join(written))


def decode_typed(datatype: str, shape: tuple[int, ...], values: Sequence[Any], name: str) -> Array:
    """The array of a typed list, such as protobuf's repeated fields, which may be wider than the datatype."""
    if len(values) != math.prod(shape):
        raise InvalidRequest(f"tensor '{name}' of shape {list(shape)} takes {math.prod(shape)} elements, received {len(values)}")
    if datatype == "BYTES":
        _check_count(len(values), name)
        array = np.empty(len(values), np.object_)
        array[:] = values
        return array.reshape(shape)
    found = np.empty(len(values), DTYPES[datatype])
    try:
        for begin in range(0, len(values), PIECE_VALUES):
            found[begin : begin + PIECE_VALUES] = np.array(values[begin : begin + PIECE_VALUES], DTYPES[datatype])
    except OverflowError:
        raise InvalidRequest(f"tensor '{name}' holds a value beyond {datatype}") from None
    return found.reshape(shape)


def _decode_strings(num_elements: int, data: memoryview, name: str) -> Array:
    if num_elements * _LENGTH.size > len(data):
        raise InvalidRequest(f"tensor '{name}' names {num_elements} BYTES elements, but only {len(data)} bytes came")
    _check_count(num_elements, name)
    whole, read_length, found = bytes(data), _LENGTH.unpack_from, []
    end = len(whole)
    at = 0
    for index in range(num_elements):
        begin = at + _LENGTH.size
        if begin > end:
            part = f"the length of its BYTES element {index}" if at <= end else f"its BYTES element {index - 1}"
            raise InvalidRequest(f"tensor '{name}' ends within {part}")
        at = begin + read_length(whole, at)[0]
        found.append(whole[begin:at])
    if at > end:
        raise InvalidRequest(f"tensor '{name}' ends within its BYTES element {num_elements - 1}")
    if at != end:
        raise InvalidRequest(f"tensor '{name}' has {end - at} bytes after its last BYTES element")
    array = np.empty(num_elements, np.object_)
    array[:] = found
    return array


def _check_count(num_texts: int, name: str) -> None:
    if num_texts > MAX_TEXTS:
        raise TooLarge(f"tensor '{name}' has {num_texts} elements of BYTES, the most this server takes is {MAX_TEXTS}")


def _strings_of_json(data: list[Any], name: str) -> Array:
    flat = _flatten(data, name)
    others = sorted(kind.__name__ for kind in set(map(type, flat)) - {str})
    if others:
        raise InvalidRequest(f"tensor '{name}' of BYTES takes text in JSON, received {others[0]}")
    _check_count(len(flat), name)
    array = np.empty(len(flat), np.object_)
    array[:] = list(map(str.encode, flat))
    return array


def _numbers_of_json(datatype: str, data: list[Any], name: str) -> Array:
    dtype = DTYPES[datatype]
    flat = _flatten(data, name)
    found = np.empty(len(flat), dtype)
    for begin in range(0, len(flat), PIECE_VALUES):
        found[begin : begin + PIECE_VALUES] = _convert_numbers(datatype, flat[begin : begin + PIECE_VALUES], name)
    return found


def _convert_numbers(datatype: str, piece: list[Any], name: str) -> Array:
    dtype = DTYPES[datatype]
    # before an array is made of them: one long text would give every element its width
    allowed = {bool} if datatype == "BOOL" else {int, float} if datatype in _FLOATS else {int}
    if not allowed.issuperset(map(type, piece)):
        raise InvalidRequest(f"tensor '{name}' has data that is not {datatype}")
    values = np.array(piece)
    if values.dtype.kind not in ("b" if datatype == "BOOL" else "iuf" if datatype in _FLOATS else "iu"):
        raise InvalidRequest(f"tensor '{name}' has data that is not {datatype}")
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        if int(values.min()) < bounds.min or int(values.max()) > bounds.max:
            raise InvalidRequest(f"tensor '{name}' holds a value beyond {datatype}")
    with np.errstate(over="ignore"):
        # a number beyond a float's range becomes infinity, as it does in every JSON reader
        return values.astype(dtype)


def _flatten(data: list[Any], name: str) -> list[Any]:
    """The elements of lists of lists that are all as long and as deep as their neighbours."""
    for _ in range(_MAX_RANK + 1):
        if not data or type(data[0]) is not list:
            if list in set(map(type, data)):
                raise InvalidRequest(f"tensor '{name}' mixes lists and elements")
            return data
        if set(map(type, data)) != {list}:
            raise InvalidRequest(f"tensor '{name}' mixes lists and elements")
        if len(set(map(len, data))) > 1:
            raise InvalidRequest(f"tensor '{name}' has data whose lists differ in length or depth")
        data = list(chain.from_iterable(data))
    raise InvalidRequest(f"tensor '{name}' has lists within lists, more than {_MAX_RANK} deep")
