"""Deep networks, and deep networks beside a linear model: `neural_training` has how they are trained."""

from collections.abc import Sequence
from typing import Any

from tensorferry.estimators.neural_tasks import Deep, NeuralClassifier, NeuralRegressor, WideAndDeep
from tensorferry.feature_columns import columns as fc


class DNNClassifier(Deep, NeuralClassifier):
    """A deep network for classes."""

    def __init__(
        self,
        features: Sequence[fc.FeatureColumn] | None = None,
        *,
        hidden_units: Sequence[int] = (256, 128),
        num_members: int = 1,
        dropout: float = 0.1,
        learning_rate: float = 0.001,
        weight_decay: float = 0.0001,
        batch_size: int = 256,
        epochs: int = 30,
        patience: int = 8,
        validation_fraction: float = 0.1,
        budget: str | int | None = None,
        precision: str = "fp32",
        warm_start: bool = False,
        class_weight: Any = None,
        threshold: float = 0.5,
        random_state: int | None = None,
    ) -> None:
        self.features = features
        self.hidden_units = hidden_units
        self.num_members = num_members
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.budget = budget
        self.precision = precision
        self.warm_start = warm_start
        self.class_weight = class_weight
        self.threshold = threshold
        self.random_state = random_state


class DNNRegressor(Deep, NeuralRegressor):
    """A deep network for numbers."""

    def __init__(
        self,
        features: Sequence[fc.FeatureColumn] | None = None,
        *,
        hidden_units: Sequence[int] = (256, 128),
        num_members: int = 1,
        dropout: float = 0.1,
        learning_rate: float = 0.001,
        weight_decay: float = 0.0001,
        batch_size: int = 256,
        epochs: int = 30,
        patience: int = 8,
        validation_fraction: float = 0.1,
        budget: str | int | None = None,
        precision: str = "fp32",
        warm_start: bool = False,
        random_state: int | None = None,
    ) -> None:
        self.features = features
        self.hidden_units = hidden_units
        self.num_members = num_members
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.budget = budget
        self.precision = precision
        self.warm_start = warm_start
        self.random_state = random_state


class DNNLinearCombinedClassifier(WideAndDeep, NeuralClassifier):
    """Wide & deep for classes: a linear model remembers, a deep network generalises, trained as one."""

    def __init__(
        self,
        linear: Sequence[fc.FeatureColumn] | None = None,
        dnn: Sequence[fc.FeatureColumn] | None = None,
        *,
        hidden_units: Sequence[int] = (256, 128),
        num_members: int = 1,
        dropout: float = 0.1,
        learning_rate: float = 0.001,
        weight_decay: float = 0.0001,
        batch_size: int = 256,
        epochs: int = 30,
        patience: int = 8,
        validation_fraction: float = 0.1,
        budget: str | int | None = None,
        precision: str = "fp32",
        warm_start: bool = False,
        class_weight: Any = None,
        threshold: float = 0.5,
        random_state: int | None = None,
    ) -> None:
        self.linear = linear
        self.dnn = dnn
        self.hidden_units = hidden_units
        self.num_members = num_members
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.budget = budget
        self.precision = precision
        self.warm_start = warm_start
        self.class_weight = class_weight
        self.threshold = threshold
        self.random_state = random_state


class DNNLinearCombinedRegressor(WideAndDeep, NeuralRegressor):
    """Wide & deep for numbers: a linear model remembers, a deep network generalises, trained as one."""

    def __init__(
        self,
        linear: Sequence[fc.FeatureColumn] | None = None,
        dnn: Sequence[fc.FeatureColumn] | None = None,
        *,
        hidden_units: Sequence[int] = (256, 128),
        num_members: int = 1,
        dropout: float = 0.1,
        learning_rate: float = 0.001,
        weight_decay: float = 0.0001,
        batch_size: int = 256,
        epochs: int = 30,
        patience: int = 8,
        validation_fraction: float = 0.1,
        budget: str | int | None = None,
        precision: str = "fp32",
        warm_start: bool = False,
        random_state: int | None = None,
    ) -> None:
        self.linear = linear
        self.dnn = dnn
        self.hidden_units = hidden_units
        self.num_members = num_members
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.budget = budget
        self.precision = precision
        self.warm_start = warm_start
        self.random_state = random_state
