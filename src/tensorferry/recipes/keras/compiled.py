"""How the models here are compiled wherever they are measured: momentum, cross-entropy, and no XLA."""

from collections.abc import Sequence

import keras


def compile_model(model: keras.Model, learning_rate: float = 0.01, loss_weights: Sequence[float] | None = None) -> keras.Model:
    """The same model, ready for `fit` on integer classes; `loss_weights` go with the outputs of a model that has several."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate, momentum=0.9),
        loss=[loss] * len(loss_weights) if loss_weights else loss,
        loss_weights=list(loss_weights) if loss_weights else None,
        jit_compile=False,
    )
    return model
