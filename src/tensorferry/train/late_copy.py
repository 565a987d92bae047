"""A copy of a training's state that is made beside the next step's forward and backward pass.

Only the optimizer changes weights and its own state, so these are copied by another thread until it is about to; everything else
is copied at once. What changes weights in some other way is noticed by the counts that torch keeps of changes.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import copy
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tensorferry.scaling.torch_compat import count_writes

_Key = tuple[torch.device, int]  # of a storage


class LateCopy:
    """Of files' contents, in memory; tensors that share memory do so in the copy."""

    def __init__(self, contents: dict[str, Any], late: Iterable[torch.Tensor]) -> None:
        """`late` are the tensors that stay as they are until `wait` is called."""
        self._late = {_find_key(tensor): (tensor, count_writes(tensor)) for tensor in late}
        self._copies: dict[_Key, torch.UntypedStorage] = {}
        self._left: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []
        self._contents = self._copy(contents)
        pool = ThreadPoolExecutor(1, thread_name_prefix="ferry-copy")
        self._done: Future[None] = pool.submit(self._copy_late)
        pool.shutdown(wait=False)

    def wait(self) -> None:
        """Go on once all is copied."""
        wait([self._done])

    def take(self) -> dict[str, Any]:
        """The copy; raises what went wrong as it was made."""
        self._done.result()
        return self._contents

    def _copy(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            whole = torch.empty(0, dtype=value.dtype)
            return whole.set_(self._copy_storage(value), value.storage_offset(), value.size(), value.stride())
        if isinstance(value, dict):
            copied = copy(value)  # of the same kind: that of a model's state knows versions besides
            copied.update({name: self._copy(each) for name, each in value.items()})
            return copied
        return type(value)(self._copy(each) for each in value) if isinstance(value, list | tuple) else value

    def _copy_storage(self, value: torch.Tensor) -> torch.UntypedStorage:
        key = _find_key(value)
        if key not in self._copies:
            source = value.untyped_storage()
            self._copies[key] = torch.UntypedStorage(source.nbytes())
            if key in self._late:
                self._left.append((self._copies[key], source))
            else:
                _copy_bytes(self._copies[key], source)
        return self._copies[key]

    def _copy_late(self) -> None:
        for to, source in self._left:
            _copy_bytes(to, source)
        self._left.clear()
        if any(count_writes(tensor) != version for tensor, version in self._late.values()):
            raise RuntimeError("weights changed before the optimizer's step, while they were copied; leave out --async-save")
        self._late.clear()


def list_late(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """What of a training only its optimizer changes."""
    state = (value for each in optimizer.state.values() for value in each.values() if isinstance(value, torch.Tensor))
    for tensor in (*model.parameters(), *state):
        if not tensor.is_meta:
            yield tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _find_key(tensor: torch.Tensor) -> _Key:
    storage = tensor.untyped_storage()
    return storage.device, storage.data_ptr()


def _copy_bytes(to: torch.UntypedStorage, source: torch.UntypedStorage) -> None:
    # between tensors, as other threads run meanwhile
    ours, theirs = (torch.empty(0, dtype=torch.uint8, device=each.device).set_(each) for each in (to, source))
    ours.copy_(theirs)
