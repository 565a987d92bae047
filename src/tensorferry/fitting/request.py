"""What a user asks of a fit: which model, of what, and how; words are checked before anything is read."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tensorferry import __version__
from tensorferry.datasets import Dataset
from tensorferry.datasets.loading import is_path
from tensorferry.errors import BadData, BadOption
from tensorferry.estimators import KINDS
from tensorferry.estimators.calibration import METHODS
from tensorferry.estimators.estimator import TableClassifier, TableRegressor
from tensorferry.estimators.thresholds import AIMS
from tensorferry.messages import did_you_mean, first_line
from tensorferry.recipes.loading import load_reference

MODELS = {
    "baseline": "Baseline",
    "linear": "Linear",
    "boosted-trees": "BoostedTrees",
    "dnn": "DNN",
    "wide-deep": "DNNLinearCombined",
}
TASKS = ("auto", "classes", "values")
_MAX_CLASSES = 20  # different whole numbers in a target that are taken for classes


@dataclass(frozen=True)
class FitRequest:
    """One fit, as a user asks for it."""

    table: str  # a dataset's name, or the path of a file
    target: str | None = None  # None: the dataset's own
    model: str = "boosted-trees"
    task: str = "auto"
    settings: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    test_share: float = 0.2
    calibrate: str | None = None  # a method
    threshold: str | None = None  # a number, or an aim
    workers: int = 1  # processes that train a network together
    stratified: bool = False  # whether classes have their shares in the rows to test on; not in runs of older versions
    command: tuple[str, ...] = ()
    version: str = __version__

    def to_json(self) -> dict[str, Any]:
        """The request as JSON has it."""
        return asdict(self)


def check_request(request: FitRequest) -> None:
    """Raise `BadOption` for what can be told to be wrong without the table."""
    for word, known, what in ((request.model, MODELS, "model"), (request.task, TASKS, "task")):
        if word not in known and not (what == "model" and ":" in word):
            raise BadOption(f"no {what} {word!r}{did_you_mean(word, known)}; there are {', '.join(known)}")
    if request.calibrate is not None and request.calibrate not in METHODS:
        hint = did_you_mean(request.calibrate, METHODS)
        raise BadOption(f"no calibration {request.calibrate!r}{hint}; there are {' and '.join(METHODS)}")
    if not 0 < request.test_share < 1:
        raise BadOption(f"expected a share of rows to test on between 0 and 1, received {request.test_share:g}")
    if request.threshold is not None and request.threshold not in AIMS:
        _read_threshold(request.threshold)


def _read_threshold(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise BadOption(f"expected a threshold from 0 up to 1, or one of {', '.join(AIMS)}, received {text!r}")
    return value


def choose_task(request: FitRequest, dataset: Dataset) -> str:
    """Whether classes or values are to be learnt; of "auto", what the target looks like."""
    if request.task != "auto":
        return request.task
    target = dataset.target
    if target.dtype.kind not in "iuf":
        return "classes"
    is_whole = target.dtype.kind != "f" or bool(np.all(target[~np.isnan(target)] % 1 == 0))
    return "classes" if is_whole and len(np.unique(target)) <= _MAX_CLASSES else "values"


def split_rows(request: FitRequest, dataset: Dataset) -> tuple[Dataset, Dataset]:
    """The rows to learn from, and those to test on: the same for the same request."""
    return dataset.split(1 - request.test_share, seed=request.seed, stratify=request.stratified)


def make_estimator(request: FitRequest, task: str) -> Any:
    """The estimator that was asked for, with its settings; raises `BadOption`."""
    if task == "values" and (request.calibrate or request.threshold):
        raise BadOption("calibration and thresholds are for classes, and this target holds values; leave them out")
    made = _build(request.model, task)
    known = {name: value for name, value in made.get_params().items() if name not in ("features", "linear", "dnn")}
    settings = {name: _read_setting(name, text, known, request.model) for name, text in request.settings.items()}
    if known.get("random_state", request.seed) is None:
        settings.setdefault("random_state", request.seed)
    if request.threshold is not None and request.threshold not in AIMS:
        settings["threshold"] = _read_threshold(request.threshold)
    return made.set_params(**settings)


def _build(model: str, task: str) -> Any:
    """One of our models by its name, or what a user's function returns."""
    if ":" not in model:
        return KINDS[MODELS[model] + ("Classifier" if task == "classes" else "Regressor")]()
    factory = load_reference(model, "function", "an estimator", BadOption)
    try:
        made = factory()
    except Exception as error:  # whatever a user's function can raise
        raise BadOption(f"{model!r} failed: {type(error).__name__}: {first_line(error)}") from error
    wanted = TableClassifier if task == "classes" else TableRegressor
    if not isinstance(made, wanted):
        advice = "give --task, or another estimator"
        raise BadOption(f"{model!r} gives a {type(made).__name__}, and the target wants a model for {task}; {advice}")
    return made


def _read_setting(name: str, text: str, known: Mapping[str, Any], model: str) -> Any:
    """A setting in the type of its default."""
    if name not in known:
        raise BadOption(f"{model} has no setting {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    default = known[name]
    wanted: tuple[type, ...] = (float, int) if isinstance(default, float) else (type(default),)
    if isinstance(default, tuple | list):
        wanted = (list,)
    if default is not None and (not isinstance(value, wanted) or (isinstance(value, bool) and default is not bool(default))):
        raise BadOption(f"expected {name} to be like {json.dumps(default)}, received {text!r}")
    return tuple(value) if isinstance(value, list) else value


def absolute_table(table: str) -> str:
    """The table's name, or the whole path of its file, so that it is found from anywhere."""
    if not is_path(table):
        return table
    path = Path(table).expanduser()
    if not path.exists():
        raise BadData(f"there is no file or folder {table!r}; name a table, or a dataset of `ferry datasets`")
    return str(path.resolve())
