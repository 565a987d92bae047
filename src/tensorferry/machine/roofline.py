"""How long an op takes on a machine that only its data sheet is known of: the roofline (Williams et al. 2009).

An op cannot be faster than its arithmetic at the machine's compute rate, nor than its bytes at the memory's rate, nor than the
time to launch it:

    seconds = max(launch, flops / (rate of the precision x efficiency), bytes / (memory rate x efficiency))

No kernel reaches a data sheet's rates. What share each kind of op reaches is in `EFFICIENCY`, one set for all accelerators and
one for CPUs. The accelerators' set was fitted to twelve published throughputs (ResNet-50 and BERT large on V100 and A100, in
fp32 or tf32 and fp16); `benchmarks/published.py` prints each beside what the fit gives. The CPUs' set is relative to the rates
that `ferry machines measure` finds (a matrix product, a copy) and was fitted to steps measured on two cores; on the machine at
hand, ops that were timed correct it (`tensorferry.machine.timed_ops`).

Limits: one share for all shapes of a kind, so small or odd shapes are predicted too fast; no caches; ops run one at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tensorferry.errors import BadMachine
from tensorferry.machine.machine import Machine
from tensorferry.trace import Op, Trace


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The share of a machine's rates that each kind of op reaches."""

    convolution: dict[str, float]  # by precision, of the compute rate
    matmul: dict[str, float]
    attention: float  # of what a matrix product reaches
    memory: float  # of the memory's rate, by everything that does little arithmetic
    norm: float  # the same, by norms: they read their input more than once, and it is counted once


EFFICIENCY = {
    "gpu": Efficiency(
        convolution={"fp32": 0.87, "tf32": 0.24, "fp16": 0.49, "bf16": 0.49},
        matmul={"fp32": 0.68, "tf32": 0.41, "fp16": 0.42, "bf16": 0.42},
        attention=0.5,
        memory=0.8,
        norm=0.55,
    ),
    "cpu": Efficiency(
        convolution={"fp32": 0.67, "bf16": 0.67, "fp16": 0.67},
        matmul={"fp32": 0.86, "bf16": 0.86, "fp16": 0.86},
        attention=0.7,
        memory=0.6,
        norm=0.33,
    ),
}


def time_trace(trace: Trace, machine: Machine, precision: str = "fp32", corrections: Mapping[str, float] | None = None) -> Trace:
    """The same step with every op's seconds as the machine would take them.

    `precision` "tf32" computes in tf32 what the trace has in fp32; any other leaves every op in its own.
    `corrections` are factors by kind of op (`kind_of`), from ops that were timed on the machine.

    >>> from tensorferry.trace import make_chain_trace
    >>> card = Machine("card", 2**34, (), {"fp32": 15e12}, memory_nbytes_per_second=900e9, launch_seconds=5e-6)
    >>> time_trace(make_chain_trace(2), card).ops[0].seconds  # a chain made up from numbers has neither flops nor bytes
    5e-06
    """
    if not machine.memory_nbytes_per_second:
        raise BadMachine(f"machine {machine.name!r} does not say how fast its memory is, so no op can be timed on it")
    factors = corrections or {}

    def seconds(op: Op) -> float:
        return op_seconds(op, machine, precision) * factors.get(kind_of(op), 1.0)

    return replace(trace, ops=tuple(replace(op, seconds=seconds(op)) for op in trace.ops))


def kind_of(op: Op) -> str:
    """Which ops are timed alike: those of one kernel in one precision."""
    return f"{op.kernel} {op.precision}"


def op_seconds(op: Op, machine: Machine, precision: str = "fp32") -> float:
    """How long one op takes; nothing for one that writes nothing, which is a view."""
    if not op.outputs:
        return 0.0
    used = "tf32" if precision == "tf32" and op.precision == "fp32" else op.precision
    efficiency = EFFICIENCY[machine.kind]
    kernel = op.kernel.lower()
    memory = efficiency.norm if "norm" in kernel else efficiency.memory
    seconds = op.touched_nbytes / (machine.memory_nbytes_per_second * memory)
    if op.flops:
        # a step may do a little in a precision that an entry does not name
        rate = machine.flops_per_second.get(used) or rate_of(machine, "fp32")
        seconds = max(seconds, op.flops / (rate * _compute_share(kernel, used, efficiency)))
    return max(seconds, machine.launch_seconds)


def rate_of(machine: Machine, precision: str) -> float:
    """The machine's flops a second in a precision, or `BadMachine` where it does not compute in it."""
    rate = machine.flops_per_second.get(precision)
    if rate is None:
        known = ", ".join(machine.flops_per_second) or "no precision"
        raise BadMachine(f"machine {machine.name!r} does not compute in {precision}; its entry has {known}")
    return rate


def _compute_share(kernel: str, precision: str, efficiency: Efficiency) -> float:
    if "conv" in kernel:
        return efficiency.convolution.get(precision, efficiency.convolution["fp32"])
    share = efficiency.matmul.get(precision, efficiency.matmul["fp32"])
    return share * efficiency.attention if "attention" in kernel else share
