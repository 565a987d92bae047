"""The demo itself: three trainings one after the other, their progress, and what came of them."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tensorferry.errors import FerryError, MissingExtra
from tensorferry.recipes.cap import EXACT_MALLOC
from tensorferry.recipes.demo.settings import Request, Settings
from tensorferry.units import format_bytes

_BUDGET_SHARE = 0.6  # of the plain peak
_HEADROOM_NBYTES = 48 * 2**20  # the cap also counts what is no tensor: thread stacks, the heap's slack
_PAGE = "timeline.html"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one training."""

    losses: tuple[str, ...]  # as hexadecimal floats: every bit
    peak_nbytes: int = 0
    out_of_memory: str = ""  # empty: it trained to the end
    report: str = ""


def show(settings: Settings, console: Console | None = None) -> int:
    """Run the demo and return its exit code: 0 when plain training died, ferry trained on, and the losses are equal."""
    if find_spec("torch") is None:
        raise MissingExtra('the demo needs torch, which is not installed: pip install "tensorferry[torch]"')
    if not sys.platform.startswith("linux"):
        raise FerryError(f"the demo caps a process's memory, which works on Linux only; this is {sys.platform}")
    if settings.out.exists() and not settings.out.is_dir():
        raise FerryError(f"cannot write the picture to {str(settings.out)!r}, which is no folder; choose another one with --out")
    console = console or Console(highlight=False)
    console.print(f"A 3D U-Net on {settings.edge}^3 voxels, {settings.num_steps} steps, three times:\n")
    plain = _train("plain, no cap", Request(settings.edge, settings.num_steps), console)
    if plain.out_of_memory:
        raise FerryError(f"this machine has no room for the plain training to compare with: {plain.out_of_memory}; try --size 64")
    console.print(f"  takes {format_bytes(plain.peak_nbytes)}; last loss {_decimal(plain.losses[-1])}")
    budget = settings.budget_nbytes or round(plain.peak_nbytes * _BUDGET_SHARE)
    cap = budget + _HEADROOM_NBYTES

    dead = _train(f"plain, capped at {format_bytes(cap)}", Request(settings.edge, settings.num_steps, cap), console)
    if dead.out_of_memory:
        console.print(f"  [red]dies[/red] after {len(dead.losses)} steps: ", end="")
        console.print(dead.out_of_memory, markup=False, overflow="ellipsis", no_wrap=True)
    else:
        console.print("  [yellow]survives[/yellow]: the cap is too high to show anything; lower it with --budget")

    with tempfile.TemporaryDirectory(prefix="ferry-demo-") as folder:
        page = Path(folder, _PAGE)
        request = Request(settings.edge, settings.num_steps, cap, budget, str(page))
        ferried = _train(f"ferry, capped at {format_bytes(cap)}", request, console)
        if ferried.out_of_memory:
            console.print("  [red]dies[/red]: ", end="")
            console.print(ferried.out_of_memory, markup=False)
            return 1
        console.print(
            f"  [green]trains on[/green] in {format_bytes(ferried.peak_nbytes)}; last loss {_decimal(ferried.losses[-1])}"
        )
        equal = ferried.losses == plain.losses
        console.print(_comparison(equal, len(plain.losses)))
        console.print(ferried.report, markup=False, soft_wrap=True)
        console.print(f"\nThe picture: {_keep(page, settings.out)}", markup=False, soft_wrap=True)
    return 0 if equal and dead.out_of_memory else 1


def _comparison(equal: bool, num_steps: int) -> str:
    if equal:
        return f"\n[green]All {num_steps} losses equal plain's, bit for bit.[/green]\n"
    return "\n[red]The losses differ from plain's.[/red]\n"


def _train(title: str, request: Request, console: Console) -> Outcome:
    """One training with its progress on the console."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=request.num_steps)
        losses: list[str] = []
        end: dict[str, Any] = {}
        for event in _events(request):
            if "step" in event:
                losses.append(event["loss"])
                progress.update(task, completed=event["step"])
            else:
                end = event
    if "error" in end:
        raise FerryError(end["error"])
    return Outcome(tuple(losses), end.get("peak_nbytes", 0), end.get("out_of_memory", ""), end.get("report") or "")


def _events(request: Request) -> Iterator[dict[str, Any]]:
    """What a training tells, until it ends; a process that dies without a word under a cap ran out of memory."""
    command = [sys.executable, "-m", "tensorferry.recipes.demo.training", request.to_json()]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | EXACT_MALLOC) as child,
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


def _keep(page: Path, folder: Path) -> Path:
    """Put the finished page where the user wants it, whole or not at all."""
    kept = folder / _PAGE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{_PAGE}.{os.getpid()}"
        part.write_bytes(page.read_bytes())
        part.replace(kept)
    except OSError as error:
        raise FerryError(f"cannot write the picture to {str(folder)!r}: {error}; choose another folder with --out") from error
    return kept


def _decimal(loss: str) -> str:
    return f"{float.fromhex(loss):.6f}"
