"""Scratch files: never seen in their folder, around the page cache also without direct I/O, and on a disk by themselves."""

import ctypes
import mmap
import os
import tempfile
from pathlib import Path

import pytest

from tensorferry.errors import BadTier
from tensorferry.tiers.memory import MemoryPool
from tensorferry.tiers.scratch_file import ScratchFile, best_folder, check_folder, file_system

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
    file = ScratchFile(tmp_path, direct=direct, cached=False)
    assert bool(file.alignment) <= direct
    file.extend(0, 8 * MIB, allocate=True)
    block = MemoryPool().block(4 * MIB, 0).view
    block[:] = os.urandom(4 * MIB)
    back = MemoryPool().block(4 * MIB, 0).view
    file.write(block, 4 * MIB)
    file.read(back, 4 * MIB)
    assert back == block
    (number,) = descriptors_in(tmp_path)
    assert cached_pages(number, 8 * MIB) < 2 * MIB // mmap.PAGESIZE
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_open_as_long_as_someone_refers_to_it(tmp_path: Path) -> None:
    file = ScratchFile(tmp_path, direct=True, cached=False)
    assert len(descriptors_in(tmp_path)) == 1
    del file
    assert descriptors_in(tmp_path) == []


def test_reading_past_the_end_is_an_error_and_not_an_endless_loop(tmp_path: Path) -> None:
    file = ScratchFile(tmp_path, direct=True, cached=False)
    with pytest.raises(OSError, match="the file ends at byte 8192"):
        file.read(MemoryPool().block(4096, 0).view, 8192)


@pytest.mark.parametrize("direct", [True, False])
def test_a_folder_that_takes_no_files_is_a_bad_tier(direct: bool) -> None:
    with pytest.raises(BadTier, match=r"cannot create a file in '/proc'.*choose a folder"):
        ScratchFile(Path("/proc"), direct=direct, cached=False)


MOUNTS = r"""/dev/sda1 / ext4 rw 0 0
tmpfs /scratch tmpfs rw 0 0
/dev/sdb /scratch xfs rw 0 0
tmpfs /scratch/a\040b tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/home/x", "ext4"),
        ("/scratch", "xfs"),
        ("/scratch/c", "xfs"),
        ("/scratcher", "ext4"),
        ("/scratch/a b/c", "tmpfs"),
    ],
)
def test_the_deepest_and_latest_mount_decides(tmp_path: Path, folder: str, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert file_system(Path(folder), mounts) == kind


def test_a_system_that_lists_no_mounts_says_nothing(tmp_path: Path) -> None:
    assert file_system(tmp_path, tmp_path / "no such file") == ""


def test_a_temporary_folder_in_memory_is_passed_over_for_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/shm").is_dir() or file_system(tmp_path) == "tmpfs":
        pytest.skip("needs /dev/shm, and a test folder on a disk")
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
    monkeypatch.chdir(tmp_path)
    assert file_system(best_folder()) not in ("tmpfs", "ramfs")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert best_folder() == tmp_path


def test_a_folder_must_exist_and_be_one(tmp_path: Path) -> None:
    check_folder(tmp_path, "disk")
    with pytest.raises(BadTier, match=r"no such.*does not exist; create it"):
        check_folder(tmp_path / "no such", "disk")
    (tmp_path / "file").touch()
    with pytest.raises(BadTier, match=r"file' is not one"):
        check_folder(tmp_path / "file", "disk")
