"""Keras and TensorFlow models, and the export that fails without a word."""

from pathlib import Path

import numpy as np
import pytest
from nets import assert_answers

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
    assert_answers(engine, engine(IMAGES[:3]), model(IMAGES[:3]).numpy())
    engine.close()


def test_a_model_with_several_inputs_by_name_is_asked_by_name() -> None:
    keras.utils.set_random_seed(0)
    ends = {"numbers": keras.Input((3,), name="numbers"), "amounts": keras.Input((2,), name="amounts")}
    joined = keras.layers.Concatenate()([ends["numbers"], ends["amounts"]])
    model = keras.Model(ends, keras.layers.Dense(4, name="scores")(joined))
    samples = {"numbers": IMAGES[:, 0, 0], "amounts": IMAGES[:, 1, 0, :2]}
    engine = ferry.optimize(model, samples, seconds=1)
    assert_answers(engine, engine(**samples), model(samples).numpy())
    engine.close()


def test_names_are_those_of_the_models_dict_whatever_their_order(tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    ends = {"second": keras.Input((3,), name="second"), "first": keras.Input((3,), name="first")}
    shifted = keras.layers.Normalization(mean=[1.0, 2.0, 3.0], variance=[4.0, 5.0, 6.0])(ends["second"])
    doubled = keras.layers.Dense(4)(ends["first"])
    model = keras.Model(ends, {"wide": shifted, "deep": doubled})
    samples = {"second": IMAGES[:, 0, 0], "first": IMAGES[:, 1, 0]}
    model.save(tmp_path / "net.keras")
    engine = ferry.optimize(tmp_path / "net.keras", samples, seconds=60)
    expected = {name: tensor.numpy() for name, tensor in model(samples).items()}
    given = engine(**samples)
    for name, array in expected.items():
        assert_answers(engine, given[name], array)
    backends = {each.candidate.backend for each in engine.result.candidates if each.passed and each.candidate is not None}
    assert backends == {"openvino", "onnxruntime"}  # also tf2onnx, which takes constants of the graph for inputs
    engine.close()


def test_several_inputs_that_a_recipe_calls_otherwise_are_not_guessed_by_their_order(tmp_path: Path) -> None:
    from tensorferry.optimization.sources.keras import read_keras

    ends = [keras.Input((3,), name="numbers"), keras.Input((3,), name="amounts")]
    model = keras.Model(ends, keras.layers.Add()(ends))
    with pytest.raises(ferry.BadModel, match="takes numbers, amounts, the recipe's inputs are left, right"):
        read_keras(model, tmp_path, ("left", "right"))


def test_an_export_that_writes_an_invalid_file_without_an_error_is_caught(tmp_path: Path) -> None:
    model = make_model("gelu")  # exact GELU becomes an op that ONNX does not have, and the exporter says nothing
    model.save(tmp_path / "net.keras")
    engine = ferry.optimize(tmp_path / "net.keras", IMAGES, seconds=60)
    verdicts = {candidate.route: candidate.verdict for candidate in engine.result.candidates}
    assert verdicts["tf2onnx"].startswith("cannot be loaded")
    assert engine.candidate.backend == "openvino"
    assert_answers(engine, engine(IMAGES), model(IMAGES).numpy())
    engine.close()


def test_a_saved_model_is_read_from_its_folder(tmp_path: Path) -> None:
    model = make_model("relu")
    model.export(tmp_path / "saved", verbose=False)
    engine = ferry.optimize(tmp_path / "saved", IMAGES, seconds=1)
    assert_answers(engine, engine(IMAGES), model(IMAGES).numpy())
    engine.close()
