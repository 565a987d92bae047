"""Samples: what candidates are compared on, calibrated with and measured with. Arrays by name, rows first."""

import hashlib
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tensorferry.errors import BadModel, BadOption
from tensorferry.messages import did_you_mean
from tensorferry.serve.core.tensors import DTYPES, Array
from tensorferry.serve.runtimes.runtime import Signature, TensorSignature

Arrays: TypeAlias = dict[str, Array]  # a batch by name; rows first

NUM_RANDOM = 16
MAX_SAMPLES = 512  # that answers are compared on
MAX_CALIBRATION = 128  # that int8 is calibrated on; more only takes longer
_MIN_CALIBRATION, _MIN_COMPARED = 4, 4  # below that int8 would be guessed
_FREE_SIZE = 32  # of a free size that nothing is known about
_WANTED = "give a .npz or .npy file of numpy.save"


def read_samples(path: Path) -> Any:
    """An example from a file: `.npz` (arrays by input name) or `.npy` (of the only input)."""
    try:
        with open(path, "rb") as file:  # numpy would leave a damaged one open
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return found
            with found:
                arrays = {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise BadOption(f"cannot read samples from {str(path)!r}: {error}; {_WANTED}") from None
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise BadOption(f"cannot read samples from {str(path)!r}: {name!r} in it is no array; {_WANTED}")
    return arrays


def name_samples(example: Any, signature: Signature) -> Arrays:
    """An example (an array, a tuple of them, or arrays by name) by the names of the inputs, checked and in their types."""
    known = [tensor.name for tensor in signature.inputs]
    if isinstance(example, Mapping):
        unknown = [name for name in example if name not in known]
        if unknown:
            raise BadModel(f"the model has no input {unknown[0]!r}{did_you_mean(unknown[0], known)}; it takes {', '.join(known)}")
        by_name = dict(example)
    else:
        arrays = example if isinstance(example, tuple | list) else (example,)
        if len(arrays) != len(known):
            raise BadModel(f"the model takes {len(known)} inputs ({', '.join(known)}), the example has {len(arrays)}")
        by_name = dict(zip(known, arrays, strict=True))
    missing = [name for name in known if name not in by_name]
    if missing:
        raise BadModel(f"the example leaves out the input {', '.join(missing)}")
    samples = {tensor.name: _check(tensor, np.asarray(by_name[tensor.name])) for tensor in signature.inputs}
    if len({len(array) for array in samples.values()}) > 1:
        sizes = ", ".join(f"{name} {len(array)}" for name, array in samples.items())
        raise BadModel(f"the inputs of the example differ in their rows: {sizes}")
    return samples


def invent_samples(signature: Signature) -> Arrays:
    """Random samples, for a model about whose data nothing is known: normal numbers, small whole ones."""
    rng = np.random.default_rng(0)
    samples = {}
    for tensor in signature.inputs:
        if tensor.datatype == "BYTES" or not tensor.has_rank or not tensor.shape:
            raise BadModel(f"samples for the input {tensor.name!r} cannot be invented; give real ones with --samples")
        rows = NUM_RANDOM if tensor.shape[0] == -1 else tensor.shape[0]
        shape = (rows, *(_FREE_SIZE if size == -1 else size for size in tensor.shape[1:]))
        dtype = DTYPES[tensor.datatype]
        is_float = tensor.datatype in ("FP16", "BF16", "FP32", "FP64")
        samples[tensor.name] = (rng.standard_normal(shape) if is_float else rng.integers(0, 2, shape)).astype(dtype)
    return samples


@dataclass(frozen=True)
class SampleSplit:
    """What int8 is calibrated on, and which rows answers are compared on: never the same."""

    calibration: Arrays
    compared: Array  # numbers of rows of the samples
    note: str


def split_samples(samples: Arrays, calibration: Arrays | None) -> SampleSplit:
    """Rows to calibrate on and rows to compare on, the same ones in every search; no row stands on both sides.

    Without samples for calibration half of the rows, at most `MAX_CALIBRATION`, become them. Neither is in the order of a file.
    """
    num_rows = len(next(iter(samples.values())))
    if calibration is None:
        num_given = min(num_rows // 2, MAX_CALIBRATION)
        order = _shuffle(num_rows)
        pool, own, compared = samples, order[:num_given], order[num_given:]
    else:
        pool, own, compared = calibration, _shuffle(len(next(iter(calibration.values())))), _shuffle(num_rows)
    compared = compared[:MAX_SAMPLES]
    seen = set(_digest_rows(samples, compared))
    fresh = [row for row, each in zip(own, _digest_rows(pool, own), strict=True) if each not in seen][:MAX_CALIBRATION]
    if len(fresh) < _MIN_CALIBRATION or len(compared) < _MIN_COMPARED:
        raise BadOption(
            f"int8 needs at least {_MIN_CALIBRATION} samples to calibrate on and {_MIN_COMPARED} others to compare on; "
            f"there are {len(fresh)} and {len(compared)}, without any that stand on both sides. Give more samples"
        )
    note = f"int8 was calibrated on {len(fresh)} samples and judged on {len(compared)} others; no sample is among both"
    return SampleSplit({name: array[fresh] for name, array in pool.items()}, compared, note)


def choose_rows(num_rows: int) -> Array:
    """Which rows to compare on, the same ones in every search, in no order: a file's may be sorted, and time may end early."""
    return _shuffle(num_rows)[:MAX_SAMPLES]


def _shuffle(num_rows: int) -> Array:
    return np.random.default_rng(0).permutation(num_rows)


def _digest_rows(samples: Arrays, rows: Array) -> list[bytes]:
    """What tells a row from another, whatever its inputs are."""
    digests = []
    for row in rows:
        digest = hashlib.sha256()
        for name in sorted(samples):
            each = samples[name][row]
            digest.update(repr(each.tolist()).encode() if each.dtype.hasobject else np.ascontiguousarray(each).tobytes())
        digests.append(digest.digest())
    return digests


def read_targets(targets: Any, num_rows: int) -> Array:
    """The right answers: class numbers, one row for each sample; from an array or a `.npy` file."""
    found = read_samples(targets) if isinstance(targets, Path) else targets
    if isinstance(found, Mapping):
        raise BadOption("expected one array of targets, received several by name; give a .npy file of numpy.save")
    array = np.asarray(found)
    num_given = len(array) if array.ndim else 0
    if num_given != num_rows:
        raise BadOption(f"there are {num_given} targets for {num_rows} samples; give one for each, rows first")
    return array


def _check(tensor: TensorSignature, array: Array) -> Array:
    wanted = DTYPES[tensor.datatype]
    if array.dtype != wanted:
        if array.dtype.kind not in "fiub" or wanted.kind == "O":
            raise BadModel(f"the input {tensor.name!r} is {tensor.datatype}, the example is {array.dtype}")
        array = array.astype(wanted)
    same_rank = len(array.shape) == len(tensor.shape) or not tensor.has_rank
    if not same_rank or not array.ndim or any(w not in (-1, s) for s, w in zip(array.shape[1:], tensor.shape[1:], strict=False)):
        raise BadModel(f"the input {tensor.name!r} has the shape {list(tensor.shape)} (-1: any), the example {list(array.shape)}")
    if not array.size:
        raise BadModel(f"the example of the input {tensor.name!r} is empty")
    return np.ascontiguousarray(array)
