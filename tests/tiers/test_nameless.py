"""Nameless files: never seen in the folder, and around the page cache also without direct I/O."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from tensorferry.errors import BadTier
from tensorferry.tiers.block import BlockMemory
from tensorferry.tiers.folder import file_system
from tensorferry.tiers.nameless import NamelessFile

MIB = 2**20


def descriptors_in(folder: Path) -> list[int]:
    """This process's open files whose (former) place is in `folder`."""
    links = {int(entry.name): entry for entry in Path("/proc/self/fd").iterdir()}
    return [number for number, entry in links.items() if entry.is_symlink() and str(entry.readlink()).startswith(f"{folder}/")]


def cached_pages(number: int, nbytes: int) -> int:
    """How many pages of an open file are in the page cache."""
    with mmap.mmap(number, nbytes, flags=mmap.MAP_SHARED) as memory:
        libc = ctypes.CDLL(None, use_errno=True)
        start = ctypes.c_char.from_buffer(memory)
        flags = (ctypes.c_ubyte * (nbytes // mmap.PAGESIZE))()
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(nbytes), flags)
        del start
        assert not failed
        return sum(flag & 1 for flag in flags)


@pytest.mark.parametrize("direct", [True, False])
def test_bytes_come_back_and_do_not_stay_in_the_page_cache(tmp_path: Path, direct: bool) -> None:
    if file_system(tmp_path) == "tmpfs":
        pytest.skip("the test folder is memory")
    file = NamelessFile(tmp_path, direct=direct, cached=False)
    assert bool(file.alignment) <= direct
    file.extend(0, 8 * MIB, allocate=True)
    block = BlockMemory().block(4 * MIB, 0).view
    block[:] = os.urandom(4 * MIB)
    back = BlockMemory().block(4 * MIB, 0).view
    file.write(block, 4 * MIB)
    file.read(back, 4 * MIB)
    assert back == block
    (number,) = descriptors_in(tmp_path)
    assert cached_pages(number, 8 * MIB) < 2 * MIB // mmap.PAGESIZE
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_open_as_long_as_someone_refers_to_it(tmp_path: Path) -> None:
    file = NamelessFile(tmp_path, direct=True, cached=False)
    assert len(descriptors_in(tmp_path)) == 1
    del file
    assert descriptors_in(tmp_path) == []


def test_reading_past_the_end_is_an_error_and_not_an_endless_loop(tmp_path: Path) -> None:
    file = NamelessFile(tmp_path, direct=True, cached=False)
    with pytest.raises(OSError, match="the file ends at byte 8192"):
        file.read(BlockMemory().block(4096, 0).view, 8192)


@pytest.mark.parametrize("direct", [True, False])
def test_a_folder_that_takes_no_files_is_a_bad_tier(direct: bool) -> None:
    with pytest.raises(BadTier, match=r"cannot create a file in '/proc'.*choose a folder"):
        NamelessFile(Path("/proc"), direct=direct, cached=False)
