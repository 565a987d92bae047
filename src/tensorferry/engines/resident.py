"""What this process holds in memory, as the kernel counts it.

With the CPU as the device, device memory is the process's own resident memory. The kernel keeps its peak (VmHWM), and
writing 5 to `/proc/self/clear_refs` sets that peak back to the present, so the peak of a single op can be read exactly.
Linux only; elsewhere `ResidentMeter` raises `OSError` when it is made.
"""

import ctypes
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar
from weakref import WeakSet

_PAGE_NBYTES = resource.getpagesize()
_LIBRARY = ctypes.CDLL(None, use_errno=True)

# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4
_DEFAULT_MAX_MAPPED = 65536
_MMAPPED_FLAG = 2  # in the word before a block: it has a mapping of its own

# <sys/mman.h>
_MADV_DONTNEED = 4

# <linux/prctl.h>
_PR_SET_THP_DISABLE = 41
_PR_GET_THP_DISABLE = 42

_GLIBC_MAX_THRESHOLD_NBYTES = 32 * 2**20  # larger blocks are mapped on their own and unmapped when freed, if any may be
_NEVER_NBYTES = 2**31 - 1


class ResidentMeter:
    """Reads resident memory and its peak; keeps the highest peak seen across resets. A new one begins a new peak.

    The kernel has one peak for the whole process: who sets it back tells all other meters what it was.
    """

    _all: ClassVar[WeakSet["ResidentMeter"]] = WeakSet()

    def __init__(self) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        try:
            self._clear_refs: int | None = os.open("/proc/self/clear_refs", os.O_WRONLY)
        except OSError:
            self._clear_refs = None
        self._peak_nbytes = 0  # before the kernel's peak was last set back, since this meter's was
        self._highest_nbytes = 0
        self._begin_peak()
        self._all.add(self)

    def now_nbytes(self) -> int:
        """Resident memory at this moment."""
        return int(os.pread(self._statm, 128, 0).split()[1]) * _PAGE_NBYTES

    def peak_nbytes(self) -> int:
        """The highest resident memory since the last reset, or since the process began."""
        return max(self._peak_nbytes, self._status_nbytes(b"VmHWM:"))

    def reset_peak(self) -> None:
        """Begin a new peak. Where the kernel refuses, peaks only ever grow and ops show no workspace of their own."""
        self._begin_peak()

    def forget_highest(self) -> None:
        """Begin a new peak, and the highest one anew with it."""
        self._begin_peak()
        self._highest_nbytes = 0

    def highest_nbytes(self) -> int:
        """The highest resident memory ever read, resets or not."""
        self._highest_nbytes = max(self._highest_nbytes, self.peak_nbytes())
        return self._highest_nbytes

    def touched_nbytes(self) -> int:
        """Fresh memory touched since the process began, from its page faults; too little where `SmallPages` are not on."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt * _PAGE_NBYTES

    def data_nbytes(self) -> int:
        """Private writable memory: what a cap by RLIMIT_DATA counts."""
        return self._status_nbytes(b"VmData:")

    def close(self) -> None:
        """Give the file descriptors back."""
        for fd in (self._statm, self._status, self._clear_refs):
            if fd is not None:
                os.close(fd)

    def _begin_peak(self) -> None:
        if self._clear_refs is None:
            return
        peak_nbytes = self._status_nbytes(b"VmHWM:")
        for meter in self._all:
            meter._peak_nbytes = max(meter._peak_nbytes, peak_nbytes)
        self._highest_nbytes = max(self._highest_nbytes, self._peak_nbytes)
        self._peak_nbytes = 0
        os.write(self._clear_refs, b"5")

    def _status_nbytes(self, field: bytes) -> int:
        text = os.pread(self._status, 4096, 0)
        start = text.index(field) + len(field)
        return int(text[start : start + 24].split()[0]) * 1024


def count_resident(address: int, nbytes: int) -> int:
    """How many bytes of the whole pages in a block are resident."""
    start, length = _whole_pages(address, nbytes)
    is_there = ctypes.create_string_buffer(length // _PAGE_NBYTES)
    if length and _LIBRARY.mincore(ctypes.c_void_p(start), ctypes.c_size_t(length), is_there):
        raise OSError(ctypes.get_errno(), "the system does not tell which pages are resident")
    return (len(is_there) - is_there.raw.count(0)) * _PAGE_NBYTES


def drop_pages(address: int, nbytes: int) -> int:
    """Give the whole pages in a block back whose bytes nobody wants; how many bytes of them were resident."""
    resident_nbytes = count_resident(address, nbytes)
    if resident_nbytes:
        _drop(address, nbytes)
    return resident_nbytes


def _drop(address: int, nbytes: int) -> None:
    start, length = _whole_pages(address, nbytes)
    if _LIBRARY.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), "the system does not take pages back")


def _whole_pages(address: int, nbytes: int) -> tuple[int, int]:
    start, stop = -(-address // _PAGE_NBYTES) * _PAGE_NBYTES, (address + nbytes) // _PAGE_NBYTES * _PAGE_NBYTES
    return start, max(0, stop - start)


class Heap:
    """glibc's heap, and what becomes of the blocks freed in it. No effect where `malloc` is not glibc's.

    By itself glibc keeps freed blocks below 32 MiB resident for the next allocation: cheap, since pages need not be zeroed
    anew, but resident memory then says little about live tensors. Larger ones it gives back.

    A block that is mapped on its own goes back to the system when it is freed; one that lies in the heap stays there. Whatever
    its thresholds say, glibc maps a block only if no hole in the heap is large enough for it, so as long as there are holes
    thresholds alone promise nothing. `free_at_once` fills the holes for a while, with blocks that take addresses and no
    memory. A thread has a heap of its own, and only the holes of the calling thread's heap are filled.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._mallopt = getattr(library, "mallopt", None)
        self._malloc_trim = getattr(library, "malloc_trim", None)
        self._malloc, self._free = library.malloc, library.free
        self._malloc.argtypes, self._malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
        self._free.argtypes, self._free.restype = [ctypes.c_void_p], None
        # a cap on the process counts addresses: those in holes, and those that are mapped instead
        self._may_fill = _is_glibc_malloc(library) and not is_capped()
        self._min_nbytes: int | None = None  # blocks of this size go back when they are freed

    def return_at_once(self, min_nbytes: int = 2**20) -> None:
        """From now on every freed block of at least that size goes back to the system, if it does not lie in a hole."""
        self._set(min_nbytes, min_nbytes, _DEFAULT_MAX_MAPPED)
        self._min_nbytes = min_nbytes

    def keep_for_reuse(self) -> None:
        """From now on freed blocks of any size stay for the next allocation, until `trim`."""
        self._set(_GLIBC_MAX_THRESHOLD_NBYTES, _NEVER_NBYTES, 0)
        self._min_nbytes = None

    @contextmanager
    def free_at_once(self) -> Iterator[None]:
        """After `return_at_once`: while inside, no block of at least that size that this thread asks for lies in a hole."""
        if self._min_nbytes is None or not self._may_fill:
            yield
            return
        # glibc writes a few bytes into every filling, and the op beside them: that must bring 4 KiB, not 2 MiB
        pages = SmallPages()
        pages.turn(True)
        fillings: list[int] = []
        try:
            self._fill_holes(self._min_nbytes, fillings)
            if not fillings:
                pages.turn(False)
            yield
        finally:
            for address in fillings:
                self._free(address)
            pages.turn(False)

    def trim(self) -> None:
        """Give back the memory of every free block."""
        if self._malloc_trim is not None:
            self._malloc_trim(0)

    def restore(self) -> None:
        """Leave glibc as a process leaves it that has freed large blocks; its adaptive threshold cannot be turned on again."""
        self._set(_GLIBC_MAX_THRESHOLD_NBYTES, 2 * _GLIBC_MAX_THRESHOLD_NBYTES, _DEFAULT_MAX_MAPPED)
        self._min_nbytes = None
        self.trim()

    def _fill_holes(self, min_nbytes: int, fillings: list[int]) -> None:
        """Fill every hole of at least that size, large ones first in large pieces; `fillings` gets their addresses."""
        if not self._fill(min_nbytes, fillings):  # mostly there is none, and this one question costs least
            return
        for num_units in (64, 8, 1):
            while self._fill(num_units * min_nbytes, fillings):
                pass

    def _fill(self, nbytes: int, fillings: list[int]) -> bool:
        """Fill so much of one hole; False where no hole is as large."""
        address = self._malloc(nbytes)
        if address is None:
            return False
        if ctypes.c_size_t.from_address(address - ctypes.sizeof(ctypes.c_size_t)).value & _MMAPPED_FLAG:
            self._free(address)
            return False
        fillings.append(address)
        _drop(address, nbytes)
        return True

    def _set(self, mmap_nbytes: int, trim_nbytes: int, max_mapped: int) -> None:
        if self._mallopt is not None:
            self._mallopt(_M_MMAP_THRESHOLD, mmap_nbytes)
            self._mallopt(_M_TRIM_THRESHOLD, trim_nbytes)
            self._mallopt(_M_MMAP_MAX, max_mapped)


