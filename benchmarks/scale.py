"""What several processes cost and hold, and whether a run comes back when one of them is killed.

    python benchmarks/scale.py                          all of it, half an hour on two cores
    python benchmarks/scale.py --parts kills --kills 5
    python benchmarks/scale.py --parts scaling --models bert --save      other parts and models stay as they were saved

Weak scaling: two processes with a thread and a batch each, gradients averaged by DDP, beside one process with a thread and a
batch; in turns. "Two that do not talk" are the same two processes without DDP: what the machine itself takes for running two.
Shards: the resident memory that weights and AdamW's state hold in a process between two steps, once the C library has returned
what is free: in plain training, and in each of two processes with FSDP2. Kills: a run of two processes, one of which is sent
SIGKILL at a random moment; recovered when the run ends by itself with the losses of an undisturbed one, bit for bit. Saves: the
seconds that training loses to one checkpoint, written before it goes on and while it does; steps with a save less steps without.
"""

import argparse
import ctypes
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from rich.console import Console

from results import RESULTS, BenchmarkResult, FigureTable, format_ratios, parse_options, save_result
from scale_kills import measure_kills, table_kills
from tensorferry.engines.resident import ResidentMeter
from tensorferry.scaling.launch import launch
from tensorferry.scaling.world import Cluster, find_world
from tensorferry.units import format_bytes

