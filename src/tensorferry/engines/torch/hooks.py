"""What `large_model` hooks into torch and into a user's model, each undone when its context ends."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tensorferry.engines.torch.compat import autograd_functions
from tensorferry.errors import GraphFreed, NotSupported


class UncopiedHook:
    """A hook on the user's model that stays with it: a copy of the model, or a file of it, gets one that does nothing."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        self._call(*args)

    def __reduce__(self) -> Any:  # copies are made by it, too
        return UncopiedHook, (_do_nothing,)


def _do_nothing(*_: Any) -> None:
    pass


@contextmanager
def clear_backward_errors(failed: Callable[[], None]) -> Iterator[None]:
    """While inside, a second backward through a freed graph raises `GraphFreed`, and every failed backward is told of."""
    autograd: Any = torch.autograd  # backward() and grad() both go through this private name
    original = autograd._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except RuntimeError as error:
            failed()
            if "backward through the graph a second time" in str(error):
                raise GraphFreed(
                    "backward ran a second time through a graph whose saved tensors are gone; pass retain_graph=True to the "
                    "first backward, or compute the loss again."
                ) from error
            raise
        except BaseException:
            failed()
            raise

    autograd._engine_run_backward = run_backward
    try:
        yield
    finally:
        autograd._engine_run_backward = original


@contextmanager
def refuse_transforms() -> Iterator[None]:
    """While inside, what torch lets nobody use beside saved-tensor hooks raises `NotSupported`."""
    original = autograd_functions._saved_tensors_hooks_disable

    def disable(*args: Any) -> None:
        try:
            original(*args)
        except RuntimeError as error:
            raise NotSupported(
                "torch.func's grad, vjp, jacrev and hessian cannot run inside ferry.large_model, which sees what autograd saves "
                "through saved-tensor hooks. Use loss.backward() or torch.autograd.grad, or call them outside of the context."
            ) from error

    autograd_functions._saved_tensors_hooks_disable = disable
    try:
        yield
    finally:
        autograd_functions._saved_tensors_hooks_disable = original
