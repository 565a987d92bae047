"""A trained estimator as two files: what it is in JSON, what it learnt as arrays. Loading it runs nothing of them."""

import io
import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tensorferry.errors import BadData, BadUse
from tensorferry.estimators.calibration import Calibration
from tensorferry.estimators.estimator import TableClassifier, TableEstimator
from tensorferry.estimators.kinds import KINDS
from tensorferry.estimators.settings import check_settings
from tensorferry.feature_columns.encoding import column_from_json, column_to_json
from tensorferry.files import write_whole
from tensorferry.messages import did_you_mean, first_line

_FORMAT = "tensorferry-estimator-2"
_FACTS, _ARRAYS = "estimator.json", "arrays.npz"
_IN_RUN = "estimator"  # the folder of a run that `fitting.folder` names
# what the readers of JSON, ZIP and NumPy's arrays raise at files that are cut off, damaged, or made to be so
_UNREADABLE = (
    *(OSError, ValueError, AttributeError, EOFError, KeyError, MemoryError, NotImplementedError, RecursionError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)


def save(estimator: TableEstimator, folder: str | os.PathLike[str]) -> None:
    """Write a trained estimator into a folder; what was there is replaced file by file, the arrays first."""
    if not hasattr(estimator, "n_features_in_"):
        raise BadUse(f"this {type(estimator).__name__} has learnt nothing yet; call fit before save")
    facts, arrays = estimator.get_state()
    names = getattr(estimator, "feature_names_in_", None)
    told = {
        "format": _FORMAT,
        "kind": type(estimator).__name__,
        "params": {name: _to_json(value) for name, value in estimator.get_params(deep=False).items()},
        "num_features": estimator.n_features_in_,
        "feature_names": None if names is None else list(names),
        "classes": estimator.classes_.tolist() if isinstance(estimator, TableClassifier) else None,
        "calibration": calibration.to_json() if (calibration := getattr(estimator, "calibration_", None)) else None,
        "learnt": facts,
    }
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]
    write_whole(Path(folder) / _ARRAYS, packed.getvalue())
    write_whole(Path(folder) / _FACTS, json.dumps(told, indent=1))


def load(folder: str | os.PathLike[str]) -> Any:
    """The estimator that was saved into a folder, or that a run of `ferry fit` holds; raises `BadData`."""
    if not (Path(folder) / _FACTS).exists() and (Path(folder) / _IN_RUN / _FACTS).exists():
        folder = Path(folder) / _IN_RUN
    path = Path(folder) / _FACTS
    try:
        told = json.loads(path.read_text("utf-8"))
        if told.get("format") != _FORMAT:
            raise BadData(f"{str(path)!r} is not an estimator of this version")
        with (Path(folder) / _ARRAYS).open("rb") as file, np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except BadData:
        raise
    except _UNREADABLE as error:
        raise BadData(f"cannot read an estimator from {str(folder)!r}: {first_line(error)}") from error
    kind = told.get("kind", "")
    if kind not in KINDS:
        raise BadData(f"{str(path)!r} names an unknown estimator {kind!r}{did_you_mean(kind, KINDS)}")
    try:
        made = KINDS[kind](**{name: _from_json(value) for name, value in told["params"].items()})
        check_settings(made)
        made.n_features_in_ = told["num_features"]
        if told["feature_names"] is not None:
            made.feature_names_in_ = np.array(told["feature_names"], object)
        if told["classes"] is not None:
            made.classes_ = np.array(told["classes"])
        if told["calibration"] is not None:
            made.calibration_ = Calibration.from_json(told["calibration"])
        made.set_state(told["learnt"], arrays)
    except BadData:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise BadData(f"the estimator in {str(folder)!r} is damaged: {first_line(error)}") from error
    return made


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {"pairs": [[_to_json(key), _to_json(part)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        return [_to_json(part) for part in value]
    return value.item() if isinstance(value, np.generic) else column_to_json(value)


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(_from_json(value["pairs"])) if "pairs" in value else column_from_json(value)
    return [_from_json(part) for part in value] if isinstance(value, list) else value
