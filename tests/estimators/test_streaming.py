"""Networks learn from sets on disk that are never whole in memory."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorferry import BadData, datasets, estimators
from tensorferry.datasets import tables
from tensorferry.datasets.column import Column
from tensorferry.datasets.dataset import Dataset
from tensorferry.datasets.rows import ArrayRows, JoinedRows
from tensorferry.estimators.streaming import StreamedBatches, choose_window, is_larger_than, leave_for_step, split_blocks

SETTINGS: dict[str, Any] = {"hidden_units": (16,), "epochs": 4, "batch_size": 256, "learning_rate": 0.01, "random_state": 0}
BUDGET = "1MiB"  # of which a part is a window: a few blocks


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Twenty thousand rows in forty blocks of a file, with words and numbers and some missing."""
    rng = np.random.default_rng(0)
    x, city = rng.normal(size=20_000), rng.choice(["Bern", "Oslo", "Rome"], 20_000)
    value = 3 * x + 5 * (city == "Oslo") + 100
    table = pa.table({"x": x, "city": city, "value": value, "high": np.where(value > 102, "yes", "no")})
    path = tmp_path_factory.mktemp("tables") / "rows.parquet"
    pq.write_table(table, path, row_group_size=500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_IN_MEMORY_NBYTES", 0)  # as if it were large
        return datasets.load(path)


def leave_out(dataset: Dataset, name: str, target: str) -> Dataset:
    columns = tuple(column for column in dataset.columns if column.name != name)
    return Dataset(dataset.name, dataset.rows, columns, target)


def count_reads(dataset: Dataset, patch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each block has that is read from now on."""
    read: list[int] = []
    whole = type(dataset.rows).read_block

    def watch(rows: Any, number: int) -> Any:
        read.append(rows.block_sizes[number])
        return whole(rows, number)

    patch.setattr(type(dataset.rows), "read_block", watch)
    return read


def test_a_regressor_learns_from_disk_what_it_learns_in_memory(on_disk: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = leave_out(on_disk, "high", "value")
    reads = count_reads(rows, monkeypatch)
    monkeypatch.setattr(Dataset, "read_all", None)  # whoever wants all rows at once fails
    monkeypatch.setattr("tensorferry.estimators.streaming.WINDOW_NBYTES", 2**16)
    model = estimators.DNNRegressor(**SETTINGS).fit(rows)
    monkeypatch.undo()
    assert sum(reads) >= 5 * 20_000  # the targets once, and four epochs
    assert model.score(rows, rows.target) > 0.99
    assert set(model.fitted_.table_columns) == {"city", "x"}


def test_a_classifier_learns_from_disk_with_weights_for_classes(on_disk: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = leave_out(on_disk, "value", "high")
    monkeypatch.setattr("tensorferry.estimators.streaming.WINDOW_NBYTES", 2**16)
    settings = SETTINGS | {"epochs": 2, "class_weight": "balanced"}
    model, again = (estimators.DNNClassifier(**settings).fit(rows) for _ in range(2))
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.score(rows, rows.target) > 0.97
    assert np.array_equal(model.predict_proba(rows), again.predict_proba(rows))  # the order follows from the seed
    with pytest.raises(BadData, match="has no target"):
        estimators.DNNClassifier(**SETTINGS).fit(Dataset(rows.name, rows.rows, rows.columns))


def test_every_row_comes_once_an_epoch_in_another_order(on_disk: Dataset) -> None:
    train, held_out = split_blocks(on_disk, 0.1, seed=0)
    assert held_out is not None
    assert (len(train), len(held_out)) == (18_000, 2_000)
    batches = StreamedBatches(train, lambda rows: (rows["x"],), 256, 0, 2**16)
    first = [batches[place][0] for place in (0, 1, 0, *range(1, len(batches)))][2:]  # Keras looks at some of them before
    batches.on_epoch_end()
    second = [batches[place][0] for place in range(len(batches))]
    known = np.sort(on_disk.select(range(20_000)).numpy()["x"])
    assert len(np.concatenate(first)) == 18_000
    assert np.array_equal(np.sort(np.concatenate(first)), np.sort(np.concatenate(second)))
    assert not np.array_equal(first[0], second[0])
    held = np.concatenate([rows["x"] for rows in held_out.read(500)])
    assert np.array_equal(np.sort(np.concatenate([*first, held])), known)


def test_only_what_is_larger_than_a_window_is_streamed(on_disk: Dataset) -> None:
    assert is_larger_than(on_disk, choose_window(BUDGET))
    assert not is_larger_than(on_disk, choose_window(None))
    assert not is_larger_than(datasets.load("penguins"), 1)
    assert choose_window("64MiB") == 2 * 2**20
    assert leave_for_step("64MiB", 2 * 2**20) == 40 * 2**20


def test_a_part_of_a_set_is_streamed_too(on_disk: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = leave_out(on_disk, "high", "value")
    train, test = rows.split(0.8, seed=1)
    assert is_larger_than(train, choose_window(BUDGET))
    learnt, held_out = split_blocks(train, 0.1, seed=0)
    assert held_out is not None
    both = np.concatenate([part.numpy()["x"] for part in (learnt, held_out)])
    assert np.array_equal(np.sort(both), np.sort(train.numpy()["x"]))
    monkeypatch.setattr(Dataset, "read_all", None)  # whoever wants all rows at once fails
    monkeypatch.setattr("tensorferry.estimators.streaming.WINDOW_NBYTES", 2**16)
    model = estimators.DNNRegressor(**SETTINGS).fit(train, train.target)  # which it brings itself
    monkeypatch.undo()
    assert model.score(test, test.target) > 0.99


def test_words_that_stand_in_late_blocks_are_learnt(on_disk: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is sorted by a column shows each of its words in a few blocks alone."""
    by_city = np.argsort(on_disk.numpy()["city"], kind="stable")
    blocks = [{name: values[part] for name, values in on_disk.numpy().items()} for part in np.split(by_city, 40)]
    rows = Dataset("sorted", JoinedRows([ArrayRows(block) for block in blocks]), on_disk.columns)
    monkeypatch.setattr("tensorferry.estimators.streaming.WINDOW_NBYTES", 2**14)
    model = estimators.DNNRegressor(**SETTINGS | {"epochs": 1}).fit(leave_out(rows, "high", "value"))
    (city,) = (column for column in model.fitted_.columns if getattr(column, "name", "") == "city")
    assert set(city.values) == {"Bern", "Oslo", "Rome"}


def test_long_texts_count_for_what_they_take() -> None:
    columns = (Column("text", "text", "object"),)
    blocks = [ArrayRows({"text": np.array([letter * 10_000] * 10, object)}) for letter in "abc"]
    assert is_larger_than(Dataset("texts", JoinedRows(blocks), columns), 200_000)


def test_a_warm_start_goes_on_from_disk(on_disk: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorferry.estimators.streaming.WINDOW_NBYTES", 2**16)
    rows = leave_out(on_disk, "high", "value")
    model = estimators.DNNRegressor(**SETTINGS | {"epochs": 1, "warm_start": True}).fit(rows)
    network, before = model.model_, model.score(rows, rows.target)
    assert model.fit(rows).model_ is network
    assert model.score(rows, rows.target) > before
