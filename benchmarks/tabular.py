"""Premade estimators beside other libraries at their defaults, on real tables.

    python benchmarks/tabular.py                       adult and california, seeds 0 to 4
    python benchmarks/tabular.py --save                the same, and its result file
    python benchmarks/tabular.py --models trees        without the networks, which take minutes
    python benchmarks/tabular.py --models networks     these alone
    python benchmarks/tabular.py --no-times            without seconds: where other work runs on the machine

Every table is split 80/20 by each seed, the same rows for all. Metrics are medians of the seeds. CPU seconds, where they are
shown, are those of `fit`, median and spread, measured in turns on as many threads as there are cores. Peers that are not
installed are left out.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from results import FigureTable, parse_options, save_result
from tensorferry import datasets, estimators
from tensorferry.datasets import Dataset
from tensorferry.estimators.metrics import measure_classes, measure_values

TABLES = ("adult", "california")
MODELS = {
    "all": ("LinearX", "BoostedTreesX", "DNNX", "DNNLinearCombinedX"),
    "trees": ("LinearX", "BoostedTreesX"),
    "networks": ("DNNX", "DNNLinearCombinedX"),
}
PACKAGES = ("scikit-learn", "lightgbm", "xgboost", "ydf", "keras", "numpy", "pandas")


@dataclass(frozen=True)
class Fit:
    """One model on one split."""

    table: str
    model: str
    seed: int
    metrics: dict[str, float]
    cpu_seconds: float | None  # None: not to be told
    wall_seconds: float | None


@dataclass(frozen=True)
class Contender:
    """A model: how it learns a split, and then answers the rows held out."""

    name: str
    is_ours: bool
    fit: Callable[[Dataset], Callable[[Dataset], Any]]


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default=",".join(TABLES), help="comma separated datasets by name")
    parser.add_argument("--models", choices=tuple(MODELS), default="all", help="trees: without the networks; networks: alone")
    parser.add_argument("--seeds", type=int, default=5, help="how many splits")
    parser.add_argument("--no-times", action="store_true", help="leave out seconds, which say nothing on a busy machine")
    options = parse_options(parser, __file__, argv)
    console = Console(width=None if sys.stdout.isatty() else 120)
    fits = []
    turns = [(table, seed) for table in options.tables.split(",") for seed in range(options.seeds)]
    for table, seed in track(turns, "training", console=console, transient=True):
        train, test = datasets.load(table).split(0.8, seed=seed)
        fits += [measure(contender, table, seed, train, test) for contender in list_contenders(train, options.models)]
    if options.no_times:
        fits = [replace(fit, cpu_seconds=None, wall_seconds=None) for fit in fits]
    tables = [make_table(table, [fit for fit in fits if fit.table == table]) for table in options.tables.split(",")]
    for each in tables:
        console.print(each)
    save_result(options, "tabular", tables, {"fits": [asdict(fit) for fit in fits]}, PACKAGES)
    return 0


def measure(contender: Contender, table: str, seed: int, train: Dataset, test: Dataset) -> Fit:
    """Train and judge one model."""
    wall, cpu = perf_counter(), process_time()
    answer = contender.fit(train)
    cpu_seconds, wall_seconds = process_time() - cpu, perf_counter() - wall
    answers = np.asarray(answer(test))
    if is_classification(train):
        classes, codes = np.unique(test.target, return_inverse=True)
        assert len(classes) == 2, "expected a table with two classes"
        probabilities = answers if answers.ndim == 2 else np.stack([1 - answers, answers], axis=1)
        found = measure_classes(probabilities, codes)
    else:
        found = measure_values(answers, test.target)
    return Fit(table, contender.name, seed, found, cpu_seconds, wall_seconds)


def list_contenders(train: Dataset, models: str) -> Iterator[Contender]:
    """Ours, and the peers that are installed."""
    suffix = "Classifier" if is_classification(train) else "Regressor"
    for name in MODELS[models]:
        kind = estimators.KINDS[name.replace("X", suffix)]
        options = {"random_state": 0} if not name.startswith("Linear") else {}
        yield Contender(kind.__name__, True, _fit_ours(kind, options))
    if models == "networks":
        return
    yield Contender(f"HistGradientBoosting{suffix}", False, _fit_sklearn(suffix))
    if find_spec("lightgbm"):
        yield Contender("LightGBM", False, _fit_lightgbm(suffix))
    if find_spec("xgboost"):
        yield Contender("XGBoost", False, _fit_xgboost(suffix))
    if find_spec("ydf"):
        yield Contender("YDF", False, _fit_ydf(suffix))


def is_classification(dataset: Dataset) -> bool:
    """Whether the target is a class."""
    column = next(column for column in dataset.columns if column.name == dataset.target_name)
    return column.kind in ("category", "label", "boolean")


def make_table(table: str, fits: list[Fit]) -> FigureTable:
    """A row a model: medians of the seeds."""
    metrics = ("accuracy", "auc") if "accuracy" in fits[0].metrics else ("rmse", "r2")
    rows = []
    for name in dict.fromkeys(fit.model for fit in fits):
        chosen = [fit for fit in fits if fit.model == name]
        seconds = [fit.cpu_seconds for fit in chosen if fit.cpu_seconds is not None]
        values = [f"{median(fit.metrics[metric] for fit in chosen):.4f}" for metric in metrics]
        rows.append([name, *values, *([f"{median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"] if seconds else [])])
    columns = ["model", *metrics, *(["CPU s of fit"] if seconds else [])]
    return FigureTable(f"{table}, {len(chosen)} {'split' if len(chosen) == 1 else 'splits'}", columns, rows)


def _fit_ours(kind: Any, options: dict[str, Any]) -> Callable[[Dataset], Callable[[Dataset], Any]]:
    def fit(train: Dataset) -> Callable[[Dataset], Any]:
        model = kind(**options).fit(train)
        return model.predict_proba if hasattr(model, "predict_proba") else model.predict

    return fit


def _fit_sklearn(suffix: str) -> Callable[[Dataset], Callable[[Dataset], Any]]:
    from sklearn import ensemble

    return _fit_frame(
        lambda: getattr(ensemble, f"HistGradientBoosting{suffix}")(categorical_features="from_dtype", random_state=0)
    )


def _fit_lightgbm(suffix: str) -> Callable[[Dataset], Callable[[Dataset], Any]]:
    import lightgbm

    return _fit_frame(lambda: getattr(lightgbm, f"LGBM{suffix}")(verbose=-1, random_state=0))


def _fit_xgboost(suffix: str) -> Callable[[Dataset], Callable[[Dataset], Any]]:
    import xgboost

    return _fit_frame(lambda: getattr(xgboost, f"XGB{suffix}")(enable_categorical=True, random_state=0))


def _fit_frame(make: Callable[[], Any]) -> Callable[[Dataset], Callable[[Dataset], Any]]:
    """A library that takes data frames with categorical columns."""

    def fit(train: Dataset) -> Callable[[Dataset], Any]:
        import pandas as pd

        frame = train.frame.drop(columns=train.target_name)
        kinds = {
            column.name: pd.CategoricalDtype(sorted(frame[column.name].dropna().unique()))
            for column in train.input_columns
            if column.kind == "category"
        }
        _, codes = np.unique(train.target, return_inverse=True)
        model = make().fit(frame.astype(kinds), codes if is_classification(train) else train.target)

        def answer(test: Dataset) -> Any:
            rows = test.frame.drop(columns=test.target_name)
            for name, kind in kinds.items():  # a word that was not there in training is missing
                rows[name] = rows[name].where(rows[name].isin(kind.categories)).astype(kind)
            return model.predict_proba(rows) if hasattr(model, "predict_proba") else model.predict(rows)

        return answer

    return fit


def _fit_ydf(suffix: str) -> Callable[[Dataset], Callable[[Dataset], Any]]:
    import ydf

    def fit(train: Dataset) -> Callable[[Dataset], Any]:
        task = ydf.Task.CLASSIFICATION if suffix == "Classifier" else ydf.Task.REGRESSION
        learner = ydf.GradientBoostedTreesLearner(label=train.target_name, task=task)
        ydf.verbose(0)
        model = learner.train(train.frame)
        return lambda test: model.predict(test.frame)

    return fit


if __name__ == "__main__":
    sys.exit(main())
