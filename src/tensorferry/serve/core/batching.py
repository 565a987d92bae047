"""Many requests as one batch, and its outputs back to each.

With padding, rows of different sizes are filled up at the end to the largest of the batch; outputs are cut back. A variable size
of an output is cut to what the request had of the input size that was padded to it. Where two sizes that a request has apart were
padded to one, nobody could tell which of them an output shows, so such requests do not share a batch.
"""

from collections.abc import Sequence

import numpy as np

from tensorferry.serve.core.spec import ModelSpec, TensorSpec
from tensorferry.serve.core.tensors import Array

Rows = dict[str, Array]


class Inseparable(Exception):
    """Two different sizes of one request would be one in the padded batch: its requests are to be run one by one."""


def merge(spec: ModelSpec, requests: Sequence[Rows]) -> Rows:
    """One batch of the rows of `requests`, in order; raises Inseparable where its outputs could not be cut apart."""
    if len(requests) == 1:
        return requests[0]
    if spec.is_padded:
        _find_own_sizes(spec, requests)
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
    for part, own_sizes in zip(parts, _find_own_sizes(spec, requests), strict=True):
        for index, (output, tensor) in enumerate(zip(part, spec.outputs, strict=True)):
            cuts = [
                slice(own_sizes.get(size, size)) if axis > 0 and wanted == -1 else slice(None)
                for axis, (size, wanted) in enumerate(zip(output.shape, tensor.inner_shape(True), strict=True))
            ]
            part[index] = output[tuple(cuts)]


def _find_own_sizes(spec: ModelSpec, requests: Sequence[Rows]) -> list[dict[int, int]]:
    """For each request, its own size behind every size of the padded batch that may show up in an output."""
    if not any(-1 in tensor.inner_shape(True)[1:] for tensor in spec.outputs):
        return [{} for _ in requests]
    sizes = [_free_sizes(spec, request) for request in requests]
    padded = [max(column) for column in zip(*sizes, strict=True)]
    found = [dict(zip(padded, own, strict=True)) for own in sizes]
    for own_sizes, own in zip(found, sizes, strict=True):
        if [own_sizes[size] for size in padded] != own:
            raise Inseparable
    return found


def _free_sizes(spec: ModelSpec, request: Rows) -> list[int]:
    return [
        size
        for name, array in request.items()
        for size, wanted in zip(array.shape[1:], spec.by_name[name].inner_shape(True)[1:], strict=True)
        if wanted == -1
    ]
