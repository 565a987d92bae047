"""The demo: three trainings one after the other, each in a process that a memory cap can kill without harm to anyone else."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tensorferry.engines.memory_cap import EXACT_MALLOC
from tensorferry.errors import FerryError
from tensorferry.extras import missing_extra
from tensorferry.units import format_bytes

RECIPE = "unet3d-brain"
BACKEND = "torch"  # Keras' other one, TensorFlow, may crash without a word when a cap refuses it memory
HEADROOM_NBYTES = 64 * 2**20  # between a budget and a cap, which also counts what is no tensor: thread stacks, the heap's slack
_BUDGET_SHARE = 0.45  # of the plain peak; the U-Net needs about 0.35 of it
_NEEDED = {"torch": "torch", "keras": "tensorflow", "nibabel": "recipes", "nilearn": "recipes"}  # and the extras that bring them
_RUN_CONFIG = "config.json"  # what makes a folder a run


@dataclass(frozen=True)
class DemoSettings:
    """The demo as the user wants it."""

    out: Path = Path("ferry-demo")
    num_steps: int = 3
    edge: int = 96  # voxels
    budget_nbytes: int | None = None  # None: a share of the plain peak


@dataclass(frozen=True, slots=True)
class DemoTraining:
    """One training, in a process of its own."""

    edge: int
    num_steps: int
    out: str  # the run's folder
    cap_nbytes: int | None = None  # what the process may hold beyond what it held before the model; None: no cap
    budget_nbytes: int | None = None  # None: plain training
    base: int = 16  # channels at full resolution

    def to_json(self) -> str:
        """The training as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "DemoTraining":
        """The training that `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What came of one training."""

    losses: tuple[float, ...]
    peak_nbytes: int = 0
    out_of_memory: str = ""  # empty: it trained to the end


def show(settings: DemoSettings, console: Console | None = None) -> int:
    """Run the demo and return its exit code: 0 when plain training died, ferry trained on, and the losses are equal."""
    _check(settings)
    console = console or Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="ferry-demo-") as text:
        folder = Path(text)
        size = f"{settings.edge}^3 voxels, {settings.num_steps} steps"
        console.print(f"{RECIPE}: a 3D U-Net finds grey and white matter in an MRI of {size}, three times:\n")
        plain = _train_plain(settings, folder / "plain", console)
        budget = settings.budget_nbytes or round(plain.peak_nbytes * _BUDGET_SHARE)
        cap = budget + HEADROOM_NBYTES
        capped = _train_capped(settings, folder / "capped", cap, console)
        request = DemoTraining(settings.edge, settings.num_steps, str(folder / "run"), cap, budget)
        with_budget = _train(f"ferry, capped at {format_bytes(cap)}", request, console)
        if with_budget.out_of_memory:
            console.print("  [red]dies[/red]: ", end="")
            console.print(with_budget.out_of_memory, markup=False)
            return 1
        share = f"{with_budget.peak_nbytes / plain.peak_nbytes:.0%} of plain's memory"
        console.print(
            f"  [green]trains[/green] in {format_bytes(with_budget.peak_nbytes)}, {share}; last loss {with_budget.losses[-1]:.6f}"
        )
        equal = with_budget.losses == plain.losses
        console.print(_comparison(equal, len(plain.losses)))
        _keep(folder / "run", settings.out)
    console.print(
        f"What was kept, swapped and recomputed, and when: {settings.out / 'report.html'}", markup=False, soft_wrap=True
    )
    longer = f"--set resolution={settings.edge} --set base={request.base} --budget {budget}"
    console.print(f"Train it for longer: ferry train {RECIPE} {longer}", markup=False, soft_wrap=True)
    return 0 if equal and capped.out_of_memory else 1


def _check(settings: DemoSettings) -> None:
    """Everything that would stop the demo, before it begins."""
    for module, extra in _NEEDED.items():
        if find_spec(module) is None:
            raise missing_extra("the demo", module, extra)
    if not sys.platform.startswith("linux"):
        raise FerryError(f"the demo caps a process's memory, which works on Linux only; this is {sys.platform}")
    out = settings.out
    if out.exists() and not (out / _RUN_CONFIG).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise FerryError(f"{str(out)!r} is there and no run of an earlier demo; choose another folder with --out")


def _train_plain(settings: DemoSettings, folder: Path, console: Console) -> TrainingResult:
    """What the others are compared with."""
    plain = _train("plain, no cap", DemoTraining(settings.edge, settings.num_steps, str(folder)), console)
    if plain.out_of_memory:
        raise FerryError(f"this machine has no room for the plain training to compare with: {plain.out_of_memory}; try --size 64")
    console.print(f"  takes {format_bytes(plain.peak_nbytes)}; last loss {plain.losses[-1]:.6f}")
    return plain


def _train_capped(settings: DemoSettings, folder: Path, cap: int, console: Console) -> TrainingResult:
    """What should die."""
    request = DemoTraining(settings.edge, settings.num_steps, str(folder), cap)
    capped = _train(f"plain, capped at {format_bytes(cap)}", request, console)
    if capped.out_of_memory:
        console.print(f"  [red]dies[/red] after {len(capped.losses)} steps: ", end="")
        console.print(capped.out_of_memory, markup=False, overflow="ellipsis", no_wrap=True)
    else:
        console.print("  [yellow]survives[/yellow]: the cap is too high to show anything; lower it with --budget")
    return capped


def _comparison(equal: bool, num_steps: int) -> str:
    if equal:
        return f"\n[green]All {num_steps} losses equal plain's, bit for bit.[/green]\n"
    return "\n[red]The losses differ from plain's.[/red]\n"


def _train(title: str, request: DemoTraining, console: Console) -> TrainingResult:
    """One training with its progress on the console."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=request.num_steps)
        rows: list[dict[str, Any]] = []
        end: dict[str, Any] = {}
        for event in run_training(request):
            if "step" in event:
                rows.append(event)
                progress.update(task, completed=event["step"])
            else:
                end |= event
    if "error" in end:
        raise FerryError(end["error"])
    losses = tuple(row["loss"] for row in rows)  # as JSON writes floats, every bit
    return TrainingResult(losses, max((row["peak_nbytes"] for row in rows), default=0), end.get("out_of_memory", ""))


def run_training(request: DemoTraining) -> Iterator[dict[str, Any]]:
    """What a training tells, until it ends; a process that dies without a word under a cap ran out of memory."""
    command = [sys.executable, "-m", "tensorferry.demo.training", request.to_json()]
    environment = os.environ | EXACT_MALLOC | {"KERAS_BACKEND": BACKEND}
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as errors,
        # its input stays open for as long as we live: by that it knows
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=environment) as child,
    ):
        try:
            assert child.stdout is not None
            for line in child.stdout:
                yield json.loads(line)
            child.wait()
        finally:
            child.kill()  # it still runs only if we were interrupted
        if child.returncode != 0:
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["no message"])[-1]
            told = f"the process ended with code {child.returncode}: {last}"
            yield {"out_of_memory" if request.cap_nbytes is not None else "error": told}


def _keep(run: Path, folder: Path) -> None:
    """Put the finished run where the user wants it, whole or not at all."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)  # of a demo that was killed while it copied
        shutil.copytree(run, part, symlinks=True)
        if folder.exists():
            shutil.rmtree(folder)
        part.replace(folder)
    except OSError as error:
        raise FerryError(f"cannot write the run to {str(folder)!r}: {error}; choose another folder with --out") from error
