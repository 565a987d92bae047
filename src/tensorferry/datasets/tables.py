"""Tables in files: CSV, TSV, JSON lines, Parquet and Arrow; in memory where they are small, block by block where they are not.

A text file has no blocks that could be read by themselves, so a large one is written once as an Arrow file into the user's cache,
which is found again by the file's path, size and time of change.
"""

import hashlib
import os
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.datasets.column import Column, Kind
from tensorferry.datasets.dataset import Dataset
from tensorferry.datasets.rows import ArrayRows, Columns, JoinedRows
from tensorferry.datasets.text_tables import convert_text, read_text
from tensorferry.errors import BadData
from tensorferry.extras import load_extra
from tensorferry.messages import first_line

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow")
_IN_MEMORY_NBYTES = 64 * 2**20  # a file up to this size is read whole
_MAX_CATEGORIES = 1000  # a column of texts with more different ones is a name or a note
_DROPPED = ("__index_level_0__", "")  # the numbers that a data frame gave its rows


@dataclass(frozen=True)
class BlockRows:
    """Rows in a file of blocks."""

    path: Path
    block_sizes: Sequence[int]
    read_arrow: Callable[[int, list[str]], Any]  # columns of a block as an Arrow table
    columns: tuple[Column, ...]

    def read_block(self, number: int) -> Columns:
        """One block as arrays."""
        first = sum(self.block_sizes[:number])
        with _naming(self.path, f" (rows {first:,} to {first + self.block_sizes[number] - 1:,})"):
            table = self.read_arrow(number, [column.name for column in self.columns])
            return {column.name: _to_array(table[column.name], column.dtype) for column in self.columns}

    def only(self, names: Collection[str]) -> "BlockRows":
        """The rows without the other columns."""
        return replace(self, columns=tuple(column for column in self.columns if column.name in names))


def read_tables(paths: Sequence[Path], name: str) -> Dataset:
    """The rows of files with the same columns, one behind the other."""
    parts = [read_file(path) for path in paths]
    first = parts[0].columns
    for path, part in zip(paths[1:], parts[1:], strict=True):
        if part.columns != first:
            raise BadData(f"{path} has other columns or types than {paths[0].name}: {_difference(part.columns, first)}")
    return Dataset(name, parts[0].rows if len(parts) == 1 else JoinedRows([part.rows for part in parts]), first)


def dataset_from_arrow(table: Any, name: str) -> Dataset:
    """The rows of an Arrow table that is in memory."""
    _check_names(name, table.column_names)
    table = table.select([each for each in table.column_names if each not in _DROPPED])
    columns = _describe(table.schema, {each for each in table.column_names if table[each].null_count}, [table])
    return Dataset(name, ArrayRows({each.name: _to_array(table[each.name], each.dtype) for each in columns}), columns)


def read_file(path: Path, suffix: str | None = None) -> Dataset:
    """The rows of one file; `suffix` says what it is where its name does not."""
    suffix = (suffix or path.suffix).lower()
    with _naming(path):
        nbytes = path.stat().st_size
        if suffix == ".parquet":
            return _open_parquet(path, nbytes)
        if suffix == ".arrow":
            return _open_arrow(path, path.name)
        if nbytes <= _IN_MEMORY_NBYTES:
            return _checked(path, dataset_from_arrow(read_text(path, suffix), path.name))
        return _open_arrow(_convert(path, suffix), path.name)


def _open_parquet(path: Path, nbytes: int) -> Dataset:
    parquet = load_extra("pyarrow.parquet", "reading Parquet files", "datasets")
    file = parquet.ParquetFile(path)
    _check_names(path.name, file.schema_arrow.names)
    if nbytes <= _IN_MEMORY_NBYTES:
        return _checked(path, dataset_from_arrow(file.read(), path.name))
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    nullable = set()
    for group in groups:
        chunks = (group.column(place) for place in range(group.num_columns))
        counted = {chunk.path_in_schema: chunk.statistics for chunk in chunks}
        nullable |= {name for name, found in counted.items() if found is None or not found.has_null_count or found.null_count}
    columns = _describe(file.schema_arrow, nullable, [file.read_row_group(0)] if groups else [])
    rows = BlockRows(path, [group.num_rows for group in groups], file.read_row_group, columns)
    return _checked(path, Dataset(path.name, rows, columns))


