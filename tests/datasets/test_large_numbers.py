"""Whole numbers above 2^53, such as ids: their digits stay, whether some are missing, and whatever other files hold."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet
import pytest

from tensorferry.datasets import load, tables
from tensorferry.feature_columns.table import read_table, read_words

IDS = [2**60 + 1, None, 2**60 + 2, -(2**62) - 1]
FORMATS = (".parquet", ".arrow", ".csv", ".jsonl")


def write(path: Path, columns: dict[str, pa.Array]) -> None:
    table = pa.table(columns)
    match path.suffix:
        case ".parquet":
            pa.parquet.write_table(table, path, row_group_size=2)
        case ".arrow":
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table, max_chunksize=2)
        case ".csv":
            pa.csv.write_csv(table, path)
        case _:
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("suffix", FORMATS)
def test_ids_of_which_some_are_missing_keep_their_digits(
    tmp_path: Path, suffix: str, in_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_blocks:
        monkeypatch.setattr(tables, "_IN_MEMORY_NBYTES", 0)
    write(tmp_path / f"rows{suffix}", {"id": pa.array(IDS, pa.int64()), "few": pa.array([1, None, 3, 4], pa.int64())})
    dataset = load(tmp_path / f"rows{suffix}")
    assert dataset.numpy()["id"].tolist() == IDS
    assert [column.dtype for column in dataset.columns] == ["object", "float64"]
    assert read_words(read_table(dataset), "id").tolist() == [None if each is None else str(each) for each in IDS]


@pytest.mark.parametrize("in_blocks", [False, True])
def test_numbers_above_the_range_of_signed_ones_stay_what_they_are(
    tmp_path: Path, in_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_blocks:
        monkeypatch.setattr(tables, "_IN_MEMORY_NBYTES", 0)
    large = [2**64 - 1, 2**63, 5]
    write(tmp_path / "rows.parquet", {"id": pa.array(large, pa.uint64()), "x": pa.array([1, 2, 3])})
    assert load(tmp_path / "rows.parquet").numpy()["id"].tolist() == large


def test_statistics_that_a_file_lacks_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_IN_MEMORY_NBYTES", 0)
    table = pa.table({"id": pa.array(IDS, pa.int64())})
    pa.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=2, write_statistics=False)
    assert load(tmp_path / "rows.parquet").numpy()["id"].tolist() == IDS


def test_one_files_ids_keep_their_digits_beside_another_that_lacks_some(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", {"id": pa.array([2**60 + 1, 7]), "x": pa.array([1, 1])})
    write(tmp_path / "b.parquet", {"id": pa.array([8, None]), "x": pa.array([1, 1])})
    write(tmp_path / "c.csv", {"id": pa.array([None, None], pa.int64()), "x": pa.array([1, 1])})
    dataset = load(f"{tmp_path}/")
    assert dataset.numpy()["id"].tolist() == [2**60 + 1, 7, 8, None, None, None]
    assert dataset.select(np.array([0])).numpy()["id"].tolist() == [2**60 + 1]
