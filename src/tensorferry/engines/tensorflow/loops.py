"""What loops keep for their gradients.

A loop of a graph puts tensors of every round on lists, which its gradient takes from them one by one. To the graph around it a
list is a variant without a size, so the loop's body has to tell: the bytes added in a round, as often as there are rounds. Their
number is known where the loop walks along a tensor of known length, as recurrent layers do.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tensorferry.engines.tensorflow.graph import tensor_nbytes

_LOOPS = ("While", "StatelessWhile")
_FILLERS = ("TensorListPushBack", "TensorListSetItem")
_KEPT_FACTOR = 2  # malloc was seen to hold twice the bytes of the small blocks on lists
# what they give is there once, however often it is put on a list
_SAME_EVERY_ROUND = ("Placeholder", "ReadVariableOp", "Const")


def called_graphs(op: Any) -> dict[str, Any]:
    """The graphs that an op calls, by what they are to it."""
    called = {}
    for role, value in op.node_def.attr.items():
        if value.HasField("func"):
            function = op.graph._get_function(value.func.name)
            graph = getattr(function, "graph", None) or getattr(function, "cached_graph", None)
            if graph is not None:
                called[role] = graph
    return called


def kept_nbytes(loops: Iterable[Any]) -> int | None:
    """What the loops among these ops keep for their gradients, all of them at once; None where it is not known."""
    total = 0
    for loop in loops:
        if loop.type not in _LOOPS:
            continue
        for nbytes in _added_nbytes(loop):
            num_rounds = _num_rounds(loop)
            if num_rounds is None:
                return None
            total += _KEPT_FACTOR * nbytes * num_rounds
    return total


def _added_nbytes(loop: Any) -> Iterator[int]:
    """What a round adds to each list of a loop."""
    body = called_graphs(loop).get("body")
    for output in body.outputs if body is not None else ():
        filler = _source(output)
        if filler.type in _FILLERS and _source(filler.inputs[-1]).type not in _SAME_EVERY_ROUND:
            yield tensor_nbytes(filler.inputs[-1])


def _source(tensor: tf.Tensor) -> Any:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor.op


def _num_rounds(loop: Any) -> int | None:
    """The length of what a loop walks along."""
    walked = (source.inputs[0].shape for source in map(_source, loop.inputs) if source.type == "TensorListFromTensor")
    return max((shape[0] for shape in walked if shape.rank and shape[0]), default=None)
