"""Ranks that are not the same are told before they train, and a folder that one of them does not see."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from listening import TINY, Told

from tensorferry.errors import BadOption, BadRun
from tensorferry.scaling.team import ALONE, Alone, Team
from tensorferry.train.meeting import check_folder, compare, greet, leave_token
from tensorferry.train.start import Ranks, TrainRequest, begin


class _Second(Team):
    """One of two ranks; the other one has found what it has."""

    rank, size = 1, 2
    row_rank, num_row_ranks, draw_rank = 1, 2, 1
    row_leaders = (0, 1)

    def __init__(self, other: Any) -> None:
        self._other = other

    def gather(self, value: Any) -> list[Any]:
        return [self._other, value]

    def share(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        """Nothing is open."""


def test_ranks_that_are_the_same_meet(tmp_path: Path) -> None:
    one = greet("a", "bert-classify", {"--parallel": "data"})
    compare([one, replace(one, started_by="b")])
    assert {"python", "torch", "numpy"} <= one.installed.keys()


def test_another_version_another_file_and_another_option_are_named(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.py"
    recipe.write_text("rate = 1")
    one = greet("a", f"{recipe}:Mine", {"--parallel": "data"})
    recipe.write_text("rate = 2")
    with pytest.raises(BadOption, match=r"rank 1 has mine\.py \w+, and rank 0 has \w+; install the same on every machine"):
        compare([one, greet("b", f"{recipe}:Mine", {"--parallel": "data"})])
    with pytest.raises(BadOption, match=r"rank 1 has torch 1\.0, and rank 0 has "):
        compare([one, replace(one, installed={**one.installed, "torch": "1.0"})])
    with pytest.raises(BadOption, match="rank 2 was started with --parallel fsdp, and rank 0 with data; start the same command"):
        compare([one, one, replace(one, asked={"--parallel": "fsdp"})])


def test_a_folder_that_a_rank_does_not_see_is_told(tmp_path: Path) -> None:
    token = leave_token(_Second(True), tmp_path)
    check_folder(_Second(True), tmp_path, token)
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(BadRun, match=r"rank 1 cannot see '.*elsewhere', where rank 0 writes the run; name a folder with --out"):
        check_folder(_Second(True), elsewhere, token, 0.0)
    with pytest.raises(BadRun, match="rank 1 cannot see"):  # the same name, and another folder
        check_folder(_Second(True), tmp_path, "another token", 0.0)
    with pytest.raises(BadRun, match="rank 0 cannot see"):
        check_folder(_Second(False), tmp_path, token)


def test_one_process_leaves_nothing_to_look_for(tmp_path: Path) -> None:
    check_folder(ALONE, tmp_path, leave_token(ALONE, tmp_path))
    assert not list(tmp_path.iterdir())


class _Telling(Alone):
    """A team of one that remembers what it was busy with."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def busy(self, what: str) -> AbstractContextManager[None]:
        self.told.append(what)
        return nullcontext()


def test_whoever_loads_or_saves_says_so_as_the_others_wait(tmp_path: Path) -> None:
    team = _Telling()
    assert begin(TrainRequest(TINY, {"steps": "4"}, out=tmp_path / "run", seed=3, every=2), Told(), Ranks(team)) == 0
    assert team.told[0] == "loading data and model"
    assert [what for what in team.told if what.startswith("saving step")] == ["saving step 0", "saving step 2", "saving step 4"]
