"""Which file system a folder is on, and where a disk tier goes by itself."""

import tempfile
from pathlib import Path

import pytest

from tensorferry.errors import BadTier
from tensorferry.tiers.folder import best_folder, check_folder, file_system

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
