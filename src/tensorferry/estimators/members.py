"""Several networks in one: members that share all weights but a scale of their inputs and their last layer.

As TabM-mini (Gorishniy, Kotelnikov & Babenko 2024), after BatchEnsemble (Wen et al. 2020): every member sees the inputs scaled by
numbers of its own, which begin as random signs, and answers for itself; each is trained by its own loss, and their answers are
averaged. Inside, members come first, so that every shared layer is one product of matrices: (members, rows, width).
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops


class MemberInputs(layers.Layer):
    """The same rows for every member, under its own signs."""

    def __init__(self, num_members: int, seed: int, **options: Any) -> None:
        super().__init__(**options)
        self.num_members, self.seed = num_members, seed

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Make the signs."""

        def draw(shape: tuple[int, ...], dtype: Any = None) -> Any:
            drawn = keras.random.randint(shape, 0, 2, seed=self.seed)
            return ops.cast(2 * drawn - 1, dtype or "float32")

        self.scale = self.add_weight(shape=(self.num_members, input_shape[-1]), initializer=draw, name="scale")
        self.built = True

    def call(self, x: Any) -> Any:
        """(rows, width) to (members, rows, width)."""
        return ops.expand_dims(x, 0) * ops.expand_dims(self.scale, 1)


class MemberScores(layers.Layer):
    """A last layer of each member's own."""

    def __init__(self, num_answers: int, seed: int, **options: Any) -> None:
        super().__init__(**options)
        self.num_answers, self.seed = num_answers, seed

    def build(self, input_shape: tuple[int, int | None, int]) -> None:
        """Make the weights, as a dense layer of one member would."""
        num_members, _, width = input_shape
        limit = (6 / (width + self.num_answers)) ** 0.5
        initial = keras.initializers.RandomUniform(-limit, limit, seed=self.seed)
        self.kernel = self.add_weight(shape=(num_members, width, self.num_answers), initializer=initial, name="kernel")
        self.bias = self.add_weight(shape=(num_members, 1, self.num_answers), initializer="zeros", name="bias")
        self.built = True

    def call(self, x: Any) -> Any:
        """(members, rows, width) to (rows, members, answers)."""
        return ops.transpose(ops.matmul(x, self.kernel) + self.bias, (1, 0, 2))


class MemberLoss(keras.losses.Loss):
    """The mean of what every member would have as its loss."""

    def __init__(self, loss: Callable[[Any, Any], Any], num_members: int, num_target_axes: int) -> None:
        super().__init__()
        self.loss, self.num_members, self.num_target_axes = loss, num_members, num_target_axes

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """A loss for every row."""
        target = ops.repeat(ops.reshape(y_true, (-1, *(1,) * self.num_target_axes)), self.num_members, axis=1)
        return ops.mean(self.loss(target, y_pred), axis=1)
