"""Batch, group and instance norm in two passes: statistics over all slabs, and applying them, which is a function of a slab.

Each slab gives a mean and a variance for every channel of every sample, as torch's own kernel finds them; slabs are joined in
float64 by Chan's formula, so a mean is at least as near to the truth as torch's. What was stored to be normed is met while it is
written: the first step finds out which tensors those are, and the later ones save a pass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tensorferry.engines.torch.stream.moments import Moments
from tensorferry.engines.torch.stream.needs import Made
from tensorferry.engines.torch.stream.registry import rule
from tensorferry.engines.torch.stream.slabs import LAYOUTS, Slab, in_layout, line_of, lines_of, nbytes_of
from tensorferry.engines.torch.stream.source import Computed, SlabSource, Stored
from tensorferry.engines.torch.stream.streamer import Streamer, source_of
from tensorferry.engines.torch.stream.tensor import StreamedTensor

aten = torch.ops.aten


def _laid_out(source: SlabSource) -> Made:
    """The copy that torch's kernel for statistics takes, of a sample at a time."""
    return lambda slab: (nbytes_of((1, *slab.shape_in(source.shape)[1:]), source.dtype), 0)


def moments_of(streamer: Streamer, source: SlabSource) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Numbers in a channel of a sample, and the mean and variance of each."""
    if isinstance(source, Stored) and source.moments is not None:
        return source.moments.stacked()
    moments = Moments()
    slabs = None
    if isinstance(source, Stored):
        streamer.want_moments(source)
        slabs = source.slabs  # as if they were met while written: the same bits in every step
    for slab in streamer.each(source.shape, [(source, None)], _laid_out(source), slabs=slabs):
        moments.add(slab, source.look(slab))
    return moments.stacked()


@dataclass(frozen=True, slots=True)
class _Applied:
    """A norm with its statistics: one of each for every channel, of every sample or of all."""

    mean: torch.Tensor  # samples, or 1, by channels; float64
    rstd: torch.Tensor
    weight: torch.Tensor  # 1 by channels


def _part_of(table: torch.Tensor, slab: Slab) -> torch.Tensor:
    """The samples of a table that go with a slab."""
    return table if table.shape[0] == 1 else table[slab.first : slab.last]


def _scaled(streamer: Streamer, source: SlabSource, slab: Slab, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """A slab times one number for each channel plus another, in its own memory if that may be."""
    x, is_ours = source.take(slab)
    out = x if is_ours else streamer.io.empty_like(x)
    _add_product(out, shift, x, scale, slab)
    return out


def _add_product(out: torch.Tensor, first: torch.Tensor, x: torch.Tensor, table: torch.Tensor, slab: Slab) -> None:
    """Write a slab times a number for each channel to `out`, plus `first`: another table, or `out` itself."""
    lines, out_lines = lines_of(x), lines_of(out)
    if lines is not None and out_lines is not None:
        added = out_lines if first is out else line_of(_part_of(first, slab), x)
        torch.addcmul(added, lines, line_of(_part_of(table, slab), x), out=out_lines)
    else:
        torch.addcmul(first if first is out else _spread(first, slab, x), x, _spread(table, slab, x), out=out)


def _spread(table: torch.Tensor, slab: Slab, x: torch.Tensor) -> torch.Tensor:
    """The part of a table that goes with a slab, in a shape that is broadcast to it."""
    rows = _part_of(table, slab)
    return rows.to(x.dtype).view(*rows.shape, *(1,) * (x.dim() - 2))


def _apply(streamer: Streamer, x: SlabSource, norm: _Applied, bias: torch.Tensor) -> StreamedTensor:
    scale = norm.rstd * norm.weight
    shift = bias - norm.mean * scale

    def compute(slab: Slab) -> torch.Tensor:
        return _scaled(streamer, x, slab, scale, shift)

    return streamer.wrap(Computed(x.shape, x.dtype, [x], compute, is_in_place=True))


def _sums(streamer: Streamer, grad: SlabSource, x: SlabSource, norm: _Applied) -> tuple[torch.Tensor, torch.Tensor]:
    """Over each channel of each sample: the gradient's sum, and that of its product with what was normed."""
    sums = torch.zeros(2, x.shape[0], x.shape[1], dtype=torch.float64)
    ones = torch.ones(x.shape[1], dtype=x.dtype)
    for slab in streamer.each(x.shape, [(grad, None), (x, None)], _laid_out(x)):
        grad_slab, x_slab = in_layout(grad.look(slab)), in_layout(x.look(slab))
        for i in range(slab.last - slab.first):
            sample = slab.first + i
            mean, rstd = (t[min(sample, t.shape[0] - 1)].to(x.dtype) for t in (norm.mean, norm.rstd))
            _, products, total = aten.native_batch_norm_backward(
                grad_slab[i : i + 1], x_slab[i : i + 1], ones, None, None, mean, rstd, True, 0.0, [False, True, True]
            )
            sums[0, sample] += total
            sums[1, sample] += products
        del grad_slab, x_slab
    return sums[0], sums[1]


