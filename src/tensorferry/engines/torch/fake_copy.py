"""A model with fake tensors in place of its own, so that its code can be followed while the real model stays as it is.

A torch model is copied with fake parameters; what its forward writes into the model, it writes into the copy. Keras copies a
model by saving it, which takes memory of its own, so a Keras model is called itself, in a scope of Keras that gives its variables
other values (`keras_fake_copy.py`). Where a user's own code is to be called, which knows the model and no copy, `fake_tensors_in`
puts fake tensors into the model itself for a while.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from tensorferry.engines.torch.compat import (
    OPTIMIZER_HOOKS,
    FakeCopyMode,
    FakeTensorMode,
    default_to_fused_or_foreach,
    hook_tables,
    takes_gradients_early,
    tensor_tables,
    tree_leaves,
    tree_map_only,
)
from tensorferry.frameworks import is_keras


@dataclass(frozen=True, slots=True)
class FakeCopy:
    """What a forecast needs of a model."""

    call: Callable[..., Any]  # the model's forward
    layers: torch.nn.Module  # the modules it runs, for their names
    held: torch.nn.Module  # has the fake parameters and buffers
    fakes: dict[int, Any]  # the fake of every real tensor, by the real one's id
    updates: list[Callable[[], None]] = field(default_factory=list)  # the optimizers that the model has of its own


def optimizer_variables(model: Any) -> list[Any]:
    """What the optimizer of a Keras model holds; Keras makes it when training begins."""
    optimizer = getattr(model, "optimizer", None)
    return list(optimizer.variables) if is_keras(model) and optimizer is not None and optimizer.built else []


@contextmanager
def torch_copy(model: torch.nn.Module, mode: FakeTensorMode) -> Iterator[FakeCopy]:
    """A copy of the model, with the gradients that there are. Raises whatever a user's code can raise while it is copied."""
    fakes: dict[int, Any] = {}
    with without_hooks(model.modules()), FakeCopyMode(mode):
        copied = copy.deepcopy(model, fakes)
    for parameter in model.parameters():
        if id(parameter) in fakes:
            copy_gradient(parameter, fakes[id(parameter)], mode)
    yield FakeCopy(copied, copied, copied, fakes)


@contextmanager
def without_hooks(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """While inside, the modules have no hooks: a user's run once a step, and not once more for a forecast."""
    tables = [hooks for module in modules for hooks in hook_tables(module) if hooks]
    with ExitStack() as stack:
        for hooks in tables:
            stack.callback(hooks.update, hooks.copy())
            hooks.clear()
        yield


def copy_gradient(parameter: torch.Tensor, fake: torch.Tensor, mode: FakeTensorMode) -> None:
    """Give a fake parameter the gradient that the real one has, and what becomes of its gradients in backward."""
    fake.grad = None if parameter.grad is None else mode.from_tensor(parameter.grad)
    if takes_gradients_early(parameter):
        fake.register_post_accumulate_grad_hook(lambda fake: setattr(fake, "grad", None))


def copy_optimizer(optimizer: torch.optim.Optimizer, model: FakeCopy, mode: FakeTensorMode) -> torch.optim.Optimizer:
    """An optimizer of the same class, settings and state for the copy's parameters, without hooks."""
    fakes = dict(model.fakes)
    for number in tree_leaves([optimizer.param_groups, list(optimizer.state.values())]):
        if isinstance(number, torch.Tensor) and number.dim() == 0 and id(number) not in fakes:
            fakes[id(number)] = _copy_number(number, mode)
    # a scheduler puts a `step` of its own into the optimizer, which would step the real one
    own = {name: value for name, value in vars(optimizer).items() if name != "step" and not name.startswith(OPTIMIZER_HOOKS)}
    copied: torch.optim.Optimizer = object.__new__(type(optimizer))
    with FakeCopyMode(mode):
        vars(copied).update(copy.deepcopy(own, fakes))
    for real, group in zip(optimizer.param_groups, copied.param_groups, strict=True):
        group.update(_choose_form(real))
    return copied


def _copy_number(number: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A fake of a number that an optimizer reads, such as its step: made here, its value stays known."""
    value = number.item()
    with mode:
        return torch.tensor(value, dtype=number.dtype)


def _choose_form(group: dict[str, Any]) -> dict[str, bool]:
    """Whether real parameters are updated by multi-tensor ops, where that is left to torch.

    It takes them on accelerators, and never for fake tensors.
    """
    if group.get("foreach", False) is not None or group.get("fused"):
        return {}
    differentiable = bool(group.get("differentiable"))
    return {"foreach": default_to_fused_or_foreach(group["params"], differentiable, use_fused=False)[1]}


def run_step(optimizer: torch.optim.Optimizer) -> None:
    """Step a copied optimizer, below the hooks that all optimizers share."""
    step: Any = type(optimizer).step
    with torch.no_grad():
        (step.__wrapped__ if getattr(step, "hooked", False) else step)(optimizer)


@contextmanager
def fake_tensors_in(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, mode: FakeTensorMode) -> Iterator[None]:
    """While inside, the model's and the optimizer's tensors are fake; afterwards the real ones are back, untouched."""
    fakes: dict[torch.Tensor, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if tensor not in fakes and tensor.dim() == 0 and not isinstance(tensor, torch.nn.Parameter):
            fakes[tensor] = _copy_number(tensor, mode)
        elif tensor not in fakes:
            made: torch.Tensor = mode.from_tensor(tensor.detach())
            fakes[tensor] = torch.nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else made
        return fakes[tensor]

    with ExitStack() as stack:
        for module in model.modules():
            for held in tensor_tables(module):
                for name, tensor in list(held.items()):
                    if tensor is not None:
                        stack.callback(held.__setitem__, name, tensor)
                        held[name] = fake(tensor)
        if optimizer is not None:
            stack.callback(setattr, optimizer, "state", optimizer.state)
            state = type(optimizer.state)(dict)
            for parameter, values in optimizer.state.items():
                state[fake(parameter)] = tree_map_only(torch.Tensor, fake, dict(values))
            optimizer.state = state
            for group in optimizer.param_groups:
                stack.callback(group.update, dict(group))
                group.update(_choose_form(group))
                group["params"] = [fake(parameter) for parameter in group["params"]]
        yield
