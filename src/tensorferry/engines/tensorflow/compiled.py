"""What functions inside of a step take that XLA compiles.

Keras has XLA run every convolution with groups, since TensorFlow's own kernels for a CPU have none; users may mark functions of
their own. Such a call is one op of the graph. XLA itself and its programs stay in the process, outside of TensorFlow's allocator,
and none of it is there before the first step. For the gradients of a convolution with groups it computes with a filter from all
channels to all channels, and was seen to hold two constants of that size: 220 MiB for 768 channels and 7 x 7. This is all told as
an upper bound, from what was measured with TensorFlow 2.21.
"""

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

from tensorferry.engines.tensorflow.graph import tensor_nbytes
from tensorferry.engines.tensorflow.loops import called_graphs

_MARK = "_XlaMustCompile"
_XLA_NBYTES = 96 * 2**20  # its code and LLVM's, as far as they are read, and their tables
_PROGRAM_NBYTES = 8 * 2**20  # what is left of compiling one
_COMPILING_NBYTES = 16 * 2**20  # what compiling one takes for a while
_NUM_WIDE_FILTERS = 2
_GRADIENTS = ("Conv2DBackpropInput", "Conv2DBackpropFilter")


def is_compiled(op: Any) -> bool:
    """Whether XLA runs what the op calls."""
    return _MARK in op.node_def.attr and op.node_def.attr[_MARK].b


def compiled_nbytes(ops: Iterable[Any]) -> int:
    """What XLA keeps for all of these ops once they have run; calls that compute the same share a program."""
    programs = {_signature(op): op for op in ops if is_compiled(op)}
    if not programs:
        return 0
    return _XLA_NBYTES + sum(_PROGRAM_NBYTES + _constants_nbytes(op) for op in programs.values())


def workspace_nbytes(op: Any) -> int:
    """What a compiled call takes while it runs, and is compiled: all that it computes on the way, and unfolded inputs."""
    if not is_compiled(op):
        return 0
    made_nbytes = sum(tensor_nbytes(t) for inner in _inner_ops(op) if inner.type != "Placeholder" for t in inner.outputs)
    unfolded_nbytes = max((_unfolded_nbytes(*shapes) for shapes in _convolutions(op)), default=0)
    return _COMPILING_NBYTES + made_nbytes + unfolded_nbytes


def _inner_ops(op: Any) -> Iterator[Any]:
    for graph in called_graphs(op).values():
        yield from graph.get_operations()


def _signature(op: Any) -> tuple[Any, ...]:
    return tuple((inner.type, *(str(t.shape) for t in (*inner.inputs, *inner.outputs))) for inner in _inner_ops(op))


def _convolutions(op: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Of each convolution and gradient of one inside a call: the shapes of its input, its filter and its output."""
    for inner in _inner_ops(op):
        match inner.type:
            case "Conv2D":
                shapes = inner.inputs[0].shape, inner.inputs[1].shape, inner.outputs[0].shape
            case "Conv2DBackpropInput":
                shapes = inner.outputs[0].shape, inner.inputs[1].shape, inner.inputs[2].shape
            case "Conv2DBackpropFilter":
                shapes = inner.inputs[0].shape, inner.outputs[0].shape, inner.inputs[2].shape
            case _:
                continue
        if all(shape.is_fully_defined() for shape in shapes):
            yield shapes


def _unfolded_nbytes(data: Any, kernel: Any, out: Any) -> int:
    """The matrix of all that a filter meets at each place; gradients have one for the larger of the two sides."""
    places = max(prod(data[:-1]), prod(out[:-1]))
    return int(prod(kernel[:2]) * places * max(data[-1], out[-1]) * 4)


def _constants_nbytes(op: Any) -> int:
    if not any(inner.type in _GRADIENTS for inner in _inner_ops(op)):
        return 0
    wide = (prod(kernel[:2]) * data[-1] * out[-1] * 4 for data, kernel, out in _convolutions(op) if kernel[2] != data[-1])
    return _NUM_WIDE_FILTERS * max(map(int, wide), default=0)
