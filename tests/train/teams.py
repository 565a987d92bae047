"""Recipes for several ranks: no dropout and no batch norm, so that many compute what one does; one rank may misbehave, once."""

import os
import resource
import signal
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from tiny import Tiny, TinySettings

from tensorferry.errors import BadData
from tensorferry.recipes.recipe import Data, Predict, Samples


@dataclass(frozen=True)
class TeamSettings(TinySettings):
    batch: int = 5
    steps: int = 20
    depth: int = 3
    trouble: str = ""  # of one rank at step 13, as in `_misbehave_once`; early: kill, before there is a model
    who: str = "1"  # of the ranks
    once: str = ""  # a file that tells that it has happened


def _make_layer(width: int) -> OrderedDict[str, torch.nn.Module]:
    return OrderedDict(fc1=torch.nn.Linear(width, width), activate=torch.nn.GELU(), fc2=torch.nn.Linear(width, width))


class Layered(Tiny):
    """A few layers of one kind."""

    Settings = TeamSettings
    settings: TeamSettings
    metric = "accuracy"

    def build_model(self, data: Data) -> torch.nn.Module:
        if self.settings.trouble == "early":
            self._misbehave_once()
        width = self.settings.width
        layers = (torch.nn.Sequential(_make_layer(width)) for _ in range(self.settings.depth))
        return torch.nn.Sequential(
            torch.nn.Linear(4, width), torch.nn.Sequential(*layers), torch.nn.Linear(width, len(data.labels))
        )

    def scale_rate(self, step: int) -> float:
        if step == 13:
            self._misbehave_once()
        return super().scale_rate(step)

    def _misbehave_once(self) -> None:
        # a machine, and with it whatever rank it has, is told by its environment, as all are given the same command
        is_this = "TEAM_LOST" in os.environ if self.settings.trouble == "orphan" else os.environ.get("RANK") == self.settings.who
        if not is_this or Path(self.settings.once).exists():
            return
        Path(self.settings.once).touch()
        match self.settings.trouble:
            case "raise":
                raise BadData("row 5 is no row")
            case "stick":
                time.sleep(3600)
            case "orphan":
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(5)  # and on, if nobody ends it
            case "fill":  # as if the disk had no room for more
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
            case "stop":
                os.kill(os.getpid(), signal.SIGTERM)
            case "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
            case _:
                os.kill(os.getpid(), signal.SIGKILL)


class Normed(Layered):
    """With a batch norm, whose statistics each rank writes down when it evaluates."""

    def build_model(self, data: Data) -> torch.nn.Module:
        model = super().build_model(data)
        assert isinstance(model, torch.nn.Sequential)
        model.insert(1, torch.nn.BatchNorm1d(self.settings.width))
        self._norm = model[1]
        return model

    def evaluate(self, predict: Predict, samples: Samples) -> Mapping[str, float]:
        found = super().evaluate(predict, samples)
        torch.save(self._norm.running_mean, f"{self.settings.once}-{os.environ['RANK']}.pt")
        return found
