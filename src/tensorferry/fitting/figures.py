"""How good a fitted model is on rows that it has not seen, as data for a page and for programs."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.datasets import Dataset
from tensorferry.errors import BadRun
from tensorferry.estimators.estimator import TableClassifier
from tensorferry.estimators.importance import permutation_importance
from tensorferry.estimators.thresholds import ThresholdFigures, measure_threshold
from tensorferry.feature_columns.table import Table, read_table

_NUM_BINS = 10
_IMPORTANCE_ROWS = 2000  # enough to order columns by, and quick
_THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Rows of which about the same was told: what was told on average, and what was true."""

    told: float
    true: float
    num_rows: int


@dataclass(frozen=True)
class FitFigures:
    """All that is measured of one fit."""

    name: str  # of the table
    target: str
    task: str  # "classes" or "values"
    estimator: str
    num_train: int
    num_test: int
    metrics: dict[str, float]
    baseline: dict[str, float]  # the same of a model that looks at no column
    importance: dict[str, float]  # by column, the largest first
    calibration: tuple[CalibrationBin, ...]
    threshold: float | None = None  # None: more than two classes, or values
    second: str = ""  # of two classes, the one whose probability the threshold cuts
    thresholds: tuple[ThresholdFigures, ...] = ()
    classes: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()  # rows of each class, by the class that was answered

    @property
    def calibration_error(self) -> float:
        """How far told and true are apart, on average over rows."""
        total = sum(each.num_rows for each in self.calibration)
        return sum(abs(each.told - each.true) * each.num_rows for each in self.calibration) / max(1, total)

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON has them."""
        return asdict(self)

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "FitFigures":
        """What `to_json` gave; raises `BadRun`."""
        try:
            return cls(
                **{
                    **saved,
                    "calibration": tuple(CalibrationBin(**each) for each in saved["calibration"]),
                    "thresholds": tuple(ThresholdFigures(**each) for each in saved["thresholds"]),
                    "confusion": tuple(map(tuple, saved["confusion"])),
                }
            )
        except (KeyError, TypeError) as error:
            raise BadRun(f"the figures of this run cannot be read: {error}") from error


def measure_fit(model: Any, baseline: Any, task: str, train: Dataset, test: Dataset) -> FitFigures:
    """Everything about a model, on the rows of `test`."""
    table, target = read_table(test), test.target
    common = {
        "name": test.name,
        "target": str(test.target_name),
        "task": task,
        "estimator": type(model).__name__,
        "num_train": len(train),
        "num_test": len(test),
        "metrics": model.evaluate(lambda: (table, target)),
        "baseline": baseline.evaluate(lambda: (table, target)),
        "importance": _measure_importance(model, table, target),
    }
    if not isinstance(model, TableClassifier):
        return FitFigures(**common, calibration=_bin_values(model.predict(table), target))
    probabilities = model.predict_proba(table)
    classes = model.classes_.tolist()
    places = {word: place for place, word in enumerate(classes)}
    words = target.astype(str).tolist() if target.dtype == object else target.tolist()
    true = np.array([places[word] for word in words])
    answered = np.array([places[word] for word in model.predict(table).tolist()])
    confusion = np.zeros((len(classes), len(classes)), int)
    np.add.at(confusion, (true, answered), 1)
    if len(classes) == 2:
        told, is_true = probabilities[:, 1], true == 1
        cuts = sorted({*_THRESHOLDS, float(model.threshold)})
        common |= {
            "threshold": float(model.threshold),
            "second": str(classes[1]),
            "thresholds": tuple(measure_threshold(told, is_true, cut) for cut in cuts),
        }
    else:  # of the class that is answered
        told, is_true = probabilities.max(axis=1), answered == true
    return FitFigures(
        **common,
        calibration=_bin_probabilities(told, is_true),
        classes=tuple(map(str, classes)),
        confusion=tuple(map(tuple, confusion.tolist())),
    )


def _measure_importance(model: Any, table: Table, target: NDArray) -> dict[str, float]:
    few = {name: values[:_IMPORTANCE_ROWS] for name, values in table.items()}
    return permutation_importance(model, few, target[:_IMPORTANCE_ROWS])


def _bin_probabilities(told: NDArray, is_true: NDArray) -> tuple[CalibrationBin, ...]:
    """Bins of equal width; those without rows are left out."""
    numbers = np.minimum((told * _NUM_BINS).astype(int), _NUM_BINS - 1)
    return _average(numbers, told, is_true)


def _bin_values(told: NDArray, true: NDArray) -> tuple[CalibrationBin, ...]:
    """Bins of about equally many rows."""
    numbers = np.argsort(np.argsort(told, kind="stable")) * _NUM_BINS // max(1, len(told))
    return _average(numbers, told, true)


def _average(numbers: NDArray, told: NDArray, true: NDArray) -> tuple[CalibrationBin, ...]:
    return tuple(
        CalibrationBin(float(told[numbers == each].mean()), float(true[numbers == each].mean()), int((numbers == each).sum()))
        for each in np.unique(numbers)
    )
