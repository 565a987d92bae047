"""The classification extension: the best classes of an output, as text."""

import numpy as np

from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.spec import TensorSpec
from tensorferry.serve.core.tensors import Array


def classify(spec: TensorSpec, array: Array, num_classes: int, is_batched: bool) -> Array:
    """`value:index` or `value:index:label` of the best `num_classes`, best first, for every row."""
    if array.dtype.hasobject:
        raise InvalidRequest(f"output '{spec.name}' holds BYTES; classification needs numbers")
    rows = array.reshape(array.shape[0], -1) if is_batched else array.reshape(1, -1)
    num_classes = min(num_classes, rows.shape[1])
    # whole numbers stay as they are: a float has no room for the last digits of large ones
    is_whole = rows.dtype.kind in "iub"
    best = np.argsort(~rows if is_whole else -rows.astype(np.float64), axis=1, kind="stable")[:, :num_classes]
    texts = np.empty((rows.shape[0], num_classes), np.object_)
    for row in range(rows.shape[0]):
        for place, index in enumerate(best[row]):
            value = rows[row, index]
            text = f"{int(value)}:{index}" if is_whole else f"{float(value):f}:{index}"
            if index < len(spec.labels):
                text += f":{spec.labels[index]}"
            texts[row, place] = text.encode()
    return texts if is_batched else texts.reshape(-1)
