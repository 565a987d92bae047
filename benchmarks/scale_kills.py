"""The runs of `scale.py` in which a rank is killed: whether they come back, and how soon."""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from threading import Timer
from time import perf_counter, sleep
from typing import Any

from results import FigureTable

_RECIPE, _NUM_RUN_STEPS, _EVERY = "bert-pretrain", 200, 20
_IN_THE_PIPE_SECONDS = 0.3  # what was told before the kill may be read after it


@dataclass(frozen=True)
class Kill:
    """One run in which a rank was killed."""

    seconds: float  # after the start
    step: int  # the last that was told before
    seconds_to_next: float  # until the next was; 0 where there was none left
    is_equal: bool


def measure_kills(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Runs that are disturbed, and one that is not."""
    moments = random.Random(options.seed)
    kills: list[Kill] = []
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = Path(folder, "undisturbed")
        begin = perf_counter()
        assert train_in_two(undisturbed, None, options.parallel) is None, "nobody was to be killed"
        seconds, expected = perf_counter() - begin, _losses(undisturbed)
        while len(kills) < options.kills:
            run = Path(folder, str(len(kills)))
            kill = train_in_two(run, moments.uniform(0, seconds), options.parallel)
            if kill is not None:
                kills.append(Kill(*kill, _losses(run) == expected))
            shutil.rmtree(run)  # also where it was over before the moment came: that one does not count
    return {f"{_RECIPE}, {_NUM_RUN_STEPS} steps, {options.parallel}": {"kills": [asdict(kill) for kill in kills]}}


def table_kills(found: dict[str, dict[str, Any]]) -> tuple[FigureTable, bool]:
    """How many came back, and how soon."""
    rows, is_met = [], True
    for name, each in found.items():
        kills = [Kill(**kill) for kill in each["kills"]]
        num_equal = sum(kill.is_equal for kill in kills)
        back = median(kill.seconds_to_next for kill in kills)
        rows.append([name, f"{len(kills)}", f"{num_equal} of {len(kills)}", f"{back:.1f} s"])
        is_met = is_met and num_equal == len(kills)
    columns = ["recipe", "killed", "recovered and equal", "until the next step, median"]
    return FigureTable("one of two processes killed at a random moment", columns, rows), is_met


def train_in_two(run: Path, moment: float | None, parallel: str) -> tuple[float, int, float] | None:
    """Train; `moment` seconds after the start one of two processes is killed: when, after which step, seconds to the next."""
    settings = [f"steps={_NUM_RUN_STEPS}", "batch=4"]
    command = [sys.executable, "-m", "tensorferry.cli", "train", _RECIPE, "--workers", "2", "--seed", "1", "--every", str(_EVERY)]
    command += [
        "--parallel",
        parallel,
        "--json",
        "--out",
        str(run),
        *(word for setting in settings for word in ("--set", setting)),
    ]
    steps: list[tuple[float, int]] = []
    killed: list[float] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        timer = Timer(moment or 0, lambda: killed.append(_kill_one(parent)))
        if moment is not None:
            timer.start()
        for line in parent.stdout:
            row = json.loads(line)
            if "loss" in row:
                steps.append((perf_counter(), row["step"]))
        timer.cancel()
    if not killed or not killed[0]:
        return None
    assert moment is not None
    before = max((step for when, step in steps if when < killed[0]), default=0)
    return moment, before, next((when - killed[0] for when, _ in steps if when > killed[0] + _IN_THE_PIPE_SECONDS), 0.0)


def _kill_one(parent: "subprocess.Popen[str]") -> float:
    """When it was killed; 0 where the run was over first."""
    while parent.poll() is None:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        ranks = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        if len(ranks) == 2:
            os.kill(int(random.choice(ranks)), signal.SIGKILL)
            return perf_counter()
        sleep(0.05)
    return 0.0


def _losses(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
    return [json.loads(line)["loss"] for line in lines]
