"""The premade estimators as a user meets them: any table in, any target, what was learnt saved and loaded bit for bit."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from premade import CLASSIFIERS, REGRESSORS, make

from tensorferry import BadBudget, BadData, BadOption, BadUse, datasets, estimators
from tensorferry import feature_columns as fc
from tensorferry.estimators.network import LearntEntries, ScaledNumbers, make_inputs


@pytest.mark.parametrize(("name", "least"), list(zip(CLASSIFIERS, (0.3, 0.95, 0.95, 0.95, 0.95), strict=True)))
def test_a_classifier_learns_species(trained: dict[str, Any], name: str, least: float) -> None:
    _, test = datasets.load("penguins").split(0.8)
    model = trained[name]
    probabilities = model.predict_proba(test)
    assert probabilities.shape == (69, 3)
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert set(model.predict(test)) <= {"Adelie", "Chinstrap", "Gentoo"}
    assert model.score(test, test.target) >= least


@pytest.mark.parametrize(("name", "most"), list(zip(REGRESSORS, (900, 400, 450, 450, 450), strict=True)))
def test_a_regressor_learns_body_mass(trained: dict[str, Any], name: str, most: float) -> None:
    penguins = datasets.load("penguins", target="body_mass_g")
    known = penguins.select(np.flatnonzero(~np.isnan(penguins.target)))
    _, test = known.split(0.8)
    found = trained[name].evaluate(lambda: test)
    assert found["rmse"] < most  # grams


@pytest.mark.parametrize("name", [*CLASSIFIERS, *REGRESSORS])
def test_a_saved_estimator_answers_the_same(trained: dict[str, Any], name: str, tmp_path: Path) -> None:
    rows = datasets.load("penguins").frame.head(20)
    model = trained[name]
    estimators.save(model, tmp_path / "model")
    again = estimators.load(tmp_path / "model")
    assert type(again) is type(model)
    answer = "predict_proba" if name in CLASSIFIERS else "predict"
    assert np.array_equal(getattr(again, answer)(rows), getattr(model, answer)(rows))
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["arrays.npz", "estimator.json"]


def test_a_table_may_be_a_frame_a_dataset_a_mapping_or_a_matrix() -> None:
    rows = {"a": [1.0, 2.0, 3.0, 4.0] * 5, "b": [0.0, 1.0, 0.0, 1.0] * 5}
    target = [0, 0, 1, 1] * 5
    matrix = np.column_stack(list(rows.values()))
    model = make("LinearClassifier").fit(rows, target)
    import pandas as pd

    assert np.array_equal(model.predict_proba(rows), model.predict_proba(pd.DataFrame(rows)))
    assert make("LinearClassifier").fit(matrix, target).predict([[1, 0], [4, 1]]).tolist() == [0, 1]


@pytest.mark.parametrize("target", [["no", "yes"] * 20, [False, True] * 20, [0, 1] * 20, [3, 7] * 20])
@pytest.mark.parametrize("name", ["LinearClassifier", "BoostedTreesClassifier"])
def test_classes_come_back_as_they_were(name: str, target: list) -> None:
    rows = {"x": [0.0, 1.0] * 20}
    found = make(name).fit(rows, target).predict(rows).tolist()
    assert found == target
    assert {type(value) for value in found} == {type(target[0])}


def test_missing_and_unknown_values_are_answered(trained: dict[str, Any]) -> None:
    row = {"island": ["Atlantis", None], "sex": [None, "male"], "bill_length_mm": [None, 39.1], "bill_depth_mm": [18.0, None]}
    row |= {"flipper_length_mm": [None, 181], "body_mass_g": [3750, None], "year": [2007, 2031], "extra": ["?", "!"]}
    for name in CLASSIFIERS:
        assert np.isfinite(trained[name].predict_proba(row)).all()


@pytest.mark.parametrize("name", ["LinearClassifier", "BoostedTreesClassifier", "DNNClassifier"])
def test_a_weight_of_zero_is_as_good_as_no_row(name: str) -> None:
    rng = np.random.default_rng(0)
    size = rng.normal(size=200)
    right = size > 0
    wrong = np.where(np.arange(200) < 120, ~right, right)
    model = make(name).fit({"x": size}, wrong, sample_weight=(np.arange(200) >= 120).astype(float))
    assert model.score({"x": size}, right) > 0.9


def test_class_weights_and_thresholds_move_the_decision() -> None:
    rows = {"x": np.arange(200.0)}
    target = (np.arange(200) % 10 == 0).astype(int)  # one in ten, not to be told from x
    counts = [
        int(make("LinearClassifier", class_weight=weight, threshold=threshold).fit(rows, target).predict(rows).sum())
        for weight, threshold in ((None, 0.5), ({1: 20.0}, 0.5), ("balanced", 0.1), (None, 0.05))
    ]
    assert counts[0] == 0
    assert all(count > 0 for count in counts[1:])


def test_the_classic_three_work_with_input_functions() -> None:
    train, test = datasets.load("penguins").split(0.8)
    model = make("BoostedTreesClassifier")
    model.train(lambda: train)
    assert model.evaluate(lambda: test)["accuracy"] > 0.9
    answers = list(model.predict(lambda: test))
    assert len(answers) == len(test)
    assert set(answers[0]) == {"class", "probabilities"}
    batches = [({"x": np.array([0.0, 1.0])}, np.array([0, 1]))] * 30
    assert make("LinearClassifier").train(lambda: iter(batches), steps=20).predict({"x": [0.0, 1.0]}).tolist() == [0, 1]
    with pytest.raises(BadData, match="gave no rows"):
        model.train(lambda: iter(()))


def test_a_deep_model_repeats_with_its_seed_and_goes_on_with_warm_start() -> None:
    rows, target = {"x": np.linspace(-1, 1, 200)}, np.linspace(-1, 1, 200) ** 2
    first, second = (make("DNNRegressor", epochs=3).fit(rows, target).predict(rows) for _ in range(2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, make("DNNRegressor", epochs=3, random_state=1).fit(rows, target).predict(rows))
    model = make("DNNRegressor", epochs=3, warm_start=True).fit(rows, target)
    before = model.evaluate(lambda: (rows, target))["rmse"]
    model.set_params(epochs=20).fit(rows, target)
    assert model.evaluate(lambda: (rows, target))["rmse"] < before


def test_a_copy_of_a_deep_model_is_one_of_its_own() -> None:
    rows, target = {"x": np.linspace(-1, 1, 200)}, np.linspace(-1, 1, 200) ** 2
    model = make("DNNRegressor", epochs=2, warm_start=True).fit(rows, target)
    before = model.predict(rows)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(again.predict(rows), before)
        again.fit(rows, target)
        assert np.array_equal(model.predict(rows), before)


def test_a_budget_changes_nothing_but_rounding() -> None:
    rows, target = {"x": np.linspace(-1, 1, 512)}, np.linspace(-1, 1, 512) ** 2
    options = {"epochs": 2, "batch_size": 128, "hidden_units": (64, 64)}
    plain = make("DNNRegressor", **options).fit(rows, target).predict(rows)
    held = make("DNNRegressor", budget="500MiB", **options).fit(rows, target).predict(rows)
    assert np.allclose(plain, held, rtol=1e-3, atol=1e-4)  # TensorFlow itself fuses ops of the plain step


def test_wide_and_deep_takes_columns_for_each_part() -> None:
    wide = [fc.bucketized("bill_length_mm", num_buckets=5), fc.crossed(["island", "sex"], 50)]
    deep = [fc.numeric("body_mass_g"), fc.embedding("island", 4), fc.indicator("sex"), fc.embedding(fc.hashed("sex", 5), 2)]
    train, test = datasets.load("penguins").split(0.8)
    model = make("DNNLinearCombinedClassifier", linear=wide, dnn=deep).fit(train)
    assert model.score(test, test.target) > 0.85


def test_sequences_and_weights_reach_linear_and_deep_models() -> None:
    rng = np.random.default_rng(0)
    words = np.array(["a", "b", "c", "d"])
    cells = ["|".join(rng.choice(words, rng.integers(1, 4), replace=False)) for _ in range(300)]
    target = ["a" in cell for cell in cells]
    rows = {"tags": cells, "much": rng.uniform(0, 1, 300)}
    columns = [fc.sequence("tags"), fc.weighted(fc.vocabulary("tags"), "much")]
    assert make("LinearClassifier", features=columns).fit(rows, target).score(rows, target) > 0.95
    assert make("DNNClassifier", features=[fc.embedding(columns[0], 4), columns[1]]).fit(rows, target).score(rows, target) > 0.95
    with pytest.raises(BadData, match="trees take one value a row"):
        make("BoostedTreesClassifier", features=columns).fit(rows, target)


def test_trees_stop_where_held_out_rows_gain_no_more() -> None:
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=2000), "kind": rng.choice(["a", "b"], 2000)}
    target = rows["x"] + rng.normal(size=2000)  # mostly noise
    model = make("BoostedTreesRegressor", num_trees=500).fit(rows, target, sample_weight=np.ones(2000))
    assert model.n_iter_ < 200


def test_importance_finds_the_column_that_matters() -> None:
    rng = np.random.default_rng(0)
    rows = {"noise": rng.normal(size=400), "signal": rng.normal(size=400)}
    target = rows["signal"] > 0
    model = make("BoostedTreesClassifier").fit(rows, target)
    falls = estimators.permutation_importance(model, rows, target)
    assert list(falls) == ["signal", "noise"]
    assert model.feature_importances_.argmax() == 1
    assert list(model.importances_) == ["signal", "noise"]
    again = make("BoostedTreesClassifier", features=[fc.bucketized("signal"), fc.numeric("signal"), fc.numeric("noise")])
    shares = again.fit(rows, target).importances_
    assert list(shares) == ["signal", "noise"]
    assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("rows", "target", "message"),
    [
        ({"x": [1, 2]}, ["a", "a"], "one class: 'a'"),
        ({"x": [1, 2]}, ["a", None], "missing in 1 of 2 rows"),
        ({"x": [1, 2]}, [1.0, float("nan")], "missing in 1 of 2 rows"),
        ({"x": [1, 2, 3]}, ["a", "b"], "3 rows and 2 targets"),
        ({"x": []}, [], "0 rows"),
        ({"x": [1, 2]}, None, "requires y"),
        ({"x": [1, 2]}, [0.5, 1.5], "continuous"),
    ],
)
def test_what_cannot_be_learnt_is_told(rows: dict, target: Any, message: str) -> None:
    with pytest.raises((BadData, ValueError), match=message):
        make("LinearClassifier").fit(rows, target)


def test_what_cannot_be_answered_is_told(trained: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadData, match="lacks the column 'island'"):
        trained["LinearClassifier"].predict({"sex": ["male"]})
    with pytest.raises(BadData, match="'Dodo' was not there in training"):
        trained["LinearClassifier"].evaluate(lambda: (datasets.load("penguins").frame.head(1), ["Dodo"]))
    with pytest.raises(BadData, match="a classifier learns words"):
        make("LinearRegressor").fit({"x": [1, 2]}, ["a", "b"])
    with pytest.raises(BadUse, match="call fit before save"):
        estimators.save(make("LinearRegressor"), tmp_path)


def test_a_damaged_or_foreign_file_is_refused_and_runs_nothing(trained: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadData, match="cannot read an estimator"):
        estimators.load(tmp_path)
    estimators.save(trained["LinearClassifier"], tmp_path)
    facts = json.loads((tmp_path / "estimator.json").read_text())
    for change, message in (
        ({"kind": "os.system"}, "unknown estimator"),
        ({"format": "x"}, "not an estimator"),
        ({"params": 3}, "damaged"),
    ):
        (tmp_path / "estimator.json").write_text(json.dumps(facts | change))
        with pytest.raises(BadData, match=message):
            estimators.load(tmp_path)
    (tmp_path / "estimator.json").write_text(json.dumps(facts))
    arrays = (tmp_path / "arrays.npz").read_bytes()
    for content in (b"", b"no archive", arrays[: len(arrays) // 2], arrays.replace(b"NUMPY", b"NUMPI")):
        (tmp_path / "arrays.npz").write_bytes(content)
        with pytest.raises(BadData, match="cannot read an estimator"):
            estimators.load(tmp_path)
    np.savez(tmp_path / "arrays.npz", coef=np.array([object()], object), intercept=np.zeros(1), allow_pickle=True)
    with pytest.raises(BadData, match="cannot read an estimator"):
        estimators.load(tmp_path)


def test_far_and_missing_numbers_stay_small_inside_a_network() -> None:
    fitted = fc.fit_columns([fc.numeric("x")], {"x": np.arange(100.0)})
    numbers = make_inputs(fitted, {"x": np.array([1e9, np.nan, 49.5, 1e300])}, "dnn")["dnn_numbers"]
    found = np.asarray(ScaledNumbers(fitted.scales, ranges=True)(numbers))
    assert np.abs(found).max() <= 3.01
    assert found[:, 1].tolist() == [0, 1, 0, 0]
    assert found[3, 0] == pytest.approx(3)


@pytest.mark.parametrize(("name", "least"), [("BoostedTreesRegressor", 0.99), ("DNNRegressor", 0.6)])
def test_the_last_digits_of_large_numbers_count(name: str, least: float) -> None:
    times = 1.7e9 + np.arange(400)  # of which float32 tells every 128th apart
    target = (np.arange(400) // 50 % 2).astype(float)
    settings = {"epochs": 60} if name == "DNNRegressor" else {"num_trees": 80}
    assert make(name, **settings).fit({"t": times}, target).score({"t": times}, target) > least


def test_a_warm_start_keeps_the_classes_that_it_learnt() -> None:
    rows, target = {"x": np.arange(100.0)}, np.where(np.arange(100) < 50, "low", "high")
    model = make("DNNClassifier", warm_start=True).fit(rows, target)
    few = {"x": np.arange(60.0, 100.0)}
    model.set_params(epochs=2, class_weight="balanced").fit(few, ["high"] * 40)
    assert model.classes_.tolist() == ["high", "low"]
    assert model.predict({"x": [90.0, 1.0]}).tolist() == ["high", "low"]
    with pytest.raises(BadData, match=r"'middle' was not there in training; there are high, low"):
        model.fit(few, ["middle", "high"] * 20)
    with pytest.raises(BadOption, match=r"goes on with hidden_units=\[16\], received \[8\]"):
        model.set_params(hidden_units=(8,)).fit(rows, target)


@pytest.mark.parametrize("name", ["BoostedTreesClassifier", "BoostedTreesRegressor"])
def test_a_warm_start_adds_trees_to_those_that_there_are(name: str, tmp_path: Path) -> None:
    rows = {"x": np.arange(600.0) % 50}
    target = rows["x"] > 25
    model = make(name, num_trees=3, warm_start=True).fit(rows, target)
    before = model.evaluate(lambda: (rows, target))
    estimators.save(model, tmp_path)
    again = estimators.load(tmp_path).fit(rows, target)
    assert (model.n_iter_, again.n_iter_) == (3, 6)
    figure = "loss" if name.endswith("Classifier") else "rmse"
    assert again.evaluate(lambda: (rows, target))[figure] < before[figure]
    if name.endswith("Classifier"):
        with pytest.raises(BadData, match="'maybe' was not there in training"):
            again.fit(rows, ["maybe"] * 600)


def test_a_code_of_many_rows_moves_as_far_as_one_of_few() -> None:
    """Adam's first step is the learning rate, whatever the gradient; TensorFlow's sparse gradients would make it larger."""
    import keras

    model = keras.Sequential([keras.Input((1,), dtype="int32"), LearntEntries(3, 1, embeddings_initializer="zeros")])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    codes = np.array([[1]] * 99 + [[2]], "int32")
    model.train_on_batch(codes, np.where(np.arange(100) % 3, 1.0, -0.5)[:, None, None])
    assert model.get_weights()[0].ravel().tolist() == pytest.approx([0, 0.1, -0.1], abs=1e-4)


def test_a_class_that_counts_as_nothing_is_a_class() -> None:
    rows = {"x": [0.0, 1.0, 2.0, 3.0] * 5}
    model = make("LinearClassifier").fit(rows, [1, 2, 1, 2] * 5)
    with pytest.raises(BadData, match="the class 0 was not there"):
        model.evaluate(lambda: ({"x": [1.0]}, [0]))
    with pytest.raises(BadData, match="of class number 0"):
        model.calibrate({"x": [0.0, 1.0]}, [2, 2])


@pytest.mark.parametrize(
    ("name", "setting", "value", "expected"),
    [
        ("DNNClassifier", "hidden_units", (-1,), "whole numbers, each at least 1"),
        ("DNNClassifier", "dropout", 1.0, "not including, 1"),
        ("DNNClassifier", "learning_rate", float("nan"), "above 0"),
        ("DNNClassifier", "batch_size", 0, "at least 1"),
        ("DNNClassifier", "epochs", 2.5, "whole number"),
        ("DNNClassifier", "validation_fraction", -0.1, "from 0"),
        ("DNNClassifier", "patience", True, "whole number"),
        ("DNNClassifier", "precision", "fp31", "no precision 'fp31'"),
        ("DNNClassifier", "budget", "much", "cannot read 'much' as bytes"),
        ("DNNClassifier", "class_weight", "equal", "'balanced'"),
        ("DNNClassifier", "class_weight", {0: -1.0}, "at least 0 for each class"),
        ("LinearClassifier", "class_weight", {3: 1.0}, "the class 3, which is not in the target"),
        ("LinearClassifier", "threshold", 1.5, "from 0"),
        ("LinearClassifier", "regularization", -1, "at least 0"),
        ("BoostedTreesClassifier", "num_trees", 0, "at least 1"),
        ("BoostedTreesClassifier", "max_leaves", 1, "at least 2"),
        ("BoostedTreesClassifier", "random_state", "zero", "None or a whole number"),
    ],
)
def test_a_setting_that_no_fit_can_use_is_told(name: str, setting: str, value: Any, expected: str) -> None:
    with pytest.raises((BadOption, BadData, BadBudget), match=expected):
        make(name, **{setting: value}).fit({"x": [1.0, 2.0]}, [0, 1])
