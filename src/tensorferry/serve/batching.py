"""Many requests as one batch, and its outputs back to each.

With padding, rows of different sizes are filled up at the end to the largest of the batch; outputs are cut back. A size is cut
where the output's own size is variable and equals the padded size, so a request keeps one length for all its padded inputs.
"""

from collections.abc import Sequence

import numpy as np

from tensorferry.serve.spec import ModelSpec, TensorSpec
from tensorferry.serve.tensors import Array

Rows = dict[str, Array]


def batch_key(spec: ModelSpec, inputs: Rows) -> tuple[object, ...]:
    """Requests of equal keys may share a batch: same inputs, and same sizes wherever nothing is padded."""
    if not spec.is_padded:
        return tuple([(name, array.shape[1:]) for name, array in inputs.items()])  # a generator takes twice as long
    return tuple(
        (name, array.ndim if spec.by_name[name].pad_value is not None else array.shape[1:]) for name, array in inputs.items()
    )


def merge(spec: ModelSpec, requests: Sequence[Rows]) -> Rows:
    """One batch of the rows of `requests`, in order."""
    if len(requests) == 1:
        return requests[0]
    return {name: _join(spec.by_name[name], [request[name] for request in requests]) for name in requests[0]}


def split(spec: ModelSpec, outputs: Sequence[Array], requests: Sequence[Rows], num_rows: Sequence[int]) -> list[list[Array]]:
    """The outputs of each request."""
    if len(requests) == 1:
        return [list(outputs)]
    parts: list[list[Array]] = []
    at = 0
    for rows in num_rows:
        parts.append([output[at : at + rows] for output in outputs])
        at += rows
    if spec.is_padded:
        _cut(spec, parts, requests)
    return parts


def _join(spec: TensorSpec, arrays: list[Array]) -> Array:
    if spec.pad_value is None or len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    sizes = np.max([array.shape[1:] for array in arrays], axis=0)
    joined = np.full((sum(array.shape[0] for array in arrays), *sizes), spec.pad_value, arrays[0].dtype)
    at = 0
    for array in arrays:
        joined[(slice(at, at + array.shape[0]), *(slice(size) for size in array.shape[1:]))] = array
        at += array.shape[0]
    return joined


def _cut(spec: ModelSpec, parts: list[list[Array]], requests: Sequence[Rows]) -> None:
    lengths = [_padded_length(spec, request) for request in requests]
    longest = max(lengths)
    for part, length in zip(parts, lengths, strict=True):
        if length == longest:
            continue
        for index, (output, tensor) in enumerate(zip(part, spec.outputs, strict=True)):
            cuts = [
                slice(length) if axis > 0 and size == longest and tensor.shape[axis] == -1 else slice(None)
                for axis, size in enumerate(output.shape)
            ]
            part[index] = output[tuple(cuts)]


def _padded_length(spec: ModelSpec, request: Rows) -> int:
    sizes = [
        size
        for name, array in request.items()
        if spec.by_name[name].pad_value is not None
        for size, wanted in zip(array.shape[1:], spec.by_name[name].shape[1:], strict=True)
        if wanted == -1
    ]
    return max(sizes, default=0)