PARTS = ("scaling", "shards", "kills", "saves")
TARGET_EFFICIENCY, TARGET_SHARE, TARGET_LOST = 0.92, 0.55, 0.05
_NUM_WARM = 2
Measured = dict[str, dict[str, Any]]  # by model or recipe


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write; 0 when the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"comma separated: {', '.join(PARTS)}")
    parser.add_argument("--models", default="resnet50,bert", help="comma separated")
    parser.add_argument("--steps", type=int, default=6, help="how many to time, after two that are not")
    parser.add_argument("--turns", type=int, default=3, help="how often each is timed")
    parser.add_argument("--kills", type=int, default=20, help="how many runs to disturb")
    parser.add_argument("--parallel", default="data", help="how runs that are disturbed are split: data, fsdp or tensor=2")
    parser.add_argument("--seed", type=int, default=7, help="of the moments")
    options = parse_options(parser, __file__, argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    console = Console(width=None if sys.stdout.isatty() else 120)
    figures, is_met = _read_saved(options.save), True
    for part in options.parts.split(","):
        raw = _MEASURE[part](options)
        how = {"command": options.command, "date": datetime.now(UTC).date().isoformat()}
        found = {key: how | values for key, values in raw.items()}
        table, is_good = _TABLES[part](found)
        console.print(table)
        figures[part] = figures.get(part, {}) | found
        is_met = is_met and is_good
        tables = [_TABLES[each](figures[each])[0] for each in PARTS if each in figures]
        save_result(options, "scale", tables, figures, ["torch"], _tell_commands(figures))
    return 0 if is_met else 1


def _read_saved(save: Path | None) -> dict[str, Any]:
    """Figures of earlier commands, which stay: all of it takes half an hour in which nobody else computes."""
    path = None if save is None else RESULTS / "scale.json" if save == Path() else save
    return dict(BenchmarkResult.read(path).figures) if path is not None and path.exists() else {}


def _tell_commands(figures: dict[str, Any]) -> list[str]:
    told = {(each["date"], each["command"]) for part in figures.values() for each in part.values()}
    return [f"Measured on {date}: `{command}`." for date, command in sorted(told)]


def measure_scaling(options: argparse.Namespace) -> Measured:
    """One process, two apart and two together, in turns."""
    found = {}
    for name in options.models.split(","):
        turns = [[_run(time_steps, count, name, way, options.steps) for count, way in _WAYS] for _ in range(options.turns)]
        apart, together = ([one / turn[place] for turn in turns for one in turn[:1]] for place in (1, 2))
        found[name] = {"seconds": median(turn[0] for turn in turns), "apart": apart, "together": together}
    return found


def table_scaling(found: Measured) -> tuple[FigureTable, bool]:
    """The speed of each of two processes."""
    rows = [
        [name, f"{each['seconds']:.2f} s", format_ratios(each["apart"]), format_ratios(each["together"])]
        for name, each in found.items()
    ]
    columns = ["model", "step of one", "two that do not talk", "two with DDP"]
    is_met = all(median(each["together"]) >= TARGET_EFFICIENCY for each in found.values())
    return FigureTable("weak scaling: the speed of each of two processes over that of one", columns, rows), is_met


_WAYS = ((1, ""), (2, ""), (2, "data"))


def time_steps(name: str, way: str, num_steps: int) -> float:
    """Seconds of a step in this process."""
    import torch

    import tensorferry as ferry

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, compute = _make_model(name)
    seconds = []
    with ferry.scale(model, parallel="data") as scaled:  # all meet, so that they run at the same time
        called = scaled if way else model
        optimizer = torch.optim.SGD(called.parameters(), lr=0.01, momentum=0.9)
        for _ in range(_NUM_WARM + num_steps):
            begin = perf_counter()
            compute(called).backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(perf_counter() - begin)
    return median(seconds[_NUM_WARM:])


def _make_model(name: str) -> tuple[Any, Callable[[Any], Any]]:
    from tensorferry.recipes.models import bert, resnet

    if name == "resnet50":
        images = resnet.make_batch(8, seed=1)
        return resnet.resnet50(), lambda model: resnet.compute_loss(model, *images)
    texts = bert.make_batch(8, seed=1)
    return bert.bert_base(), lambda model: bert.compute_loss(model, *texts)


def measure_shards(_: argparse.Namespace) -> Measured:
    """What weights and state hold in one process, and in each of two."""
    whole, half = (_run(hold_state, count) for count in (1, 2))
    return {"BERT base, AdamW": {"whole_nbytes": whole, "half_nbytes": half}}


def table_shards(found: Measured) -> tuple[FigureTable, bool]:
    """One process beside each of two."""
    shares = {name: each["half_nbytes"] / each["whole_nbytes"] for name, each in found.items()}
    rows = [
        [name, format_bytes(each["whole_nbytes"]), format_bytes(each["half_nbytes"]), f"{shares[name]:.2f}x"]
        for name, each in found.items()
    ]
    columns = ["model", "one process", "each of two", "share"]
    is_met = max(shares.values()) <= TARGET_SHARE
    return FigureTable("resident weights and optimizer state with fsdp", columns, rows), is_met


def hold_state() -> int:
    """Resident bytes that a process has more after a step than before there was a model."""
    import torch

    import tensorferry as ferry
    from tensorferry.recipes.models import bert

    world = find_world()
    assert world is not None
    torch.set_num_threads(1)
    with ferry.scale(torch.nn.Linear(2, 2), parallel="fsdp") as small:  # loads what sharding needs
        small(torch.ones(1, 2)).sum().backward()
    memory = ResidentMeter()
    before = memory.now_nbytes()
    model = bert.bert_base()
    with ferry.scale(model, parallel="fsdp") if world.size > 1 else nullcontext(model) as scaled:
        optimizer = torch.optim.AdamW(scaled.parameters())
        texts = bert.make_batch(2, seed=1)
        for _ in range(2):
            bert.compute_loss(scaled, *texts).backward()
            optimizer.step()
            optimizer.zero_grad()
        del model
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        return memory.now_nbytes() - before


def _run(work: Callable[..., Any], num_workers: int, *args: Any) -> Any:
    """What it returns where it is slowest, or largest."""
    with tempfile.TemporaryDirectory() as folder:
        return max(launch(work, args, Cluster(num_workers), 0, Path(folder, "verdict")).values())


def measure_saves(options: argparse.Namespace) -> Measured:
    """Steps without a save, with one that they wait for, and with one that is written while they go on; in turns."""
    turns = [[_run(time_saves, 1, way, options.steps) for way in ("none", "waits", "goes on")] for _ in range(options.turns)]
    return {"BERT base, AdamW": {"turns": turns}}


def table_saves(found: Measured) -> tuple[FigureTable, bool]:
    """What either way of saving takes from training."""
    rows, is_met = [], True
    for name, each in found.items():
        waits, goes_on = (median(turn[place] - turn[0] for turn in each["turns"]) for place in (1, 2))
        rows.append([name, f"{waits:.2f} s", f"{goes_on:.2f} s", f"{goes_on / waits:.2f}x"])
        is_met = is_met and goes_on / waits <= TARGET_LOST
    columns = ["model", "lost to a save that steps wait for", "to one written meanwhile", "share"]
    return FigureTable("training time lost to a checkpoint", columns, rows), is_met


def time_saves(way: str, num_steps: int) -> float:
    """Seconds of some steps that may begin with a checkpoint; what is still written when they end is not waited for."""
    import torch

    from tensorferry.recipes.models import bert
    from tensorferry.train.checkpoints import RunState, save_checkpoint
    from tensorferry.train.late_copy import LateCopy, list_late
    from tensorferry.train.saver import Saver

    torch.set_num_threads(1)
    model, texts = bert.bert_base(), bert.make_batch(8, seed=1)
    optimizer = torch.optim.AdamW(model.parameters())
    copies: list[LateCopy] = []

    def step() -> None:
        bert.compute_loss(model, *texts).backward()
        while copies:
            copies.pop().wait()
        optimizer.step()
        optimizer.zero_grad()

    def take_state() -> Any:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    for _ in range(_NUM_WARM):
        step()
    with tempfile.TemporaryDirectory() as folder, Saver() as saver:
        begin = perf_counter()
        if way == "waits":
            save_checkpoint(Path(folder), RunState(1), lambda part: torch.save(take_state(), part / "state.pt"))
        elif way == "goes on":
            copy = LateCopy(take_state(), list_late(model, optimizer))
            copies.append(copy)
            write = partial(save_checkpoint, Path(folder), RunState(1), lambda part: torch.save(copy.take(), part / "state.pt"))
            saver.start(write)
        for _ in range(num_steps):
            step()
        return perf_counter() - begin


_TABLES = {"scaling": table_scaling, "shards": table_shards, "kills": table_kills, "saves": table_saves}
_MEASURE = {"scaling": measure_scaling, "shards": measure_shards, "kills": measure_kills, "saves": measure_saves}


if __name__ == "__main__":
    sys.exit(main())
