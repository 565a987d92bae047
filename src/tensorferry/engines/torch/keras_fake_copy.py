"""A fake copy of a Keras model on Keras' torch back end: the model itself, in a scope in which its variables are fake.

`keras.StatelessScope` is how Keras traces models for JAX: a variable's value is what the scope says, and what is assigned to it
stays in the scope. What a forward pass of the user's own leaves in attributes of its layers is taken back afterwards.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import torch

from tensorferry.engines.torch.compat import FakeTensorMode
from tensorferry.engines.torch.fake_copy import FakeCopy, copy_gradient, optimizer_variables, without_hooks
from tensorferry.engines.torch.keras_compat import AutocastScope, keras_random


class _FakeVariables(keras.StatelessScope):
    """Assigns in place, as variables do outside of a scope, so that nothing is held that would not be."""

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        held = self.get_current_value(variable)
        if held is None:
            super().add_update(update)
        else:
            with torch.no_grad():
                held.copy_(value)


@contextmanager
def keras_copy(model: Any, mode: FakeTensorMode) -> Iterator[FakeCopy]:
    """The copy of a built model; only inside may it be called."""
    own, states = list(model.variables), optimizer_variables(model)
    fakes: dict[int, Any] = {}
    layers = dict.fromkeys([*model._flatten_layers(), *model.modules()])  # torch knows only layers that are attributes
    with without_hooks(layers), _same_attributes(layers), _FakeVariables() as scope, _without_generators():
        for variable in (*own, *states):
            real = variable._value  # `value` would be cast to what a mixed policy computes in
            if id(real) not in fakes:
                fakes[id(real)] = torch.nn.Parameter(mode.from_tensor(real.detach()), real.requires_grad)
                copy_gradient(real, fakes[id(real)], mode)
            scope.add_update((variable, fakes[id(real)]))
        held = torch.nn.ParameterList(fakes[id(variable._value)] for variable in own)
        updates = [_make_update(model, fakes)] if states else []
        yield FakeCopy(model.forward, model, held, fakes, updates)


def _make_update(model: Any, fakes: dict[int, Any]) -> Callable[[], None]:
    def update() -> None:
        trained = [(fakes[id(variable._value)].grad, variable) for variable in model.trainable_variables]
        gradients, variables = zip(*((grad, variable) for grad, variable in trained if grad is not None), strict=True)
        # the model's forward, in the middle of which a forecast is made, may compute in another precision
        with torch.no_grad(), AutocastScope(None):
            model.optimizer.apply(list(gradients), list(variables))

    return update


@contextmanager
def _same_attributes(layers: Iterable[torch.nn.Module]) -> Iterator[None]:
    before = [(vars(layer), dict(vars(layer))) for layer in layers]
    try:
        yield
    finally:
        for now, then in before:
            now.clear()
            now.update(then)


@contextmanager
def _without_generators() -> Iterator[None]:
    """While inside, random ops have no generator: the seed of one is the sum of two numbers, and fake ones have no value."""
    original = keras_random.torch_seed_generator
    keras_random.torch_seed_generator = lambda _: None
    try:
        yield
    finally:
        keras_random.torch_seed_generator = original
