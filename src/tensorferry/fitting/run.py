"""Fit a table, and find again what was fitted."""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tensorferry import estimators
from tensorferry.datasets import Dataset, load
from tensorferry.errors import BadRun
from tensorferry.estimators.thresholds import AIMS
from tensorferry.files import write_whole
from tensorferry.fitting.figures import FitFigures, measure_fit
from tensorferry.fitting.folder import CONFIG, ENVIRONMENT, ESTIMATOR, FIGURES, PAGE
from tensorferry.fitting.page import html_fit_page
from tensorferry.fitting.request import FitRequest, absolute_table, check_request, choose_task, make_estimator, split_rows
from tensorferry.pages import check_ending, write_page
from tensorferry.train.config import describe_environment
from tensorferry.train.folder import open_new, writing
from tensorferry.train.signals import unwind_on_sigterm

FORMAT = "tensorferry-fit-1"
_SET_ASIDE_SHARE = 0.1  # of the rows to learn from: for calibration and for the choice of a threshold
Tell = Callable[[str], None]


@dataclass(frozen=True)
class FittedTable:
    """A model, and the rows that it was not trained on."""

    request: FitRequest
    estimator: Any
    test: Dataset


def fit_table(request: FitRequest, folder: Path, *, force: bool = False, tell: Tell = lambda _: None) -> FitFigures:
    """Fit a table into a new folder; an error leaves everything as it was."""
    check_request(request)
    request = replace(request, table=absolute_table(request.table))
    dataset = load(request.table, target=request.target)
    task = choose_task(request, dataset)
    request = replace(request, target=dataset.target_name, task=task, stratified=task == "classes")
    model = make_estimator(request, request.task)
    train, test = split_rows(request, dataset)
    with unwind_on_sigterm(), open_new(folder, force) as run:
        tell(f"{request.model} on {len(train):,} rows of {dataset.name} for {request.task} of {request.target}")
        baseline = estimators.KINDS["BaselineClassifier" if request.task == "classes" else "BaselineRegressor"]().fit(train)
        _fit(model, request, train)
        tell(f"checking on {len(test):,} rows that it has not seen")
        figures = measure_fit(model, baseline, request.task, train, test)
        with writing("the model", folder):
            estimators.save(model, folder / ESTIMATOR)
            _write_json(folder / FIGURES, figures.to_json())
            _write_json(folder / ENVIRONMENT, describe_environment())
            _write_json(folder / CONFIG, {"format": FORMAT, **request.to_json()})
        draw_fit(folder)
        run.keep()
    return figures


def _fit(model: Any, request: FitRequest, train: Dataset) -> None:
    aim = request.threshold if request.threshold in AIMS else None
    if request.calibrate is None and aim is None:
        model.fit(train, workers=request.workers)
        return
    learnt, aside = train.split(1 - _SET_ASIDE_SHARE, seed=request.seed, stratify=True)
    model.fit(learnt, workers=request.workers)
    if request.calibrate is not None:
        model.calibrate(aside, method=request.calibrate)
    if aim is not None:
        model.choose_threshold(aside, aim=aim)


def load_fitted(folder: Path) -> FittedTable:
    """The model of a run, and its table once more."""
    request = _read_request(folder)
    dataset = load(request.table, target=request.target)
    return FittedTable(request, estimators.load(folder / ESTIMATOR), split_rows(request, dataset)[1])


def draw_fit(folder: Path, path: Path | None = None) -> Path:
    """Draw a run and return where its page is: `report.html` in its folder, unless `path` says otherwise."""
    figures = FitFigures.from_json(_read_json(folder / FIGURES))
    page = html_fit_page(figures, _read_request(folder), _read_json(folder / ENVIRONMENT))
    return write_page(check_ending(path or folder / PAGE, ".html"), page)


def _read_request(folder: Path) -> FitRequest:
    saved = _read_json(folder / CONFIG)
    if saved.get("format") != FORMAT:
        raise BadRun(f"{str(folder)!r} is not a run of `ferry fit` that this version reads; fit the table again")
    known = {each.name for each in fields(FitRequest)}
    try:
        return FitRequest(**{name: value for name, value in saved.items() if name in known})
    except TypeError as error:
        raise BadRun(f"{str(folder / CONFIG)!r} is damaged: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadRun(f"cannot read {str(path)!r}: {error}; fit the table again") from error
    if not isinstance(found, dict):
        raise BadRun(f"{str(path)!r} is damaged; fit the table again")
    return found


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=1))
