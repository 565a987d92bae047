"""Labelled sentences from a user's file: CSV, TSV, JSON lines or a JSON array of objects."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorferry.errors import BadData
from tensorferry.messages import did_you_mean

READABLE = (".csv", ".tsv", ".jsonl", ".json")
MIN_SENTENCES = 10  # fewer leave nothing to hold out


def read_sentences(path: Path, text_column: str, label_column: str) -> list[tuple[str, str]]:
    """Sentences with their labels, in the file's order; `BadData` names the file and the line that cannot be used."""
    sentences = [(_value(record, text_column, where), _value(record, label_column, where)) for where, record in _records(path)]
    if len(sentences) < MIN_SENTENCES:
        raise BadData(f"{path} holds {len(sentences)} sentences; at least {MIN_SENTENCES} are needed to train and evaluate")
    labels = {label for _, label in sentences}
    if len(labels) == 1:
        raise BadData(f"every sentence of {path} is labelled {labels.pop()!r}; at least two labels are needed")
    if len(labels) > len(sentences) / 2:
        raise BadData(
            f"{path} has {len(labels)} different labels for {len(sentences)} sentences; "
            f"is {label_column!r} the column of the labels?"
        )
    return sentences


def _value(record: dict[str, Any], column: str, where: str) -> str:
    if column not in record:
        names = [str(name) for name in record]
        raise BadData(
            f"{where} has no column {column!r}{did_you_mean(column, names)}; it has {', '.join(names)}. "
            "Name yours with --set text=... and --set label=..."
        )
    value = record[column]
    if value is None or not str(value).strip():
        raise BadData(f"{where}: {column!r} is empty; fill it in, or leave the line out")
    return str(value).strip()


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each record is, for errors, and the record."""
    if path.suffix.lower() not in READABLE:
        raise BadData(f"cannot read sentences from {str(path)!r}; give a file that ends with {', '.join(READABLE)}")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            match path.suffix.lower():
                case ".jsonl":
                    yield from _read_json_lines(path, file)
                case ".json":
                    yield from _read_json(path, file)
                case suffix:
                    yield from _read_csv(path, file, "\t" if suffix == ".tsv" else ",")
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"cannot read {str(path)!r}: {error.strerror if isinstance(error, OSError) else error}") from error


def _read_csv(path: Path, file: Any, separator: str) -> Iterator[tuple[str, dict[str, Any]]]:
    rows = csv.DictReader(file, delimiter=separator, strict=True)
    try:
        for row in rows:
            if None in row:
                raise BadData(
                    f"{path}, line {rows.line_num}: more values than the first line has names; quote texts with a {separator!r}"
                )
            yield f"{path}, line {rows.line_num}", row
    except csv.Error as error:
        raise BadData(f"{path}, line {rows.reader.line_num}: {error}") from error


def _read_json_lines(path: Path, file: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _object(_parse(line, where), where)


def _read_json(path: Path, file: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    records = _parse(file.read(), str(path))
    if not isinstance(records, list):
        raise BadData(f"expected {path} to hold a JSON array of objects, received {type(records).__name__}")
    for number, record in enumerate(records, 1):
        where = f"{path}, record {number}"
        yield where, _object(record, where)


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadData(f"{where}: not JSON: {error}") from error


def _object(record: Any, where: str) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise BadData(f'{where}: expected an object such as {{"text": "...", "label": "..."}}, received {record!r:.60}')
    return record
