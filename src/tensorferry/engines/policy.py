"""Mixed precision in Keras, on any back end: a policy that layers take when they are made.

For fp16 Keras' `compile` puts a loss scale around the optimizer by itself.
"""

from types import TracebackType
from typing import Any

import keras

from tensorferry.engines.core.precision import Choice, choose
from tensorferry.errors import NotSupported

_POLICIES = {"fp32": "float32", "fp16": "mixed_float16", "bf16": "mixed_bfloat16"}


class KerasPrecision:
    """What `precision` returns for Keras: make and compile a model inside it."""

    def __init__(self, choice: Choice) -> None:
        self.name = choice.name
        self.reason = choice.reason
        self._before: list[Any] = []

    def __enter__(self) -> "KerasPrecision":
        self._before.append(keras.config.dtype_policy())
        keras.config.set_dtype_policy(_POLICIES[self.name])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        keras.config.set_dtype_policy(self._before.pop())

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def make_policy(name: str) -> KerasPrecision:
    """The precision of that name; "auto" measures on the back end of this process."""
    if name != "auto":
        return KerasPrecision(Choice(name, "as asked"))
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from tensorferry.engines.tensorflow import rates

        return KerasPrecision(choose(name, rates.measure_flops, on_cpu=not rates.has_accelerator()))
    if backend == "torch":
        from tensorferry.engines.torch.precision import make_precision

        chosen = make_precision(name)
        return KerasPrecision(Choice(chosen.name, chosen.reason))
    raise NotSupported(f"cannot measure on Keras' {backend!r} back end; name a precision, or set KERAS_BACKEND=tensorflow")