def _input_gradient(
    streamer: Streamer, grad: SlabSource, x: SlabSource, norm: _Applied, mean_grad: torch.Tensor, mean_product: torch.Tensor
) -> StreamedTensor:
    """rstd * (weight * grad - mean_grad - normed * mean_product), where both means are of the weighted gradient."""
    of_grad = norm.rstd * norm.weight
    of_x = -norm.rstd * norm.rstd * mean_product
    constant = -norm.rstd * mean_grad - norm.mean * of_x

    def compute(slab: Slab) -> torch.Tensor:
        out = _scaled(streamer, x, slab, of_x, constant)
        _add_product(out, out, grad.look(slab), of_grad, slab)
        return out

    # what is normed is mostly a convolution's, whose backward reads this for both gradients at once
    return streamer.wrap(Computed(x.shape, x.dtype, [x, grad], compute, is_in_place=True), is_read_once=True)


@rule("native_batch_norm")
def _batch_norm(
    streamer: Streamer,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if x.dim() not in LAYOUTS or getattr(x, "is_flat", False):
        return NotImplemented
    source = source_of(x)
    if not training:
        assert running_mean is not None
        assert running_var is not None
        norm = _Applied(running_mean.double()[None], (running_var.double() + eps).rsqrt()[None], _one_row(weight, source, 1.0))
        empty = torch.empty(0, dtype=x.dtype)
        return _apply(streamer, source, norm, _one_row(bias, source, 0.0)), empty, empty
    num, means, variances = moments_of(streamer, source)
    mean = means.mean(0)
    variance = (variances + (means - mean).square()).mean(0)
    total = num * source.shape[0]
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((variance * (total / max(1, total - 1))).to(running_var.dtype), momentum)
    rstd = (variance + eps).rsqrt()
    norm = _Applied(mean[None], rstd[None], _one_row(weight, source, 1.0))
    applied = _apply(streamer, source, norm, _one_row(bias, source, 0.0))
    kept = torch.float32 if source.dtype is not torch.float64 else torch.float64
    return applied, mean.to(kept), rstd.to(kept)


@rule("native_batch_norm_backward")
def _batch_norm_backward(
    streamer: Streamer,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    save_mean: torch.Tensor | None,
    save_rstd: torch.Tensor | None,
    training: bool,
    eps: float,
    output_mask: list[bool],
) -> Any:
    if x.dim() not in LAYOUTS or getattr(x, "is_flat", False) or getattr(grad, "is_flat", False):
        return NotImplemented
    source, grads = source_of(x), source_of(grad)
    if not training:
        assert running_mean is not None
        assert running_var is not None
        save_mean, save_rstd = running_mean, (running_var.double() + eps).rsqrt()
    assert save_mean is not None
    assert save_rstd is not None
    norm = _Applied(save_mean.double()[None], save_rstd.double()[None], _one_row(weight, source, 1.0))
    totals, products = (t.sum(0, keepdim=True) for t in _sums(streamer, grads, source, norm))
    num = source.shape.numel() // source.shape[1] if training else float("inf")
    of_x = None
    if output_mask[0]:
        of_x = _input_gradient(streamer, grads, source, norm, norm.weight * totals / num, norm.weight * products / num)
    dtype = source.dtype if weight is None else weight.dtype
    return of_x, products[0].to(dtype) if output_mask[1] else None, totals[0].to(dtype) if output_mask[2] else None


@rule("native_group_norm")
def _group_norm(
    streamer: Streamer,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    num_samples: int,
    num_channels: int,
    num_places: int,  # noqa: ARG001
    num_groups: int,
    eps: float,
) -> Any:
    if x.dim() not in LAYOUTS or getattr(x, "is_flat", False):
        return NotImplemented
    source = source_of(x)
    _, means, variances = moments_of(streamer, source)
    grouped = (num_samples, num_groups, num_channels // num_groups)
    mean = means.view(grouped).mean(2)
    variance = (variances.view(grouped) + (means.view(grouped) - mean[..., None]).square()).mean(2)
    rstd = (variance + eps).rsqrt()
    widen: Callable[[torch.Tensor], torch.Tensor] = lambda t: t.repeat_interleave(grouped[2], 1)  # noqa: E731
    norm = _Applied(widen(mean), widen(rstd), _one_row(weight, source, 1.0))
    return _apply(streamer, source, norm, _one_row(bias, source, 0.0)), mean.to(x.dtype), rstd.to(x.dtype)


@rule("native_group_norm_backward")
def _group_norm_backward(
    streamer: Streamer,
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    num_samples: int,
    num_channels: int,
    num_places: int,
    num_groups: int,
    output_mask: list[bool],
) -> Any:
    if x.dim() not in LAYOUTS or getattr(x, "is_flat", False) or getattr(grad, "is_flat", False):
        return NotImplemented
    source, grads = source_of(x), source_of(grad)
    size = num_channels // num_groups
    weights = _one_row(weight, source, 1.0)
    norm = _Applied(mean.double().repeat_interleave(size, 1), rstd.double().repeat_interleave(size, 1), weights)
    totals, products = _sums(streamer, grads, source, norm)

    def over_group(table: torch.Tensor) -> torch.Tensor:
        summed = (table * weights).view(num_samples, num_groups, size).sum(2) / (size * num_places)
        return summed.repeat_interleave(size, 1)

    of_x = None
    if output_mask[0]:
        of_x = _input_gradient(streamer, grads, source, norm, over_group(totals), over_group(products))
    dtype = source.dtype if weight is None else weight.dtype
    return of_x, products.sum(0).to(dtype) if output_mask[1] else None, totals.sum(0).to(dtype) if output_mask[2] else None


def _one_row(values: torch.Tensor | None, source: SlabSource, default: float) -> torch.Tensor:
    if values is None:
        return torch.full((1, source.shape[1]), default, dtype=torch.float64)
    return values.double()[None]
