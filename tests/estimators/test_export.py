"""Exported estimators behind a real server: raw rows in, the answers of `predict` out."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import tritonclient.http as triton
from numpy.typing import NDArray
from premade import CLASSIFIERS, REGRESSORS, make
from sklearn.exceptions import NotFittedError

from tensorferry import BadModel, BadOption, datasets, estimators
from tensorferry import feature_columns as fc

ODD = {
    "island": ["Biscoe", "Atlantis", "", None],
    "bill_length_mm": [45.0, np.nan, 1e9, None],
    "bill_depth_mm": [15.0, 17.0, np.nan, -1.0],
    "flipper_length_mm": [210.0, 190.0, 180.0, np.nan],
    "body_mass_g": [5000.0, 3700.0, np.nan, 0.0],
    "sex": ["male", "unknown", None, "female"],
    "year": [2008, 2007, 2009, 1900],
    "species": ["Gentoo", "Adelie", "Dodo", None],
}


def send(values: Any, is_number: bool) -> NDArray:
    if is_number:
        return np.array([np.nan if value is None else value for value in values], np.float64)[:, None]
    return np.array(["" if value is None or value != value else str(value) for value in values], object)[:, None]


def answer(model: Any, table: dict[str, Any]) -> list[NDArray]:
    """What onnxruntime makes of the exported model."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.to_onnx(), options)
    return list(
        session.run(None, {each.name: send(table[each.name], each.type == "tensor(double)") for each in session.get_inputs()})
    )


