"""What a training step of a model will need, before the step runs.

A copy of the model with fake tensors (`fake_copy.py`) is called with fake copies of the real inputs and differentiated, and a
fake copy of each of its optimizers steps; nothing of the real ones is touched. The user's loss is not known here, so this finds
the floor of model and optimizer. Optimizers are looked for among the objects that are alive. Where they cannot be followed (a
step that wants a closure, two for the same parameter, gradients that a hook takes in the middle of backward, sharded parameters)
they are left out.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from tensorferry.engines.forked import NoAnswer, call_in_fork
from tensorferry.engines.torch.compat import FakeTensorMode, compiler_is_loaded, takes_gradients_early, tree_leaves, tree_map_only
from tensorferry.engines.torch.device import device_of
from tensorferry.engines.torch.fake_copy import FakeCopy, copy_optimizer, run_step, torch_copy
from tensorferry.engines.torch.fake_step import follow
from tensorferry.errors import NotTraceable
from tensorferry.frameworks import is_keras
from tensorferry.messages import kind_and_first_line
from tensorferry.trace import Trace

_BUG_IN_TORCH = "INTERNAL ASSERT FAILED"  # what torch says then helps nobody but its authors
_NOT_IN_A_FORK = re.compile("forked subprocess|fork-based multiprocessing")  # as torch says it of CUDA and of autograd
_MAX_COPIES = 2  # a copy that waits for another thread's lock may have no need to a moment later

_Found = tuple[Trace, bool] | NotTraceable  # the trace, and whether it has the optimizers' updates


class _NoUpdate(Exception):
    """An optimizer's step cannot be followed."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The first step of a model and its optimizers on some inputs."""

    trace: Trace  # its overhead is what the step finds there of its storages, counted negative
    optimizers: Sequence[torch.optim.Optimizer]  # those in it
    note: str = ""  # why telling it has cost memory

    def on_top_of(self, resident_nbytes: int) -> Trace:
        """The trace, when this much is resident before the step."""
        return replace(self.trace, overhead_nbytes=self.trace.overhead_nbytes + resident_nbytes)


def forecast(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    optimizers: Sequence[torch.optim.Optimizer],
    min_nbytes: int,
) -> Forecast:
    """The trace of a step on these inputs; `NotTraceable` where fake tensors cannot follow."""

    def look_ahead() -> _Found:
        return _look_ahead(model, args, kwargs, optimizers, min_nbytes)

    found, note = None, ""
    if device_of(model).type == "cpu" and not compiler_is_loaded():
        # fake tensors load torch's compiler, 70 MiB; torch's optimizers do so too, but there may be none
        found, note = _look_in_copy(look_ahead)
    found = found or look_ahead()
    if isinstance(found, NotTraceable):
        raise NotTraceable(f"{found}; {note}") if note else found
    trace, has_updates = found
    return Forecast(trace, optimizers if has_updates else (), note)


def _look_in_copy(look_ahead: Callable[[], _Found]) -> tuple[_Found | None, str]:
    """What a copy of this process finds, or else None and why it had to be found here."""
    reason = ""
    for _ in range(_MAX_COPIES):
        try:
            found = call_in_fork(look_ahead)
        except NoAnswer as error:
            reason = str(error)
            continue
        if not (isinstance(found, NotTraceable) and _NOT_IN_A_FORK.search(str(found))):
            return found, ""
        reason = str(found)
        break
    return None, f"the first step was followed in this process, which loads 70 MiB of torch's compiler: {reason}"


def _look_ahead(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    optimizers: Sequence[torch.optim.Optimizer],
    min_nbytes: int,
) -> _Found:
    """The trace, and whether the optimizers are in it."""
    if isinstance(model, DistributedDataParallel):
        model = model.module  # what it adds, buckets for gradients, is there already
    try:
        with _uncached_casts():
            if _can_follow(optimizers):
                with suppress(_NoUpdate):
                    return _follow(model, args, kwargs, optimizers, min_nbytes), True
            return _follow(model, args, kwargs, None, min_nbytes), False
    except Exception as error:  # whatever a user's forward can raise
        if _BUG_IN_TORCH in str(error):
            return NotTraceable("torch cannot follow it with fake tensors")
        return NotTraceable(kind_and_first_line(error))


def _can_follow(optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    trained = [parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]]
    return (
        # one of two may have been left behind, or wrap the other
        max(Counter(map(id, trained)).values(), default=1) == 1
        and all(type(parameter) in (torch.nn.Parameter, torch.Tensor) for parameter in trained)
        and not any(map(takes_gradients_early, trained))
    )


def _follow(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    optimizers: Sequence[torch.optim.Optimizer] | None,
    min_nbytes: int,
) -> Trace:
    """`optimizers`: None for no update at all."""
    mode, device = FakeTensorMode(allow_non_fake_inputs=True), device_of(model)
    with _open_copy(model, mode) as copied:
        fake_args, fake_kwargs = tree_map_only(torch.Tensor, partial(_copy_input, mode), (args, kwargs))
        copies = _copy_optimizers(optimizers or (), copied, mode)
        steps: list[Callable[[], None]] = [partial(run_step, optimizer) for optimizer in copies]
        updates = [] if optimizers is None else [*copied.updates, *steps]

        def train() -> None:
            _train(copied, fake_args, fake_kwargs, updates, device.type)

        return follow(train, copied.held, mode, device, copies, min_nbytes=min_nbytes, layers=copied.layers, first=True)


def _open_copy(model: torch.nn.Module, mode: FakeTensorMode) -> AbstractContextManager[FakeCopy]:
    if is_keras(model):
        from tensorferry.engines.torch.keras_fake_copy import keras_copy  # Keras is loaded then

        return keras_copy(model, mode)
    return torch_copy(model, mode)


def _copy_input(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A fake copy that begins a graph of its own: what made the input is not followed."""
    return mode.from_tensor(tensor.detach()).requires_grad_(tensor.requires_grad)


def _copy_optimizers(
    optimizers: Sequence[torch.optim.Optimizer], copied: FakeCopy, mode: FakeTensorMode
) -> list[torch.optim.Optimizer]:
    try:
        return [copy_optimizer(optimizer, copied, mode) for optimizer in optimizers]
    except Exception as error:  # whatever an optimizer of the user's can hold
        raise _NoUpdate from error


def _train(
    copied: FakeCopy, args: tuple[Any, ...], kwargs: dict[str, Any], updates: Sequence[Callable[[], None]], device: str
) -> None:
    output = copied.call(*args, **kwargs)
    with torch.autocast(device, enabled=False):  # it is for forward passes
        losses = [t.sum() for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.requires_grad]
        del output
        sum(losses[1:], losses[0]).backward()
        for update in updates:
            try:
                update()
            except Exception as error:  # whatever an optimizer of the user's can raise
                raise _NoUpdate from error
    for parameter in copied.held.parameters():
        parameter.grad = None


@contextmanager
def _uncached_casts() -> Iterator[None]:
    """While inside, autocast keeps no weights that it has cast; those of a fake forward would outlive it."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
