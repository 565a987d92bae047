"""Networks of several members that share their weights."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from premade import make

from tensorferry import BadOption, estimators
from tensorferry.feature_columns.table import read_table


def make_rows() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=400), "kind": rng.choice(["a", "b"], 400)}


@pytest.mark.parametrize("name", ["DNNLinearCombinedClassifier", "DNNRegressor"])
def test_members_answer_as_one_model_wherever_it_runs(name: str, tmp_path: Path) -> None:
    import tensorflow as tf

    rows = make_rows()
    score = rows["x"] + (rows["kind"] == "a")
    model = make(name, num_members=4, epochs=10).fit(rows, score > 0.5 if name.endswith("Classifier") else score)
    answers = model.predict_proba(rows) if name.endswith("Classifier") else model.predict(rows)[:, None]
    estimators.save(model, tmp_path / "saved")
    again = estimators.load(tmp_path / "saved")
    assert np.array_equal(again.predict(rows), model.predict(rows))
    sent = model.to_tensors(rows)
    served = ort.InferenceSession(model.to_onnx()).run(None, sent)[-1]
    np.testing.assert_allclose(served, answers, atol=1e-6)
    module = tf.saved_model.load(str(model.export_saved_model(tmp_path / "tf")))
    found = module.signatures["serving_default"](**{key: tf.constant(value) for key, value in sent.items()})
    output = "probabilities" if name.endswith("Classifier") else "predicted_value"
    np.testing.assert_allclose(found[output].numpy(), answers, atol=1e-6)
    assert model.score(rows, score > 0.5 if name.endswith("Classifier") else score) > 0.9


def test_members_see_rows_differently_and_are_trained_each_for_itself() -> None:
    rows = make_rows()
    model = make("DNNRegressor", num_members=3, epochs=10).fit(rows, rows["x"])
    scores = model._scores(read_table(rows))
    assert scores.shape == (400, 3, 1)
    each = [np.corrcoef(scores[:, member, 0], rows["x"])[0, 1] for member in range(3)]
    assert min(each) > 0.9
    assert len({tuple(scores[:, member, 0].round(6)) for member in range(3)}) == 3


def test_a_warm_start_goes_on_with_as_many_members() -> None:
    rows = make_rows()
    model = make("DNNRegressor", num_members=2, epochs=1, warm_start=True).fit(rows, rows["x"])
    with pytest.raises(BadOption, match="goes on with num_members=2, received 3"):
        model.set_params(num_members=3).fit(rows, rows["x"])
    with pytest.raises(BadOption, match="num_members of DNNRegressor to be a whole number of at least 1"):
        make("DNNRegressor", num_members=0).fit(rows, rows["x"])
