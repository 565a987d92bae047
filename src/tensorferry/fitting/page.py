"""A fit on one page that opens offline: metrics, what the answers rest on, and whether probabilities are true."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from tensorferry.fitting.figures import FitFigures
from tensorferry.fitting.request import FitRequest
from tensorferry.pages import PageHead, Tile, render
from tensorferry.text import printable

_NAMES = {"accuracy": "Accuracy", "auc": "AUC", "loss": "Log loss", "rmse": "RMSE", "mae": "Mean error", "r2": "R²"}
_ROOM = 0.04  # of the plot, around its points


def html_fit_page(figures: FitFigures, request: FitRequest, environment: Mapping[str, str]) -> str:
    """The whole page."""
    return render(
        "fitting/fit.html.j2",
        head=PageHead("TensorFerry fit", describe_fit(figures), _where(figures), "fits"),
        tiles=list(_tiles(figures)),
        figures=figures,
        importance=_importance(figures),
        plot=_plot(figures),
        calibration=[(f"{each.told:.4g}", f"{each.true:.4g}", f"{each.num_rows:,}") for each in figures.calibration],
        thresholds=_thresholds(figures),
        confusion=[
            (name, *(f"{count:,}" for count in row)) for name, row in zip(figures.classes, figures.confusion, strict=True)
        ],
        asked=_asked(request),
        environment=environment,
    )


def describe_fit(figures: FitFigures) -> str:
    """One sentence: what was learnt, and how well."""
    name = "accuracy" if figures.task == "classes" else "rmse"
    told = f"{_NAMES[name]} {figures.metrics[name]:.4g}"
    if "auc" in figures.metrics:
        told += f", AUC {figures.metrics['auc']:.4g}"
    return f"{printable(figures.target)} of {printable(figures.name)}: {told} on rows it has not seen."


def _where(figures: FitFigures) -> str:
    return f"{figures.estimator} · {figures.num_train:,} rows to learn from · {figures.num_test:,} to test on"


def _tiles(figures: FitFigures) -> Iterator[Tile]:
    for name, value in figures.metrics.items():
        before = figures.baseline.get(name)
        yield Tile(_NAMES.get(name, name), f"{value:.4g}", "" if before is None else f"baseline {before:.4g}")
    if figures.task == "classes":
        yield Tile("Calibration error", f"{figures.calibration_error:.4g}", "predicted and observed, apart on average")
    if figures.threshold is not None:
        yield Tile("Threshold", f"{figures.threshold:.4g}", f"answers {printable(figures.second)} above it")
        chosen = next(each for each in figures.thresholds if each.threshold == figures.threshold)
        for name in ("precision", "recall", "f1"):
            yield Tile(name.capitalize(), f"{getattr(chosen, name):.4g}", f"of {printable(figures.second)}")
    elif figures.task == "classes":
        yield Tile("Classes", f"{len(figures.classes)}")
    else:
        yield Tile("Rows tested", f"{figures.num_test:,}")


def _importance(figures: FitFigures) -> list[tuple[str, float, str]]:
    """Column, length of its bar, fall of the score."""
    largest = max([1e-12, *figures.importance.values()])
    return [(name, max(0.0, fall) / largest, f"{fall:.4f}") for name, fall in figures.importance.items()]


def _plot(figures: FitFigures) -> dict[str, Any]:
    """Where the points of predicted and observed are in a square of side 100, from its top left corner."""
    low, high = 0.0, 1.0
    if figures.task == "values":
        values = [value for each in figures.calibration for value in (each.told, each.true)]
        low, high = min(values), max(values)
        room = _ROOM * ((high - low) or 1.0)
        low, high = low - room, high + room

    def place(value: float) -> float:
        return round(100 * (value - low) / (high - low), 2)

    points = [(place(each.told), round(100 - place(each.true), 2)) for each in figures.calibration]
    return {"points": points, "low": f"{low:.3g}", "high": f"{high:.3g}"}


def _thresholds(figures: FitFigures) -> list[tuple[str, ...]]:
    return [
        (
            f"{each.threshold:.4g}{' (chosen)' if each.threshold == figures.threshold else ''}",
            *(f"{value:.4f}" for value in (each.accuracy, each.balanced_accuracy, each.precision, each.recall, each.f1)),
        )
        for each in figures.thresholds
    ]


def _asked(request: FitRequest) -> dict[str, str]:
    return {
        "command": shlex.join(request.command) if request.command else "from Python",
        "table": request.table,
        "target": str(request.target),
        "model": request.model,
        "learns": request.task,
        **{f"set {name}": value for name, value in request.settings.items()},
        "calibration": request.calibrate or "none",
        "threshold": request.threshold or "0.5",
        "tested on": f"{request.test_share:.0%} of the rows",
        "seed": str(request.seed),
    }
