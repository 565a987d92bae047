"""A dataset as its users take it: splits, targets, and the forms that other libraries want."""

import numpy as np
import pytest

from tensorferry import BadData
from tensorferry.datasets import Column, Dataset, load
from tensorferry.datasets.dataset import choose_split
from tensorferry.datasets.rows import ArrayRows


def make(num_rows: int = 10, name: str = "toys", first: int = 0) -> Dataset:
    columns = {
        "size": np.arange(first, first + num_rows, dtype=np.float64),
        "colour": np.array([None if row == 1 else f"c{row % 3}" for row in range(num_rows)], object),
        "price": np.arange(num_rows, dtype=np.int64) * 10,
    }
    described = (Column("size", "number", "float64"), Column("colour", "category", "object"), Column("price", "integer", "int64"))
    return Dataset(name, ArrayRows(columns), described, "price")


def test_a_split_has_every_row_once_and_repeats() -> None:
    first, second = make(50).split(0.8, seed=3)
    assert (len(first), len(second)) == (40, 10)
    assert sorted([*first.target, *second.target]) == sorted(make(50).target)
    assert np.array_equal(make(50).split(0.8, seed=3)[0].target, first.target)
    assert not np.array_equal(make(50).split(0.8, seed=4)[0].target, first.target)


def test_a_split_of_a_split_stays_inside_it() -> None:
    part, _ = make(50).split(0.5)
    inner, _ = part.split(0.5)
    assert set(inner.target) < set(part.target)


@pytest.mark.parametrize("share", [0.0, 1.0, 1.5, -1.0])
def test_a_split_that_leaves_nothing_is_refused(share: float) -> None:
    with pytest.raises(BadData, match="without rows"):
        make().split(share)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("train", range(8)),
        ("test", range(8, 12)),
        ("train[:25%]", range(2)),
        ("train[-2:]", range(6, 8)),
        ("train[50%:]+test[:1]", range(4, 9)),
        ("train[5:3]", ()),
    ],
)
def test_a_split_is_named_as_in_tfds(text: str, sizes: range) -> None:
    splits = {"train": make(8), "test": make(4, first=8)}
    chosen = choose_split(splits, text)
    assert [float(size) for batch in chosen.read(100) for size in batch["size"]] == list(sizes)


@pytest.mark.parametrize("text", ["trian", "train[a:b]", "", "train[1]"])
def test_a_split_that_is_not_there_is_told_with_those_that_are(text: str) -> None:
    with pytest.raises(BadData, match="train, test"):
        choose_split({"train": make(8), "test": make(4)}, text)


def test_a_supervised_set_gives_inputs_and_target() -> None:
    inputs, target = next(load("penguins", as_supervised=True).batches(4))
    assert "species" not in inputs
    assert target.tolist() == ["Adelie"] * 4
    image, label = next(load("digits", as_supervised=True).batches(2))
    assert image.shape == (2, 8, 8, 1)
    assert label.tolist() == [0, 1]


def test_a_frame_has_the_columns_and_says_what_is_missing() -> None:
    frame = make().frame
    assert list(frame.columns) == ["size", "colour", "price"]
    assert frame["colour"].isna().tolist() == [False, True, *[False] * 8]
    with pytest.raises(BadData, match=r"'image' holds arrays.*numpy"):
        _ = load("digits").frame


def test_rows_are_selected_by_their_numbers_or_by_a_boolean_each() -> None:
    rows = make(10)
    assert rows.select(rows.target >= 70).target.tolist() == [70, 80, 90]
    assert rows.select([3, 1, 3]).target.tolist() == [10, 30]
    assert rows.select([]).target.tolist() == []
    with pytest.raises(BadData, match="boolean for each of 10 rows"):
        rows.select([True, False])
    with pytest.raises(BadData, match=r"numbers of rows, counted from 0, received 1\.5"):
        rows.select([1.5])
    with pytest.raises(BadData, match="no row -1"):
        rows.select([-1, 3])


def test_a_stratified_split_has_every_class_in_both_parts() -> None:
    names = np.array(["common"] * 90 + ["rare"] * 8 + ["twice"] * 2, object)
    rows = Dataset("toys", ArrayRows({"name": names, "row": np.arange(100)}), (Column("name", "category", "object"),), "name")
    for seed in range(5):
        parts = rows.split(0.75, seed=seed, stratify=True)
        counted = [dict(zip(*np.unique(part.target, return_counts=True), strict=True)) for part in parts]
        assert counted[0]["twice"] == counted[1]["twice"] == 1
        assert (counted[0]["rare"], counted[1]["rare"]) == (6, 2)
        numbers = [part.numpy()["row"].tolist() for part in parts]
        assert sorted([*numbers[0], *numbers[1]]) == list(range(100))
        assert rows.split(0.75, seed=seed, stratify=True)[0].numpy()["row"].tolist() == numbers[0]


def test_a_target_that_is_not_there_is_told_with_the_nearest() -> None:
    with pytest.raises(BadData, match="did you mean 'species'"):
        load("penguins", target="speces")
    with pytest.raises(BadData, match=r"target=.*t1, grey, white"):
        _ = load("brain").target


def test_rows_outside_of_a_set_are_refused() -> None:
    with pytest.raises(BadData, match="no row 10"):
        make().select([3, 10])
    with pytest.raises(BadData, match="at least one row, received 0"):
        next(make().batches(0))


def test_torch_loaders_see_every_row_once_in_another_order_each_epoch() -> None:
    from torch.utils.data import DataLoader

    rows = make(64).torch(seed=0)
    first, second = ([float(row["size"]) for row in DataLoader(rows, batch_size=None)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(64))
    assert first != second
    batch = next(iter(DataLoader(make(64).torch(batch=16), batch_size=None)))
    assert batch["price"].tolist() == [10 * row for row in range(16)]


@pytest.mark.parametrize("persistent", [False, True])
def test_torch_workers_see_another_order_each_epoch(persistent: bool) -> None:
    from torch.utils.data import DataLoader

    def read(rows: object) -> list[list[float]]:
        context = {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": persistent}
        loader = DataLoader(rows, batch_size=None, **context)  # type: ignore[arg-type]
        return [[float(size) for batch in loader for size in batch["size"]] for _ in range(3)]

    first, second, third = read(make(40).torch(batch=4, seed=0))
    assert sorted(first) == sorted(second) == sorted(third) == list(range(40))
    assert first != second
    assert second != third
    assert read(make(40).torch(batch=4, seed=0)) == [first, second, third]
    rows = make(40).torch(batch=4, seed=0)
    rows.epoch = 1
    assert read(rows)[0] == second


def test_torch_workers_share_the_rows() -> None:
    from torch.utils.data import DataLoader

    loader = DataLoader(make(20).torch(batch=4), batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert sorted(float(size) for batch in loader for size in batch["size"]) == list(range(20))


def test_tensorflow_pipelines_see_every_row_once_in_another_order_each_epoch() -> None:
    rows = make(64).tf(batch=10, seed=0)
    first, second = ([float(size) for batch in rows for size in batch["size"]] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(64))
    assert first != second
    assert rows.element_spec["colour"].dtype.name == "string"
    row = list(make(3).tf())[1]
    assert (row["colour"].numpy(), row["price"].numpy()) == (b"", 10)
