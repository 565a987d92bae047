"""A folder of models as a chart needs it: their names, their size, and what to install for them."""

import json
from dataclasses import dataclass
from pathlib import Path

from tensorferry.errors import BadModel
from tensorferry.extras import missing_extra
from tensorferry.text import printable


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What is known of a folder before anything in it is loaded."""

    names: tuple[str, ...]
    nbytes: int
    formats: frozenset[str]
    steps: frozenset[str] = frozenset()  # what steps around models do, as text or volume


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
    )


def _read_kind(folder: Path) -> str:
    """What a step does; nothing that is known where its file cannot be read, which the server will say."""
    try:
        described = json.loads((folder / "transform.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return ""
    return str(described.get("kind", "")) if isinstance(described, dict) else ""
