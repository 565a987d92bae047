"""Every estimator, by its name."""

from tensorferry.estimators.baseline import BaselineClassifier, BaselineRegressor
from tensorferry.estimators.linear import LinearClassifier, LinearRegressor
from tensorferry.estimators.neural import (
    DNNClassifier,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedRegressor,
    DNNRegressor,
)
from tensorferry.estimators.trees import BoostedTreesClassifier, BoostedTreesRegressor

KINDS = {
    kind.__name__: kind
    for kind in (
        BaselineClassifier,
        BaselineRegressor,
        BoostedTreesClassifier,
        BoostedTreesRegressor,
        DNNClassifier,
        DNNLinearCombinedClassifier,
        DNNLinearCombinedRegressor,
        DNNRegressor,
        LinearClassifier,
        LinearRegressor,
    )
}
