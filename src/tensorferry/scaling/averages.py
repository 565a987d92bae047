"""Means over ranks, many tensors in one message."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

_BUCKET_NBYTES = 25 * 2**20  # as DDP's


def average_tensors(tensors: Iterable[torch.Tensor | None], group: Any = None) -> None:
    """Give all ranks of a group the mean of what each has."""
    for bucket in _fill_buckets(tensor for tensor in tensors if tensor is not None):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        dist.all_reduce(flat, op=dist.ReduceOp.AVG, group=group)
        for tensor, mean in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
            tensor.copy_(mean.view_as(tensor))


def _fill_buckets(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Of one type each."""
    bucket: list[torch.Tensor] = []
    for tensor in tensors:
        nbytes = sum(each.nbytes for each in bucket)
        if bucket and (tensor.dtype != bucket[0].dtype or nbytes + tensor.nbytes > _BUCKET_NBYTES):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
