"""A trained estimator as a model that `ferry serve` loads: an ONNX file that takes raw rows, the feature columns inside it.

Every column of the table that the model looks at is an input of shape (rows, 1): FP64 for numbers, where a missing one is NaN;
texts for the rest, where a missing one is empty. A classifier gives `predicted_class` and `probabilities`, a regressor
`predicted_value`.
"""

import os
import re
import secrets
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensorferry.errors import BadModel
from tensorferry.extras import missing_extra
from tensorferry.feature_columns.encoding import FittedColumns
from tensorferry.feature_columns.onnx_columns import find_number_columns
from tensorferry.feature_columns.table import Table, read_numbers, read_words
from tensorferry.files import force

_MODEL, _CONFIG = "model.onnx", "config.pbtxt"
_MAX_BATCH = 1024  # rows that are answered at once
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def export(content: bytes, folder: str | os.PathLike[str]) -> Path:
    """Write an ONNX file as the next version of the model `folder` of a repository, such as "models/adult"."""
    target = Path(folder)
    if not _NAME.fullmatch(target.name):
        raise BadModel(f"{target.name!r} cannot be the name of a model; write letters, digits, '_', '-' and '.'")
    part = target.parent / f".ferry-{secrets.token_hex(8)}"
    try:
        found = [int(path.name) for path in target.glob("[0-9]*") if path.name.isdecimal()] if target.is_dir() else []
        version = max(found, default=0) + 1
        (part / str(version)).mkdir(parents=True)
        (part / str(version) / _MODEL).write_bytes(content)
        (part / _CONFIG).write_text(_describe(target.name), "utf-8")
        for path in (*part.rglob("*"), part):
            force(path)
        if target.is_dir():  # its configuration may be somebody's own by now
            (part / str(version)).rename(target / str(version))
        else:
            part.rename(target)
        force(target.parent)
    except OSError as error:
        raise BadModel(f"cannot write to {str(target)!r}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target / str(version)


def export_saved_model(content: bytes, folder: str | os.PathLike[str]) -> Path:
    """Write an ONNX file as a SavedModel into a folder that is not there yet; gives that folder."""
    target = Path(folder)
    if target.exists():
        raise BadModel(f"{str(target)!r} is there already; name another folder for the SavedModel")
    try:
        from tensorferry.estimators.tensorflow_graph import write_saved_model
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise missing_extra("writing a SavedModel", "tensorflow") from error
    part = target.parent / f".ferry-{secrets.token_hex(8)}"
    try:
        write_saved_model(content, str(part))
        part.rename(target)
    except OSError as error:
        raise BadModel(f"cannot write to {str(target)!r}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def make_tensors(fitted: FittedColumns | None, table: Table) -> dict[str, NDArray]:
    """The columns that a model looks at, as its inputs take them."""
    assert fitted is not None
    numbers = find_number_columns(fitted.columns)

    def read(name: str) -> NDArray:
        if name in numbers:
            return read_numbers(table, name)[:, None]
        return np.array([word or "" for word in read_words(table, name)], object)[:, None]

    return {name: read(name) for name in fitted.table_columns}


def _describe(name: str) -> str:
    """The least that a server must be told: what comes at the same time may be answered together."""
    return f'name: "{name}"\nbackend: "onnxruntime"\nmax_batch_size: {_MAX_BATCH}\ndynamic_batching {{ }}\n'
