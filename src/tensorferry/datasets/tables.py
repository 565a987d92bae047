"""Tables in files: CSV, TSV, JSON lines, Parquet and Arrow; in memory where they are small, block by block where they are not.

A text file has no blocks that could be read by themselves, so a large one is written once as an Arrow file into the user's cache,
which is found again by the file's path, size and time of change.
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.datasets.column import Column, Kind
from tensorferry.datasets.dataset import Dataset
from tensorferry.datasets.rows import ArrayRows, Columns
from tensorferry.datasets.table_parts import join_tables
from tensorferry.datasets.text_tables import convert_text, find_bad_line, read_text
from tensorferry.errors import BadData
from tensorferry.extras import load_extra
from tensorferry.files import find_cache_folder
from tensorferry.messages import first_line

TEXT_SUFFIXES = (".csv", ".tsv", ".jsonl")
SUFFIXES = (*TEXT_SUFFIXES, ".parquet", ".arrow")
_IN_MEMORY_NBYTES = 64 * 2**20  # a file up to this size is read whole
_MAX_CATEGORIES = 1000  # a column of texts with more different ones is a name or a note
LARGEST_EXACT = 2**53  # above it, not every whole number is a float64
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


@dataclass(frozen=True)
class ParquetBlocks:
    """The row groups of a Parquet file; another process opens it for itself."""

    path: Path

    @cached_property
    def file(self) -> Any:
        """The open file."""
        return load_extra("pyarrow.parquet", "reading Parquet files", "datasets").ParquetFile(self.path)

    def __call__(self, number: int, names: list[str]) -> Any:
        return self.file.read_row_group(number, names)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}


@dataclass(frozen=True)
class ArrowBlocks:
    """The batches of an Arrow file; another process opens it for itself."""

    path: Path

    @cached_property
    def file(self) -> Any:
        """The open file."""
        # pages of a mapped file would count as the process's memory
        return load_extra("pyarrow.ipc", "reading Arrow files", "datasets").open_file(_arrow().OSFile(str(self.path)))

    def __call__(self, number: int, names: list[str]) -> Any:
        return self.file.get_batch(number).select(names)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}


def read_tables(paths: Sequence[Path], name: str) -> Dataset:
    """The rows of files with the same columns, one behind the other."""
    return join_tables(paths, [read_file(path) for path in paths], name)


def dataset_from_arrow(table: Any, name: str) -> Dataset:
    """The rows of an Arrow table that is in memory."""
    _check_names(name, table.column_names)
    table = table.select([each for each in table.column_names if each not in _DROPPED])
    nullable = {each for each in table.column_names if table[each].null_count}
    large = {each for each in _list_long(table.schema) if _is_large(_find_bounds(table[each]))}
    columns = _describe(table.schema, nullable, large, [table])
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
    blocks = ParquetBlocks(path)
    file = blocks.file
    _check_names(path.name, file.schema_arrow.names)
    if nbytes <= _IN_MEMORY_NBYTES:
        return _checked(path, dataset_from_arrow(file.read(), path.name))
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    long = _list_long(file.schema_arrow)
    nullable, large = set(), set()
    for number, group in enumerate(groups):
        chunks = (group.column(place) for place in range(group.num_columns))
        counted = {chunk.path_in_schema: chunk.statistics for chunk in chunks}
        nullable |= {name for name, found in counted.items() if found is None or not found.has_null_count or found.null_count}
        for name in long:
            told = counted[name]
            is_told = told is not None and told.has_min_max
            bounds = (told.min, told.max) if is_told else _find_bounds(file.read_row_group(number, [name])[name])
            large |= {name} if _is_large(bounds) else set()
    columns = _describe(file.schema_arrow, nullable, large, [file.read_row_group(0)] if groups else [])
    rows = BlockRows(path, [group.num_rows for group in groups], blocks, columns)
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
    columns = _describe(file.schema, nullable, _find_large_blocks(path, file.schema), blocks[:1])
    rows = BlockRows(path, [block.num_rows for block in blocks], ArrowBlocks(path), columns)
    return _checked(path, Dataset(name, rows, columns))


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
    found = find_cache_folder()
    if found is None:
        raise BadData("there is no home folder to keep large tables in; set XDG_CACHE_HOME to a folder with room")
    return found / "datasets"


def _list_long(schema: Any) -> list[str]:
    """The columns of whole numbers that may be too large for a float64."""
    return [field.name for field in schema if field.type in (_arrow().int64(), _arrow().uint64())]


def _find_bounds(values: Any) -> tuple[int | None, int | None]:
    """The least and the largest value."""
    found = load_extra("pyarrow.compute", "reading tables", "datasets").min_max(values).as_py()
    return found["min"], found["max"]


def _is_large(bounds: tuple[int | None, int | None]) -> bool:
    return any(bound is not None and abs(bound) > LARGEST_EXACT for bound in bounds)


def _find_large_blocks(path: Path, schema: Any) -> set[str]:
    """The columns of an Arrow file that hold large whole numbers, which nothing in it tells but the numbers."""
    large: set[str] = set()
    long = _list_long(schema)
    if long:
        ipc, pa = load_extra("pyarrow.ipc", "reading Arrow files", "datasets"), _arrow()
        options = ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in long])
        with pa.OSFile(str(path)) as source:
            file = ipc.open_file(source, options=options)
            for number in range(file.num_record_batches):
                block = file.get_batch(number)
                large |= {name for name in long if name not in large and _is_large(_find_bounds(block.column(name)))}
    return large


def _describe(schema: Any, nullable: set[str], large: set[str], sample: Iterable[Any]) -> tuple[Column, ...]:
    tables = list(sample)
    return tuple(
        _describe_column(field, field.name in nullable, field.name in large, [table[field.name] for table in tables])
        for field in schema
        if field.name not in _DROPPED
    )


def _describe_column(field: Any, nullable: bool, large: bool, sample: list[Any]) -> Column:
    types = _arrow().types
    if types.is_boolean(field.type):
        return Column(field.name, "boolean", "object" if nullable else "bool")
    if types.is_timestamp(field.type) or types.is_date(field.type):
        return Column(field.name, "time", "datetime64[us]")
    if large:
        return Column(field.name, "integer", "object" if nullable else str(field.type), is_large=True)
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
        is_kept = pa.types.is_nested(values.type) or pa.types.is_boolean(values.type) or pa.types.is_integer(values.type)
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


@contextmanager
def _naming(path: Path, place: str = "") -> Iterator[None]:
    """Errors of Arrow and of the system become `BadData` that names the file."""
    try:
        yield
    except OSError as error:
        raise BadData(f"cannot read {str(path)!r}{place}: {error.strerror or first_line(error)}") from error
    except (_arrow().ArrowException, UnicodeDecodeError) as error:
        reason = first_line(error)
        if path.suffix.lower() in TEXT_SUFFIXES and "utf" in reason.lower() and (line := find_bad_line(path)) is not None:
            reason = f"line {line} is no text in UTF-8; save the file in that encoding"
        raise BadData(f"cannot read {str(path)!r} as a table{place}: {reason}") from error


def _arrow() -> Any:
    return load_extra("pyarrow", "reading tables", "datasets")
