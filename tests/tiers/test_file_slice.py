"""Parts of a user's file, read around the page cache."""

import mmap
import os
import random
from pathlib import Path

import pytest

from tensorferry.errors import TierLost
from tensorferry.tiers import FileSlice, SlicedFile

NUM_BYTES = 5 * 2**20 + 12345


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("files") / "weights"
    written.write_bytes(random.Random(0).randbytes(NUM_BYTES))
    return written


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_slice_has_the_bytes_of_its_place_wherever_that_is(path: Path, is_direct: bool) -> None:
    file, content = SlicedFile(path), path.read_bytes()
    if not is_direct:
        file._direct = None
    for offset, nbytes in ((0, 10), (8, 4096), (4095, 2), (4096, 8192), (100, 3 * 2**20), (NUM_BYTES - 7, 7), (1, NUM_BYTES - 1)):
        block = bytearray(nbytes)
        FileSlice(file, offset, nbytes).read_into(memoryview(block))
        assert block == content[offset : offset + nbytes]


def test_what_is_read_does_not_stay_in_the_page_cache(path: Path) -> None:
    file = SlicedFile(path)
    if not file.is_direct:
        pytest.skip("this file system has no direct I/O")
    os.fsync(file.handle)
    os.posix_fadvise(file.handle, 0, 0, os.POSIX_FADV_DONTNEED)
    FileSlice(file, 0, 2**20).read_into(memoryview(bytearray(2**20)))
    assert not _cached_pages(path, 2**20)


def test_a_file_that_has_become_shorter_is_a_lost_tier(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(bytes(10_000))
    part = FileSlice(SlicedFile(short), 5000, 5000)
    os.truncate(short, 6000)
    with pytest.raises(TierLost, match="shorter"):
        part.read_into(memoryview(bytearray(5000)))


def _cached_pages(path: Path, nbytes: int) -> int:
    """Pages at the beginning of a file that are in the page cache."""
    import ctypes

    both = mmap.PROT_READ | mmap.PROT_WRITE
    with path.open("rb") as file, mmap.mmap(file.fileno(), nbytes, prot=both, flags=mmap.MAP_PRIVATE) as m:
        address = ctypes.addressof(ctypes.c_char.from_buffer(m))
        is_there = ctypes.create_string_buffer(nbytes // mmap.PAGESIZE)
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), is_there) == 0
        return sum(byte & 1 for byte in is_there.raw)
