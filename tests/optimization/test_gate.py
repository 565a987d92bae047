"""The gate: intervals of what was counted, the right answers where they are known, and samples that are never on both sides."""

import numpy as np
import pytest
from scipy import stats

from tensorferry.errors import BadOption
from tensorferry.optimization.agreement import Comparison
from tensorferry.optimization.gate import AnswerGate
from tensorferry.optimization.intervals import Interval, count_needed, drop_interval, student_interval, wilson_interval
from tensorferry.optimization.metric import find_metric, measure_drop
from tensorferry.optimization.samples import MAX_SAMPLES, choose_rows, read_targets, split_samples


@pytest.mark.parametrize(("num_right", "num"), [(0, 4), (4, 4), (99, 100), (507, 512)])
def test_the_interval_of_a_share_is_scipys_wilson_interval(num_right: int, num: int) -> None:
    expected = stats.binomtest(num_right, num).proportion_ci(method="wilson")
    found = wilson_interval(num_right / num, num)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_the_interval_of_a_mean_is_students() -> None:
    values = [0.98, 0.99, 0.985, 0.999]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    found = student_interval(values)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)
    assert student_interval([0.5]) == Interval(-np.inf, np.inf)


def test_an_interval_of_a_drop_has_a_width_even_where_no_answer_changed() -> None:
    found = drop_interval(0, 0, 200)
    assert found.low == -found.high
    assert 0 < found.high < 0.02
    assert drop_interval(6, 2, 200).low < 0.02 < drop_interval(6, 2, 200).high


def test_samples_that_tell_99_from_98_percent_are_counted() -> None:
    needed = count_needed(0.99, 0.98)
    assert wilson_interval(0.99, needed).low > 0.98 >= wilson_interval(0.99, needed - 1).low


def test_too_few_samples_are_said_to_be_too_few() -> None:
    few = Comparison(1.0, 0.0, interval=wilson_interval(1.0, 32), num_answers=32)
    assert "cannot tell 99 % agreement from 98 % (89.3 to 100 % at 95 %); about 189 would" in AnswerGate().find_doubt(few)
    assert AnswerGate().find_reason(few) == ""
    enough = Comparison(1.0, 0.0, interval=wilson_interval(1.0, 200), num_answers=200)
    assert AnswerGate().find_doubt(enough) == ""


def test_where_the_right_answers_are_known_only_what_is_lost_of_them_counts() -> None:
    targets = np.arange(100) % 4
    original, candidate = targets.copy(), targets.copy()
    original[:20] = candidate[:20] = (targets[:20] + 1) % 4  # both wrong, and then in other ways
    candidate[:10] = (targets[:10] + 2) % 4
    lost = measure_drop("accuracy", targets, original, candidate)
    assert (lost.original, lost.candidate, lost.drop) == (0.8, 0.8, 0.0)
    comparison = Comparison(0.9, 0.1, interval=wilson_interval(0.9, 100), num_answers=100, metric_drop=lost)
    assert AnswerGate(max_drop=0.005).find_reason(comparison) == ""
    assert "agrees on 90 %" in AnswerGate().find_reason(comparison)
    candidate[50] = (targets[50] + 1) % 4
    worse = Comparison(0.89, 0.1, metric_drop=measure_drop("accuracy", targets, original, candidate))
    assert "loses 1 points of accuracy; at most 0.5 points may be lost" in AnswerGate(max_drop=0.005).find_reason(worse)


def test_dice_is_of_each_sample_without_the_background() -> None:
    targets = np.zeros((2, 4, 4), int)
    targets[:, :2] = 1
    answers = targets.copy()
    answers[0, 0] = 0  # half of the foreground is missed: 2 * 4 / (8 + 4)
    lost = measure_drop("Dice", targets, targets, answers)
    assert (lost.original, lost.candidate) == pytest.approx((1.0, (2 / 3 + 1) / 2))
    assert lost.interval.high > lost.drop > lost.interval.low


