"""Who owns which bytes of a tier: offsets handed out by best fit, neighbours joined when they come back.

Lengths are rounded up to size classes, eight to each power of two, so at most an eighth is wasted and a step's slots fit into
the holes that the previous step's slots left, even when shapes change a little.
"""

from bisect import bisect_left

UNIT_NBYTES = 4096
_CLASSES_PER_DOUBLING = 8


def size_class(nbytes: int) -> int:
    """The room that `nbytes` take: at least that, at most an eighth more (or one unit of 4096).

    >>> size_class(33 * 4096) // 4096
    36
    """
    num_units = -(-nbytes // UNIT_NBYTES)
    step = max(1, (1 << max(0, num_units - 1).bit_length()) // (2 * _CLASSES_PER_DOUBLING))
    return -(-num_units // step) * step * UNIT_NBYTES


class Space:
    """Offsets from 0 to `end`. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self.end = 0
        self._starts: list[int] = []  # of the holes, in order; no two touch
        self._lengths: list[int] = []

    @property
    def free_nbytes(self) -> int:
        """All holes together."""
        return sum(self._lengths)

    def take(self, nbytes: int) -> int | None:
        """The offset of `nbytes` in the tightest hole; None where no hole is large enough."""
        best = min((i for i, length in enumerate(self._lengths) if length >= nbytes), key=self._lengths.__getitem__, default=None)
        if best is None:
            return None
        offset = self._starts[best]
        if self._lengths[best] == nbytes:
            del self._starts[best], self._lengths[best]
        else:
            self._starts[best] += nbytes
            self._lengths[best] -= nbytes
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        """Take back what `take` handed out; ValueError where part of it is free already."""
        i = bisect_left(self._starts, offset)
        before = i > 0 and self._starts[i - 1] + self._lengths[i - 1]
        after = self._starts[i] if i < len(self._starts) else self.end
        if (i > 0 and before > offset) or offset + nbytes > after:
            raise ValueError(f"bytes {offset} to {offset + nbytes} were released twice")
        self._starts.insert(i, offset)
        self._lengths.insert(i, nbytes)
        for j in (i, i - 1):  # join with the hole after, then with the hole before
            if 0 <= j < len(self._starts) - 1 and self._starts[j] + self._lengths[j] == self._starts[j + 1]:
                self._lengths[j] += self._lengths[j + 1]
                del self._starts[j + 1], self._lengths[j + 1]

    def missing(self, nbytes: int) -> int:
        """How far `end` must move for `take(nbytes)` to succeed by the hole that touches it."""
        touches = self._starts and self._starts[-1] + self._lengths[-1] == self.end
        return nbytes - (self._lengths[-1] if touches else 0)

    def grow(self, nbytes: int) -> None:
        """Move `end`: a new hole."""
        start = self.end
        self.end += nbytes
        self.give(start, nbytes)
