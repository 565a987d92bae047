"""Answers of models that asked for a response cache: the least recently used go when the bytes are used up."""

import hashlib
import threading
from collections import OrderedDict

from tensorferry.serve.core.tensors import Array, encode_bytes

Outputs = dict[str, Array]


class ResponseCache:
    """Outputs by what went in, within a number of bytes; may be called from any thread."""

    def __init__(self, max_nbytes: int) -> None:
        self.max_nbytes = max_nbytes
        self.nbytes = 0
        self.entries: OrderedDict[bytes, tuple[Outputs, int]] = OrderedDict()
        self.lock = threading.Lock()

    def find(self, key: bytes) -> Outputs | None:
        """The outputs that were put under `key`, unless they had to go."""
        with self.lock:
            entry = self.entries.get(key)
            if entry is None:
                return None
            self.entries.move_to_end(key)
            return entry[0]

    def put(self, key: bytes, outputs: Outputs) -> None:
        """Remember `outputs`, as copies that keep no batch alive; larger than the whole cache is not remembered."""
        nbytes = sum(len(encode_bytes(array)) if array.dtype.hasobject else array.nbytes for array in outputs.values())
        if nbytes > self.max_nbytes:
            return
        copies = {name: array.copy() for name, array in outputs.items()}
        with self.lock:
            self._drop(key)
            self.entries[key] = (copies, nbytes)
            self.nbytes += nbytes
            while self.nbytes > self.max_nbytes:
                self._drop(next(iter(self.entries)))

    def forget(self, prefix: bytes) -> None:
        """Drop everything of one loaded model."""
        with self.lock:
            for key in [key for key in self.entries if key.startswith(prefix)]:
                self._drop(key)

    def _drop(self, key: bytes) -> None:
        entry = self.entries.pop(key, None)
        if entry is not None:
            self.nbytes -= entry[1]


def make_key(prefix: bytes, inputs: dict[str, Array]) -> bytes:
    """A key that only equal inputs of the same loaded model share."""
    digest = hashlib.blake2b(digest_size=32)
    for name, array in sorted(inputs.items()):
        data = encode_bytes(array)
        digest.update(f"{name}\0{array.dtype}\0{array.shape}\0{len(data)}\0".encode())
        digest.update(data)
    return prefix + digest.digest()
