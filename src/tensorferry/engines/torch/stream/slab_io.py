"""Slabs to the tier and back, with reads ahead and writes behind.

A stored tensor lies on the tier in pieces of a few rows, in the order samples, rows, ..., channels, so that a slab with its halo
is a few pieces in a row, read into one buffer. Every buffer starts at the phase (address modulo 4096) that its first row would
have if the tensor lay at a multiple of 4096, so that direct I/O never needs a copy of its own. Buffers are used again: fresh
memory costs more than the read.
"""

import time
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from tensorferry.engines.core.copies import Copy, CopyLane, ThreadCopyIn, ThreadCopyOut
from tensorferry.engines.torch.stream.slabs import LAYOUTS, Slab
from tensorferry.errors import CopyStuck, TierLost
from tensorferry.plan import Lane
from tensorferry.tiers import Slot, Tier
from tensorferry.tiers.memory import PHASE_NBYTES, MemoryBlock, MemoryPool
from tensorferry.units import format_bytes

_MIN_PIECE_NBYTES = 256 * 2**10
_MOST_WASTE = 0.25  # slabs of a tensor differ by a few rows
Buffer = tuple[MemoryBlock, int, int]  # a stretch of a block


@dataclass(slots=True, eq=False)
class StoredPiece:
    """Some rows of one sample on the tier, or on their way there."""

    low: int
    high: int
    copy: ThreadCopyOut[Buffer]
    slot: Slot | None = None


