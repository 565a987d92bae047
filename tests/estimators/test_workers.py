"""Networks trained by two processes, whose gradients are averaged."""

import pickle
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from premade import make

from tensorferry import BadOption, BudgetTooSmall, datasets
from tensorferry.datasets import tables
from tensorferry.datasets.dataset import Dataset
from tensorferry.datasets.rows import ArrayRows
from tensorferry.estimators.batches import Part, RowBatches
from tensorferry.estimators.streaming import StreamedBatches

# no dropout, which draws anew in every process; rounding is not to grow over many steps
PLAIN: dict[str, Any] = {"epochs": 3, "dropout": 0.0, "batch_size": 64, "learning_rate": 0.01, "random_state": 0}
NUM_ROWS = 301  # the last batch has an odd number of rows


def make_rows() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x, kind = rng.normal(size=NUM_ROWS), rng.choice(["a", "b", "c"], NUM_ROWS)
    return {"x": x, "kind": kind, "y": np.where(x + (kind == "a") > 0.5, "yes", "no")}


@pytest.mark.slow
def test_two_processes_learn_what_one_does() -> None:
    rows = make_rows()
    target = rows.pop("y")
    weights = np.linspace(0.5, 1.5, NUM_ROWS)
    settings = PLAIN | {"num_members": 2, "class_weight": "balanced"}
    alone = make("DNNLinearCombinedClassifier", **settings).fit(rows, target, weights)
    two = make("DNNLinearCombinedClassifier", budget="500MiB", **settings).fit(rows, target, weights, workers=2)
    np.testing.assert_allclose(two.predict_proba(rows), alone.predict_proba(rows), atol=1e-4)
    np.testing.assert_allclose(two.history_["val_loss"], alone.history_["val_loss"], atol=1e-4)
    assert len(two.history_["loss"]) == two.n_iter_ == 3


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_batches_of_a_file_are_the_same_in_another_process(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, table = tmp_path / f"rows.{suffix}", pa.table(make_rows())
    if suffix == "parquet":
        pq.write_table(table, path, row_group_size=50)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
    monkeypatch.setattr(tables, "_IN_MEMORY_NBYTES", 0)  # as if it were large
    batches = StreamedBatches(datasets.load(path), itemgetter("x", "kind"), 64, 3, 2**12)
    first = batches[0]
    again = pickle.loads(pickle.dumps(batches))
    assert [part.tolist() for part in again[0]] == [part.tolist() for part in first]


@pytest.mark.slow
def test_an_error_of_a_worker_is_the_error_of_fit() -> None:
    rows = make_rows()
    with pytest.raises(BudgetTooSmall):
        make("DNNClassifier", budget="64KiB", **PLAIN).fit(rows, rows.pop("y"), workers=2)


@pytest.mark.parametrize(
    ("name", "workers", "message"),
    [
        ("DNNClassifier", 0, "expected workers to be a whole number of at least 1, received 0"),
        ("DNNClassifier", "2", "received '2'"),
        ("DNNClassifier", 65, "a batch of 64 has no row for each of 65 workers"),
        ("LinearClassifier", 2, "LinearClassifier learns in one process"),
    ],
)
def test_a_number_of_workers_that_cannot_be_is_told(name: str, workers: Any, message: str) -> None:
    rows = make_rows()
    settings = PLAIN if name == "DNNClassifier" else {}
    with pytest.raises(BadOption, match=message):
        make(name, **settings).fit(rows, rows.pop("y"), workers=workers)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 8])
def test_the_parts_of_a_batch_are_the_whole_batch(num_rows: int) -> None:
    """Each rank's mean of its weighted losses, averaged over ranks, is the mean over all rows."""
    losses = np.arange(1.0, num_rows + 1)
    parts = [Part(rank, 3) for rank in range(3)]
    means, sums = [], []
    for part in parts:
        mine = losses[part.choose(num_rows)]
        *_, weights = part.make(({}, mine), num_rows, is_checked=False)
        means.append((mine * weights).mean())
        *_, weights = part.make(({}, mine), num_rows, is_checked=True)
        sums.append((mine * weights).sum())
    assert np.mean(means) == pytest.approx(losses.mean())
    assert sum(sums) == pytest.approx(losses.sum())


def test_parts_of_rows_in_memory_and_on_disk_are_the_same_rows() -> None:
    values = np.arange(10.0)
    in_memory = RowBatches({"x": values}, values, None, np.arange(10), 4, None)
    dataset = Dataset("ten", ArrayRows({"x": values}), ())
    streamed = StreamedBatches(dataset, lambda rows: ({"x": rows["x"]}, rows["x"]), 4, None, 2**20)
    for batches in (in_memory, streamed):
        batches.part = Part(1, 2)
        assert [batches[place][1].tolist() for place in range(3)] == [[1, 3], [5, 7], [9]]
        assert batches.num_counted == 5
