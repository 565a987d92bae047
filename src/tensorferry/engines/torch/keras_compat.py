"""Every private name of Keras that this engine uses, and what for; see `compat.py`."""

import keras

from tensorferry.extras import check_attributes, private_names

with private_names("keras"):
    from keras.src.backend import AutocastScope  # in which precision layers compute
    from keras.src.backend.torch import random as keras_random  # its generators need the value of a seed, which a fake one lacks

__all__ = ["AutocastScope", "keras_random"]

IN_PLACE: dict[str, object] = {
    "_flatten_layers": keras.layers.Layer,  # all layers of a model, also those that torch does not know
    "_value": keras.Variable(0.0, name="probe"),  # a variable's tensor; `value` is cast to what a mixed policy computes in
}
check_attributes("keras", IN_PLACE | {"torch_seed_generator": keras_random})