@pytest.fixture(scope="module")
def client(trained: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[triton.InferenceServerClient]:
    """One server of all estimators, without --trust."""
    root = tmp_path_factory.mktemp("models")
    for name, model in trained.items():
        assert model.export(root / name) == root / name / "1"
    command = [sys.executable, "-m", "tensorferry.cli", "serve", str(root), "--http-port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = ""
        for line in process.stderr:
            if "HTTP on" in line:
                address = line.rpartition("//")[2].strip()
            if "ready:" in line:
                break
        with triton.InferenceServerClient(address) as made:
            yield made
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(30) == 0


def ask(client: triton.InferenceServerClient, name: str, table: dict[str, Any]) -> Any:
    inputs = []
    for each in client.get_model_metadata(name)["inputs"]:
        values = send(table[each["name"]], each["datatype"] == "FP64")
        inputs.append(triton.InferInput(each["name"], list(values.shape), each["datatype"]))
        inputs[-1].set_data_from_numpy(values)
    return client.infer(name, inputs)


@pytest.mark.parametrize("name", [*CLASSIFIERS, *REGRESSORS])
def test_a_served_estimator_gives_the_answers_of_predict(
    trained: dict[str, Any], client: triton.InferenceServerClient, name: str
) -> None:
    model = trained[name]
    known = datasets.load("penguins").numpy()
    whole = {column: values[:50] for column, values in known.items()}
    for table in (whole, {column: values[:1] for column, values in known.items()}, ODD):
        found = ask(client, name, table)
        if name in CLASSIFIERS:
            assert np.abs(found.as_numpy("probabilities") - model.predict_proba(table)).max() <= 1e-6
            assert [word.decode() for word in found.as_numpy("predicted_class")[:, 0]] == model.predict(table).tolist()
        else:
            expected = model.predict(table)
            assert np.abs(found.as_numpy("predicted_value")[:, 0] / expected - 1).max() <= 1e-6


COLUMNS = [
    fc.numeric("n"),
    fc.bucketized("n", num_buckets=3),
    fc.bucketized("n", [0, 5]),
    fc.identity("k", 4),
    fc.vocabulary("k"),
    fc.vocabulary("w"),
    fc.crossed(["w", fc.bucketized("n", [5])], 1000),
    fc.crossed(["w", fc.identity("k", 4)], 3),
    fc.weighted("w", "n"),
    fc.sequence("s"),
    fc.sequence("s", max_length=2),
    fc.numeric("n", missing=-3.5, normalizer="standard"),
    fc.numeric("k", normalizer="minmax"),
    fc.vocabulary("w", unknown="other", min_count=2),
    fc.vocabulary("k", unknown="other"),
    fc.sequence(fc.vocabulary("s", unknown="other")),
    fc.crossed([fc.vocabulary("w", unknown="other"), "w"], 30),
]
ROWS = {
    "n": [1.5, -2.0, 7.0, np.nan, 5.0, 0.0] * 10,
    "k": [0, 1, 2, 3, np.nan, 9] * 10,
    "w": ["a", "b", "c", None, "a", "d"] * 10,
    "s": ["x|y", "y", None, "z|x|y", "x||q", "z"] * 10,
}
ASKED = {
    "n": [np.nan, 5.0, 4.999999, 1e30, -7.0],
    "k": [1.5, -1, 3, np.nan, 1],
    "w": ["e", "", None, "a", "ä"],
    "s": ["unknown", "", "x|y|z|x", None, "|"],
}


@pytest.mark.parametrize("name", ["LinearRegressor", "DNNLinearCombinedRegressor"])
@pytest.mark.parametrize("rows", [ROWS, ASKED])
def test_every_column_is_the_same_inside_the_graph(name: str, rows: dict[str, list]) -> None:
    deep = [*COLUMNS[:1], fc.indicator("w"), *fc.shared_embeddings(["w", "s"], 2), fc.embedding(COLUMNS[9], 3)]
    columns = {"features": COLUMNS} if name == "LinearRegressor" else {"linear": COLUMNS, "dnn": deep, "epochs": 1}
    target = np.random.default_rng(0).normal(size=60)
    model = make(name, **columns).fit(ROWS, target)
    assert np.abs(answer(model, rows)[0][:, 0] - model.predict(rows)).max() <= 1e-6


def answer_saved(model: Any, table: dict[str, Any], folder: Path) -> dict[str, NDArray]:
    """What TensorFlow makes of the SavedModel."""
    import tensorflow as tf

    signature = tf.saved_model.load(str(model.export_saved_model(folder))).signatures["serving_default"]
    inputs = {name: tf.constant(values) for name, values in model.to_tensors(table).items()}
    return {name: values.numpy() for name, values in signature(**inputs).items()}


@pytest.mark.parametrize("name", [*CLASSIFIERS, *REGRESSORS])
def test_a_saved_model_gives_the_answers_of_predict(trained: dict[str, Any], name: str, tmp_path: Path) -> None:
    model = trained[name]
    found = answer_saved(model, ODD, tmp_path / "saved")
    if name in CLASSIFIERS:
        assert np.abs(found["probabilities"] - model.predict_proba(ODD)).max() <= 1e-6
        assert [word.decode() for word in found["predicted_class"][:, 0]] == model.predict(ODD).tolist()
    else:
        assert np.abs(found["predicted_value"][:, 0] / model.predict(ODD) - 1).max() <= 1e-6
    with pytest.raises(BadModel, match="is there already"):
        model.export_saved_model(tmp_path / "saved")


def test_every_column_and_calibration_are_the_same_inside_a_saved_model(tmp_path: Path) -> None:
    model = estimators.LinearClassifier(COLUMNS, threshold=0.3).fit(ROWS, [0, 1, 2] * 20).calibrate(ROWS, [0, 1, 2] * 20)
    for number, rows in enumerate((ROWS, ASKED)):
        found = answer_saved(model, rows, tmp_path / str(number))
        assert np.abs(found["probabilities"] - model.predict_proba(rows)).max() <= 1e-6
        assert found["predicted_class"][:, 0].tolist() == model.predict(rows).tolist()


def test_trees_split_by_sets_of_many_categories_the_same_inside_the_graph(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = {"w": rng.integers(0, 300, 4000).astype(str), "n": np.where(rng.random(4000) < 0.1, np.nan, rng.normal(size=4000))}
    target = np.array(rows["w"], int) % 7 + np.nan_to_num(rows["n"], nan=3.0) + rng.normal(size=4000)
    model = estimators.BoostedTreesRegressor(num_trees=20, random_state=0).fit(rows, target)
    assert np.abs(answer(model, rows)[0][:, 0] - model.predict(rows)).max() <= 1e-9
    saved = answer_saved(model, rows, tmp_path / "saved")
    assert np.abs(saved["predicted_value"][:, 0] - model.predict(rows)).max() <= 1e-9
    unknown = {"w": ["999", ""], "n": [np.nan, 0.0]}
    assert np.abs(answer(model, unknown)[0][:, 0] - model.predict(unknown)).max() <= 1e-9


@pytest.mark.parametrize("target", [[False, True] * 30, [3, 7] * 30, [0, 1, 2] * 20, ["no", "yes"] * 30])
@pytest.mark.parametrize("method", ["isotonic", "sigmoid"])
def test_classes_thresholds_and_calibration_are_inside_the_graph(target: list, method: str) -> None:
    model = estimators.LinearClassifier([fc.numeric("n"), fc.vocabulary("w")], threshold=0.3).fit(ROWS, target)
    plain = model.predict_proba(ROWS)
    model.calibrate(ROWS, target, method)
    assert np.abs(model.predict_proba(ROWS) - plain).max() > 1e-3
    chosen, probabilities = answer(model, ASKED)
    assert np.abs(probabilities - model.predict_proba(ASKED)).max() <= 1e-6
    assert chosen[:, 0].tolist() == model.predict(ASKED).tolist()


def test_a_calibrated_model_says_what_is_true_and_is_saved_so(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=6000)
    target = rng.random(6000) < 1 / (1 + np.exp(-3 * x))
    model = estimators.LinearClassifier().fit({"x": x[:2000]}, target[:2000])
    model.coef_ = model.coef_ * 4  # far too sure
    test = {"x": x[4000:]}
    before = model.evaluate(lambda: (test, target[4000:]))["loss"]
    model.calibrate({"x": x[2000:4000]}, target[2000:4000], "sigmoid")
    after = model.evaluate(lambda: (test, target[4000:]))["loss"]
    assert after < 0.8 * before
    estimators.save(model, tmp_path / "saved")
    assert np.array_equal(estimators.load(tmp_path / "saved").predict_proba(test), model.predict_proba(test))
    assert model.fit({"x": x[:2000]}, target[:2000]).calibration_ is None


def test_a_second_export_is_the_next_version_and_keeps_the_configuration(tmp_path: Path) -> None:
    model = estimators.BaselineRegressor().fit({"n": [1.0, 2.0]}, [3.0, 5.0])
    model.export(tmp_path / "m")
    (tmp_path / "m" / "config.pbtxt").write_text("max_batch_size: 2")
    assert model.export(tmp_path / "m").name == "2"
    assert (tmp_path / "m" / "config.pbtxt").read_text() == "max_batch_size: 2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_what_cannot_be_exported_is_told(tmp_path: Path) -> None:
    rows, target = {"w": ["a", "b"] * 5, "probabilities": [1.0, 2.0] * 5}, ["no", "yes"] * 5
    for column in (fc.hashed("w", 5), fc.sequence(fc.hashed("w", 5)), fc.crossed([fc.hashed("w", 5), "w"], 9)):
        with pytest.raises(BadModel, match="'w' is hashed, which ONNX cannot compute"):
            estimators.LinearClassifier([column]).fit(rows, target).export(tmp_path / "m")
    with pytest.raises(BadModel, match="'probabilities' has the name of an answer"):
        estimators.LinearClassifier().fit(rows, target).export(tmp_path / "m")
    fitted = estimators.LinearClassifier([fc.vocabulary("w")]).fit(rows, target)
    with pytest.raises(BadModel, match="cannot be the name of a model"):
        fitted.export(tmp_path / "my model")
    with pytest.raises(BadOption, match="did you mean 'sigmoid'"):
        fitted.calibrate(rows, target, "sigmoied")
    with pytest.raises(NotFittedError):
        estimators.LinearClassifier().export(tmp_path / "m")
    assert not list(tmp_path.iterdir())
