"""Reading rows in batches: every row once, in an order that a seed decides, whatever the blocks and the window."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorferry.datasets import rows
from tensorferry.datasets.rows import ArrayRows, Columns, JoinedRows, choose_columns, count_nbytes, read_batches


@dataclass
class NumberedBlocks:
    """Blocks of numbered rows, and which of them were read."""

    block_sizes: Sequence[int]
    read: list[int] = field(default_factory=list)

    def read_block(self, number: int) -> Columns:
        self.read.append(number)
        start = sum(self.block_sizes[:number])
        return {"row": np.arange(start, start + self.block_sizes[number])}


def list_rows(source: rows.Rows, places: Sequence[int] | None = None, size: int = 7, **options: int | None) -> list[list[int]]:
    chosen = None if places is None else np.asarray(places, np.int64)
    return [batch["row"].tolist() for batch in read_batches(source, chosen, size, **{"seed": None, **options})]


@pytest.fixture
def narrow_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "WINDOW_NBYTES", 160)  # 20 rows of 8 bytes


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    size=st.integers(1, 50),
    seed=st.none() | st.integers(0, 9),
    data=st.data(),
    window=st.sampled_from((1, 160, 2**20)),
)
def test_every_chosen_row_comes_once_in_batches_of_one_size(
    sizes: list[int], size: int, seed: int | None, data: st.DataObject, window: int
) -> None:
    places = data.draw(st.none() | st.sets(st.integers(0, max(sum(sizes) - 1, 0))).map(sorted))
    if sum(sizes) == 0:
        places = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "WINDOW_NBYTES", window)
        batches = list_rows(NumberedBlocks(sizes), places, size, seed=seed)
    expected = list(range(sum(sizes))) if places is None else list(places)
    found = [row for batch in batches for row in batch]
    assert sorted(found) == expected
    assert all(len(batch) == size for batch in batches[:-1])
    if seed is None:
        assert found == expected


def test_the_order_follows_from_seed_and_epoch(narrow_window: None) -> None:
    blocks = NumberedBlocks([10] * 20)
    first = list_rows(blocks, seed=1)
    assert first == list_rows(blocks, seed=1)
    assert first != list_rows(blocks, seed=2)
    assert first != list_rows(blocks, seed=1, epoch=1)


def test_a_set_that_fits_the_window_is_shuffled_as_a_whole() -> None:
    shuffled = [row for batch in list_rows(NumberedBlocks([10] * 20), seed=0) for row in batch]
    assert len({row // 10 for row in shuffled[:20]}) > 8  # rows of many blocks stand side by side


def test_no_more_blocks_are_read_than_one_window_ahead(narrow_window: None) -> None:
    blocks = NumberedBlocks([10] * 100)
    batches = read_batches(blocks, None, 5, seed=0)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert len(blocks.read) <= 4


def test_blocks_without_a_chosen_row_are_not_read() -> None:
    blocks = NumberedBlocks([10] * 10)
    assert list_rows(blocks, [55, 57]) == [[55, 57]]
    assert blocks.read == [5]


def test_the_last_short_batch_can_be_left_out() -> None:
    table = ArrayRows({"row": np.arange(10)})
    assert [len(batch["row"]) for batch in read_batches(table, None, 4, seed=None, drop_last=True)] == [4, 4]


def test_joined_sources_are_numbered_one_behind_the_other() -> None:
    joined = JoinedRows([ArrayRows({"row": np.arange(3)}), ArrayRows({"row": np.arange(3, 8)})])
    assert list_rows(joined, [2, 3, 7]) == [[2, 3, 7]]


def test_an_error_in_reading_reaches_the_caller() -> None:
    class Broken(NumberedBlocks):
        def read_block(self, number: int) -> Columns:
            raise OSError("disk on fire")

    with pytest.raises(OSError, match="disk on fire"):
        list_rows(Broken([3]))


def test_what_objects_point_to_counts_as_memory() -> None:
    pictures = np.empty(3, object)
    pictures[:] = [np.zeros(1000, np.uint8), None, np.zeros((10, 30))]
    assert count_nbytes({"image": pictures}) == 3 * 8 + 1000 + 2400
    assert count_nbytes({"text": np.array(["x" * 5000], object)}) > 5000
    assert count_nbytes({"words": np.array([["x" * 500] * 10, None], object)}) > 5000


def test_a_column_of_joined_sources_is_read_without_the_others() -> None:
    blocks = NumberedBlocks([2, 3])
    joined = JoinedRows([ArrayRows({"row": np.arange(2), "other": np.arange(2)}), blocks])
    chosen = choose_columns(joined, ["row"])
    assert [list(chosen.read_block(number)) for number in range(3)] == [["row"]] * 3
    assert [chosen.read_block(number)["row"].tolist() for number in range(3)] == [[0, 1], [0, 1], [2, 3, 4]]
