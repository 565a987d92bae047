"""How a network is trained: AdamW on a falling rate, the best epoch on the rows held out kept, a step inside its budget."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tensorferry.engines.keras import LargeModel


@dataclass(frozen=True)
class EpochSettings:
    """What a training goes by."""

    learning_rate: float
    weight_decay: float
    epochs: int
    patience: int
    budget: str | int | None
    most_steps: int | None  # None: as many as the epochs have


class StopAfterSteps(keras.callbacks.Callback):
    """What ends a training after so many steps."""

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self.num_steps, self.num_done = num_steps, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Count a step."""
        self.num_done += 1
        if self.num_done >= self.num_steps:
            self.model.stop_training = True


def run_epochs(
    model: Any, loss: Any, batches: Any, checked: Any, settings: EpochSettings, callbacks: Sequence[Any] = ()
) -> dict[str, list[float]]:
    """Train, and return the losses of every epoch; `callbacks` come before those that look at the rows held out."""
    chosen = list(callbacks)
    if checked is not None:
        chosen.append(keras.callbacks.EarlyStopping("val_loss", patience=settings.patience, restore_best_weights=True))
    if settings.budget is not None:
        chosen.append(LargeModel(settings.budget))
    num_steps = settings.epochs * len(batches)
    if settings.most_steps is not None and settings.most_steps < num_steps:
        num_steps = settings.most_steps
        chosen.append(StopAfterSteps(num_steps))
    rate = keras.optimizers.schedules.CosineDecay(settings.learning_rate, num_steps)
    model.compile(keras.optimizers.AdamW(rate, weight_decay=settings.weight_decay), loss, jit_compile=False)
    history = model.fit(batches, epochs=settings.epochs, validation_data=checked, callbacks=chosen, verbose=0, shuffle=False)
    return {name: [float(value) for value in values] for name, values in history.history.items()}
