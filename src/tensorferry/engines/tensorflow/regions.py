"""How TensorFlow's allocator takes addresses from the system: in regions, of which it keeps books.

A region is a power of two, each twice as large as the one before. Where it is refused one, the allocator asks for nine tenths of
that, again and again, until it gets something in which the block fits that it needs.
"""

_MIB = 2**20
_BOOKS_SHARE = 1 / 32  # of a region, on top of it
_BACK_SHARE = 0.9
_ASKED_SHARE = 0.85  # of what is left: it will be in one region, and not in one that is there already


def without_books(nbytes: int) -> int:
    """The region for which there is room in that much, with its books."""
    return int(nbytes / (1 + _BOOKS_SHARE))


def find_region(grown_nbytes: int) -> int:
    """The region by which a process has grown: a power of two, unless something was in its way.

    >>> [find_region(nbytes * 2**20) // 2**20 for nbytes in (1056, 1060, 1030, 950)]
    [1024, 1024, 998, 921]
    """
    nbytes, power = without_books(grown_nbytes), 1 << (grown_nbytes.bit_length() - 1)
    # others may have taken or given back some pages at the same moment
    return power if -_MIB < nbytes - power < _BOOKS_SHARE * power else nbytes


def share_to_leave(nbytes: int) -> tuple[int, int]:
    """How much of a cap to leave to the allocator, and to ask it for, so that it takes one region and has room for its books.

    Where a region is all there is left, its books end the process.

    >>> [size // 2**20 for size in share_to_leave(762 * 2**20)]
    [746, 634]
    """
    for left_nbytes in range(nbytes, 0, -_MIB):
        asked_nbytes = int(_ASKED_SHARE * left_nbytes)
        power = 1 << asked_nbytes.bit_length()
        if all(_leaves_books(first_nbytes, left_nbytes) for first_nbytes in (power, 2 * power)):
            return left_nbytes, asked_nbytes
    return 0, 0


def _leaves_books(first_nbytes: int, left_nbytes: int) -> bool:
    nbytes: float = first_nbytes
    while nbytes > left_nbytes:
        nbytes *= _BACK_SHARE
    return nbytes * (1 + _BOOKS_SHARE) + _MIB <= left_nbytes
