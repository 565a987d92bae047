"""Every private name of TensorFlow that this engine uses, and what for.

They are looked up when the engine is first imported, so that a TensorFlow without one of them is refused before anything runs.
What stands in `IN_PLACE` are methods of graphs and ops, used wherever a graph is changed.
"""

import tensorflow as tf

from tensorferry.extras import check_attributes, private_names

with private_names("tensorflow"):
    from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig  # which rewrites of a graph are on
    from tensorflow.python.eager.context import FunctionCallOptions  # how functions are optimised when they are called
    from tensorflow.python.eager.context import context as eager_context  # holds these options
    from tensorflow.python.eager.polymorphic_function.concrete_function import (
        ConcreteFunction,  # a callable of a graph that was edited
    )
    from tensorflow.python.ops.script_ops import _py_funcs as python_functions  # which Python function an op calls, by its token
    from tensorflow.python.util._pywrap_util_port import (
        IsMklEnabled,  # whether oneDNN's kernels run, or TensorFlow's own, which take more memory
    )

__all__ = [
    "ConcreteFunction",
    "FunctionCallOptions",
    "IsMklEnabled",
    "RewriterConfig",
    "eager_context",
    "python_functions",
]

_FUNCTION = tf.function(lambda: None)

IN_PLACE: dict[str, object] = {
    "_add_control_inputs": tf.Operation,  # lets an op wait for others
    "_clone": _FUNCTION,  # a function whose graph is nobody else's, to be edited
    "_create_op_internal": tf.Graph,  # a new op, of any type, in a fraction of the time that `tf.numpy_function` takes
    "_get_function": tf.Graph,  # the function that an op calls, to tell what it holds
    "_jit_compile": _FUNCTION,  # whether XLA runs it, whose programs cannot be planned
    "_remove_all_control_inputs": tf.Operation,  # takes back what an edit added
    "_set_device": tf.Operation,  # where a new op runs
    "_update_input": tf.Operation,  # lets an op read another tensor
}
_OF_PRIVATE_CLASSES: dict[str, object] = {
    "from_func_graph": ConcreteFunction,
    "function_call_options": type(eager_context()),
    "insert": python_functions,
}
check_attributes("tensorflow", IN_PLACE | _OF_PRIVATE_CLASSES)
