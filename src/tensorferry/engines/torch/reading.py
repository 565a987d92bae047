"""Reads of a tensor's memory that are no op: copies, pickles, arrays and addresses.

Ops are seen by the dispatcher. `copy.deepcopy`, `torch.save`, `numpy()` and the like are not, and of a tensor whose bytes wait
elsewhere they would find nothing. While a context is entered, each of them says first what it is about to read.

Limit: who takes a tensor's storage out of it (`untyped_storage()`) and reads that is not seen.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch

# a copy has ended when the call has; the others leave somebody who reads later: a file is written when all of it is pickled
_COPIES = ((torch.Tensor, "__deepcopy__"), (torch.nn.Parameter, "__deepcopy__"), (torch.Tensor, "tolist"))
_LASTING = (
    (torch.Tensor, "__reduce_ex__"),
    (torch.nn.Parameter, "__reduce_ex__"),
    (torch.Tensor, "numpy"),
    (torch.Tensor, "data_ptr"),
    (torch.Tensor, "share_memory_"),
    (torch.Tensor, "__dlpack__"),
)


@contextmanager
def announcing_reads(before: Callable[[torch.Tensor, bool], None], lock: threading.RLock) -> Iterator[None]:
    """While inside, `before(tensor, lasts)` is called before memory is read without an op; `lasts`: after the call, too.

    The lock is held from there to the end of the call, so that nothing moves meanwhile.
    """
    with ExitStack() as stack:
        for readers, lasts in ((_COPIES, False), (_LASTING, True)):
            for kind, name in readers:
                stack.callback(_replace(kind, name, before, lasts, lock))
        yield


def _replace(
    kind: type[torch.Tensor], name: str, before: Callable[[torch.Tensor, bool], None], lasts: bool, lock: threading.RLock
) -> Callable[[], None]:
    """Put a method that announces itself in place of one; returns what undoes it."""
    original = getattr(kind, name)

    @wraps(original)
    def announced(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with lock:
            before(self, lasts)
            return original(self, *args, **kwargs)

    was_own = name in vars(kind)
    setattr(kind, name, announced)
    return lambda: setattr(kind, name, original) if was_own else delattr(kind, name)
