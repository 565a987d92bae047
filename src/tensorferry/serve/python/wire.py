"""Messages between the server and its worker processes: pickles over a socket, with the bytes of large arrays beside them.

A worker may run in another environment than the server, so this needs numpy and nothing else, and arrays travel as a datatype,
a shape and bytes: pickles of numpy's own are not the same in all of its versions.
"""

import pickle
import struct
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Packed = tuple[str, tuple[int, ...], Any]  # datatype, shape, bytes or texts

_KINDS = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "object",
}
_WORDS = {kind: word for word, kind in _KINDS.items()}
_COUNT = struct.Struct("<I")
_BESIDE_NBYTES = 16 * 1024  # smaller arrays go within the message: a write of their own would cost more than the copy


def dtype_of(datatype: str) -> np.dtype[Any]:
    """numpy's type for a datatype of the protocol."""
    if datatype == "BF16":
        import ml_dtypes  # in a worker's environment only where a model needs it

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(_KINDS[datatype])


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's word for numpy's type; raises TypeError where it has none."""
    if dtype.kind in "SU":
        return "BYTES"
    if dtype.name not in _WORDS:
        raise TypeError(f"no tensor holds elements of {dtype}")
    return _WORDS[dtype.name]


def to_array(value: Any, datatype: str) -> Array:
    """`value` as an array of a datatype: texts become UTF-8, numbers are converted where no kind of number is lost."""
    if datatype == "BYTES":
        array = np.asarray(value, np.object_)
        flat = [_to_bytes(element) for element in array.reshape(-1).tolist()]
        found = np.empty(len(flat), np.object_)
        found[:] = flat
        return found.reshape(array.shape)
    array = np.asarray(value)
    dtype = dtype_of(datatype)
    if array.dtype == dtype:
        return array
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise TypeError(f"{array.dtype} is not {datatype}")
    return array.astype(dtype)


def pack(array: Array) -> Packed:
    """An array as it travels."""
    if array.dtype.hasobject:
        return "BYTES", array.shape, array.reshape(-1).tolist()
    # as plain bytes, because not all types know the buffer protocol
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return datatype_of(array.dtype), array.shape, pickle.PickleBuffer(flat)


def unpack(packed: Packed) -> Array:
    """The array that travelled; it may be written to."""
    datatype, shape, data = packed
    if datatype == "BYTES":
        texts = np.empty(len(data), np.object_)
        texts[:] = data
        return texts.reshape(shape)
    return np.frombuffer(data, np.uint8).view(dtype_of(datatype)).reshape(shape)


def send(connection: Connection, message: Any) -> None:
    """Send a message; the bytes of large arrays go beside it, not through it."""
    buffers: list[Any] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if len(raw) < _BESIDE_NBYTES:
            return True
        buffers.append(raw)
        return False

    head = pickle.dumps(message, protocol=5, buffer_callback=keep)
    connection.send_bytes(_COUNT.pack(len(buffers)) + head)
    for buffer in buffers:
        connection.send_bytes(buffer)


def receive(connection: Connection) -> Any:
    """The next message; raises EOFError or OSError where the other side has gone."""
    data = connection.recv_bytes()
    (num_buffers,) = _COUNT.unpack_from(data)
    buffers = [bytearray(connection.recv_bytes()) for _ in range(num_buffers)]
    return pickle.loads(memoryview(data)[_COUNT.size :], buffers=buffers)


def _to_bytes(element: Any) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        return element.encode()
    raise TypeError(f"an element of BYTES is text or bytes, not {type(element).__name__}")
