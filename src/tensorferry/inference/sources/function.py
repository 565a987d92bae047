"""A function of the user's that builds a model, and the weights to put into it. Weights are never unpickled."""

import pickle
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel, MissingExtra
from tensorferry.extras import missing_extra
from tensorferry.inference.source import root_cause
from tensorferry.recipes.loading import load_reference


def build_model(reference: str, weights: Path | None) -> Any:
    """What `package.module:function` or `file.py:function` returns, with the weights of a file."""
    factory = load_reference(reference, "function", "a model", BadModel)
    try:
        model = factory()
    except Exception as error:  # whatever a user's function can raise
        raise BadModel(f"{reference!r} failed: {root_cause(error)}") from error
    if weights is not None:
        load_weights(model, weights)
    return model


def load_weights(model: Any, path: Path) -> None:
    """Put a file's weights into a torch module or a Keras model."""
    if not path.is_file():
        raise BadModel(f"there is no file {str(path)!r} to take weights from")
    try:
        if hasattr(model, "load_weights"):
            model.load_weights(path)
        else:
            model.load_state_dict(_read_state(path))
    except MissingExtra:
        raise
    except Exception as error:  # pickle, zip, HDF5 and names that differ, each in its own words
        raise BadModel(f"cannot take weights from {path.name}: {root_cause(error)}") from error


def _read_state(path: Path) -> Any:
    if path.suffix == ".safetensors":
        try:
            from safetensors.torch import load_file
        except ModuleNotFoundError as error:
            raise missing_extra(path.name, "safetensors", "optimize") from error
        return load_file(path)
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        # torch advises to unpickle it all the same
        raise BadModel("it holds more than tensors, or is damaged; save them with safetensors.torch.save_file") from None
