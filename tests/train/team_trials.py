"""Trainings of two ranks, one after the other in the same processes, as processes are slow to start; no test of its own."""

from pathlib import Path

from tensorferry.scaling.parallel import Split, find_parallel
from tensorferry.scaling.torch import join
from tensorferry.scaling.world import find_world
from tensorferry.train.progress import NoProgress
from tensorferry.train.start import Ranks, TrainRequest, begin, follow

TEAMS = Path(__file__).with_name("teams.py")


def request_trial(recipe: str, folder: Path, **settings: str) -> TrainRequest:
    """A run in which nobody misbehaves: the file that says so is there."""
    once = folder.with_suffix(".once")
    once.touch()
    return TrainRequest(f"{TEAMS}:{recipe}", settings | {"once": str(once)}, out=folder, seed=7, every=4)


def _end(reason: str) -> None:
    raise AssertionError(reason)


def train_all(folder: Path) -> None:
    """A run with a sample that is NaN, and two whose batch norms see the rows of their own rank."""
    world = find_world()
    assert world is not None
    team = join(world, find_parallel("data", 2), _end)
    requests = {
        "nan": (request_trial("Layered", folder / "nan", num_bad="1"), "data"),
        "norm-data": (request_trial("Normed", folder / "norm-data"), "data"),
        "norm-fsdp": (request_trial("Normed", folder / "norm-fsdp"), "fsdp"),
    }
    for request, parallel in requests.values():
        ranks = Ranks(team, Split(parallel))
        code = begin(request, NoProgress(), ranks) if team.is_leader else follow(ranks)
        assert code == 0
    team.close()
