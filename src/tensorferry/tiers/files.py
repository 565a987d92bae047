"""Swapped bytes in a file: the disk tier and the shared-memory tier, and how they are opened by name.

Direct I/O moves a block's own pages to and from the device: no copy, no page cache. It wants aligned memory and whole
units of the file, and tensors are neither, so the aligned body goes to the file and the few bytes before and after it
wait in the slot. The file grows by ever larger pieces whose room is made sure of, and slots are holes in it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tensorferry.errors import BadTier, TierFull, TierLost
from tensorferry.machine import Machine, TierSpeed, free_memory_nbytes
from tensorferry.tiers.memory import PHASE_NBYTES, MemoryBlock, MemoryPool, address_of
from tensorferry.tiers.scratch_file import MEMORY_FILE_SYSTEMS, NO_ROOM, ScratchFile, best_folder, check_folder, file_system
from tensorferry.tiers.space import UNIT_NBYTES, Space, size_class
from tensorferry.tiers.speed import CopyMeter, measure_tier
from tensorferry.tiers.tier import Slot, Tier
from tensorferry.units import format_bytes

SHM_FOLDER = Path("/dev/shm")
_CHOICES = "'auto', 'disk', 'disk:/path', 'shm', or on an accelerator 'pinned'"
_SMALLEST_PIECE_NBYTES = 64 * 2**20
_LARGEST_PIECE_NBYTES = 2**30
_WINDOW_NBYTES = 2 * 2**20  # small enough to stay in the processor's cache between the two copies


def open_tier(text: str, *, measured: Machine | None = None) -> Tier:
    """The tier that `text` names: "auto", "disk", "disk:/path" or "shm". Close it after use.

    `measured` says how fast it is before the first copy; without it the tier measures itself when asked.
    """
    if not isinstance(text, str):
        raise BadTier(f"expected a tier as text, received {text!r}; choose {_CHOICES}")
    kind, colon, path = text.strip().partition(":")
    if kind == "disk" and path:
        folder = Path(path).expanduser().absolute()
    elif kind in ("auto", "disk") and not colon:
        folder = best_folder()
    elif kind == "shm" and not colon:
        folder = SHM_FOLDER
    elif kind == "pinned":
        raise BadTier("the pinned tier is for accelerators, and here the device is the CPU; use 'auto', 'disk:/path' or 'shm'")
    else:
        raise BadTier(f"unknown tier {text!r}; choose {_CHOICES}")
    name = "shm" if kind == "shm" else "disk"
    check_folder(folder, name)
    return FileTier(name, folder, known=_known(measured, name, folder))


def _known(measured: Machine | None, name: str, folder: Path) -> TierSpeed | None:
    if measured is None:
        return None
    # a machine's disk was measured in the best folder, and another folder may be on another disk
    if name == "disk" and folder.stat().st_dev != best_folder().stat().st_dev:
        return None
    try:
        return measured.tier(name)
    except BadTier:
        return None


class FileTier:
    """A `Tier` in a nameless file in `folder`, which must exist.

    `known` is its speed before the first copy; without it, the speed is measured when asked for.
    """

    def __init__(self, name: str, folder: Path, *, known: TierSpeed | None = None) -> None:
        self.name = name
        self.folder = folder
        self._known = known
        self._in_memory = file_system(folder) in MEMORY_FILE_SYSTEMS
        # a file system in memory may accept direct I/O, but copies all the same
        file = ScratchFile(folder, direct=not self._in_memory, cached=self._in_memory)
        self._file: ScratchFile | None = file
        self._alignment = file.alignment
        self._memory = MemoryPool()
        self._out, self._in = CopyMeter(), CopyMeter()
        self._lock = threading.Lock()
        self._space = Space()

    @property
    def describe(self) -> str:
        """Where the file is and how it is copied to."""
        where = f"{self.name} {self.folder}"
        if self._alignment:
            return f"{where}, direct I/O"
        if self.name == "shm":
            return where
        return f"{where}, buffered: {'this is memory, not a disk' if self._in_memory else 'the file system refuses direct I/O'}"

    @property
    def room_nbytes(self) -> int:
        """How many more bytes fit now."""
        with self._lock:
            free_nbytes = self._opened().free_nbytes
            if self._in_memory:
                free_nbytes = min(free_nbytes, free_memory_nbytes())
            return self._space.free_nbytes + free_nbytes

    def check_room(self, nbytes: int) -> None:
        """Raise `TierFull` unless `nbytes` more fit, size classes included."""
        room_nbytes = self.room_nbytes
        if nbytes + nbytes // 8 > room_nbytes:
            raise self._full(nbytes, room_nbytes)

    def write(self, block: memoryview) -> Slot:
        """Copy a block's bytes out; they must be contiguous."""
        view = block.cast("B")
        address = address_of(view)
        head_nbytes = min(-address % self._alignment if self._alignment else 0, view.nbytes)
        unit_nbytes = UNIT_NBYTES if self._alignment else 1
        body_end = head_nbytes + (view.nbytes - head_nbytes) // unit_nbytes * unit_nbytes
        body = view[head_nbytes:body_end]
        offset, room_nbytes = self._reserve(body.nbytes)
        try:
            with self._copying(self._out, view.nbytes) as file:
                file.write(body, offset)
        except BaseException:
            self._give(offset, room_nbytes)
            raise
        phase = address % PHASE_NBYTES
        return Slot(view.nbytes, phase, offset, room_nbytes, bytes(view[:head_nbytes]), bytes(view[body_end:]))

    def read(self, slot: Slot) -> MemoryBlock:
        """Copy a slot's bytes into new memory of the same phase."""
        block = self._memory.block(slot.nbytes, slot.phase)
        view = block.view
        head_nbytes, body_end = len(slot.head), slot.nbytes - len(slot.tail)
        view[:head_nbytes] = slot.head
        view[body_end:] = slot.tail
        with self._copying(self._in, slot.nbytes) as file:
            file.read(view[head_nbytes:body_end], slot.offset)
        return block

    def read_into(self, slot: Slot, block: memoryview) -> None:
        """Copy a slot's bytes into `block`: directly where it is aligned as the bytes were that left, else by way of a window."""
        view = block.cast("B")
        if view.nbytes != slot.nbytes:
            raise ValueError(f"the slot holds {slot.nbytes} bytes, the block has room for {view.nbytes}")
        head_nbytes, body_end = len(slot.head), slot.nbytes - len(slot.tail)
        view[:head_nbytes] = slot.head
        view[body_end:] = slot.tail
        body = view[head_nbytes:body_end]
        with self._copying(self._in, slot.nbytes) as file:
            if not self._alignment or address_of(body) % self._alignment == 0:
                file.read(body, slot.offset)
                return
            window = self._memory.block(min(_WINDOW_NBYTES, body.nbytes), 0).view
            for start in range(0, body.nbytes, _WINDOW_NBYTES):
                part = window[: min(_WINDOW_NBYTES, body.nbytes - start)]
                file.read(part, slot.offset + start)
                body[start : start + part.nbytes] = part

    def release(self, slot: Slot) -> None:
        """Let the slot's room be used again."""
        self._give(slot.offset, slot.room_nbytes)

    def keep_spare(self, nbytes: int) -> None:
        """Let dead blocks keep up to `nbytes` for the next reads."""
        self._memory.spare_limit_nbytes = nbytes

    def speed(self) -> TierSpeed:
        """The rates of the copies so far."""
        if self._known is None and not (self._out.nbytes_per_second() and self._in.nbytes_per_second()):
            # small blocks: what is copied here counts against the budget of whoever asks
            self._known = measure_tier(self, block_nbytes=4 * 2**20, num_blocks=8)
        known = self._known or TierSpeed(self.name, 0.0, 0.0)
        return TierSpeed(
            self.name,
            self._out.nbytes_per_second(known.latency_seconds) or known.out_nbytes_per_second,
            self._in.nbytes_per_second(known.latency_seconds) or known.in_nbytes_per_second,
            known.latency_seconds,
            self.room_nbytes,
        )

    def close(self) -> None:
        """Give the file and the spare memory back; the file goes when the last copy under way is done."""
        self._memory.spare_limit_nbytes = 0
        with self._lock:
            self._file = None
            self._space = Space()

    def _opened(self) -> ScratchFile:
        if self._file is None:
            raise TierLost(f"{self.name} tier in {str(self.folder)!r}: it is closed, and what it held is gone; open it again")
        return self._file

    def _reserve(self, nbytes: int) -> tuple[int, int]:
        """(offset, room) for `nbytes`."""
        room_nbytes = size_class(nbytes)
        if not room_nbytes:
            return 0, 0
        with self._lock:
            file = self._opened()
            offset = self._space.take(room_nbytes)
            if offset is None:
                with self._translated(nbytes):
                    self._grow(file, self._space.missing(room_nbytes))
                offset = self._space.take(room_nbytes)
                assert offset is not None, "growing made a hole that fits"
        return offset, room_nbytes

    def _give(self, offset: int, room_nbytes: int) -> None:
        if room_nbytes:
            with self._lock:
                if self._file is not None:
                    self._space.give(offset, room_nbytes)

    def _grow(self, file: ScratchFile, missing_nbytes: int) -> None:
        end = self._space.end
        if self._in_memory:  # room set aside would be memory already
            file.extend(end, missing_nbytes, allocate=False)
            self._space.grow(missing_nbytes)
            return
        generous_nbytes = min(max(_SMALLEST_PIECE_NBYTES, end // 2), _LARGEST_PIECE_NBYTES)
        if missing_nbytes < generous_nbytes <= file.free_nbytes // 2:  # a nearly full disk is left to others
            with suppress(OSError):  # a quota or a limit on files: perhaps the bytes at hand still fit
                file.extend(end, generous_nbytes, allocate=True)
                self._space.grow(generous_nbytes)
                return
        file.extend(end, missing_nbytes, allocate=True)
        self._space.grow(missing_nbytes)

    @contextmanager
    def _copying(self, meter: CopyMeter, nbytes: int) -> Iterator[ScratchFile]:
        """The file for one copy, metered."""
        file = self._opened()
        moved_nbytes = 0
        meter.begin()
        try:
            with self._translated(nbytes):
                yield file
            moved_nbytes = nbytes
        finally:
            meter.end(moved_nbytes)

    @contextmanager
    def _translated(self, nbytes: int) -> Iterator[None]:
        """Errors of the operating system as errors of ours."""
        try:
            yield
        except OSError as error:
            if error.errno in NO_ROOM:
                raise self._full(nbytes, self._opened().free_nbytes, str(error.strerror)) from error
            raise TierLost(
                f"{self.name} tier in {str(self.folder)!r}: {error.strerror or error} while copying {format_bytes(nbytes)}; "
                "the bytes it held may be gone. Check the disk, or choose another folder: 'disk:/path'"
            ) from error

    def _full(self, nbytes: int, free_nbytes: int, cause: str = "") -> TierFull:
        remedy = "raise the limit of /dev/shm, use 'disk'" if self.name == "shm" else "free some, use a larger disk: 'disk:/path'"
        return TierFull(
            f"{self.name} tier in {str(self.folder)!r}: {format_bytes(nbytes)} needed, {format_bytes(free_nbytes)} free"
            f"{f' ({cause})' if cause else ''}; {remedy}, or raise the budget so that less is swapped"
        )
