"""Tables in files: the same rows from every format, in memory or block by block, and errors that name the file."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet
import pytest

from tensorferry import BadData
from tensorferry.datasets import Dataset, load, tables, text_tables

NUM_ROWS = 3000


def make_table() -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(NUM_ROWS), pa.int64()),
            "height": pa.array([None if row == 7 else row / 4 for row in range(NUM_ROWS)], pa.float64()),
            "floors": pa.array([None if row == NUM_ROWS - 1 else row % 9 for row in range(NUM_ROWS)], pa.int64()),
            "city": pa.array([None if row == 5 else ("Łódź", "Bern", "São, Paulo")[row % 3] for row in range(NUM_ROWS)]),
            "note": pa.array([f"row {row}" for row in range(NUM_ROWS)]),
            "sold": pa.array([row % 2 == 0 for row in range(NUM_ROWS)]),
        }
    )


def save(folder: Path, suffix: str) -> Path:
    path, table = folder / f"houses{suffix}", make_table()
    if suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=400)
    elif suffix == ".arrow":
        with pyarrow.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=400)
    elif suffix == ".jsonl":
        import json

        path.write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    else:
        options = pyarrow.csv.WriteOptions(delimiter="\t" if suffix == ".tsv" else ",")
        pyarrow.csv.write_csv(table, path, options)
    return path


def check(dataset: Dataset) -> None:
    assert len(dataset) == NUM_ROWS
    assert [(column.name, column.kind, column.dtype) for column in dataset.columns] == [
        ("id", "integer", "int64"),
        ("height", "number", "float64"),
        ("floors", "number", "float64"),  # one is missing
        ("city", "category", "object"),
        ("note", "text", "object"),
        ("sold", "boolean", "bool"),
    ]
    rows = dataset.numpy()
    assert rows["id"].tolist() == list(range(NUM_ROWS))
    assert np.flatnonzero(np.isnan(rows["height"])).tolist() == [7]
    assert np.flatnonzero(np.isnan(rows["floors"])).tolist() == [NUM_ROWS - 1]
    assert rows["city"][:6].tolist() == ["Łódź", "Bern", "São, Paulo", "Łódź", "Bern", None]
    assert rows["sold"][:2].tolist() == [True, False]


@pytest.mark.parametrize("suffix", tables.SUFFIXES)
def test_every_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    check(load(save(tmp_path, suffix)))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".arrow"])
def test_a_large_file_is_read_block_by_block(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_IN_MEMORY_NBYTES", 0)
    monkeypatch.setattr(text_tables, "_BLOCK_NBYTES", 16384)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    dataset = load(save(tmp_path, suffix))
    assert len(dataset.rows.block_sizes) > 3
    check(dataset)
    first, second = ([batch["id"] for batch in dataset.batches(128, seed=5)] for _ in range(2))
    assert all(map(np.array_equal, first, second))


def test_a_large_text_file_is_converted_once_and_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_IN_MEMORY_NBYTES", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = save(tmp_path, ".csv")
    load(path)
    (converted,) = tables.cache_folder().iterdir()
    written = converted.stat().st_mtime_ns
    load(path)
    assert converted.stat().st_mtime_ns == written
    path.write_text("id,height\n1,2\n")
    assert len(load(path)) == 1


def test_several_files_with_the_same_columns_are_one_table(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"part-{number}.csv").write_text(f"a,b\n{number},x\n")
    assert load(f"{tmp_path}/").numpy()["a"].tolist() == [0, 1, 2]
    (tmp_path / "part-3.csv").write_text("a,c\n1,2\n")
    with pytest.raises(BadData, match=r"part-3.csv has other columns.*it has c \(int64\); it lacks b \(object\)"):
        load(f"{tmp_path}/")
    (tmp_path / "part-3.csv").write_text("b,a\nx,1\n")
    with pytest.raises(BadData, match="in another order"):
        load(f"{tmp_path}/")
    (tmp_path / "part-3.csv").write_text("a,b\nsoon,x\n")
    with pytest.raises(BadData, match=r"part-3.csv has another type of 'a' than part-0.csv: object instead of int64"):
        load(f"{tmp_path}/")


@pytest.mark.parametrize("large", [False, True])
def test_what_one_file_shows_of_a_column_holds_for_all(tmp_path: Path, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    header = "number,flag,note,word,day\n"
    (tmp_path / "part-0.csv").write_text(header + "".join(f"{row},true,note {row},a,2024-01-01\n" for row in range(9)))
    (tmp_path / "part-1.csv").write_text(header + ",,note,b,\n" * 4)
    if large:
        table = pa.table({"number": [1.5], "flag": [False], "note": ["x"], "word": ["c"], "day": [None]}, _schema_of_parts())
        pyarrow.parquet.write_table(table, tmp_path / "part-2.parquet")
        monkeypatch.setattr(tables, "_IN_MEMORY_NBYTES", 600)
    dataset = load(f"{tmp_path}/")
    assert [(column.kind, column.dtype) for column in dataset.columns] == [
        ("number", "float64"),
        ("boolean", "object"),
        ("text", "object"),
        ("category", "object"),
        ("time", "datetime64[us]"),
    ]
    rows = dataset.select(range(8, 11)).numpy()
    assert rows["number"].tolist()[:1] == [8.0]
    assert np.isnan(rows["number"][1:]).all()
    assert rows["flag"].tolist() == [True, None, None]
    assert rows["word"].tolist() == ["a", "b", "b"]
    assert np.isnat(rows["day"]).tolist() == [False, True, True]
    assert dataset.with_target("word").target.tolist()[:10] == ["a"] * 9 + ["b"]


def _schema_of_parts() -> pa.Schema:
    kinds = {"number": pa.float64(), "flag": pa.bool_(), "note": pa.string(), "word": pa.string(), "day": pa.timestamp("us")}
    return pa.schema(list(kinds.items()))


def test_files_called_train_and_test_are_splits(tmp_path: Path) -> None:
    for name, rows in (("train", 4), ("test", 2)):
        (tmp_path / f"{name}.csv").write_text("a\n" + "1\n" * rows)
    assert len(load(tmp_path, split="test")) == 2
    assert len(load(tmp_path)) == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n1,2,3\n", r"table: CSV parse error.*Expected 2 columns, got 3"),
        (b"a,b\n", "holds no rows"),
        (b"", "cannot read"),
        (b"a,b\n\xff\xfe,1\n", "cannot read|UTF8"),
    ],
)
def test_a_table_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "broken.csv"
    path.write_bytes(content)
    with pytest.raises(BadData, match=message) as caught:
        load(path)
    assert "broken.csv" in str(caught.value)


@pytest.fixture
def as_if_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_IN_MEMORY_NBYTES", 0)
    monkeypatch.setattr(text_tables, "_BLOCK_NBYTES", 64)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_types_of_a_large_csv_file_are_those_of_all_its_blocks(tmp_path: Path, as_if_large: None) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("whole,late,word,day\n" + "1,,7,2024-01-01\n" * 50 + "1.5,3,seven,soon\n")
    dataset = load(path)
    assert [column.dtype for column in dataset.columns] == ["float64", "float64", "object", "object"]
    rows = dataset.numpy()
    assert (rows["whole"][-1], rows["late"][-1], rows["word"].tolist()[-2:]) == (1.5, 3, ["7", "seven"])
    assert rows["day"].tolist()[-2:] == ["2024-01-01", "soon"]


def test_types_of_large_json_lines_are_those_of_all_blocks(tmp_path: Path, as_if_large: None) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n' * 50 + '{"a": 1.5, "b": "new"}\n')
    rows = load(path).numpy()
    assert (rows["a"][-1], rows["b"][0], rows["b"][-1]) == (1.5, None, "new")
    path.write_text('{"a": 1}\n' * 50 + '{"a": "x"}\n')
    with pytest.raises(BadData, match=r"rows\.jsonl"):
        load(path)


@pytest.mark.parametrize("large", [False, True])
def test_a_wrong_row_of_a_csv_file_is_told(tmp_path: Path, large: bool, request: pytest.FixtureRequest) -> None:
    if large:
        request.getfixturevalue("as_if_large")
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n" + "1,2\n" * 50 + "1,2,3\n")
    with pytest.raises(BadData, match=r"rows\.csv.*Row #52: Expected 2 columns, got 3"):
        load(path)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow"])
@pytest.mark.parametrize("large", [False, True])
def test_two_columns_of_one_name_are_told(tmp_path: Path, suffix: str, large: bool, request: pytest.FixtureRequest) -> None:
    if large:
        request.getfixturevalue("as_if_large")
    path = tmp_path / f"twice{suffix}"
    table = pa.table([[1], [2]], names=["a", "a"])
    if suffix == ".csv":
        path.write_text("a,a\n1,2\n")
    elif suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with pyarrow.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(BadData, match=f"twice{suffix} has two columns 'a'"):
        load(path)


def test_a_damaged_row_group_is_told_with_its_rows(tmp_path: Path, as_if_large: None) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.table({"a": np.arange(4000), "b": np.arange(4000) / 2})
    pyarrow.parquet.write_table(table, path, row_group_size=1000, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    header = pyarrow.parquet.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    content[header : header + 10] = b"\xff" * 10
    path.write_bytes(content)
    dataset = load(path)
    with pytest.raises(BadData, match=r"rows\.parquet.*\(rows 2,000 to 2,999\)"):
        dataset.numpy()


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_large_file_without_rows_is_told(tmp_path: Path, suffix: str, as_if_large: None) -> None:
    path, schema = tmp_path / f"empty{suffix}", pa.schema([("a", pa.int64())])
    if suffix == ".parquet":
        pyarrow.parquet.ParquetWriter(path, schema).close()
    else:
        pyarrow.ipc.new_file(str(path), schema).close()
    with pytest.raises(BadData, match="holds no rows"):
        load(path)


def test_suffixes_may_be_in_capitals(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "ROWS.CSV").write_text("a,b\n1,x\n")
    assert load(tmp_path / "ROWS.CSV").numpy()["a"].tolist() == [1]
    assert len(load(f"{tmp_path}/")) == 1
    request.getfixturevalue("as_if_large")
    (tmp_path / "ROWS.TSV").write_text("a\tb\n1\tx\n")
    assert load(tmp_path / "ROWS.TSV").numpy()["b"].tolist() == ["x"]


def test_times_and_booleans_stay_what_they_are_where_some_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("day,seen\n2024-05-01,true\n,\n2024-05-02,false\n")
    dataset = load(path)
    assert [(column.kind, column.dtype) for column in dataset.columns] == [("time", "datetime64[us]"), ("boolean", "object")]
    rows = dataset.numpy()
    assert rows["day"][0] == np.datetime64("2024-05-01")
    assert np.isnat(rows["day"][1])
    assert rows["seen"].tolist() == [True, None, False]
    assert [each["seen"].numpy() for each in dataset.tf()] == [b"True", b"", b"False"]
    assert int(next(iter(dataset.torch(batch=1)))["day"]) == 1714521600 * 10**6


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
def test_a_file_that_is_something_else_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(b"not a table at all")
    with pytest.raises(BadData, match=f"broken{suffix}"):
        load(path)


def test_what_hugging_face_saved_is_read(tmp_path: Path) -> None:
    for split in ("train", "test"):
        folder = tmp_path / split
        folder.mkdir()
        (folder / "state.json").write_text("{}")
        table = make_table().slice(0, 10 if split == "train" else 4)
        with pyarrow.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as writer:
            writer.write_table(table)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert len(load(tmp_path, split="train")) == 10
    assert load(tmp_path, split="test").numpy()["id"].tolist() == [0, 1, 2, 3]


def test_a_text_in_another_encoding_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes("word,number\nplain,1\ncafé,2\n".encode("latin-1"))
    with pytest.raises(BadData, match=r"rows.csv' as a table: line 3 is no text in UTF-8"):
        load(tmp_path / "rows.csv")
