"""Where two classes part."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, precision_score, recall_score

from tensorferry import BadData, BadOption, estimators
from tensorferry.estimators.thresholds import AIMS, find_threshold, measure_threshold

RNG = np.random.default_rng(0)
TOLD = np.round(RNG.random(400), 2)  # with ties
TRUE = RNG.random(400) < TOLD**2


@pytest.mark.parametrize("aim", AIMS)
def test_no_other_threshold_is_better(aim: str) -> None:
    best = getattr(measure_threshold(TOLD, TRUE, find_threshold(TOLD, TRUE, aim)), aim)
    assert best == max(getattr(measure_threshold(TOLD, TRUE, cut), aim) for cut in np.linspace(0.005, 0.985, 99))


def test_the_figures_are_those_of_scikit_learn() -> None:
    found, chosen = measure_threshold(TOLD, TRUE, 0.3), TOLD > 0.3
    expected = [each(TRUE, chosen) for each in (accuracy_score, balanced_accuracy_score, precision_score, recall_score, f1_score)]
    assert np.allclose([found.accuracy, found.balanced_accuracy, found.precision, found.recall, found.f1], expected)


def test_a_model_takes_the_threshold_and_is_judged_by_it() -> None:
    rows, target = {"x": TOLD}, np.where(TRUE, "yes", "no")
    model = estimators.LinearClassifier().fit(rows, target)
    before = f1_score(target, model.predict(rows), pos_label="yes")
    model.choose_threshold(rows, target)
    assert f1_score(target, model.predict(rows), pos_label="yes") > before
    assert model.evaluate(lambda: (rows, target))["accuracy"] == pytest.approx(model.score(rows, target))


def test_a_threshold_that_cannot_be_chosen_is_told() -> None:
    with pytest.raises(BadOption, match="did you mean 'f1'"):
        find_threshold(TOLD, TRUE, "f2")
    with pytest.raises(BadData, match="of one class"):
        find_threshold(TOLD, np.ones(400, bool), "f1")
    model = estimators.LinearClassifier().fit({"x": TOLD}, np.arange(400) % 3)
    with pytest.raises(BadData, match="two classes, this model has 3"):
        model.choose_threshold({"x": TOLD}, np.arange(400) % 3)