def test_targets_below_zero_do_not_count() -> None:
    targets = np.zeros((1, 4, 4), int)
    targets[:, :2] = 1
    answers = targets.copy()
    answers[0, 3] = 1  # wrong, but where nothing is known
    unknown = targets.copy()
    unknown[0, 3] = -1
    assert measure_drop("Dice", unknown, unknown.clip(0), answers).candidate == 1.0
    assert measure_drop("Dice", targets, targets, answers).candidate < 1.0
    rows = measure_drop("accuracy", np.array([0, 1, -1, -1]), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]))
    assert (rows.original, rows.candidate) == (1.0, 0.5)
    # a volume in which nothing is known says nothing of what is lost, and does not make the others look sure
    known, empty = targets, np.full_like(targets, -1)
    both = measure_drop("Dice", np.concatenate([known, empty]), np.zeros((2, 4, 4), int), np.zeros((2, 4, 4), int))
    assert both.original == both.candidate == 0.0


def test_samples_that_all_came_out_alike_still_have_an_interval() -> None:
    volumes = np.zeros((3, 4, 4), int)
    volumes[:, :2] = 1
    lost = measure_drop("Dice", volumes, volumes, volumes)
    assert lost.interval.low < -0.1 < 0.1 < lost.interval.high
    comparison = Comparison(1.0, 0.0, interval=wilson_interval(1.0, 3), num_answers=48, metric_drop=lost)
    assert "cannot tell whether more than 0.6 points of Dice are lost" in AnswerGate(max_drop=0.002).find_doubt(comparison)


def test_targets_are_classes_of_the_answers() -> None:
    scores, volumes = np.zeros((5, 3)), np.zeros((2, 3, 8, 8, 8))
    assert find_metric(np.zeros(5, int), scores, 1) == "accuracy"
    assert find_metric(np.zeros((2, 8, 8, 8), np.uint8), volumes, 1) == "Dice"
    assert find_metric(np.zeros((5, 3), int), scores, 1) == find_metric(np.zeros(5), scores, 1) == ""
    with pytest.raises(BadOption, match="there are 4 targets for 5 samples"):
        read_targets(np.zeros(4, int), 5)


def test_no_sample_calibrates_and_judges_and_the_split_is_the_same_every_time() -> None:
    rows = {"x": np.arange(40.0).reshape(40, 1) // 2}  # every row twice
    split = split_samples(rows, None)
    judged = rows["x"][split.compared]
    assert not set(split.calibration["x"].ravel()) & set(judged.ravel())
    assert len(judged) == 20
    assert np.array_equal(split_samples(rows, None).compared, split.compared)
    assert f"calibrated on {len(split.calibration['x'])} samples and judged on 20 others" in split.note
    # sorted rows: both sides have some of either end
    assert judged.min() < 5
    assert judged.max() > 14


def test_of_more_rows_than_are_compared_some_of_everywhere_are_and_in_no_order() -> None:
    for rows in (choose_rows(4000), split_samples({"x": np.arange(4000.0).reshape(-1, 1)}, None).compared):
        assert len(set(rows.tolist())) == MAX_SAMPLES
        # what the time lets be asked first is some of everywhere, too
        assert rows[:32].min() < 1000
        assert rows[:32].max() > 3000
    assert choose_rows(4000).tolist() == choose_rows(4000).tolist()


def test_samples_to_calibrate_on_that_are_judged_on_are_left_out() -> None:
    rows = {"x": np.arange(10.0).reshape(10, 1)}
    split = split_samples(rows, {"x": np.arange(5.0, 15.0).reshape(10, 1)})
    assert sorted(split.calibration["x"].ravel()) == [10, 11, 12, 13, 14]
    with pytest.raises(BadOption, match="there are 0 and 10, without any that stand on both sides"):
        split_samples(rows, rows)
    with pytest.raises(BadOption, match="there are 3 and 3"):
        split_samples({"x": rows["x"][:6]}, None)
