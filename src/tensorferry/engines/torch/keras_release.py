"""Keras on the torch back end lets go of what it would hold for nobody.

It keeps the outputs of all layers of a functional model until the forward pass ends. Autograd saves most of them too, but what a
caller still holds cannot be swapped: such a model would need more than half of plain training's memory at any budget. And it
keeps a step's gradients until the next forward pass has ended, beside all that is held there, only to throw them away.

And what it looks through for nested arguments, which are a layer's inputs, hangs on in a ring of references until Python's
collector comes by: torch's functions for that make such a ring of what they are told to stop at.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from tensorferry.engines.torch.compat import tree_flatten, tree_unflatten
from tensorferry.engines.torch.keras_compat import keras_tree


@contextmanager
def released_early() -> Iterator[None]:
    """While inside, Keras holds outputs and gradients no longer than they are read."""
    with _without_outputs(), _without_gradients(), _without_rings():
        yield


@contextmanager
def _without_gradients() -> Iterator[None]:
    """While inside, a step of Keras' own clears gradients before its forward pass, not only after it."""
    models: Any = keras.Model
    original, is_own = models.train_step, "train_step" in vars(models)

    def train_step(model: Any, *args: Any, **kwargs: Any) -> Any:
        model.zero_grad()
        return original(model, *args, **kwargs)

    models.train_step = train_step
    try:
        yield
    finally:
        if is_own:
            models.train_step = original
        else:
            del models.train_step


@contextmanager
def _without_outputs() -> Iterator[None]:
    """While inside, functional models hold an output no longer than layers are to read it."""
    functions: Any = keras.Function
    original = functions._run_through_graph

    def run_through_graph(function: Any, inputs: Any, operation_fn: Any = _as_it_is, call_fn: Any = None) -> Any:
        if call_fn is not None:  # Keras makes or copies a model
            return original(function, inputs, operation_fn, call_fn)
        return _run(function, inputs, operation_fn)

    functions._run_through_graph = run_through_graph
    try:
        yield
    finally:
        functions._run_through_graph = original


@contextmanager
def _without_rings() -> Iterator[None]:
    """While inside, arguments are let go when they have been looked through."""
    tree: Any = keras_tree
    original = tree._dict_to_ordered_dict
    tree._dict_to_ordered_dict = _sort_dicts
    try:
        yield
    finally:
        tree._dict_to_ordered_dict = original


class _IsOther:
    """Tells what is not the one thing; it lives on in torch's ring of references."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __call__(self, other: Any) -> bool:
        return other is not self.thing


def _sort_dicts(structure: Any) -> Any:
    """As Keras does it: dictionaries by their keys, whatever they are nested in."""
    if type(structure) in (dict, defaultdict):
        by_key = {key: structure[key] for key in sorted(structure)}
        return defaultdict(structure.default_factory, by_key) if isinstance(structure, defaultdict) else by_key
    is_other = _IsOther(structure)
    children, spec = tree_flatten(structure, is_leaf=is_other)
    is_other.thing = None
    return structure if spec.num_nodes == spec.num_leaves == 1 else tree_unflatten(map(_sort_dicts, children), spec)


def _as_it_is(operation: Any) -> Any:
    return operation


def _run(function: Any, inputs: Any, as_called: Callable[[Any], Callable[..., Any]]) -> Any:
    """The outputs of a graph of layers; `as_called` gives the call of a layer."""
    order = [node for _, nodes in sorted(function._nodes_by_depth.items(), reverse=True) for node in nodes]
    nodes = [node for node in order if node.operation and not node.is_input]
    num_readers = Counter(id(tensor) for node in nodes for tensor in node.input_tensors)
    num_readers.update(map(id, function.outputs))
    values = dict(zip(map(id, function.inputs), keras.tree.flatten(inputs), strict=False))
    for node in nodes:
        read = [id(tensor) for tensor in node.input_tensors]
        if not all(key in values for key in read):  # a layer whose outputs nobody asked for
            continue
        args, kwargs = node.arguments.fill_in(values)
        for key in read:
            num_readers[key] -= 1
            if not num_readers[key]:
                del values[key]
        outputs = as_called(node.operation)(*args, **kwargs)
        del args, kwargs
        made = zip(map(id, node.outputs), keras.tree.flatten(outputs), strict=False)
        values |= {key: tensor for key, tensor in made if num_readers[key]}
        del outputs, made
    return keras.tree.pack_sequence_as(function._outputs_struct, [values[id(tensor)] for tensor in function.outputs])
