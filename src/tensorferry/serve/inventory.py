"""What a model repository holds, whether all of it loads and is as its cards say, and which versions are no longer needed."""

import json
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel, FerryError
from tensorferry.files import digest
from tensorferry.messages import kind_and_first_line
from tensorferry.serve.core.config import choose_versions, is_ensemble, read_config
from tensorferry.serve.core.ensemble import read_steps
from tensorferry.serve.core.folder import CARD_NAME, list_models, list_versions
from tensorferry.serve.core.loading import load_model
from tensorferry.serve.core.repository import Repository
from tensorferry.serve.core.workshop import Workshop
from tensorferry.serve.runtimes.table import find_backend


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """One version of one model; `problem` says what is wrong with it, as far as it was looked at."""

    name: str
    version: int | None  # None: an ensemble without a folder for it, or a model without versions
    format: str = ""
    nbytes: int = 0
    precision: str = ""
    made: str = ""  # by its card: when, and from what
    made_from: str = ""
    is_served: bool = False  # by the model's version policy
    problem: str = ""


def list_repository(root: Path) -> list[StoredVersion]:
    """A line for every version of every model; nothing is loaded. Raises BadModel where there is no such folder."""
    if not root.is_dir():
        raise BadModel(f"no folder {root}; name the folder that holds the models, one folder each")
    return [line for name in sorted(list_models(root)) for line in _list_model(root / name)]


def check_repository(root: Path, lines: Sequence[StoredVersion], trust: bool) -> list[StoredVersion]:
    """The same lines, each with what is wrong: its card's checksums are compared, and it is loaded."""
    repository = Repository(root, Workshop(trust=trust))
    try:
        return [line if line.problem else replace(line, problem=_find_problem(repository, line)) for line in lines]
    finally:
        repository.close()


def choose_old(root: Path, lines: Sequence[StoredVersion], num_kept: int) -> list[StoredVersion]:
    """The versions that are not among the newest `num_kept` of their model, are not served, and that no ensemble names."""
    pinned = {pin for name in list_models(root) for pin in _list_pins(root / name)}
    old: list[StoredVersion] = []
    for name in dict.fromkeys(line.name for line in lines):
        versions = [line for line in lines if line.name == name and line.version is not None]
        newest_first = sorted(versions, key=lambda line: line.version or 0, reverse=True)
        old += [line for line in newest_first[num_kept:] if not line.is_served and (name, line.version) not in pinned]
    return old


def remove_versions(root: Path, lines: Sequence[StoredVersion]) -> None:
    """Remove versions, each in one step, so that a server which follows the folder never sees half of one."""
    for line in lines:
        folder = root / line.name / str(line.version)
        aside = root / f".{secrets.token_hex(8)}.removed"
        try:
            folder.rename(aside)
            shutil.rmtree(aside)
        except OSError as error:
            raise BadModel(f"cannot remove {folder}: {error.strerror or error}") from None


# ---- listing ---------------------------------------------------------------------------------------------------------


def _list_model(folder: Path) -> list[StoredVersion]:
    try:
        config = read_config(folder)
        versions = list_versions(folder)
    except (FerryError, OSError) as error:
        return [StoredVersion(folder.name, None, problem=kind_and_first_line(error))]
    if not versions:
        if is_ensemble(config):
            return [StoredVersion(folder.name, None, "ensemble", is_served=True)]
        return [StoredVersion(folder.name, None, problem=f"it has no version; expected a folder such as {folder.name}/1")]
    served = set(choose_versions(config, versions))
    return [_list_version(config, folder / str(version), version, version in served) for version in versions]


def _list_version(config: Any, folder: Path, version: int, is_served: bool) -> StoredVersion:
    line = StoredVersion(config.name, version, nbytes=_count_nbytes(folder), is_served=is_served)
    try:
        kind = "ensemble" if is_ensemble(config) else find_backend(config, folder)[0]
        line = replace(line, format=kind)
        card = _read_card(folder)
    except FerryError as error:
        return replace(line, problem=str(error))
    origin, engine = card.get("from"), card.get("engine")
    return replace(
        line,
        precision=str(engine.get("precision", "")) if isinstance(engine, dict) else "",
        made=str(card.get("made", ""))[:10],
        made_from=str(origin.get("model", "")) if isinstance(origin, dict) else "",
    )


def _count_nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _read_card(folder: Path) -> dict[str, Any]:
    path = folder / CARD_NAME
    if not path.is_file():
        return {}
    try:
        card = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadModel(f"its card cannot be read: {kind_and_first_line(error)}") from None
    if not isinstance(card, dict) or not isinstance(card.get("files", {}), dict):
        raise BadModel("its card is none: expected an object with 'files'")
    return card


def _list_pins(folder: Path) -> list[tuple[str, int]]:
    """The versions of others that an ensemble names by their numbers."""
    try:
        config = read_config(folder)
    except FerryError:
        return []
    steps = config.ensemble_scheduling.step if is_ensemble(config) else ()
    return [(step.model_name, step.model_version) for step in steps if step.model_version > 0]


# ---- checking --------------------------------------------------------------------------------------------------------


def _find_problem(repository: Repository, line: StoredVersion) -> str:
    folder = repository.root / line.name
    try:
        if line.version is not None:
            _compare_checksums(repository.root, folder / str(line.version))
        config = read_config(folder)
        if is_ensemble(config):
            missing = [step.model_name for step in read_steps(config) if step.model_name not in list_models(repository.root)]
            if missing:
                raise BadModel(f"its step '{missing[0]}' is not in the repository")
            repository.load(line.name)
            repository.unload(line.name, with_parts=True)
        elif line.version is not None:
            load_model(repository.workshop, folder, line.version, config).close()
    except (FerryError, OSError) as error:
        return str(error) if isinstance(error, FerryError) else kind_and_first_line(error)
    return ""


def _compare_checksums(root: Path, folder: Path) -> None:
    """Raise BadModel where a file is not what the version's card says."""
    card = _read_card(folder)
    files = card.get("files", {})
    for name, wanted in files.items():
        path = folder / name
        if "pipeline" in card:  # whose files are those of its steps
            step, _, rest = name.partition("/")
            path = root / step / folder.name / rest
        if not path.resolve().is_relative_to(root.resolve()):
            raise BadModel(f"its card names {name!r}, which is outside of the repository")
        if not path.is_file():
            raise BadModel(f"its card names {name!r}, which is not there")
        if f"sha256:{digest(path)}" != wanted:
            raise BadModel(f"{name!r} is not the file that its card was written for: the checksums differ")
    if files and "pipeline" not in card:
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        unknown = sorted(found - files.keys() - {CARD_NAME})
        if unknown:
            raise BadModel(f"{unknown[0]!r} is not on its card")
