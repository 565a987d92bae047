"""Keras and TensorFlow models, and the export that fails without a word."""

from pathlib import Path

import numpy as np
import pytest

import tensorferry as ferry

keras = pytest.importorskip("keras")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras on TensorFlow and NumPy 2


def make_model(activation: str):
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3), name="image")
    found = keras.layers.Conv2D(4, 3, activation=activation)(image)
    found = keras.layers.Dense(5, activation="softmax", name="classes")(keras.layers.Flatten()(found))
    return keras.Model(image, found)


IMAGES = np.random.default_rng(0).standard_normal((16, 8, 8, 3)).astype(np.float32)


def test_a_keras_model_keeps_its_names_and_answers() -> None:
    model = make_model("relu")
    engine = ferry.optimize(model, IMAGES, seconds=1)
    assert [tensor.name for tensor in engine.signature.inputs] == ["image"]
    assert [tensor.name for tensor in engine.signature.outputs] == ["classes"]
    np.testing.assert_allclose(engine(IMAGES[:3]), model(IMAGES[:3]).numpy(), atol=1e-5)
    engine.close()


def test_an_export_that_writes_an_invalid_file_without_an_error_is_caught(tmp_path: Path) -> None:
    model = make_model("gelu")  # exact GELU becomes an op that ONNX does not have, and the exporter says nothing
    model.save(tmp_path / "net.keras")
    engine = ferry.optimize(tmp_path / "net.keras", IMAGES, seconds=1)
    verdicts = {finding.route: finding.verdict for finding in engine.outcome.findings}
    assert verdicts["tf2onnx"].startswith("cannot be loaded")
    assert engine.candidate.backend == "openvino"
    np.testing.assert_allclose(engine(IMAGES), model(IMAGES).numpy(), atol=1e-5)
    engine.close()


def test_a_saved_model_is_read_from_its_folder(tmp_path: Path) -> None:
    model = make_model("relu")
    model.export(tmp_path / "saved", verbose=False)
    engine = ferry.optimize(tmp_path / "saved", IMAGES, seconds=1)
    np.testing.assert_allclose(engine(IMAGES), model(IMAGES).numpy(), atol=1e-5)
    engine.close()
