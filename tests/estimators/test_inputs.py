"""What estimators take from input functions, and from other libraries."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from premade import make

from tensorferry import BadData, BadOption
from tensorferry.datasets.tables import dataset_from_arrow
from tensorferry.feature_columns.table import read_table, read_words

ROWS = {"x": [0.0, 1.0, 2.0, 3.0] * 5, "word": ["a", "a", "b", "b"] * 5}
TARGET = ["no", "no", "yes", "yes"] * 5


def batches() -> Iterator[dict[str, Any]]:
    for value, word in ((0.0, "a"), (3.0, "b")):
        yield {"x": np.array([value]), "word": np.array([word])}


@pytest.mark.parametrize(
    "give",
    [
        lambda: {"x": [0.0, 3.0], "word": ["a", "b"]},
        lambda: pd.DataFrame({"x": [0.0, 3.0], "word": ["a", "b"]}),
        lambda: ({"x": [0.0, 3.0], "word": ["a", "b"]}, ["no", "yes"]),
        batches,
        lambda: ((batch, ["no"]) for batch in batches()),
    ],
)
def test_rows_to_answer_need_no_target(give: Any) -> None:
    model = make("LinearClassifier").fit(ROWS, TARGET)
    assert [row["class"] for row in model.predict(give)] == ["no", "yes"]


def test_texts_of_tensorflow_are_texts() -> None:
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((ROWS, TARGET)).batch(8)
    model = make("LinearClassifier").train(lambda: rows)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.evaluate(lambda: rows)["accuracy"] == 1
    assert [row["class"] for row in model.predict(lambda: rows.map(lambda table, _: table))] == TARGET
    assert model.predict({"x": tf.constant([0.0]), "word": tf.constant(["a"])}).tolist() == ["no"]


def test_steps_end_a_training_on_batches_without_an_end() -> None:
    def give() -> Iterator[Any]:
        while True:
            yield {"x": np.arange(32.0)}, np.arange(32) % 2

    model = make("DNNClassifier").train(give, steps=7)
    assert int(model.model_.optimizer.iterations.numpy()) == 7
    assert int(model.train(lambda: ({"x": np.arange(320.0)}, np.arange(320) % 2), steps=15).model_.optimizer.iterations) == 15
    assert (
        int(model.fit({"x": np.arange(32.0)}, np.arange(32) % 2).model_.optimizer.iterations) > 15
    )  # steps were for train alone
    with pytest.raises(BadOption, match="at least one step"):
        model.train(give, steps=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "received int"),
        ([{"x": [1.0]}], "batches of .table, target."),
        ([({"x": [1.0]}, [0]), ({"y": [1.0]}, [1])], "batches of other columns: y after x"),
    ],
)
def test_what_an_input_function_should_not_give_is_told(given: Any, message: str) -> None:
    with pytest.raises(BadData, match=message):
        make("LinearClassifier").train(lambda: given)


@pytest.mark.parametrize(
    "make_times", [lambda days: days, lambda days: days.tz_localize("UTC"), lambda days: days.to_pydatetime()]
)
def test_times_are_seconds_wherever_they_come_from(make_times: Any) -> None:
    days = pd.date_range("2024-01-01", periods=40)
    frame = pd.DataFrame({"day": make_times(days)})
    late = np.arange(40) >= 20
    model = make("BoostedTreesClassifier").fit(frame, late)
    assert model.score(frame, late) == 1
    assert model.score(pa.Table.from_pandas(frame), late) == 1
    asked = [datetime(2024, 1, 2, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC) + timedelta(days=35), None]
    assert model.predict({"day": asked})[:2].tolist() == [False, True]
    assert model.predict({"day": np.array(["2024-01-02", "2024-02-05"], "datetime64[D]")}).tolist() == [False, True]


def test_booleans_are_the_same_words_where_some_are_missing() -> None:
    rows = {"seen": [True, False] * 20}
    model = make("LinearClassifier").fit(rows, rows["seen"])
    assert model.predict({"seen": [True, None, False]}).tolist()[::2] == [True, False]
    assert model.predict(pd.DataFrame({"seen": pd.array([False, True, None], "boolean")})).tolist()[:2] == [False, True]
    again = make("LinearClassifier").fit({"seen": [True, False, None] * 20}, [True, False, False] * 20)
    assert again.predict(rows).tolist() == rows["seen"]


def test_a_column_without_a_value_is_left_out() -> None:
    rows = {**ROWS, "nothing": [np.nan] * 20, "never": [None] * 20}
    for name in ("LinearClassifier", "BoostedTreesClassifier", "DNNClassifier"):
        model = make(name).fit(rows, TARGET)
        assert set(model.fitted_.table_columns) == {"x", "word"}
    assert model.predict(ROWS).tolist() == TARGET


@pytest.mark.parametrize("name", ["LinearRegressor", "BoostedTreesRegressor", "DNNRegressor"])
def test_infinity_is_told_with_its_column_and_row(name: str) -> None:
    with pytest.raises(BadData, match=r"column 'x', received -inf .infinity. in row 2"):
        make(name).fit({"x": [1.0, 2.0, -np.inf]}, [1.0, 2.0, 3.0])


def test_two_columns_of_one_name_are_told() -> None:
    with pytest.raises(BadData, match="the table has two columns 'x'"):
        read_table(pd.DataFrame([[1, 2], [3, 4]], columns=["x", "x"]))


def test_large_whole_numbers_keep_their_digits() -> None:
    table = read_table({"id": [2**60 + 1, None, 2**60 + 2], "other": [2**60 + 1, 2**60 + 2, 3]})
    assert read_words(table, "id").tolist() == [str(2**60 + 1), None, str(2**60 + 2)]
    assert read_words(table, "other").tolist() == [str(2**60 + 1), str(2**60 + 2), "3"]


def test_a_dataset_with_times_is_learnt_as_its_frame() -> None:
    table = pa.table({"day": pa.array(pd.date_range("2024-01-01", periods=40)), "late": np.arange(40) >= 20})
    rows = dataset_from_arrow(table, "days").with_target("late")
    model = make("BoostedTreesClassifier").fit(rows)
    assert model.score(rows.frame, rows.target) == 1
