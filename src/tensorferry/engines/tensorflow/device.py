"""What TensorFlow's allocator and the process hold.

A budget is for the rise of resident memory, and the allocator tells where in a step it comes from. They differ by what is
outside of the allocator (the graph, oneDNN's code) and by holes between its blocks, which it never gives back.

What oneDNN's kernels need for a moment is malloc's, which keeps freed blocks for the next kernel. Where memory is short they go
back to the system at once.

Without oneDNN (TensorFlow leaves it off on CPUs without AVX-512 VNNI) every block is malloc's, and nobody keeps books. Then
freed blocks go back at once in any case, and what is resident is what is live.
"""

import contextlib
import resource
from typing import Any

import tensorflow as tf

from tensorferry.engines.resident import Heap, ResidentMeter

_SCRATCH_NBYTES = 4 * 2**20  # smaller blocks of oneDNN's are many, and to fault their pages in again costs more than they hold
_ROW_NBYTES = 2**20


class Device:
    """A device's memory over what was held before the model was built."""

    def __init__(self, held_nbytes: int, name: str = "CPU:0") -> None:
        """`held_nbytes`: what of the present belongs to the training already, such as weights."""
        self.name = name
        self._meter = ResidentMeter()
        self._heap = Heap()
        self.has_statistics = self._info()["current"] > 0
        self._returns_freed = not self.has_statistics
        if self._returns_freed:
            self._heap.return_at_once()
            self._heap.trim()
        self._allocated_before = self._info()["current"] - held_nbytes if self.has_statistics else 0
        self._resident_before = self._meter.now_nbytes() - held_nbytes
        self._highest_resident = self._highest_allocated = 0
        self._meter.reset_peak()

    def allocated_nbytes(self) -> int:
        """What the allocator has handed out; without its statistics, what is resident."""
        return self._info()["current"] - self._allocated_before if self.has_statistics else self.resident_nbytes()

    def allocated_peak_nbytes(self) -> int:
        """The most that was handed out since `reset_peaks` or `reset_allocated_peak`."""
        if not self.has_statistics:
            return self.resident_peak_nbytes()
        peak_nbytes = self._info()["peak"]
        self._highest_allocated = max(self._highest_allocated, peak_nbytes)
        return peak_nbytes - self._allocated_before

    def resident_nbytes(self) -> int:
        """What is resident now."""
        return self._meter.now_nbytes() - self._resident_before

    def resident_peak_nbytes(self) -> int:
        """The most that was resident since `reset_peaks`."""
        peak_nbytes = self._meter.peak_nbytes()
        self._highest_resident = max(self._highest_resident, peak_nbytes)
        return peak_nbytes - self._resident_before

    def highest_resident_nbytes(self) -> int:
        """The most that was resident since the device was opened."""
        self.resident_peak_nbytes()
        return self._highest_resident - self._resident_before

    def outside_nbytes(self) -> int:
        """What is resident beyond what the allocator has handed out at most: other memory, and holes between blocks."""
        if not self.has_statistics:
            return 0
        self.allocated_peak_nbytes()
        return max(0, self.highest_resident_nbytes() - (self._highest_allocated - self._allocated_before))

    def reset_peaks(self) -> None:
        """Begin new peaks."""
        self.resident_peak_nbytes()
        self._meter.reset_peak()
        self.reset_allocated_peak()

    def reset_allocated_peak(self) -> None:
        """Begin a new peak of the allocator alone."""
        if self.has_statistics:
            self.allocated_peak_nbytes()
            tf.config.experimental.reset_memory_stats(self.name)
        else:
            self.resident_peak_nbytes()
            self._meter.reset_peak()

    def reserve(self, nbytes: int) -> None:
        """Let the allocator have one large region of addresses, without touching its pages, instead of many that double in size.

        Blocks in different regions never join when they are free, so this leaves fewer holes. Not under a cap on the
        process's data, which counts addresses.
        """
        if self.has_statistics and resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY:
            self.allocated_peak_nbytes()
            with contextlib.suppress(tf.errors.ResourceExhaustedError), tf.device(self.name):
                # in rows: no dimension may be beyond 31 bits
                tf.raw_ops.Empty(shape=[nbytes // _ROW_NBYTES + 1, _ROW_NBYTES], dtype=tf.uint8, init=False)
            tf.config.experimental.reset_memory_stats(self.name)  # it was held by nobody

    def include(self, nbytes: int) -> None:
        """Put on the books what the training holds and was there before."""
        self._allocated_before -= nbytes
        self._resident_before -= nbytes

    def save_memory(self) -> None:
        """Memory is short: from now on nothing large that was freed stays."""
        if not self._returns_freed:
            self._returns_freed = True
            self._heap.return_at_once(_SCRATCH_NBYTES)

    def trim(self) -> None:
        """Give back what Python and tracing have freed."""
        self._heap.trim()

    def close(self) -> None:
        """Leave malloc and the file descriptors as they were."""
        if self._returns_freed:
            self._heap.restore()
        self._meter.close()

    def _info(self) -> dict[str, Any]:
        try:
            return tf.config.experimental.get_memory_info(self.name)
        except ValueError:  # without oneDNN nobody keeps books
            return {"current": 0, "peak": 0}
