"""Keras files: what models are made of is let in, and nothing of a hostile one runs."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import touching

from tensorferry.errors import BadModel
from tensorferry.serve.runtimes.keras_archive import vet_keras
from tensorferry.serve.runtimes.runtime import LoadOptions
from tensorferry.serve.runtimes.table import load_runtime

keras = pytest.importorskip("keras")
Members = dict[str, bytes]
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


def save(path: Path, layer: Any = None) -> Path:
    """Write a model of one layer."""
    inputs = keras.Input((2,))
    keras.Model(inputs, (layer or keras.layers.Dense(2, activation="relu"))(inputs)).save(path)
    return path


def change(path: Path, edit: Callable[[Members], None]) -> Path:
    """Edit the members of an archive."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    edit(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def replace_layer(path: Path, **parts: Any) -> Path:
    """Put other parts into the configuration of the model's layer."""

    def edit(members: Members) -> None:
        config = json.loads(members["config.json"])
        config["config"]["layers"][1] |= parts
        members["config.json"] = json.dumps(config).encode()

    return change(path, edit)


def function(module: str, name: str) -> dict[str, Any]:
    """How a configuration names a function."""
    return {"module": module, "class_name": "function", "config": name, "registered_name": name}


def refuse(path: Path, what: str) -> None:
    """Check that a file is not loaded without trust, and what the error says."""
    with pytest.raises(BadModel) as caught:
        load_runtime("keras", LoadOptions(path))
    assert what in str(caught.value)
    assert "--trust" in str(caught.value)


def test_a_lambda_layer_runs_only_with_trust(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = eval(f"lambda x: [x, {touching(mark)}][0]")
    path = save(tmp_path / "model.keras", keras.layers.Lambda(code, output_shape=(2,)))
    refuse(path, "a Lambda layer")
    assert not mark.exists()
    runtime = load_runtime("keras", LoadOptions(path, trust=True))
    names = [tensor.name for tensor in runtime.signature.inputs]  # Keras counts the layers that a process makes
    outputs = [tensor.name for tensor in runtime.signature.outputs]
    (given,) = runtime.new_runner().run(dict.fromkeys(names, np.ones((1, 2), np.float32)), outputs)
    assert given.tolist() == [[1, 1]]
    assert mark.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("keras.utils", "get_file"),
        ("keras.datasets.mnist", "load_data"),
        ("keras.config", "enable_unsafe_deserialization"),
        ("keras.models", "load_model"),
        ("keras.src.saving.saving_lib", "os"),
        ("keras.applications", "ResNet50"),
        (None, "__lambda__"),
    ],
)
def test_only_what_models_are_made_of_can_be_named(module: str, name: str, tmp_path: Path) -> None:
    config = {"name": "dense", "units": 2, "activation": function(module, name)}
    refuse(replace_layer(save(tmp_path / "model.keras"), config=config), f"{module}.{name}")
    refuse(replace_layer(save(tmp_path / "model.keras"), module=module, class_name=name), f"{module}.{name}")


def test_a_function_from_inside_of_keras_needs_trust(tmp_path: Path) -> None:
    config = {"name": "dense", "units": 2, "activation": function("keras.src.layers.layer", "wraps")}
    refuse(replace_layer(save(tmp_path / "model.keras"), config=config), "keras.src.layers.layer.wraps")


@pytest.mark.parametrize("layer", ["TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"])
def test_layers_that_carry_another_model_need_trust(layer: str, tmp_path: Path) -> None:
    refuse(replace_layer(save(tmp_path / "model.keras"), class_name=layer, config={"name": "dense"}), f"a {layer} layer")


def test_a_vocabulary_is_not_read_from_a_file_outside(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("one\ntwo\n")
    config = {"name": "dense", "vocabulary": str(tmp_path / "secret.txt")}
    refuse(replace_layer(save(tmp_path / "model.keras"), class_name="StringLookup", config=config), "secret.txt")


def test_weights_are_not_read_from_another_file(tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = np.ones((2, 2), np.float32)

    def link(members: Members) -> None:
        data = io.BytesIO(members["model.weights.h5"])
        with h5py.File(data, "r+") as file:
            group = file["layers/dense/vars"]
            del group["0"]
            group["0"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
        members["model.weights.h5"] = data.getvalue()

    refuse(change(save(tmp_path / "model.keras"), link), "weights that are linked from elsewhere")


@pytest.mark.parametrize("name", ["assets/../../mark", "/tmp/mark", "code.py"])
def test_a_member_of_another_kind_is_refused(name: str, tmp_path: Path) -> None:
    refuse(change(save(tmp_path / "model.keras"), lambda members: members.update({name: b""})), "no part of a Keras file")


@pytest.mark.filterwarnings("ignore")
def test_the_older_format_needs_trust(tmp_path: Path) -> None:
    path = save(tmp_path / "model.h5")
    refuse(path, "HDF5")
    assert load_runtime("keras", LoadOptions(path, trust=True)).signature is not None


def test_what_models_are_made_of_is_let_in(tmp_path: Path) -> None:
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, kernel_regularizer="l2", activation=keras.activations.gelu)(inputs)
    x = keras.ops.relu(keras.layers.BatchNormalization()(x)) + 1
    x = keras.layers.Bidirectional(keras.layers.LSTM(3))(keras.layers.Reshape((6, 24))(x))
    x = keras.layers.MultiHeadAttention(2, 2)(x[:, None], x[:, None])
    model = keras.Model(inputs, keras.Sequential([keras.layers.Dense(2, dtype="mixed_float16")])(x))
    model.compile("adam", "mse", metrics=["accuracy"])
    model.save(tmp_path / "model.keras")
    vet_keras(tmp_path / "model.keras")
    words = keras.Input((1,), dtype="string")
    keras.Model(words, keras.layers.StringLookup(vocabulary=["a", "b"])(words)).save(tmp_path / "words.keras")
    vet_keras(tmp_path / "words.keras")
