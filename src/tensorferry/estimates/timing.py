"""Seconds on the machine at hand: the ops of a step, timed there one by one, correct what the roofline says of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorferry.machine import Machine, free_memory_nbytes, time_trace
from tensorferry.machine.roofline import kind_of, op_seconds
from tensorferry.machine.timed_ops import Sample, find_corrections
from tensorferry.trace import Trace

_FREE_SHARE = 0.5  # of the free memory that one call may take; the rest is for the process and for others


@dataclass(frozen=True)
class Timing:
    """What timing a step's ops has shown."""

    corrections: dict[str, float]  # by kind of op, what to multiply the roofline's seconds by
    num_calls: int  # distinct calls that were timed
    share: float  # of the step's seconds, in ops of kinds that were timed
    too_large: tuple[str, ...]  # kinds with a call that did not fit into free memory and was left out


def time_step(trace: Trace, calls: Sequence[Any], machine: Machine, precision: str, free_nbytes: int | None = None) -> Timing:
    """Time the heavy ops of a step of torch on this machine; `calls` has one for each op of the trace."""
    from tensorferry.engines.torch.timing import time_calls

    usable_nbytes = _FREE_SHARE * (free_memory_nbytes() if free_nbytes is None else free_nbytes)
    num_times: Counter[Any] = Counter()
    first: dict[Any, int] = {}
    too_large: dict[str, None] = {}
    for i, (op, call) in enumerate(zip(trace.ops, calls, strict=True)):
        if call is None or not op.outputs or not op.touched_nbytes:
            continue
        if op.touched_nbytes + max(0, op.workspace_nbytes) > usable_nbytes:
            too_large[kind_of(op)] = None
            continue
        num_times[call] += 1
        first.setdefault(call, i)
    samples = [
        Sample(kind_of(trace.ops[i]), num_times[call], op_seconds(trace.ops[i], machine, precision)) for call, i in first.items()
    ]
    timed = time_calls(list(first), samples)
    corrections = find_corrections(timed)
    corrected = time_trace(trace, machine, precision, corrections)
    known_seconds = sum(op.seconds for op in corrected.ops if kind_of(op) in corrections)
    return Timing(
        corrections,
        num_calls=sum(sample.seconds is not None for sample in timed),
        share=known_seconds / corrected.seconds if corrected.seconds else 0.0,
        too_large=tuple(too_large),
    )
