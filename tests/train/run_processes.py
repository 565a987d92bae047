"""What the processes of a run that is killed do; a module of its own name, for a process that another starts finds it by that."""

import sys
from pathlib import Path

import torch
from listening import TINY, Told

from tensorferry.train.start import TrainRequest, begin, resume


def begin_short(folder: Path) -> None:
    """Train 20 steps with a checkpoint every third."""
    torch.set_num_threads(1)
    sys.exit(begin(TrainRequest(TINY, {"steps": "20"}, out=folder, seed=5, every=3), Told()))


def begin_long(folder: Path) -> None:
    """Train until somebody ends it."""
    torch.set_num_threads(1)
    sys.exit(begin(TrainRequest(TINY, {"steps": "1000000"}, out=folder, seed=5, every=100_000), Told()))


def go_on(folder: Path) -> None:
    """Resume the run of a folder."""
    torch.set_num_threads(1)
    sys.exit(resume(folder, Told()))
