"""Tables from wherever a user has them, as arrays by column: numbers, or objects that are texts or missing."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorferry.datasets import Dataset
from tensorferry.datasets.tables import LARGEST_EXACT, dataset_from_arrow
from tensorferry.errors import BadData
from tensorferry.messages import did_you_mean

Table: TypeAlias = Mapping[str, NDArray]

_PLAIN_WORDS = {str, type(None)}
_MAX_CATEGORIES_SHARE = 0.5  # of the rows: a column with more different words is a name or a note


def read_table(data: Any) -> Table:
    """The columns of a data frame, a dataset, a mapping of columns, or a matrix, whose columns are called x0, x1, ..."""
    if isinstance(data, Dataset):
        return _read_inputs(data)
    if hasattr(data, "column_names") and hasattr(data, "schema"):  # of Arrow
        return _read_inputs(dataset_from_arrow(data, "the table"))
    if hasattr(data, "toarray"):
        raise BadData("expected a dense table, received a sparse matrix; convert it with .toarray()")
    if isinstance(data, Mapping):
        columns = {str(name): _read_column(values) for name, values in data.items()}
    elif hasattr(data, "columns") and hasattr(data, "__dataframe__"):
        if twice := [name for name, count in Counter(map(str, data.columns)).items() if count > 1]:
            raise BadData(f"the table has two columns {twice[0]!r}; call one of them otherwise")
        columns = {str(name): _read_column(data[name]) for name in data.columns}
    else:
        matrix = np.asarray(data)
        if matrix.ndim != 2:
            raise BadData(
                f"expected a table of rows and columns, received an array of shape {matrix.shape}. Reshape your data: one row "
                "is array.reshape(1, -1)"
            )
        columns = {f"x{place}": _read_column(matrix[:, place]) for place in range(matrix.shape[1])}
    if not columns:
        num_rows = np.shape(data)[0] if np.ndim(data) else 0
        raise BadData(f"the table has no columns: 0 feature(s) (shape=({num_rows}, 0)) while a minimum of 1 is required.")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise BadData(f"the table's columns differ in length: {lengths}")
    return columns


def count_rows(table: Table) -> int:
    """How many rows a table has."""
    return len(next(iter(table.values())))


def pick_column(table: Table, name: str) -> NDArray:
    """A column, or `BadData` with those that there are."""
    if name not in table:
        raise BadData(f"the table has no column {name!r}{did_you_mean(name, table)}; it has {', '.join(table)}")
    return table[name]


def read_numbers(table: Table, name: str) -> NDArray[np.float64]:
    """A column as numbers; a missing one is NaN."""
    values = pick_column(table, name)
    if values.dtype == object:
        try:
            values = np.array([np.nan if value is None else float(value) for value in values], np.float64)
        except (TypeError, ValueError):
            wrong = next((place, value) for place, value in enumerate(values) if value is not None and not _is_number(value))
            raise BadData(
                f"expected the column {name!r} to hold numbers, received {wrong[1]!r} in row {wrong[0]}; take it as a category"
            ) from None
    if np.isinf(numbers := values.astype(np.float64)).any():
        place = int(np.flatnonzero(np.isinf(numbers))[0])
        raise BadData(
            f"expected finite numbers in the column {name!r}, received {numbers[place]} (infinity) in row {place}; replace it, "
            "or leave it empty (NaN)"
        )
    return numbers


def read_words(table: Table, name: str) -> NDArray:
    """A column as words, None where nothing is known; a whole number is written without a point, true and false as 1 and 0."""
    values = pick_column(table, name)
    if values.dtype == object:
        if set(map(type, values.tolist())) <= _PLAIN_WORDS and "" not in values.tolist():
            return values
        return np.array([None if _is_missing(value) else _write(value) for value in values], object)
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
    unique, places = np.unique(np.where(missing, 0, values), return_inverse=True)
    words = np.array([_write(value) for value in unique.tolist()], object)[places]
    words[missing] = None
    return words


def is_numeric(values: NDArray) -> bool:
    """Whether a column holds numbers; true and false are categories."""
    return values.dtype.kind in "iuf"


def is_empty(values: NDArray) -> bool:
    """Whether nothing is known in any row."""
    return all(value is None for value in values) if values.dtype == object else bool(np.all(values != values))


def looks_like_a_note(values: NDArray) -> bool:
    """Whether nearly every row has words of its own, from which nothing can be learnt."""
    known = [value for value in values if value is not None]
    return len(set(known)) > max(2, _MAX_CATEGORIES_SHARE * len(known))


def _read_inputs(dataset: Dataset) -> Table:
    if large := [column.name for column in dataset.input_columns if column.shape]:
        raise BadData(f"{dataset.name}'s column {large[0]!r} holds arrays; estimators take tables of numbers and words")
    names = [column.name for column in dataset.input_columns]
    rows = dataset.only(names).read_all()
    return {name: _read_column(rows[name]) for name in names}


def _read_column(values: Any) -> NDArray:
    array = np.asarray(values)
    if array.dtype.kind == "c":
        raise BadData("Complex data not supported: expected numbers and words")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise BadData(f"expected a value a row, received an array of shape {array.shape}")
    if array.dtype.kind in "iufb":
        return array
    if array.dtype.kind in "Mm":
        return _read_times(array)
    given = array.tolist()
    if set(map(type, given)) <= _PLAIN_WORDS and "" not in given:  # nearly always, and a pass over a million cells is a second
        return array.astype(object)
    objects = np.array([*(None if _is_missing(value) else _read_value(value) for value in given), None], object)[:-1]
    known = [value for value in objects if value is not None]
    are_booleans = all(isinstance(value, bool | np.bool_) for value in known)
    if known and not are_booleans and all(isinstance(value, bool | int | float | np.number) for value in known):
        if any(abs(value) > LARGEST_EXACT for value in known if isinstance(value, int)):
            return objects if len(known) < len(objects) else _read_large(objects)
        return np.array([np.nan if value is None else float(value) for value in objects], np.float64)
    wrong = next((value for value in known if not isinstance(value, str | bool | int | float | np.generic)), None)
    if wrong is not None:
        raise BadData(f"expected numbers and words, received a {type(wrong).__name__}; argument must be a string or a number")
    return objects


def _read_value(value: Any) -> Any:
    """Bytes as the text that they are, as TensorFlow has texts; a day or a time as seconds since 1970."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, date):
        moment = value if isinstance(value, datetime) else datetime.combine(value, time())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return value


def _read_times(values: NDArray) -> NDArray[np.float64]:
    """Seconds since 1970, or that something took; NaN where none is known."""
    microseconds = values.astype(f"{'datetime64' if values.dtype.kind == 'M' else 'timedelta64'}[us]")
    return np.where(np.isnat(microseconds), np.nan, microseconds.astype(np.int64) / 1e6)


def _read_large(values: NDArray) -> NDArray:
    """Whole numbers that no float holds, as integers where these do."""
    try:
        return values.astype(np.int64)
    except (OverflowError, TypeError):
        return values


def _is_missing(value: Any) -> bool:
    """None, NaN, what pandas has for them, and the empty text, which is how a missing one is sent where None cannot be."""
    if isinstance(value, str):
        return not value
    return value is None or (isinstance(value, float) and np.isnan(value)) or type(value).__name__ in ("NAType", "NaTType")


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _write(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return str(int(value))  # as a column has it in which none is missing
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)
