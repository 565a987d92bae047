"""Every private name of Keras that this engine uses, and what for; see `compat.py`."""

import keras

from tensorferry.extras import check_attributes, private_names

with private_names("keras"):
    from keras.src.backend import AutocastScope  # in which precision layers compute
    from keras.src.backend.torch import random as keras_random  # its generators need the value of a seed, which a fake one lacks
    from keras.src.tree import torchtree_impl as keras_tree  # nested arguments, of which it holds some longer than it says

__all__ = ["AutocastScope", "keras_random", "keras_tree"]

_FUNCTION = keras.Function(_INPUT := keras.KerasTensor((1,)), keras.ops.negative(_INPUT))

IN_PLACE: dict[str, object] = {
    "_dict_to_ordered_dict": keras_tree,  # sorts dictionaries among them, replaced to hold nothing
    "_flatten_layers": keras.layers.Layer,  # all layers of a model, also those that torch does not know
    "_nodes_by_depth": _FUNCTION,  # the calls of a functional model's layers, the deepest first to run
    "_outputs_struct": _FUNCTION,  # how its outputs are nested
    "_run_through_graph": keras.Function,  # runs them, replaced to let go of outputs
    "_value": keras.Variable(0.0, name="probe"),  # a variable's tensor; `value` is cast to what a mixed policy computes in
}
check_attributes("keras", IN_PLACE | {"torch_seed_generator": keras_random})
_NODE = _FUNCTION._nodes_by_depth[0][0]  # one call of a layer, a class that Keras does not export
check_attributes("keras", dict.fromkeys(("operation", "is_input", "input_tensors", "outputs", "arguments"), _NODE))
check_attributes("keras", {"fill_in": _NODE.arguments})
