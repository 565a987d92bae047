"""`ferry fit` from a table to a run, and on to what the server loads."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from rich.console import Console

from tensorferry import datasets, estimators
from tensorferry.cli import main
from tensorferry.fitting.run import load_fitted
from tensorferry.optimization.command import CommandOptions, run_command


@pytest.fixture(scope="module")
def penguins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One fit for all tests that only look at it."""
    folder = tmp_path_factory.mktemp("runs") / "penguins"
    assert main(["fit", "penguins", "--set", "num_trees=20", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def customers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of two classes and a number."""
    rng = np.random.default_rng(0)
    age, city = rng.integers(18, 80, 1500), rng.choice(["Bern", "Oslo", "<b>Rome</b>"], 1500)
    chance = 1 / (1 + np.exp(-(age - 60) / 6 - (city == "Oslo")))
    rows = zip(age, city, rng.random(1500) < chance, 10.5 * age + rng.normal(size=1500), strict=True)
    path = tmp_path_factory.mktemp("tables") / "customers.csv"
    lines = [f"{a},{c},{'stays' if s else 'goes'},{v:.3f}" for a, c, s, v in rows]
    path.write_text("age,city,what,spent\n" + "\n".join(lines) + "\n")
    return path


def test_a_fit_is_a_run_with_a_model_its_figures_and_a_page(penguins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = json.loads((penguins / "figures.json").read_text())
    assert figures["metrics"]["accuracy"] > 0.9 > figures["baseline"]["accuracy"]
    assert (figures["num_train"], figures["num_test"]) == (275, 69)
    assert sum(map(sum, figures["confusion"])) == sum(each["num_rows"] for each in figures["calibration"]) == 69
    assert max(figures["importance"], key=figures["importance"].__getitem__) in ("bill_length_mm", "flipper_length_mm", "island")
    test = datasets.load("penguins").split(0.8, seed=0, stratify=True)[1]
    for folder in (penguins, penguins / "estimator"):  # a run is an estimator, too
        assert estimators.load(folder).score(test, test.target) == figures["metrics"]["accuracy"]
    page = (penguins / "report.html").read_text()
    assert all(word in page for word in ("What the answers rest on", "Calibration", "flipper_length_mm", "Chinstrap"))
    assert main(["report", str(penguins), "--out", str(penguins / "again.html")]) == 0
    assert (penguins / "again.html").read_text() == page
    assert main(["train", "--resume", str(penguins)]) == 2
    assert "no steps to resume" in capsys.readouterr().err


def test_an_optimised_fit_takes_raw_rows_and_answers_as_predict(penguins: Path, tmp_path: Path) -> None:
    options = CommandOptions(str(penguins), to=tmp_path / "models", name="birds", seconds=4)
    result = run_command(options, Console(quiet=True))
    assert result.folder == tmp_path / "models" / "birds" / "1"
    fitted = load_fitted(penguins)
    rows = fitted.estimator.to_tensors(fitted.test)
    answers = ort.InferenceSession(result.folder / "model.onnx").run(["predicted_class", "probabilities"], rows)
    assert np.abs(answers[1] - fitted.estimator.predict_proba(fitted.test)).max() <= 1e-6
    assert answers[0][:, 0].tolist() == fitted.estimator.predict(fitted.test).tolist()


def test_probabilities_are_calibrated_and_a_threshold_chosen_on_rows_set_aside(customers: Path, tmp_path: Path) -> None:
    asked = ["fit", str(customers), "--target", "what", "--model", "linear", "--calibrate", "sigmoid", "--threshold", "f1"]
    assert main([*asked, "--out", str(tmp_path / "run")]) == 0
    figures = json.loads((tmp_path / "run" / "figures.json").read_text())
    model = estimators.load(tmp_path / "run" / "estimator")
    assert model.calibration_ is not None
    assert model.threshold == figures["threshold"] != 0.5
    assert model.threshold in [each["threshold"] for each in figures["thresholds"]]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "(chosen)" in page
    assert "<b>Rome" not in page


def test_a_rare_class_is_in_the_rows_to_learn_from_and_to_test_on(tmp_path: Path) -> None:
    path = tmp_path / "rare.csv"
    rows = [f"{number},{'rare' if number in (3, 7) else ('a', 'b')[number % 2]}" for number in range(60)]
    path.write_text("x,what\n" + "\n".join(rows) + "\n")
    for seed in ("0", "1", "2"):
        run = tmp_path / seed
        assert main(["fit", str(path), "--target", "what", "--model", "linear", "--seed", seed, "--out", str(run)]) == 0
        assert [sum(row) for row in json.loads((run / "figures.json").read_text())["confusion"]][2] == 1
        assert sorted(load_fitted(run).test.target.tolist()).count("rare") == 1


def test_a_run_of_an_older_version_keeps_its_rows_to_test_on(penguins: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(penguins, run)
    config = json.loads((run / "config.json").read_text())
    del config["stratified"]
    (run / "config.json").write_text(json.dumps(config))
    assert load_fitted(run).test.target.tolist() == datasets.load("penguins").split(0.8, seed=0)[1].target.tolist()


def test_numbers_are_learnt_as_values(customers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["fit", str(customers), "--target", "spent", "--model", "linear", "--json", "--out", str(tmp_path / "run")]
    assert main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["task"] == "values"
    assert found["metrics"]["r2"] > 0.99
    assert [each["told"] for each in found["calibration"]] == sorted(each["told"] for each in found["calibration"])
    assert main([*asked, "--force", "--threshold", "f1"]) == 2
    assert "thresholds are for classes" in capsys.readouterr().err
    assert (tmp_path / "run" / "report.html").is_file()  # what was there stays


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["penguins", "--model", "boosted-tree"], "did you mean 'boosted-trees'"),
        (["penguins", "--target", "specie"], "did you mean 'species'"),
        (["penguins", "--set", "num_tree=5"], "did you mean 'num_trees'"),
        (["penguins", "--set", "num_trees=many"], "expected num_trees to be like 500"),
        (["penguins", "--task", "class"], "did you mean 'classes'"),
        (["penguins", "--calibrate", "isotone"], "did you mean 'isotonic'"),
        (["penguins", "--threshold", "2"], "expected a threshold from 0 up to 1"),
        (["penguins", "--threshold", "f1", "--model", "linear"], "a threshold is for two classes, this model has 3"),
        (["penguins", "--model", "none.py:build"], "none.py"),
        (["penguins", "--model", "tensorferry.estimators:LinearRegressor"], "gives a LinearRegressor"),
        (["penguins", "--test", "1"], "between 0 and 1"),
        (["penguins", "--workers", "2"], "BoostedTreesClassifier learns in one process"),
        (["none.csv"], "no file or folder 'none.csv'"),
        (["penguin"], "did you mean 'penguins'"),
    ],
)
def test_what_cannot_be_fitted_is_one_line_and_leaves_nothing(
    asked: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", *asked]) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ferry: ")]
    assert len(error) == 1
    assert told in error[0]
    assert not list(tmp_path.iterdir())
