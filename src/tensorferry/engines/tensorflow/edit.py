"""Changes to a traced graph that can be taken back, so that one trace serves every plan.

TensorFlow has no way to remove an op from a graph. What a plan added stays there unused once its edges are taken back, and
is left out when a function is made of the graph.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tensorferry.engines.tensorflow.compat import (
    ConcreteFunction,
    FunctionCallOptions,
    RewriterConfig,
    eager_context,
    python_functions,
)

_AttrValue = tf.compat.v1.AttrValue


class Edit:
    """Edits one graph; `undo` makes it what it was."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self._dead: set[str] = set()  # ops of edits that were undone
        self._added_from = len(graph.get_operations())
        self._inputs: list[tuple[Any, int, tf.Tensor]] = []
        self._controls: dict[Any, list[Any]] = {}
        self._functions: list[Callable[..., Any]] = []  # that ops call: TensorFlow itself holds them weakly

    @contextmanager
    def adding(self, scope: str, after: Iterable[Any] = ()) -> Iterator[None]:
        """While inside, new ops belong to the graph and run after these ops."""
        # a scope that ends in a slash is absolute
        with self.graph.as_default(), tf.name_scope(f"{scope}/"), tf.control_dependencies(list(after)):
            yield

    def call(
        self, scope: str, function: Callable[..., Any], inputs: Sequence[tf.Tensor], after: Iterable[Any], device: str
    ) -> Any:
        """A new op that runs after these ops and calls a function, which gets the inputs as arrays and returns an int32.

        It is what `tf.numpy_function` adds, in a fraction of the time: a plan has hundreds of them.
        """
        self._functions.append(function)
        attributes = {
            "token": _AttrValue(s=python_functions.insert(function).encode()),
            "Tin": _as_types(tensor.dtype for tensor in inputs),
            "Tout": _as_types([tf.int32]),
        }
        op = self.graph._create_op_internal("PyFunc", list(inputs), [tf.int32], name=scope, attrs=attributes)
        op._set_device(device)
        op._add_control_inputs(list(dict.fromkeys(after)))
        return op

    def wire(self, op: Any, index: int, tensor: tf.Tensor) -> None:
        """Let an op read another tensor."""
        self._inputs.append((op, index, op.inputs[index]))
        op._update_input(index, tensor)

    def run_after(self, op: Any, others: Iterable[Any]) -> None:
        """Let an op wait for others."""
        before = self._controls.setdefault(op, list(op.control_inputs))
        known = {*before, *op.control_inputs}
        op._add_control_inputs([other for other in others if other not in known])

    def undo(self) -> None:
        """Take every change back."""
        for op, index, tensor in reversed(self._inputs):
            op._update_input(index, tensor)
        for op, before in self._controls.items():
            op._remove_all_control_inputs()
            op._add_control_inputs(before)
        operations = self.graph.get_operations()
        self._dead |= {op.name for op in operations[self._added_from :]}
        self._added_from = len(operations)
        self._inputs.clear()
        self._controls.clear()
        self._functions.clear()

    def make_function(self, function_type: Any) -> Any:
        """A callable of the graph as it is now."""
        alive = [op for op in self.graph.get_operations() if op.name not in self._dead]
        self.graph.get_operations = lambda: alive
        try:
            return ConcreteFunction.from_func_graph(self.graph, function_type, {})
        finally:
            del self.graph.get_operations


def _as_types(dtypes: Iterable[tf.DType]) -> Any:
    return _AttrValue(list=_AttrValue.ListValue(type=[dtype.as_datatype_enum for dtype in dtypes]))


@contextmanager
def same_rewrites() -> Iterator[None]:
    """While inside, TensorFlow optimises the functions it runs as it does under a plan.

    Four of its rewrites round otherwise when a graph has other edges or other sizes are known: the memory optimizer takes AddN
    apart at the peak, the arithmetic optimizer joins additions, constant folding multiplies by the reciprocal of a size that
    is known instead of dividing by it, and the remapper fuses ops between which there is no control edge. Under a plan all are
    off. Results that are to be compared bit for bit must come from the same rewrites, so run the plain training in here too.
    """
    context = eager_context()
    before = context.function_call_options
    config = tf.compat.v1.ConfigProto.FromString(before.config_proto_serialized)
    rewrites = config.graph_options.rewrite_options
    rewrites.memory_optimization = RewriterConfig.NO_MEM_OPT
    rewrites.arithmetic_optimization = RewriterConfig.OFF
    rewrites.constant_folding = RewriterConfig.OFF
    rewrites.remapping = RewriterConfig.OFF
    context.function_call_options = FunctionCallOptions(before.executor_type, config)
    try:
        yield
    finally:
        context.function_call_options = before
