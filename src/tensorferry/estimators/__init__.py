"""Premade estimators for tables: fit, predict and score as in scikit-learn; train, evaluate and predict as in tf.estimator.

from tensorferry import datasets, estimators

train, test = datasets.load("adult").split(0.8)
model = estimators.BoostedTreesClassifier().fit(train)
model.score(test, test.target)
"""

from tensorferry.estimators.baseline import BaselineClassifier, BaselineRegressor
from tensorferry.estimators.importance import permutation_importance
from tensorferry.estimators.kinds import KINDS
from tensorferry.estimators.linear import LinearClassifier, LinearRegressor
from tensorferry.estimators.neural import (
    DNNClassifier,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedRegressor,
    DNNRegressor,
)
from tensorferry.estimators.saving import load, save
from tensorferry.estimators.trees import BoostedTreesClassifier, BoostedTreesRegressor

__all__ = [
    "KINDS",
    "BaselineClassifier",
    "BaselineRegressor",
    "BoostedTreesClassifier",
    "BoostedTreesRegressor",
    "DNNClassifier",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "LinearClassifier",
    "LinearRegressor",
    "load",
    "permutation_importance",
    "save",
]
