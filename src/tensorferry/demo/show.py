"""The demo itself: three trainings one after the other, their progress, and what came of them."""

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tensorferry.demo.process import HEADROOM_NBYTES, run_training
from tensorferry.demo.settings import RECIPE, Request, Settings
from tensorferry.errors import FerryError, MissingExtra
from tensorferry.units import format_bytes

_BUDGET_SHARE = 0.75  # of the plain peak
_NEEDED = {"torch": "torch", "keras": "tensorflow", "nibabel": "recipes", "nilearn": "recipes"}  # and the extras that bring them
_RUN_CONFIG = "config.json"  # what makes a folder a run


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What came of one training."""

    losses: tuple[float, ...]
    peak_nbytes: int = 0
    out_of_memory: str = ""  # empty: it trained to the end


def show(settings: Settings, console: Console | None = None) -> int:
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
        dead = _train_capped(settings, folder / "capped", cap, console)
        request = Request(settings.edge, settings.num_steps, str(folder / "run"), cap, budget)
        ferried = _train(f"ferry, capped at {format_bytes(cap)}", request, console)
        if ferried.out_of_memory:
            console.print("  [red]dies[/red]: ", end="")
            console.print(ferried.out_of_memory, markup=False)
            return 1
        console.print(f"  [green]trains on[/green] in {format_bytes(ferried.peak_nbytes)}; last loss {ferried.losses[-1]:.6f}")
        equal = ferried.losses == plain.losses
        console.print(_comparison(equal, len(plain.losses)))
        _keep(folder / "run", settings.out)
    console.print(
        f"What was kept, swapped and recomputed, and when: {settings.out / 'report.html'}", markup=False, soft_wrap=True
    )
    longer = f"--set resolution={settings.edge} --set base={request.base} --budget {budget}"
    console.print(f"Train it for longer: ferry train {RECIPE} {longer}", markup=False, soft_wrap=True)
    return 0 if equal and dead.out_of_memory else 1


def _check(settings: Settings) -> None:
    """Everything that would stop the demo, before it begins."""
    for module, extra in _NEEDED.items():
        if find_spec(module) is None:
            raise MissingExtra(f'the demo needs {module}, which is not installed: pip install "tensorferry[{extra}]"')
    if not sys.platform.startswith("linux"):
        raise FerryError(f"the demo caps a process's memory, which works on Linux only; this is {sys.platform}")
    out = settings.out
    if out.exists() and not (out / _RUN_CONFIG).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise FerryError(f"{str(out)!r} is there and no run of an earlier demo; choose another folder with --out")


def _train_plain(settings: Settings, folder: Path, console: Console) -> TrainingResult:
    """What the others are compared with."""
    plain = _train("plain, no cap", Request(settings.edge, settings.num_steps, str(folder)), console)
    if plain.out_of_memory:
        raise FerryError(f"this machine has no room for the plain training to compare with: {plain.out_of_memory}; try --size 64")
    console.print(f"  takes {format_bytes(plain.peak_nbytes)}; last loss {plain.losses[-1]:.6f}")
    return plain


def _train_capped(settings: Settings, folder: Path, cap: int, console: Console) -> TrainingResult:
    """What should die."""
    request = Request(settings.edge, settings.num_steps, str(folder), cap)
    dead = _train(f"plain, capped at {format_bytes(cap)}", request, console)
    if dead.out_of_memory:
        console.print(f"  [red]dies[/red] after {len(dead.losses)} steps: ", end="")
        console.print(dead.out_of_memory, markup=False, overflow="ellipsis", no_wrap=True)
    else:
        console.print("  [yellow]survives[/yellow]: the cap is too high to show anything; lower it with --budget")
    return dead


def _comparison(equal: bool, num_steps: int) -> str:
    if equal:
        return f"\n[green]All {num_steps} losses equal plain's, bit for bit.[/green]\n"
    return "\n[red]The losses differ from plain's.[/red]\n"


def _train(title: str, request: Request, console: Console) -> TrainingResult:
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


def _keep(run: Path, folder: Path) -> None:
    """Put the finished run where the user wants it, whole or not at all."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.copytree(run, part, symlinks=True)
        if folder.exists():
            shutil.rmtree(folder)
        part.replace(folder)
    except OSError as error:
        raise FerryError(f"cannot write the run to {str(folder)!r}: {error}; choose another folder with --out") from error
