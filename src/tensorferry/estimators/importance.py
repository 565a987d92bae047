"""How much an estimator's answers rest on each column of the table."""

from typing import Any

import numpy as np

from tensorferry.datasets import Dataset
from tensorferry.estimators.estimator import TableEstimator
from tensorferry.feature_columns.table import read_table


def permutation_importance(
    estimator: TableEstimator,
    X: Any,  # noqa: N803  scikit-learn's name
    y: Any = None,
    *,
    num_repeats: int = 3,
    seed: int = 0,
) -> dict[str, float]:
    """How much the score falls when a column's values are shuffled among the rows, by column, the largest first.

    The score is accuracy or the share of variance explained, as `score` gives it. Columns that can stand in for each other
    share what they have. A dataset brings its own target.
    """
    if y is None and isinstance(X, Dataset):
        y = X.target
    table = dict(read_table(X))
    rng = np.random.default_rng(seed)
    whole = estimator.score(table, y)
    falls = {}
    for name, values in table.items():
        scores = [estimator.score({**table, name: rng.permutation(values)}, y) for _ in range(num_repeats)]
        falls[name] = float(whole - np.mean(scores))
    return dict(sorted(falls.items(), key=lambda item: -item[1]))