class SlabIO:
    """The two lanes of streamed slabs, and the memory that they come back to."""

    def __init__(self, tier: Tier, *, buffer_nbytes: int, watchdog_seconds: float) -> None:
        """`buffer_nbytes`: see `limit_buffers`."""
        self.tier = tier
        self.memory = MemoryPool(most_waste=_MOST_WASTE)
        self.limit_buffers(buffer_nbytes, buffer_nbytes)
        self.read_nbytes = self.written_nbytes = 0
        self.stall_seconds = 0.0  # that the step has waited for copies
        self._watchdog_seconds = watchdog_seconds
        self._out, self._in = CopyLane(Lane.OUT), CopyLane(Lane.IN)
        self._writes: deque[tuple[ThreadCopyOut[Buffer], int]] = deque()
        self._writes_nbytes = 0
        self._reads: deque[SlabRead] = deque()  # those that may be under way
        self.departed: deque[ThreadCopyOut[Buffer]] = deque()  # what dead tensors left on the tier
        self._stored: weakref.WeakSet[StoredRows] = weakref.WeakSet()

    def limit_buffers(self, nbytes: int, spare_nbytes: int) -> None:
        """What writes under way may hold from now on, and what dead buffers may keep for the next ones."""
        self.buffer_nbytes = nbytes
        self.memory.spare_limit_nbytes = self._spare_nbytes = spare_nbytes

    def write(self, block: MemoryBlock, start: int, nbytes: int) -> ThreadCopyOut[Buffer]:
        """Start writing a stretch of a block, when there are not too many such writes under way."""
        self.release_departed()
        while self._writes and self._writes_nbytes + nbytes > self.buffer_nbytes:
            self._end_write()
        copy = ThreadCopyOut(self.tier, (block, start, start + nbytes), "slab", nbytes, _bytes_of)
        self._writes.append((copy, nbytes))
        self._writes_nbytes += nbytes
        self.written_nbytes += nbytes
        self._out.put(copy)
        return copy

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like a slab in memory that was a buffer, if there is some."""
        if tensor.dim() not in LAYOUTS:
            return torch.empty_like(tensor)
        block = self.memory.block(tensor.nbytes, 0)
        places = tensor.movedim(1, -1).shape
        return tensor_of(block, tensor.dtype).view(places).movedim(-1, 1)

    def read(self, stored: "StoredRows", slab: Slab) -> "SlabRead":
        """Start reading a slab."""
        read = SlabRead(self, stored, slab)
        self.read_nbytes += read.nbytes
        self._reads.append(read)
        self._in.put(read)
        return read

    def reading_nbytes(self) -> int:
        """What reads under way will hold."""
        while self._reads and self._reads[0].done():  # they end in their order
            self._reads.popleft()
        return sum(read.nbytes for read in self._reads)

    def add(self, stored: "StoredRows") -> None:
        """A tensor that will be written here."""
        self._stored.add(stored)

    def wait_for(self, copy: Copy) -> None:
        """Wait until a copy has ended."""
        if not copy.wait(self._watchdog_seconds):
            raise CopyStuck(
                f"waited {self._watchdog_seconds:.0f} s for a slab of {format_bytes(copy.nbytes)} at {self.tier.describe}; the "
                "tier hangs or is far too slow. Check it, choose another tier, or raise watchdog_seconds."
            )

    def stall_for(self, copy: Copy) -> None:
        """The same, by who computes."""
        if not copy.done():
            start = time.perf_counter()
            self.wait_for(copy)
            self.stall_seconds += time.perf_counter() - start

    def end_writes(self) -> None:
        """Wait until every write has ended, so that its memory is let go."""
        while self._writes:
            self._end_write()

    def trim(self) -> None:
        """Give back what dead buffers keep."""
        self.memory.spare_limit_nbytes = 0
        self.memory.spare_limit_nbytes = self._spare_nbytes

    def live(self) -> list["StoredRows"]:
        """All tensors that are stored here now."""
        return list(self._stored)

    def close(self) -> None:
        """End both lanes after the copies under way, and give all slots back."""
        self._out.close()
        self._in.close()
        self._writes.clear()
        self._reads.clear()
        self.memory.spare_limit_nbytes = 0
        for stored in self.live():
            stored.release()
        self.release_departed()

    def release_departed(self) -> None:
        """Give back the room of what has died."""
        while self.departed:
            self.departed.popleft().release()

    def _end_write(self) -> None:
        copy, nbytes = self._writes.popleft()
        self._writes_nbytes -= nbytes
        self.stall_for(copy)
        copy.slot()  # raises what went wrong


class StoredRows:
    """A tensor's bytes on the tier, written slab by slab and in order; its slots go with it."""

    def __init__(self, io: SlabIO, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self.io = io
        self.row_nbytes = prod(shape[3:]) * shape[1] * dtype.itemsize
        self.piece_rows = max(1, _MIN_PIECE_NBYTES // self.row_nbytes)
        self._pieces: list[list[StoredPiece]] = [[] for _ in range(shape[0])]  # by sample
        self._is_lost = False
        self._settled: torch.Tensor | None = None
        io.add(self)

    def write(self, slab: Slab, tensor: torch.Tensor) -> None:
        """Start writing a slab, which follows the one before; the tensor may change afterwards."""
        step = self.piece_rows
        for sample in range(slab.first, slab.last):
            block, rows = self.buffer(1, slab.low, slab.high)
            rows.copy_(tensor[sample - slab.first : sample - slab.first + 1])
            for low in range(slab.low, slab.high, step):
                high = min(low + step, slab.high)
                copy = self.io.write(block, (low - slab.low) * self.row_nbytes, (high - low) * self.row_nbytes)
                self._pieces[sample].append(StoredPiece(low, high, copy))

    def buffer(self, num_samples: int, low: int, high: int) -> tuple[MemoryBlock, torch.Tensor]:
        """New memory for rows of some samples, and a tensor of it."""
        block = self.io.memory.block(num_samples * (high - low) * self.row_nbytes, low * self.row_nbytes % PHASE_NBYTES)
        tensor = tensor_of(block, self.dtype).view(num_samples, high - low, *self.shape[3:], self.shape[1])
        return block, tensor.movedim(-1, 1)

    def settle(self) -> None:
        """Have all of it in memory from now on, and nothing on the tier."""
        self._settled = torch.cat(
            [SlabRead(self.io, self, Slab(i, i + 1, 0, self.shape[2])).read() for i in range(self.shape[0])]
        )

    def in_memory(self, slab: Slab) -> torch.Tensor | None:
        """A slab that needs no read; None where it needs one."""
        if self._settled is None:
            return None
        low, high = max(slab.low, 0), min(slab.high, self.shape[2])
        rows = self._settled[slab.first : slab.last, :, low:high]
        return torch.nn.functional.pad(rows, [0, 0] * (rows.dim() - 3) + [low - slab.low, slab.high - high])

    def pieces(self, sample: int, low: int, high: int) -> list[StoredPiece]:
        """The pieces that have these rows of a sample, in order."""
        if self._is_lost:
            raise TierLost(
                "a streamed tensor was used after its context ended with an error: its bytes are gone. Run forward again."
            )
        pieces = self._pieces[sample]
        first = bisect_right(pieces, low, key=lambda piece: piece.low) - 1
        found = []
        for piece in pieces[first:]:
            if piece.low >= high:
                break
            found.append(piece)
        return found

    def slot_of(self, piece: StoredPiece) -> Slot:
        """Where a piece is; waits until it is there."""
        if piece.slot is None:
            self.io.wait_for(piece.copy)
            piece.slot = piece.copy.slot()
        return piece.slot

    def release(self) -> None:
        """Let the room on the tier go, which is given back with the next copy."""
        self._is_lost = True
        pieces, self._pieces = self._pieces, []
        # whoever calls the collector may hold the tier's lock
        self.io.departed.extend(piece.copy for of_sample in pieces for piece in of_sample)

    def __del__(self) -> None:
        self.release()


class SlabRead(ThreadCopyIn[torch.Tensor]):
    """A read of one slab; rows that the tensor does not have are undefined."""

    def __init__(self, io: SlabIO, stored: StoredRows, slab: Slab) -> None:
        super().__init__("slab", 0)
        self._io = io
        self._stored: StoredRows | None = stored  # its slots stay as long as they are read
        self._slab = slab
        low, high = max(slab.low, 0), min(slab.high, stored.shape[2])
        self._pieces = [stored.pieces(sample, low, high) for sample in range(slab.first, slab.last)]
        self._low = min(slab.low, self._pieces[0][0].low)  # with what lies in the same pieces
        self._high = max(slab.high, self._pieces[0][-1].high)
        self.nbytes = (slab.last - slab.first) * (self._high - self._low) * stored.row_nbytes

    def read(self) -> torch.Tensor:
        stored, slab = self._stored, self._slab
        assert stored is not None, "run twice"
        self._stored = None
        block, tensor = stored.buffer(slab.last - slab.first, self._low, self._high)
        view, row_nbytes = block.view, stored.row_nbytes
        for number, pieces in enumerate(self._pieces):
            start = number * (self._high - self._low) - self._low
            for piece in pieces:
                self._io.tier.read_into(
                    stored.slot_of(piece), view[(start + piece.low) * row_nbytes : (start + piece.high) * row_nbytes]
                )
        self._pieces = []
        return tensor[:, :, slab.low - self._low : slab.high - self._low]

    def result(self) -> torch.Tensor:
        """The slab, waited for."""
        self._io.stall_for(self)
        return self.take()


def tensor_of(block: MemoryBlock, dtype: torch.dtype) -> torch.Tensor:
    """A block's bytes as numbers."""
    return torch.frombuffer(block.mapping, dtype=torch.uint8, count=block.nbytes, offset=block.offset).view(dtype)


def _bytes_of(buffer: Buffer) -> memoryview:
    block, start, stop = buffer
    return block.view[start:stop]