class _Symbol(ctypes.Structure):
    """`Dl_info` of <dlfcn.h>."""

    _fields_ = (("path", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p))


def _is_glibc_malloc(library: ctypes.CDLL) -> bool:
    """Whether nobody, such as jemalloc, has put another `malloc` before glibc's; where the C library is another one, no."""
    try:
        functions = [ctypes.cast(function, ctypes.c_void_p) for function in (library.malloc, library.gnu_get_libc_version)]
        symbols = [_Symbol() for _ in functions]
        found = [library.dladdr(function, ctypes.byref(symbol)) for function, symbol in zip(functions, symbols, strict=True)]
    except AttributeError:
        return False
    return all(found) and symbols[0].base == symbols[1].base


def is_capped() -> bool:
    """Whether the process has a cap on its data or addresses, which counts what is reserved, used or not."""
    caps = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS))
    return any(cap != resource.RLIM_INFINITY for cap in caps)


class SmallPages:
    """Whether fresh memory comes in the smallest pages only, so that page faults count it.

    Where the system gives pages of 2 MiB, always or to those who ask as torch may, one fault brings 512 of the smallest.
    """

    def __init__(self) -> None:
        self._prctl = getattr(_LIBRARY, "prctl", None)
        self._was_on = self._prctl is not None and self._prctl(_PR_GET_THP_DISABLE, 0, 0, 0, 0) > 0

    def turn(self, on: bool) -> None:
        """Begin or end it; what began before this was made does not end."""
        if self._prctl is not None and not self._was_on:
            self._prctl(_PR_SET_THP_DISABLE, int(on), 0, 0, 0)
