"""Small settings of every estimator, for tests."""

from typing import Any

from tensorferry import estimators

NEURAL = {"epochs": 30, "hidden_units": (16,), "batch_size": 32, "learning_rate": 0.01, "random_state": 0}
CLASSIFIERS = {
    "BaselineClassifier": {},
    "LinearClassifier": {},
    "BoostedTreesClassifier": {"num_trees": 30},
    "DNNClassifier": NEURAL,
    "DNNLinearCombinedClassifier": NEURAL,
}
REGRESSORS = {
    "BaselineRegressor": {},
    "LinearRegressor": {},
    "BoostedTreesRegressor": {"num_trees": 60},
    "DNNRegressor": NEURAL,
    "DNNLinearCombinedRegressor": NEURAL,
}


def make(name: str, **changes: Any) -> Any:
    return estimators.KINDS[name](**{**CLASSIFIERS, **REGRESSORS}[name] | changes)
