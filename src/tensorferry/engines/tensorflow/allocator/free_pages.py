"""The pages of the allocator's free blocks, given back to the system.

TensorFlow's allocator keeps all the memory it ever had. What was freed may be in many holes of which a large block fits into
none, so the next one touches fresh pages: half as much as is live was seen resident in holes. Addresses cost little and pages
much, so the pages go back and the holes stay.

Nobody tells where free blocks are, but who asks for memory gets them, the smallest that is large enough. So blocks are asked for,
from large to small, each size until one lies above everything that is live. Larger holes than that are left then, and all that is
still free is in them. The pages of as many as needed are dropped, and all are freed again. What a size is given last is what the
next to ask will be given last, so its pages go first.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tensorferry.engines.resident import count_resident, drop_pages
from tensorferry.engines.tensorflow.allocator.blocks import (
    LARGEST_NBYTES,
    NEXT_SHARE,
    SMALLEST_NBYTES,
    FreeBlocks,
    Place,
    address_of,
    place_of,
)
from tensorferry.engines.tensorflow.graph import tensor_nbytes

_POOLED_NBYTES = 2**18  # smaller blocks are malloc's
_LARGEST_SHARE = 1 / 64  # of all addresses, where that is more: holes are to be found in a few milliseconds
_REST_FACTOR = 2  # so many blocks of a size must be free for one to be asked for: the rest may be in small pieces
_HOLE_FACTOR = 4  # where so many blocks are left that are in no hole found so far, they are in one that is larger than those
_MAX_TRIES = 8  # to find room for a variable


def foresee(free: FreeBlocks, sizes: Iterable[int]) -> list[Place]:
    """Where blocks of these sizes would lie that are asked for next, as far as the allocator has them."""
    wanted = [nbytes for nbytes in sizes if nbytes >= _POOLED_NBYTES]
    untouched_nbytes = free.untouched_nbytes(sum(wanted))
    blocks, places = [], []  # blocks are held until the end, or the same would be handed out again
    for nbytes in wanted:
        if nbytes <= untouched_nbytes and free.has(nbytes):
            blocks.append(free.ask(nbytes))
            places.append(place_of(blocks[-1]))
            untouched_nbytes -= 0 if places[-1].resident_nbytes else nbytes
    return places


def send_home(free: FreeBlocks, variables: Iterable[Any]) -> None:
    """Let variables that lie in the large region lie elsewhere, if there is room: most left a hole where they were before.

    A variable that is assigned takes the block of the value that it gets, in the midst of the blocks of a step.
    """
    inside: list[Any] = []  # held until the end, for the same reason
    for variable in variables:
        if tensor_nbytes(variable) < _POOLED_NBYTES:
            continue
        value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
        if not free.is_inside(value):
            continue
        for _ in range(_MAX_TRIES):
            if not free.has(tensor_nbytes(value)):
                break
            home = free.ask_like(value.shape, value.dtype)
            if not free.is_inside(home):
                ctypes.memmove(address_of(home), address_of(value), tensor_nbytes(value))
                tf.raw_ops.AssignVariableOp(resource=variable.handle, value=home)
                break
            inside.append(home)


def give_back(free: FreeBlocks, wanted_nbytes: int, spared: Sequence[Place]) -> int:
    """Drop so many bytes of pages of free blocks, or all but those of the places spared; how many of them are left."""
    with _holding_holes(free) as holes:
        left_nbytes = sum(hole.resident_nbytes for hole in holes)
        kept_nbytes = left_nbytes - wanted_nbytes
        for hole in reversed(holes):
            if left_nbytes <= kept_nbytes:
                break
            left_nbytes -= sum(drop_pages(start, stop - start) for start, stop in _leave_out(spared, hole))
    return left_nbytes


@contextmanager
def _holding_holes(free: FreeBlocks) -> Iterator[list[Place]]:
    """While inside, no free block is handed out to others: small ones first, each size as it was found."""
    largest_nbytes = max(LARGEST_NBYTES, int(_LARGEST_SHARE * free.pool_nbytes))
    held: list[tuple[int, Any, Place]] = []
    nbytes, top = largest_nbytes, free.end  # above which nothing lives
    untouched_nbytes = free.untouched_nbytes(largest_nbytes)
    while nbytes >= SMALLEST_NBYTES:
        block = free.ask_whole(nbytes) if nbytes <= untouched_nbytes and free.has(nbytes) else None
        place = None if block is None else place_of(block)
        if place is not None and not _is_above_all(free, place, top):
            held.append((nbytes, block, place))
            if not place.resident_nbytes and not free.is_inside(block):
                untouched_nbytes -= place.nbytes // 2  # it may have been of that end
            continue
        if place is not None and free.start <= place.address < top:
            top = place.address
        nbytes = int(NEXT_SHARE * nbytes)
        del block  # or the next one that is asked for may lie beyond it
    if not free.grown_nbytes and free.free_nbytes() - (free.end - top) > _HOLE_FACTOR * largest_nbytes:
        for nbytes in (largest_nbytes, largest_nbytes // 2):
            while free.has(_REST_FACTOR * nbytes + 1):
                block = free.ask_whole(nbytes)
                held.append((largest_nbytes, block, place_of(block)))
    held.sort(key=lambda each: each[0])
    yield [place for _, _, place in held]
    held.clear()


def _is_above_all(free: FreeBlocks, place: Place, top: int) -> bool:
    """Whether nothing lives above a place in its region, or ever did: that has pages. Of other regions no end is known."""
    if place.resident_nbytes:
        return False
    if not free.start <= place.end <= free.end:
        top = place.end + LARGEST_NBYTES
    try:
        return not count_resident(place.end, top - place.end)
    except OSError:  # nothing is there
        return True


def _leave_out(spared: Sequence[Place], hole: Place) -> Iterator[tuple[int, int]]:
    """From where to where a hole is not in a place that is spared.

    >>> list(_leave_out([Place(90, 30, 0), Place(20, 30, 0)], Place(0, 100, 0)))
    [(0, 20), (50, 90)]
    """
    start, end = hole.address, hole.address + hole.nbytes
    for place in sorted(spared, key=lambda place: place.address):
        if start < place.address < end:
            yield start, place.address
        if place.address < end:
            start = max(start, place.address + place.nbytes)
    if start < end:
        yield start, end
