"""Processes of one training on one machine: what they print, and what becomes of a machine that was one too many."""

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.launcher.api
import torch.multiprocessing

from tensorferry.errors import BadOption, RunFailed
from tensorferry.scaling.launch import _start, launch
from tensorferry.scaling.world import Cluster


def _print_lines() -> str:
    print("one\ntw", end="")
    print("o\n\nthree")
    print("oh", file=sys.stderr)
    return "done"


@pytest.mark.parametrize(("rank", "name"), [("0", ""), ("8", "[rank 8] ")])
def test_the_first_process_of_each_machine_but_the_leader_names_its_lines(
    rank: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(torch.multiprocessing, "_prctl_pr_set_pdeathsig", lambda number: None)  # this process stays
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setitem(os.environ, "LOCAL_RANK", "0")
    monkeypatch.setitem(os.environ, "RANK", rank)
    assert _start(_print_lines) == "done"
    assert out.getvalue().splitlines() == [f"{name}{line}" for line in ("one", "two", "", "three")]
    assert err.getvalue() == f"{name}oh\n"


def _take_no_part(config: Any, work: Any) -> Any:
    def leave(*args: Any) -> Any:
        return None.is_failed()  # as torch does

    return leave


def test_a_machine_that_was_one_too_many_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed.launcher.api, "elastic_launch", _take_no_part)
    with pytest.raises(RunFailed, match="the training at localhost:29500 took place without this machine"):
        launch(_print_lines, (), Cluster(1, 1, 2, "localhost:29500"), 0, tmp_path / "verdict")


def test_a_meeting_place_that_is_no_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="expected --rendezvous to be host:port"):
        launch(_print_lines, (), Cluster(1, 2, 2, "node0"), 0, tmp_path / "verdict")
