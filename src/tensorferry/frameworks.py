"""Which framework a model belongs to, told by its classes: no framework is loaded to find out."""

from typing import Any


def framework_of(model: Any) -> str:
    """ "torch", "keras", or nothing for anything else; a Keras model on the torch back end is a module of torch."""
    packages = {kind.__module__.split(".")[0] for kind in type(model).__mro__}
    return next((name for name in ("torch", "keras") if name in packages), "")


def is_keras(value: Any) -> bool:
    """Whether it is a layer or a model of Keras, on whatever back end."""
    return any(kind.__module__.startswith("keras.") for kind in type(value).__mro__)


def is_keras_model(value: Any) -> bool:
    """Whether it is a model of Keras, which can be trained, and not a layer alone."""
    return any(kind.__module__.startswith("keras.") and kind.__name__ == "Model" for kind in type(value).__mro__)
