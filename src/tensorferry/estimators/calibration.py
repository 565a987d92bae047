"""Probabilities that mean what they say: of rows told 80 %, about 80 % are of that class.

A curve from told to calibrated probability is learnt on rows that the model was not trained on: Platt's sigmoid, two numbers, or
isotonic regression, any rising curve, which wants some thousand rows (Niculescu-Mizil & Caruana 2005). Several classes each get a
curve of their own, and their sum is brought to one (Zadrozny & Elkan 2002).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from tensorferry.errors import BadData, BadOption
from tensorferry.feature_columns.onnx_graph import OnnxGraph
from tensorferry.messages import did_you_mean

METHODS = ("isotonic", "sigmoid")
_EDGE = 1e-12  # of a probability, whose logarithm is finite


@dataclass(frozen=True)
class CalibrationCurve:
    """From a told probability to a calibrated one: straight lines between `told` and `true`, or a sigmoid of two numbers."""

    told: tuple[float, ...] = ()  # ascending
    true: tuple[float, ...] = ()
    slope: float = 1.0  # of the told one's log odds
    offset: float = 0.0

    def __call__(self, probabilities: NDArray) -> NDArray[np.float64]:
        """The calibrated ones."""
        if self.told:
            return np.interp(probabilities, self.told, self.true)
        return 1 / (1 + np.exp(-(self.slope * _log_odds(probabilities) + self.offset)))

    def add_to(self, graph: OnnxGraph, probabilities: str) -> str:
        """The same in an ONNX graph; all of shape (rows, 1), in float64."""
        if not self.told:
            clipped = graph.add("Clip", probabilities, graph.constant(_EDGE), graph.constant(1 - _EDGE))
            odds = graph.add("Div", clipped, graph.add("Sub", graph.constant(1.0), clipped))
            scaled = graph.add("Mul", graph.add("Log", odds), graph.constant(self.slope))
            return str(graph.add("Sigmoid", graph.add("Add", scaled, graph.constant(self.offset))))
        # each line adds its rise times how far the probability has come along it
        told, true = np.array(self.told), np.array(self.true)
        passed = graph.add("Sub", probabilities, graph.constant(told[None, :-1]))
        share = graph.add("Div", passed, graph.constant(np.diff(told)[None]))
        share = graph.add("Clip", share, graph.constant(0.0), graph.constant(1.0))
        risen = graph.add("MatMul", share, graph.constant(np.diff(true)[:, None]))
        return str(graph.add("Add", risen, graph.constant(true[0])))


@dataclass(frozen=True)
class Calibration:
    """A curve for each class; of two classes, for the second alone."""

    curves: tuple[CalibrationCurve, ...]

    def __call__(self, probabilities: NDArray) -> NDArray[np.float64]:
        """Calibrated probabilities, row by class."""
        if len(self.curves) == 1:
            second = self.curves[0](probabilities[:, 1])
            return np.stack([1 - second, second], axis=1)
        each = np.stack([curve(column) for curve, column in zip(self.curves, probabilities.T, strict=True)], axis=1)
        total = each.sum(axis=1, keepdims=True)
        return np.where(total > 0, each / np.where(total > 0, total, 1), probabilities)

    def add_to(self, graph: OnnxGraph, probabilities: str) -> str:
        """The same in an ONNX graph."""
        pick = [graph.add("Gather", probabilities, graph.constant([place]), axis=1) for place in range(max(2, len(self.curves)))]
        if len(self.curves) == 1:
            second = self.curves[0].add_to(graph, pick[1])
            return str(graph.add("Concat", graph.add("Sub", graph.constant(1.0), second), second, axis=1))
        each = graph.add("Concat", *(curve.add_to(graph, one) for curve, one in zip(self.curves, pick, strict=True)), axis=1)
        total = graph.add("ReduceSum", each, graph.constant([1]))
        some = graph.add("Greater", total, graph.constant(0.0))
        shares = graph.add("Div", each, graph.add("Where", some, total, graph.constant(1.0)))
        return str(graph.add("Where", some, shares, probabilities))

    def to_json(self) -> list[dict[str, Any]]:
        """All of it, as JSON has it."""
        return [{"told": each.told, "true": each.true, "slope": each.slope, "offset": each.offset} for each in self.curves]

    @classmethod
    def from_json(cls, saved: list[dict[str, Any]]) -> "Calibration":
        """What `to_json` gave."""
        return cls(
            tuple(
                CalibrationCurve(tuple(each["told"]), tuple(each["true"]), float(each["slope"]), float(each["offset"]))
                for each in saved
            )
        )


def fit_calibration(probabilities: NDArray, classes: NDArray, method: str) -> Calibration:
    """Learn curves from what was told of some rows and the classes that they are of."""
    if method not in METHODS:
        raise BadOption(f"no calibration {method!r}{did_you_mean(method, METHODS)}; there are {' and '.join(METHODS)}")
    num_classes = probabilities.shape[1]
    if lacking := [place for place in range(num_classes) if not (classes == place).any()]:
        raise BadData(f"no row to calibrate on is of class number {lacking[0]}, counted from 0; take rows of every class")
    fit_curve = _fit_isotonic if method == "isotonic" else _fit_sigmoid
    places = range(1, 2) if num_classes == 2 else range(num_classes)
    return Calibration(tuple(fit_curve(probabilities[:, place], classes == place) for place in places))


def _fit_isotonic(told: NDArray, true: NDArray) -> CalibrationCurve:
    found = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(told, true)
    x, y = found.X_thresholds_, found.y_thresholds_
    if len(x) == 1:  # one probability was told of every row
        x, y = np.array([x[0], x[0] + 1]), np.array([y[0], y[0]])
    return CalibrationCurve(tuple(x.tolist()), tuple(y.tolist()))


def _fit_sigmoid(told: NDArray, true: NDArray) -> CalibrationCurve:
    solver = LogisticRegression(C=np.inf).fit(_log_odds(told)[:, None], true)
    return CalibrationCurve(slope=float(solver.coef_[0, 0]), offset=float(solver.intercept_[0]))


def _log_odds(probabilities: NDArray) -> NDArray[np.float64]:
    clipped = np.clip(probabilities, _EDGE, 1 - _EDGE)
    return np.asarray(np.log(clipped / (1 - clipped)))
