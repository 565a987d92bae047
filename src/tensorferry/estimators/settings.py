"""What the settings of estimators may be; scikit-learn wants this told when `fit` is called, not before."""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from sklearn.base import BaseEstimator

from tensorferry.engines.precision import check_name
from tensorferry.errors import BadData, BadOption
from tensorferry.messages import did_you_mean
from tensorferry.units import parse_bytes


def check_settings(estimator: BaseEstimator) -> None:
    """Raise `BadOption` for a setting that no fit can use."""
    for name, value in estimator.get_params(deep=False).items():
        if name in _RULES:
            is_allowed, expected = _RULES[name]
            if not is_allowed(value):
                raise BadOption(f"expected {name} of {type(estimator).__name__} to be {expected}, received {value!r}")
        elif name == "precision":
            check_name(value)
        elif name == "budget" and value not in (None, "auto"):
            parse_bytes(value)


def check_workers(given: Any) -> None:
    """Raise `BadOption` for what is no number of processes."""
    if not _is_whole(1)(given):
        raise BadOption(f"expected workers to be {_COUNT[1]}, received {given!r}")


def check_class_weight(given: Any, classes: Sequence[Any]) -> None:
    """Raise `BadData` for a weight of a class that is not there."""
    if isinstance(given, Mapping) and (unknown := [name for name in given if name not in classes]):
        hint = did_you_mean(str(unknown[0]), map(str, classes))
        there = ", ".join(map(str, classes))
        raise BadData(f"class_weight names the class {unknown[0]!r}, which is not in the target{hint}; there are {there}")


def _is_whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _is_real(is_inside: Callable[[float], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value) and is_inside(float(value))
    )


def _is_class_weight(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_real(lambda weight: weight >= 0), value.values()))
    return value is None or (isinstance(value, str) and value == "balanced")


def _are_widths(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(map(_is_whole(1), value))


_SHARE = (_is_real(lambda value: 0 <= value < 1), "from 0 up to, but not including, 1")
_POSITIVE = (_is_real(lambda value: value > 0), "a number above 0")
_NOT_NEGATIVE = (_is_real(lambda value: value >= 0), "a number of at least 0")
_COUNT = (_is_whole(1), "a whole number of at least 1")
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "hidden_units": (_are_widths, "a sequence of whole numbers, each at least 1"),
    "dropout": _SHARE,
    "validation_fraction": _SHARE,
    "threshold": _SHARE,
    "learning_rate": _POSITIVE,
    "regularization": _NOT_NEGATIVE,
    "weight_decay": _NOT_NEGATIVE,
    "batch_size": _COUNT,
    "epochs": _COUNT,
    "max_iter": _COUNT,
    "num_trees": _COUNT,
    "num_members": _COUNT,
    "max_leaves": (_is_whole(2), "a whole number of at least 2"),
    "patience": (_is_whole(0), "a whole number of at least 0"),
    "class_weight": (_is_class_weight, "None, 'balanced', or a number of at least 0 for each class"),
    "random_state": (lambda value: value is None or _is_whole(0)(value), "None or a whole number of at least 0"),
}
