"""A hard memory cap that stands for a small device: the kernel refuses what goes past it.

On Linux `RLIMIT_DATA` limits a process's private writable memory, which a framework on a CPU fills with tensors. It needs no
root, and past it an allocation fails instead of the process being killed. File-backed shared mappings do not count.
"""

import resource
from contextlib import closing

from tensorferry.engines.resident import ResidentMeter

# glibc returns freed blocks of this size and more to the system; otherwise a process also holds what it freed long ago,
# and a peak would tell more about the allocator's past than about what a step needs
EXACT_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**20), "MALLOC_TRIM_THRESHOLD_": str(2**20)}

# what torch, oneDNN, C++ and Python say when the kernel refuses memory
_SIGNS = ("can't allocate memory", "cannot allocate memory", "could not create a primitive", "bad_alloc", "out of memory")


def cap_memory(allowance_nbytes: int) -> None:
    """Let this process hold `allowance_nbytes` more than it does now, and no more; there is no way back up."""
    with closing(ResidentMeter()) as meter:
        limit = meter.data_nbytes() + allowance_nbytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that an allocation was refused."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)
    )
