"""Checkpoints that survive a kill at any moment.

A checkpoint is a folder. It is written under another name, every file is forced to the disk, and only then does it get its own
name: so whatever has the name is whole. Its `state.json` is written last and holds a digest of every other file, so damage
done afterwards is noticed as well, and the checkpoint before it is taken instead. `latest` and `best` are links for people.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from tensorferry.files import digest, force, write_whole

FORMAT = "tensorferry-checkpoint-1"
NUM_KEPT = 2  # of the newest, so that one is left when the newest is damaged; the best is kept besides
_STATE = "state.json"


class Unusable(Exception):
    """A checkpoint that is not what was written, or of another version; says what it is, as in "is damaged (...)"."""


@dataclass(frozen=True)
class RunState:
    """What a run knows beside weights and optimizer. Batches and random numbers follow from the step."""

    step: int = 0  # done
    recipe: str = ""
    skipped: tuple[int, ...] = ()  # steps left out because their loss or the weights after them were NaN or infinite
    best_step: int | None = None
    best_value: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # of the last evaluation
    unjudged: dict[str, Any] | None = None  # the row of this step, where a signal cut its evaluation short


def save_checkpoint(root: Path, state: RunState, write: Callable[[Path], None]) -> Path:
    """Save under `root` what `write` puts into a folder, then drop what is no longer kept."""
    part = begin_checkpoint(root, state)
    try:
        write(part)
        return end_checkpoint(part, state)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def begin_checkpoint(root: Path, state: RunState) -> Path:
    """A folder to write into, which nobody has looked for before; what was begun earlier and not ended goes."""
    root.mkdir(parents=True, exist_ok=True)
    for left in root.glob(".step-*.part"):
        shutil.rmtree(left, ignore_errors=True)
    part = root / f".step-{state.step:08d}-{uuid4().hex[:8]}.part"
    part.mkdir()
    return part


def end_checkpoint(part: Path, state: RunState) -> Path:
    """Make a checkpoint of a folder in which everything is written."""
    final = part.with_name(f"step-{state.step:08d}")
    written = sorted(part.iterdir())
    for path in written:
        force(path)
    digests = {path.name: digest(path) for path in written}
    write_whole(part / _STATE, json.dumps({"format": FORMAT, "digests": digests, **asdict(state)}, indent=1))
    force(part)
    shutil.rmtree(final, ignore_errors=True)  # an earlier, damaged one of the same step
    part.rename(final)
    finish_saving(final, state)
    return final


def finish_saving(folder: Path, state: RunState) -> None:
    """What follows once a checkpoint is whole: point the links at it, drop what is no longer kept.

    A run that goes on does this first, for one that was killed may have got its last checkpoint whole and no further.
    """
    root = folder.parent
    _point(root / "latest", folder)
    if state.best_step is not None:
        _point(root / "best", root / f"step-{state.best_step:08d}")
    force(root)
    _drop_old(root, state)


def list_checkpoints(root: Path) -> list[Path]:
    """Every checkpoint of a run, the newest first."""
    return sorted(root.glob("step-*"), reverse=True)


def read_state(folder: Path) -> RunState:
    """What a checkpoint says, if it is whole; raises `Unusable`."""
    try:
        data = json.loads((folder / _STATE).read_text())
        if (found := data.pop("format")) != FORMAT:
            raise Unusable(f"is of another version (it has format {found!r}, and this version reads {FORMAT!r})")
        for name, written in data.pop("digests").items():
            if digest(folder / name) != written:
                raise Unusable(f"is damaged ({name} is not what was written)")
        return RunState(**data | {"skipped": tuple(data["skipped"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unusable(f"is damaged ({type(error).__name__}: {error})") from error


def find_newest(root: Path, say: Callable[[str], None]) -> tuple[Path, RunState] | None:
    """The newest whole checkpoint; None: there is none. Unusable ones are told of and passed over."""
    folders = list_checkpoints(root)
    for folder in folders:
        try:
            return folder, read_state(folder)
        except Unusable as reason:
            then = "there is none before it" if folder == folders[-1] else "taking the one before"
            say(f"checkpoint {folder.name} {reason}; {then}")
    return None


def _drop_old(root: Path, state: RunState) -> None:
    kept = {f"step-{state.best_step:08d}"} if state.best_step is not None else set()
    for position, folder in enumerate(list_checkpoints(root)):
        if position >= NUM_KEPT and folder.name not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def _point(link: Path, target: Path) -> None:
    part = link.with_name(f".{link.name}.part")
    part.unlink(missing_ok=True)
    part.symlink_to(target.name)
    part.replace(link)
