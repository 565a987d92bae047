"""Whether to stream, and in which sizes: everything the planner would have to take over to plan it with the rest.

The sizes follow from the budget, from what the model holds and from shapes, never from what happens to be resident: two runs
with the same budget cut the same slabs and give the same bits.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch

from tensorferry.engines.torch.stream.slabs import LAYOUTS, ROWS
from tensorferry.plan.weights import WindowedStep
from tensorferry.trace import Kind, Phase, Trace

_MIN_WORKING_NBYTES = 8 * 2**20
_THRESHOLD_SHARE = 16  # a tensor of less than this part of the working memory stays whole; an op holds several of them
_WORKING_SHARE = 0.5  # beside slabs there are writes under way and whole tensors below the threshold
_MOST_SHARE = 0.8  # what fast kernels may take where fewer rows would be for slow ones
_AHEAD_NBYTES = 32 * 2**20  # with less, slabs twice as large are worth more than reads ahead
_MIN_SLABS_ROWS = 12  # what one slab has at least, with its halo, for a fast kernel
_STORING = {  # whose outputs go to the tier; what other rules make is a function of slabs
    "convolution",
    "convolution_backward",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "max_pool2d_with_indices_backward",
    "max_pool3d_with_indices_backward",
    "upsample_nearest2d_backward",
    "upsample_nearest3d_backward",
}
_WINDOW_PART = 3  # of a step's room, one is for the window of weights
_COLD_NBYTES = 62 * 2**20  # code that the first step loads, kernels' own buffers, the engine's records


@dataclass(frozen=True, slots=True)
class StreamSizes:
    """How streamed ops are cut."""

    working_nbytes: int  # what an op may hold at once beyond what was held before it
    most_nbytes: int  # the same where its kernels would be slow otherwise
    threshold_nbytes: int  # from here on a tensor has no memory
    num_buffers: int  # 2: the next slab is read while this one is worked on


def choose_sizes(room_nbytes: int) -> StreamSizes:
    """The sizes for a step that may hold so much beside weights, gradients and inputs."""
    working_nbytes = max(_MIN_WORKING_NBYTES, int(_WORKING_SHARE * room_nbytes))
    num_buffers = 2 if working_nbytes >= _AHEAD_NBYTES else 1
    return StreamSizes(
        working_nbytes,
        max(working_nbytes, int(_MOST_SHARE * room_nbytes)),
        max(2**20, room_nbytes // _THRESHOLD_SHARE),
        num_buffers,
    )


def room_nbytes(limit_nbytes: int, held_nbytes: int) -> int:
    """What a step has beside what it always holds: weights, their gradients, buffers and inputs."""
    return limit_nbytes - held_nbytes - _COLD_NBYTES


def streamed_floor_nbytes(
    trace: Trace, num_rows: int, can_stream: Callable[[str], bool], windowed: WindowedStep | None = None
) -> int:
    """A budget in which a step is expected to run where it streams.

    trace: of the step without streaming. num_rows: rows of all samples of its inputs. windowed: the step with weights that move.
    An op that can be streamed needs a slab of a few rows, another one needs all it touches.
    """
    num_parts = max(1, num_rows // _MIN_SLABS_ROWS)
    widest_nbytes = _MIN_WORKING_NBYTES
    for op in trace.ops:
        if op.phase is Phase.OPTIMIZER:
            continue
        touched = (trace.storages[i] for i in {*op.inputs, *op.outputs})
        need_nbytes = op.workspace_nbytes + sum(s.nbytes for s in touched if s.kind in (Kind.ACTIVATION, Kind.GRADIENT))
        name = op.kernel.partition(".")[0]
        widest_nbytes = max(widest_nbytes, need_nbytes // num_parts if can_stream(name) else need_nbytes)
    if windowed is not None:
        return least_window_nbytes(windowed) + fixed_nbytes(windowed.trace) + _COLD_NBYTES + 2 * widest_nbytes
    state_nbytes = sum(storage.nbytes for storage in trace.storages if storage.kind is Kind.OPTIMIZER)
    return fixed_nbytes(trace) + _COLD_NBYTES + max(2 * widest_nbytes, state_nbytes)


def least_window_nbytes(windowed: WindowedStep) -> int:
    """The narrowest window beside streamed ops: a gradient that they add up is not in it yet."""
    largest_nbytes = max((windowed.whole.storages[i].nbytes for i in windowed.moving), default=0)
    return windowed.min_window_nbytes + largest_nbytes


def window_nbytes_for(windowed: WindowedStep, limit_nbytes: int) -> int:
    """How wide a window to give weights beside streamed ops, in a step that may hold so much."""
    room = room_nbytes(limit_nbytes, fixed_nbytes(windowed.trace))
    return min(windowed.nbytes, max(least_window_nbytes(windowed), room // _WINDOW_PART))


def stored_nbytes(trace: Trace, sizes: StreamSizes, can_stream: Callable[[str], bool]) -> int:
    """What a step that streams has on the tier at once, of what is sure to go there.

    A tensor that is stored stays as long as anybody may read what is a function of it.
    """
    last_uses = [len(trace.ops) if storage.freed_after is None else storage.freed_after for storage in trace.storages]
    stored: set[int] = set()
    for op in reversed(trace.ops):
        if op.kernel in _STORING:
            large = (i for i in op.outputs if trace.storages[i].nbytes >= sizes.threshold_nbytes)
            stored.update(i for i in large if trace.storages[i].kind in (Kind.ACTIVATION, Kind.GRADIENT))
        elif can_stream(op.kernel.partition(".")[0]):
            last = max((last_uses[i] for i in op.outputs), default=0)
            for i in op.inputs:
                last_uses[i] = max(last_uses[i], last)
    change = [0] * (len(trace.ops) + 2)
    for i in stored:
        change[trace.storages[i].born_at] += trace.storages[i].nbytes
        change[last_uses[i] + 1] -= trace.storages[i].nbytes
    return max(accumulate(change))


def fixed_nbytes(trace: Trace) -> int:
    """What a step holds of weights, of their gradients and of inputs, all of the time."""
    weights = sum(storage.nbytes for storage in trace.storages if storage.kind in (Kind.PARAMETER, Kind.BUFFER))
    parameters = sum(storage.nbytes for storage in trace.storages if storage.kind is Kind.PARAMETER)
    inputs = sum(storage.nbytes for storage in trace.storages if storage.kind is Kind.INPUT)
    return weights + parameters + inputs


def count_rows(values: Iterable[object]) -> int:
    """Rows of all samples of the largest of the inputs that can be cut, as slabs are cut: an image's rows, or tokens."""
    return max((_count_rows(value) for value in values if isinstance(value, torch.Tensor)), default=1)


def _count_rows(tensor: torch.Tensor) -> int:
    return count_rows_of(tensor.shape, is_whole=not tensor.is_floating_point())


def count_rows_of(shape: Sequence[int], *, is_whole: bool) -> int:
    """The same of an input of that shape; `is_whole`: its numbers are whole ones, each of them a token."""
    if len(shape) in LAYOUTS:
        return shape[0] * shape[ROWS]
    return int(prod(shape if is_whole else shape[:-1]))
