"""Keras on its torch back end as one of several processes: the optimizer is given the mean of all ranks' gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorferry.scaling.averages import average_tensors


@contextmanager
def averaging(optimizer: Any, share: float = 1.0) -> Iterator[None]:
    """While inside, a Keras optimizer is given the mean of all ranks' gradients, each of which counts for its share."""
    own_apply = optimizer.apply

    def apply(gradients: list[Any], trainable_variables: Any = None) -> Any:
        shares = [None if gradient is None else gradient.mul_(share) for gradient in gradients]
        average_tensors(shares)
        return own_apply(shares, trainable_variables)

    optimizer.apply = apply
    try:
        yield
    finally:
        del optimizer.apply
