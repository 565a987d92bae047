"""Is the free first dimension of a model really a batch dimension?

A file does not tell. Wrongly taken for one, requests that share a batch would get wrong answers, so a derived batch size is only
kept if two rows together give what each gives alone.
"""

import math
from collections.abc import Sequence

import numpy as np

from tensorferry.serve.core.faults import RequestFault
from tensorferry.serve.core.tensors import DTYPES, Array
from tensorferry.serve.runtimes.runtime import Runner, Signature, TensorSignature

_SIZES = (8, 64, 224)  # tried in turn for variable sizes: some models need room, most do not
_MAX_ELEMENTS = 2**24  # of one input; a model that needs more is served without a proof, and so without batches
_MAX_RELATIVE_ERROR = 1e-2  # kernels choose other orders of summation for other batches


def has_independent_rows(runner: Runner, signature: Signature) -> bool:
    """Whether two different rows in one batch give the outputs that each gives alone."""
    names = [tensor.name for tensor in signature.outputs]
    for size in _SIZES:
        if any(math.prod(_sizes(tensor, size)) > _MAX_ELEMENTS for tensor in signature.inputs):
            break
        rows = [{tensor.name: _fill(tensor, size, value) for tensor in signature.inputs} for value in (0, 1)]
        try:
            alone = [runner.run(row, names) for row in rows]
            together = runner.run({name: np.concatenate([row[name] for row in rows]) for name in rows[0]}, names)
        except RequestFault:
            continue
        return all(_is_stack(both, (first, second)) for first, second, both in zip(*alone, together, strict=True))
    return False


def _sizes(tensor: TensorSignature, size: int) -> tuple[int, ...]:
    return (1, *(size if dim == -1 else dim for dim in tensor.shape[1:]))


def _fill(tensor: TensorSignature, size: int, value: int) -> Array:
    shape = _sizes(tensor, size)
    if tensor.datatype == "BYTES":
        return np.full(shape, b"ab"[value : value + 1], np.object_)
    filled = np.full(shape, value, DTYPES[tensor.datatype])
    if value and filled.size > 1 and tensor.datatype.startswith(("FP", "BF")):
        # a constant row could look like another to a model that normalises
        filled = np.linspace(-1, 1, filled.size).reshape(shape).astype(filled.dtype)
    return filled


def _is_stack(both: Array, rows: Sequence[Array]) -> bool:
    if both.ndim == 0 or both.shape[0] != 2 or any(row.shape != (1, *both.shape[1:]) for row in rows):
        return False
    expected = np.concatenate(rows)
    if both.dtype.kind in "Ob":
        return bool((both == expected).all())
    left, right = both.astype(np.float64), expected.astype(np.float64)
    scale = np.abs(right[np.isfinite(right)]).max(initial=0.0)
    return bool(np.allclose(left, right, rtol=_MAX_RELATIVE_ERROR, atol=_MAX_RELATIVE_ERROR * scale, equal_nan=True))
