"""TFRecord files: records of `tf.train.Example`, and the folders that TFDS prepares of them.

A record has its length, a checksum of it, its bytes and a checksum of these. Lengths alone are read first, so that every block of
records can be read by itself later.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorferry.datasets.column import Column
from tensorferry.datasets.dataset import Dataset
from tensorferry.datasets.rows import Columns, JoinedRows
from tensorferry.errors import BadData, MissingExtra
from tensorferry.extras import load_extra, missing_extra

Parse: TypeAlias = Callable[[bytes, Path], dict[str, NDArray]]  # a record and its file -> features

RECORD_SUFFIXES = ("tfrecord", "tfrecords")
_BLOCK_ROWS = 256
_LENGTH, _CHECKSUM = struct.Struct("<Q"), 4


@dataclass(frozen=True)
class RecordRows:
    """The examples of one TFRecord file."""

    path: Path
    starts: NDArray[np.int64]  # where each record's bytes begin
    lengths: NDArray[np.int64]
    columns: tuple[Column, ...]
    parse: Parse

    @property
    def block_sizes(self) -> Sequence[int]:
        """Blocks of equal size; the last one may be shorter."""
        return [min(_BLOCK_ROWS, len(self.starts) - start) for start in range(0, len(self.starts), _BLOCK_ROWS)]

    def read_block(self, number: int) -> Columns:
        """Some examples."""
        chosen = slice(number * _BLOCK_ROWS, (number + 1) * _BLOCK_ROWS)
        with self.path.open("rb") as file:
            records = [
                _read(file, start, length) for start, length in zip(self.starts[chosen], self.lengths[chosen], strict=True)
            ]
        examples = [self.parse(record, self.path) for record in records]
        return {column.name: _stack([example.get(column.name) for example in examples], column) for column in self.columns}


def read_records(paths: Sequence[Path], name: str) -> Dataset:
    """The examples of TFRecord files, one behind the other; columns are the features of the first."""
    return _join(paths, name, _parse)


def read_sequences(paths: Sequence[Path], name: str, feature: str) -> Dataset:
    """The `tf.train.SequenceExample`s of TFRecord files: one feature, a sequence of as many values a record."""

    def parse(record: bytes, path: Path) -> dict[str, NDArray]:
        example = _load(_tensorflow().train.SequenceExample(), record, path)
        if feature not in example.feature_lists.feature_list:
            raise BadData(f"{str(path)!r} holds a record without the sequence {feature!r}")
        values = [part.bytes_list.value[0] for part in example.feature_lists.feature_list[feature].feature]
        return {feature: np.array([*values, None], object)[:-1]}

    return _join(paths, name, parse)


def _join(paths: Sequence[Path], name: str, parse: Parse) -> Dataset:
    parts = []
    columns: tuple[Column, ...] = ()
    for path in paths:
        starts, lengths = _list_records(path)
        if not columns and len(starts):
            with path.open("rb") as file:
                columns = _describe(parse(_read(file, starts[0], lengths[0]), path))
        parts.append(RecordRows(path, starts, lengths, columns, parse))
    if not columns:
        raise BadData(f"{str(paths[0])!r} holds no records")
    return Dataset(name, parts[0] if len(parts) == 1 else JoinedRows(parts), columns)


def read_prepared(folder: Path) -> dict[str, Dataset]:
    """A folder that TFDS prepared, through its own readers, which decode the features; nothing is asked of the network."""
    try:
        tfds = load_extra("tensorflow_datasets", "reading a folder that TFDS prepared")
    except MissingExtra as error:
        raise MissingExtra(
            f"{str(folder)!r} was prepared by TFDS, whose package is not installed: pip install tensorflow-datasets"
        ) from error
    from tensorferry.datasets.prepared import open_prepared

    return open_prepared(tfds, folder)


def _list_records(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    starts: list[int] = []
    lengths: list[int] = []
    nbytes = path.stat().st_size
    with path.open("rb") as file:
        place = 0
        while place < nbytes:
            file.seek(place)
            head = file.read(_LENGTH.size)
            length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else nbytes
            start = place + _LENGTH.size + _CHECKSUM
            if start + length + _CHECKSUM > nbytes:
                raise BadData(
                    f"{str(path)!r}, record {len(starts)}: ends behind the file's end; it is damaged, or no TFRecord file"
                )
            starts.append(start)
            lengths.append(length)
            place = start + length + _CHECKSUM
    return np.asarray(starts, np.int64), np.asarray(lengths, np.int64)


def _read(file: Any, start: int, length: int) -> bytes:
    file.seek(int(start))
    return file.read(int(length))


def _parse(record: bytes, path: Path) -> dict[str, NDArray]:
    example = _load(_tensorflow().train.Example(), record, path)
    return {name: _value(feature) for name, feature in sorted(example.features.feature.items())}


def _load(message: Any, record: bytes, path: Path) -> Any:
    from google.protobuf.message import DecodeError

    try:
        message.ParseFromString(record)
    except DecodeError as error:
        raise BadData(f"{str(path)!r} holds a record that is no {type(message).__name__} of TensorFlow") from error
    return message


def _tensorflow() -> Any:
    try:
        import tensorflow
    except ModuleNotFoundError as error:
        raise missing_extra("reading TFRecord files", "tensorflow") from error
    return tensorflow


def _value(feature: Any) -> NDArray:
    kind = feature.WhichOneof("kind")
    if kind == "bytes_list":
        return np.array([*feature.bytes_list.value, None], object)[:-1]
    values = feature.int64_list.value if kind == "int64_list" else feature.float_list.value
    return np.array(values, np.int64 if kind == "int64_list" else np.float32)


def _describe(example: dict[str, NDArray]) -> tuple[Column, ...]:
    kinds = {"i": "integer", "f": "number", "O": "other"}
    return tuple(
        Column(name, kinds[values.dtype.kind], str(values.dtype), () if len(values) == 1 else (len(values),))  # type: ignore[arg-type]
        for name, values in example.items()
    )


def _stack(values: list[NDArray | None], column: Column) -> NDArray:
    wanted = column.shape[0] if column.shape else 1
    missing = next((value for value in values if value is None or len(value) != wanted), values[0])
    if missing is None or len(missing) != wanted:
        found = "none" if missing is None else len(missing)
        raise BadData(f"the feature {column.name!r} has {wanted} values in the first record and {found} in another")
    stacked = np.stack([value for value in values if value is not None])
    return stacked if column.shape else stacked[:, 0]
