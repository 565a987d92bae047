"""A folder of models as a chart needs it: their names, their size, and what to install for them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tensorferry.errors import BadModel
from tensorferry.extras import missing_extra
from tensorferry.messages import first_line
from tensorferry.text import printable

if TYPE_CHECKING:
    from tensorferry.serve.inventory import StoredVersion

_REQUIREMENTS = "requirements.txt"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What is known of a folder before anything in it is loaded."""

    names: tuple[str, ...]
    nbytes: int
    formats: frozenset[str]
    steps: frozenset[str] = frozenset()  # what steps around models do, as text or volume
    requirements: frozenset[str] = frozenset()  # of models in Python, a line each of their requirements.txt


def read_models(root: Path) -> ModelFolder:
    """Look at a folder; raises BadModel where it is empty, or where something in it cannot be a model."""
    try:
        from tensorferry.serve.inventory import list_repository
    except ModuleNotFoundError as error:
        raise missing_extra("ferry deploy", error.name, "serve") from error
    lines = list_repository(root)
    if not lines:
        raise BadModel(f"no models are in {str(root)!r}; expected NAME/1/model.onnx and the like below it")
    broken = next((line for line in lines if line.problem), None)
    if broken is not None:
        raise BadModel(f"the model '{printable(broken.name)}' cannot be served: {printable(broken.problem)}")
    return ModelFolder(
        names=tuple(dict.fromkeys(line.name for line in lines)),
        nbytes=sum(line.nbytes for line in lines),
        formats=frozenset(line.format for line in lines if line.is_served),
        steps=frozenset(_read_kind(root / line.name / str(line.version)) for line in lines if line.format == "transform"),
        requirements=frozenset(text for line in lines if line.version is not None for text in _read_requirements(root, line)),
    )


def _read_requirements(root: Path, line: "StoredVersion") -> list[str]:
    """The lines of the file beside a version, or else beside the model; comments and options of pip's are none."""
    model = root / line.name
    for folder in (model / str(line.version), model):
        try:
            text = (folder / _REQUIREMENTS).read_text("utf-8")
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise BadModel(f"cannot read {_REQUIREMENTS} of the model '{printable(line.name)}': {first_line(error)}") from None
        found = [each.partition(" #")[0].strip() for each in text.splitlines()]
        return [each for each in found if each and not each.startswith(("#", "-"))]
    return []


def _read_kind(folder: Path) -> str:
    """What a step does; nothing that is known where its file cannot be read, which the server will say."""
    try:
        described = json.loads((folder / "transform.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return ""
    return str(described.get("kind", "")) if isinstance(described, dict) else ""
