"""Into the folder that a server reads: a new version of a model, there whole or not at all, and never over an old one.

A version is written beside the models, loaded again from there and compared with the original once more, flushed to disk, and
only then renamed into its place.
"""

import contextlib
import itertools
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel
from tensorferry.files import force, write_whole
from tensorferry.inference.configs import format_config, update_config
from tensorferry.serve.config import CONFIG_NAME, read_config
from tensorferry.serve.folder import list_versions

LABELS_NAME = "labels.txt"
Fill = Callable[[Path], None]  # writes a version's files into an empty folder


@dataclass(frozen=True)
class Entry:
    """One model to write: its configuration, and what fills its version's folder."""

    config: Any
    fill: Fill
    labels: tuple[str, ...] = ()


def read_target(path: Path) -> tuple[Path, str, int | None]:
    """The repository, the name and the version that "models/reviews/1" or "models/reviews" means.

    >>> read_target(Path("models/reviews/2"))
    (PosixPath('models'), 'reviews', 2)
    """
    is_version = path.name.isascii() and path.name.isdecimal()
    model = path.parent if is_version else path
    if not model.name or model.name.startswith(".") or (is_version and path.name.startswith("0")):
        raise BadModel(f"cannot save to {str(path)!r}; write repository/name, or repository/name/version as in models/reviews/1")
    return model.parent, model.name, int(path.name) if is_version else None


def next_version(root: Path, names: list[str]) -> int:
    """The lowest number above every version of these models."""
    found = [version for name in names if (root / name).is_dir() for version in list_versions(root / name)]
    return max(found, default=0) + 1


def write_entries(root: Path, entries: list[Entry], version: int | None) -> Path:
    """Write a version of each model, in order, and return the folder of the last one's; raises BadModel, nothing half-written."""
    names = [entry.config.name for entry in entries]
    try:
        root.mkdir(parents=True, exist_ok=True)
        version = version or next_version(root, names)
        _refuse_existing(root, names, version)
        with _beside(root) as part:
            configs = [_merge_config(root, entry) for entry in entries]
            for entry, config in zip(entries, configs, strict=True):
                _write(part / entry.config.name, entry, config, version)
            for name in names:
                _move(part / name, root / name, version)
            force(root)
    except OSError as error:
        raise BadModel(f"cannot write to {str(root)!r}: {error.strerror or error}") from error
    return root / names[-1] / str(version)


def _refuse_existing(root: Path, names: list[str], version: int) -> None:
    for name in names:
        if (root / name / str(version)).exists():
            free = next_version(root, names)
            raise BadModel(
                f"version {version} of '{name}' is already in {str(root)!r}; versions are never written over: take {free}"
            )


def _merge_config(root: Path, entry: Entry) -> Any:
    _refuse_other_labels(root / entry.config.name / LABELS_NAME, entry)
    if not (root / entry.config.name / CONFIG_NAME).is_file():
        return entry.config
    return update_config(read_config(root / entry.config.name), entry.config)


def _refuse_other_labels(path: Path, entry: Entry) -> None:
    """All versions share one file of labels, so the older ones would get other labels, too."""
    if not entry.labels or not path.is_file():
        return
    before = path.read_text("utf-8").splitlines()
    differing = next((pair for pair in itertools.zip_longest(before, entry.labels) if pair[0] != pair[1]), None)
    if differing:
        raise BadModel(
            f"the model '{entry.config.name}' that is there has other labels ({differing[0]!r} for {differing[1]!r}), and its "
            "versions share one file of them; save this one under another name"
        )


@contextlib.contextmanager
def _beside(root: Path) -> Iterator[Path]:
    """A folder beside the models that no server looks into, gone afterwards."""
    part = root / f".ferry-{secrets.token_hex(8)}"
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(folder: Path, entry: Entry, config: Any, version: int) -> None:
    (folder / str(version)).mkdir(parents=True)
    if entry.labels:
        (folder / LABELS_NAME).write_text("".join(f"{label}\n" for label in entry.labels), "utf-8")
    (folder / CONFIG_NAME).write_text(format_config(config), "utf-8")
    entry.fill(folder / str(version))
    for path in (folder, *folder.rglob("*")):
        force(path)


def _move(source: Path, target: Path, version: int) -> None:
    """Rename a model's folder into place, or its new version into the folder that is there, the configuration last."""
    if not target.exists():
        source.rename(target)
        return
    (source / str(version)).rename(target / str(version))
    for name in (LABELS_NAME, CONFIG_NAME):
        if (source / name).is_file():
            write_whole(target / name, (source / name).read_text("utf-8"))
    force(target)
