"""What a caching allocator takes from an accelerator for the blocks that a plan has resident.

Torch's allocators take memory in segments and cut blocks out of them: blocks up to 1 MiB from segments of 2 MiB, those below 10
MiB from segments of 20 MiB, and larger ones get a segment each, in steps of 2 MiB (as c10/cuda/CUDACachingAllocator.h has it).
A segment goes back to the device when all of it is free, which in a step hardly ever happens by itself, so each kind is counted
at its own peak. Limit: which block comes to lie where is not foreseen; what goes wrong there is left to `out_of_memory.py`.
"""

import numpy as np

from tensorferry.engines.torch.compat import allocator_settings
from tensorferry.plan import Action, Plan
from tensorferry.plan.schedule import make_tables
from tensorferry.trace import Trace

_MIB = 2**20
_GRAIN_NBYTES = 512
_SMALL_NBYTES, _SMALL_SEGMENT_NBYTES = _MIB, 2 * _MIB
_MEDIUM_NBYTES, _MEDIUM_SEGMENT_NBYTES = 10 * _MIB, 20 * _MIB
_SHARED_SEGMENTS = (_SMALL_SEGMENT_NBYTES, _MEDIUM_SEGMENT_NBYTES)
_LARGE_GRAIN_NBYTES = 2 * _MIB


def find_reserved(trace: Trace, plan: Plan) -> int:
    """The bytes that a step under a plan is expected to make the allocator take from the device."""
    num_ops, gaps = len(trace.ops), make_tables(trace).gaps
    changes = {segment_nbytes: np.zeros(num_ops + 1, dtype=np.int64) for segment_nbytes in (*_SHARED_SEGMENTS, 0)}

    def hold(nbytes: int, first: int, end: int, sign: int = 1) -> None:
        segment_nbytes, taken_nbytes = place(nbytes)
        changes[segment_nbytes][first] += sign * taken_nbytes
        changes[segment_nbytes][end] -= sign * taken_nbytes

    for storage in trace.storages:
        end = num_ops if storage.freed_after is None else storage.freed_after + 1
        hold(storage.nbytes, 0 if storage.was_there else storage.writers[0], end)
    for i, op in enumerate(trace.ops):
        hold(op.workspace_nbytes, i, i + 1)
    for decision in plan.decisions:
        gap = gaps[decision.storage]
        back_at = gap.wanted_at if decision.swap_in_at is None else min(decision.swap_in_at, gap.wanted_at)
        if decision.action is not Action.KEEP and gap.leaves_at < back_at:
            hold(gap.nbytes, gap.leaves_at, back_at, sign=-1)
    peaks = {segment_nbytes: int(np.cumsum(change).max()) for segment_nbytes, change in changes.items()}
    return trace.overhead_nbytes + sum(_round_up(peak, segment_nbytes or 1) for segment_nbytes, peak in peaks.items())


def has_expandable_segments() -> bool:
    """Whether torch's allocator has been told to let segments grow, so that memory in pieces serves blocks of any size."""
    return "expandable_segments:true" in allocator_settings().lower().replace(" ", "")


def place(nbytes: int) -> tuple[int, int]:
    """The size of the segments that a block shares, or 0 where it has one of its own, and what it takes of them.

    >>> [taken // 2**20 for _, taken in map(place, (4 * 2**20, 8 * 2**20, 11 * 2**20))]
    [4, 10, 12]
    """
    rounded = _round_up(nbytes, _GRAIN_NBYTES)
    if rounded <= _SMALL_NBYTES:
        return _SMALL_SEGMENT_NBYTES, rounded
    if rounded < _MEDIUM_NBYTES:
        return _MEDIUM_SEGMENT_NBYTES, _MEDIUM_SEGMENT_NBYTES // (_MEDIUM_SEGMENT_NBYTES // rounded)
    return 0, _round_up(rounded, _LARGE_GRAIN_NBYTES)


def _round_up(nbytes: int, grain_nbytes: int) -> int:
    return -(-nbytes // grain_nbytes) * grain_nbytes