def _open_arrow(path: Path, name: str) -> Dataset:
    ipc = load_extra("pyarrow.ipc", "reading Arrow files", "datasets")
    pa = _arrow()
    try:
        file = ipc.open_file(pa.memory_map(str(path)))
    except pa.ArrowInvalid:  # a stream, as Hugging Face writes them
        return _checked(path, dataset_from_arrow(ipc.open_stream(pa.memory_map(str(path))).read_all(), name))
    _check_names(name, file.schema.names)
    blocks = [file.get_batch(number) for number in range(file.num_record_batches)]  # mapped: nothing is read yet
    nullable = {name for block in blocks for name in block.schema.names if block.column(name).null_count}
    columns = _describe(file.schema, nullable, blocks[:1])
    unmapped = ipc.open_file(pa.OSFile(str(path)))  # pages of a mapped file would count as the process's memory

    def read(number: int, names: list[str]) -> Any:
        return unmapped.get_batch(number).select(names)

    return _checked(path, Dataset(name, BlockRows(path, [block.num_rows for block in blocks], read, columns), columns))


def _convert(path: Path, suffix: str) -> Path:
    """The Arrow file of a large text file, written unless it is there."""
    found = path.stat()
    key = hashlib.sha256(f"{path.resolve()}\0{found.st_size}\0{found.st_mtime_ns}".encode()).hexdigest()[:32]
    target = cache_folder() / f"{key}.arrow"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        convert_text(path, suffix, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


def cache_folder() -> Path:
    """Where large text files are kept as Arrow files."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tensorferry" / "datasets"
    except RuntimeError as error:
        raise BadData("there is no home folder to keep large tables in; set XDG_CACHE_HOME to a folder with room") from error


def _describe(schema: Any, nullable: set[str], sample: Iterable[Any]) -> tuple[Column, ...]:
    tables = list(sample)
    return tuple(
        _describe_column(field, field.name in nullable, [table[field.name] for table in tables])
        for field in schema
        if field.name not in _DROPPED
    )


def _describe_column(field: Any, nullable: bool, sample: list[Any]) -> Column:
    types = _arrow().types
    if types.is_boolean(field.type):
        return Column(field.name, "boolean", "object" if nullable else "bool")
    if types.is_timestamp(field.type) or types.is_date(field.type):
        return Column(field.name, "time", "datetime64[us]")
    if types.is_integer(field.type):
        return Column(field.name, "number", "float64") if nullable else Column(field.name, "integer", "int64")
    if types.is_floating(field.type) or types.is_decimal(field.type) or types.is_null(field.type):
        return Column(field.name, "number", "float64")
    if types.is_fixed_size_list(field.type):
        return Column(field.name, "other", field.type.value_type.to_pandas_dtype().__name__, (field.type.list_size,))
    if types.is_nested(field.type):
        return Column(field.name, "other", "object")
    return Column(field.name, _kind_of_texts(sample), "object")


def _kind_of_texts(sample: list[Any]) -> Kind:
    different = {value for part in sample for value in part.unique().to_pylist()}
    num_rows = sum(len(part) for part in sample)
    return "category" if len(different) <= min(_MAX_CATEGORIES, max(2, num_rows // 2)) else "text"


def _to_array(values: Any, dtype: str) -> NDArray:
    pa = _arrow()
    if pa.types.is_fixed_size_list(values.type):
        flat = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        return flat.flatten().to_numpy(zero_copy_only=False).reshape(len(flat), -1)
    if dtype == "object":
        is_kept = pa.types.is_nested(values.type) or pa.types.is_boolean(values.type)
        texts = values if is_kept else values.cast(pa.large_string())
        return np.asarray([*texts.to_pylist(), None], object)[:-1]  # the None keeps lists from becoming a second axis
    return values.cast(pa.from_numpy_dtype(np.dtype(dtype)), safe=False).to_numpy(zero_copy_only=False)


def _check_names(table: str, names: Sequence[str]) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1 and name not in _DROPPED]:
        raise BadData(f"{table} has two columns {twice[0]!r}; call one of them otherwise")


def _checked(path: Path, dataset: Dataset) -> Dataset:
    if not dataset.columns:
        raise BadData(f"{path} has no columns; expected a first line with the columns' names, and rows below it")
    if not len(dataset):
        raise BadData(f"{path} holds no rows")
    return dataset


def _difference(columns: tuple[Column, ...], expected: tuple[Column, ...]) -> str:
    here, there = ({(column.name, column.dtype) for column in each} for each in (columns, expected))
    extra, missing = sorted(here - there), sorted(there - here)
    return (
        "; ".join(
            f"{what} {', '.join(f'{name} ({dtype})' for name, dtype in found)}"
            for what, found in (("it has", extra), ("it lacks", missing))
            if found
        )
        or "in another order"
    )


@contextmanager
def _naming(path: Path, place: str = "") -> Iterator[None]:
    """Errors of Arrow and of the system become `BadData` that names the file."""
    try:
        yield
    except OSError as error:
        raise BadData(f"cannot read {str(path)!r}{place}: {error.strerror or first_line(error)}") from error
    except (_arrow().ArrowException, UnicodeDecodeError) as error:
        raise BadData(f"cannot read {str(path)!r} as a table{place}: {first_line(error)}") from error


def _arrow() -> Any:
    return load_extra("pyarrow", "reading tables", "datasets")
