"""Tier words: each opens its tier, or says what to write instead."""

from pathlib import Path

import pytest

from tensorferry.errors import BadTier
from tensorferry.machine import Machine, TierSpeed
from tensorferry.tiers import open_tier
from tensorferry.tiers.scratch_file import best_folder


@pytest.mark.parametrize("text", ["auto", "disk", " disk "])
def test_the_default_is_the_best_folder(text: str) -> None:
    tier = open_tier(text)
    assert tier.name == "disk"
    assert tier.describe.startswith(f"disk {best_folder()}, ")
    tier.close()


def test_a_path_is_where_the_disk_tier_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a:b").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in (f"disk:{tmp_path}/a:b", "disk:a:b", "disk:~/a:b"):
        tier = open_tier(text)
        assert tier.describe.startswith(f"disk {tmp_path}/a:b, ")
        tier.close()


def test_shm_is_shared_memory() -> None:
    tier = open_tier("shm")
    assert (tier.name, tier.describe) == ("shm", "shm /dev/shm")
    tier.close()


@pytest.mark.parametrize("text", ["", "tape", "disk:", "shm:/x", "auto:", "Disk", None, 3])
def test_an_unknown_tier_names_the_choices(text: str) -> None:
    with pytest.raises(BadTier, match=r"'auto', 'disk', 'disk:/path', 'shm'"):
        open_tier(text)


def test_pinned_needs_an_accelerator() -> None:
    with pytest.raises(BadTier, match=r"accelerator.*use 'auto', 'disk:/path' or 'shm'"):
        open_tier("pinned")


def test_a_folder_that_cannot_be_used_is_a_bad_tier(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, reason in (
        (tmp_path / "missing", "does not exist"),
        (tmp_path / "file", "is not one"),
        (Path("/proc"), "cannot create"),
    ):
        with pytest.raises(BadTier, match=reason) as caught:
            open_tier(f"disk:{path}")
        assert str(path) in str(caught.value)


def test_a_measured_machine_gives_the_speed_before_the_first_copy() -> None:
    machine = Machine("measured", 2**30, tiers=(TierSpeed("disk", 3.0, 4.0),))
    disk = open_tier("disk", measured=machine)
    assert disk.speed().out_nbytes_per_second == 3.0
    disk.close()


def test_a_machine_measured_on_another_device_is_not_believed() -> None:
    machine = Machine("measured", 2**30, tiers=(TierSpeed("disk", 3.0, 4.0),))
    if Path("/dev/shm").stat().st_dev == best_folder().stat().st_dev:
        pytest.skip("only one device here")
    for text in ("disk:/dev/shm", "shm"):
        other = open_tier(text, measured=machine)
        assert other.speed().out_nbytes_per_second > 1000
        other.close()
