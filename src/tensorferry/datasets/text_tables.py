"""CSV, TSV and JSON lines as Arrow tables; large ones block by block into an Arrow file.

Arrow infers types from a file's first block alone. Where a later block does not have them, the types are found again: of a CSV
file the wrong column's becomes the next wider one, of JSON lines all blocks' types are joined.
"""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorferry.extras import load_extra

_MISSING = ["", "?", "#N/A", "N/A", "NA", "NaN", "nan", "NULL", "null", "None"]
_BLOCK_NBYTES = 8 * 2**20  # of a file, parsed at a time
_WRONG_TYPE = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?CSV conversion error to (\w+)")
_WIDER = {"null": "int64", "int64": "float64"}  # anything else that does not fit is a text


def read_text(path: Path, suffix: str) -> Any:
    """The whole file as an Arrow table."""
    if suffix == ".jsonl":
        return _json().read_json(path)
    csv = _csv()
    try:
        return csv.read_csv(path, **_csv_options(suffix))
    except _arrow().ArrowInvalid:  # one thread can tell the row
        return csv.read_csv(path, read_options=csv.ReadOptions(use_threads=False), **_csv_options(suffix))


def find_bad_line(path: Path) -> int | None:
    """The number of the first line that is no UTF-8, counted from 1."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return None


def convert_text(path: Path, suffix: str, target: Path) -> None:
    """Write the file as an Arrow file of blocks."""
    if suffix == ".jsonl":
        try:
            _write(_open_json(path, None), target)
        except _arrow().ArrowInvalid:
            _write(_open_json(path, _join_types(path)), target)
        return
    types: dict[str, Any] = {}
    while True:
        reader = _open_csv(path, suffix, types)
        names = reader.schema.names
        try:
            _write(reader, target)
        except _arrow().ArrowInvalid as error:
            found = _WRONG_TYPE.search(str(error))
            if found is None or types.get(names[int(found[1])]) == _arrow().string():
                raise
            types[names[int(found[1])]] = _arrow().type_for_alias(_WIDER.get(found[2], "string"))
        else:
            return


def _write(reader: Any, target: Path) -> None:
    ipc = load_extra("pyarrow.ipc", "reading large text files", "datasets")
    with reader, ipc.new_file(str(target), reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


def _open_csv(path: Path, suffix: str, types: dict[str, Any]) -> Any:
    csv = _csv()
    options = csv.ReadOptions(block_size=_BLOCK_NBYTES, use_threads=False)  # one thread can tell the row that is wrong
    return csv.open_csv(path, read_options=options, **_csv_options(suffix, types))


def _csv_options(suffix: str, types: dict[str, Any] | None = None) -> dict[str, Any]:
    csv = _csv()
    return {
        "parse_options": csv.ParseOptions(delimiter="\t" if suffix == ".tsv" else ",", newlines_in_values=True),
        "convert_options": csv.ConvertOptions(
            null_values=_MISSING, strings_can_be_null=True, quoted_strings_can_be_null=False, column_types=types
        ),
    }


def _open_json(path: Path, schema: Any) -> Any:
    json = _json()
    parse = json.ParseOptions(explicit_schema=schema)
    return json.open_json(path, read_options=json.ReadOptions(block_size=_BLOCK_NBYTES), parse_options=parse)


def _join_types(path: Path) -> Any:
    """The schema that all blocks of a file of JSON lines have room in."""
    schemas = [_json().read_json(io.BytesIO(block)).schema for block in _read_lines(path)]
    return _arrow().unify_schemas(schemas, promote_options="permissive")


def _read_lines(path: Path) -> Iterator[bytes]:
    """Blocks of whole lines."""
    with path.open("rb") as file:
        while block := file.read(_BLOCK_NBYTES):
            yield block + file.readline()


def _csv() -> Any:
    return load_extra("pyarrow.csv", "reading CSV files", "datasets")


def _json() -> Any:
    return load_extra("pyarrow.json", "reading JSON lines", "datasets")


def _arrow() -> Any:
    return load_extra("pyarrow", "reading tables", "datasets")
