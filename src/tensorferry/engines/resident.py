"""What this process holds in memory, as the kernel counts it.

With the CPU as the device, device memory is the process's own resident memory. The kernel keeps its peak (VmHWM), and
writing 5 to `/proc/self/clear_refs` sets that peak back to the present, so the peak of a single op can be read exactly.
Linux only; elsewhere `ResidentMeter` raises `OSError` when it is made.
"""

import ctypes
import os
import resource

_PAGE_NBYTES = resource.getpagesize()
_LIBRARY = ctypes.CDLL(None, use_errno=True)

# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4
_DEFAULT_MAX_MAPPED = 65536

# <sys/mman.h>
_MADV_DONTNEED = 4

# <linux/prctl.h>
_PR_SET_THP_DISABLE = 41
_PR_GET_THP_DISABLE = 42

_GLIBC_MAX_THRESHOLD_NBYTES = 32 * 2**20  # larger blocks are mapped on their own and unmapped when freed, if any may be
_NEVER_NBYTES = 2**31 - 1


class ResidentMeter:
    """Reads resident memory and its peak; keeps the highest peak seen across resets. A new one begins a new peak."""

    def __init__(self) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        try:
            self._clear_refs: int | None = os.open("/proc/self/clear_refs", os.O_WRONLY)
        except OSError:
            self._clear_refs = None
        self._begin_peak()
        self._highest_nbytes = 0

    def now_nbytes(self) -> int:
        """Resident memory at this moment."""
        return int(os.pread(self._statm, 128, 0).split()[1]) * _PAGE_NBYTES

    def peak_nbytes(self) -> int:
        """The highest resident memory since the last reset, or since the process began."""
        return self._status_nbytes(b"VmHWM:")

    def reset_peak(self) -> None:
        """Begin a new peak. Where the kernel refuses, peaks only ever grow and ops show no workspace of their own."""
        self.highest_nbytes()
        self._begin_peak()

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
        if self._clear_refs is not None:
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
    start, length = _whole_pages(address, nbytes)
    if resident_nbytes and _LIBRARY.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), "the system does not take pages back")
    return resident_nbytes


def _whole_pages(address: int, nbytes: int) -> tuple[int, int]:
    start, stop = -(-address // _PAGE_NBYTES) * _PAGE_NBYTES, (address + nbytes) // _PAGE_NBYTES * _PAGE_NBYTES
    return start, max(0, stop - start)


class Heap:
    """glibc's heap, and what becomes of the blocks freed in it. No effect where the C library is another one.

    By itself glibc keeps freed blocks below 32 MiB resident for the next allocation: cheap, since pages need not be zeroed
    anew, but resident memory then says little about live tensors. Larger ones it gives back.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._mallopt = getattr(library, "mallopt", None)
        self._malloc_trim = getattr(library, "malloc_trim", None)

    def return_at_once(self, min_nbytes: int = 2**20) -> None:
        """From now on every freed block of at least that size goes back to the system: resident memory is what is live."""
        self._set(min_nbytes, min_nbytes, _DEFAULT_MAX_MAPPED)

    def keep_for_reuse(self) -> None:
        """From now on freed blocks of any size stay for the next allocation, until `trim`."""
        self._set(_GLIBC_MAX_THRESHOLD_NBYTES, _NEVER_NBYTES, 0)

    def trim(self) -> None:
        """Give back the memory of every free block."""
        if self._malloc_trim is not None:
            self._malloc_trim(0)

    def restore(self) -> None:
        """Leave glibc as a process leaves it that has freed large blocks; its adaptive threshold cannot be turned on again."""
        self._set(_GLIBC_MAX_THRESHOLD_NBYTES, 2 * _GLIBC_MAX_THRESHOLD_NBYTES, _DEFAULT_MAX_MAPPED)
        self.trim()

    def _set(self, mmap_nbytes: int, trim_nbytes: int, max_mapped: int) -> None:
        if self._mallopt is not None:
            self._mallopt(_M_MMAP_THRESHOLD, mmap_nbytes)
            self._mallopt(_M_TRIM_THRESHOLD, trim_nbytes)
            self._mallopt(_M_MMAP_MAX, max_mapped)


class SmallPages:
    """Whether fresh memory comes in the smallest pages only, so that page faults count it.

    Where the system gives pages of 2 MiB, always or to those who ask as torch may, one fault brings 512 of the smallest.
    """

    def __init__(self) -> None:
        self._prctl = getattr(ctypes.CDLL(None), "prctl", None)
        self._was_on = self._prctl is not None and self._prctl(_PR_GET_THP_DISABLE, 0, 0, 0, 0) > 0

    def turn(self, on: bool) -> None:
        """Begin or end it; what began before this was made does not end."""
        if self._prctl is not None and not self._was_on:
            self._prctl(_PR_SET_THP_DISABLE, int(on), 0, 0, 0)
