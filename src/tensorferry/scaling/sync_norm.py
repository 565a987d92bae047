"""Batch norm over the rows of all ranks (torch's own does it on accelerators alone).

Mean and variance are of the whole batch, so ranks compute what one process would. In backward the two sums over rows that a row's
gradient depends on are summed over ranks as well. Weights get the gradients of a rank's own rows, as any other weight does.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from tensorferry.errors import NotSupported

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def synchronise_norms(model: nn.Module, num_neighbours: int = 1) -> None:
    """Norm over all ranks from now on; `num_neighbours` ranks have the same rows. Names and values of weights stay."""
    norms = [module for module in model.modules() if isinstance(module, NORMS)]
    if not norms:
        raise NotSupported(f"--sync-norm: {type(model).__name__} has no batch norm; leave it out")
    for norm in norms:
        norm.forward = partial(_norm, norm, num_neighbours)  # type: ignore[method-assign]


def _norm(module: Any, num_neighbours: int, x: torch.Tensor) -> torch.Tensor:
    if not module.training and module.running_mean is not None:
        return functional.batch_norm(x, module.running_mean, module.running_var, module.weight, module.bias, eps=module.eps)
    with torch.no_grad():
        mean, variance, count = _measure(x)
    if count <= num_neighbours:
        raise ValueError(f"batch norm needs more than one value for each channel, over all ranks; received {tuple(x.shape)}")
    if module.training and module.running_mean is not None:
        _remember(module, mean, variance, count / num_neighbours)
    scale = torch.rsqrt(variance + module.eps)
    weight = torch.ones_like(mean) if module.weight is None else module.weight
    bias = torch.zeros_like(mean) if module.bias is None else module.bias
    normed: torch.Tensor = _Normed.apply(x, weight, bias, mean, scale, count)  # type: ignore[no-untyped-call]
    return normed


def _measure(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean, variance and number of values of each channel, over all ranks; in two passes, which lose no digits."""
    values, dims = _widen(x), _list_dims(x)
    sums = torch.cat([values.sum(dims), values.new_full((1,), x.numel() // x.shape[1])])
    dist.all_reduce(sums)
    count = float(sums[-1])
    mean = sums[:-1] / count
    squares = (values - _spread(mean, x)).square().sum(dims)
    dist.all_reduce(squares)
    return mean, squares / count, count


def _remember(module: Any, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
    """What evaluation norms with."""
    module.num_batches_tracked.add_(1)
    momentum = 1.0 / float(module.num_batches_tracked) if module.momentum is None else module.momentum
    module.running_mean.lerp_(mean.to(module.running_mean.dtype), momentum)
    module.running_var.lerp_((variance * (count / (count - 1))).to(module.running_var.dtype), momentum)


class _Normed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, count: float
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.count = count
        normed = (_widen(x) - _spread(mean, x)) * _spread(scale, x)
        return (normed * _spread(weight, x) + _spread(bias, x)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight, mean, scale = ctx.saved_tensors
        dims, gradient = _list_dims(x), _widen(gradient)
        normed = (_widen(x) - _spread(mean, x)) * _spread(scale, x)
        own = torch.stack([gradient.sum(dims), (gradient * normed).sum(dims)])
        bias_gradient, weight_gradient = own.to(weight.dtype)
        sums = own.clone()
        dist.all_reduce(sums)
        means = sums / ctx.count
        centred = gradient - _spread(means[0], x) - normed * _spread(means[1], x)
        return (centred * _spread(weight * scale, x)).to(x.dtype), weight_gradient, bias_gradient, None, None, None


def _list_dims(x: torch.Tensor) -> list[int]:
    return [0, *range(2, x.ndim)]


def _widen(x: torch.Tensor) -> torch.Tensor:
    """Half precision has too few digits for sums over a batch."""
    return x if x.dtype == torch.float64 else x.float()


def _spread(channels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return channels.view(1, -1, *(1 for _ in range(x.ndim - 2)))
