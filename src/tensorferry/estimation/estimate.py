"""`estimate`: does a training step fit a machine, plain and with a plan, what does it cost, and how far can it grow?

    model ──▶ trace without execution ──▶ seconds by the machine's roofline ──▶ plan ──▶ simulated step ──▶ a row

A trace is captured once for every kind of kernels and timed anew for every machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorferry.engines.budget import MIN_NBYTES
from tensorferry.errors import BadModel, BudgetTooSmall, TierFull
from tensorferry.estimation.machines import resolve_machine
from tensorferry.estimation.models import EstimatedModel, Input, Inputs, find_model, parse_input
from tensorferry.estimation.page import html_fragment, html_page
from tensorferry.estimation.results import (
    EstimateData,
    LargestSize,
    MachineEstimate,
    StepEstimate,
    WeightTraffic,
    estimate_json,
)
from tensorferry.estimation.sizes import TracesBySize
from tensorferry.estimation.step import StepCapture, Timing, TrainingStep, time_step
from tensorferry.estimation.table import render_text
from tensorferry.machine import Machine, time_trace
from tensorferry.machine.machine import link_to
from tensorferry.machine.roofline import rate_of
from tensorferry.messages import did_you_mean
from tensorferry.pages import check_ending, write_page
from tensorferry.plan import Plan, find_floor, make_plan, make_swap_all_plan, simulate
from tensorferry.plan.weights import find_windowed
from tensorferry.trace import Trace
from tensorferry.trace.scaling import keep_small

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop")
LOSSES = ("cross_entropy", "token_cross_entropy", "mse", "mean")
POLICIES: dict[str, Callable[[Trace, int, Machine], Plan]] = {"ferry": make_plan, "swap-all": make_swap_all_plan}
AXES = ("batch", "resolution")
_PLANNED_KERNELS = {"gpu": "gpu", "cpu": "cpu-lean"}  # by a machine's kind: the kernels of a step under a plan
_ONE_BY_ONE = "gpu, one update after another"  # or the window would have to hold everything at once
_WINDOWED_KERNELS = {"gpu": _ONE_BY_ONE, "cpu": "cpu-lean"}
_SHRINK = 0.97  # a size whose tier is too small is tried again at this share


class Estimate(EstimateData):
    """What is predicted for a model on some machines. Print it, save the page, or take its rows."""

    def __str__(self) -> str:
        return render_text(self)

    def _repr_html_(self) -> str:
        return html_fragment(self)

    def to_json(self) -> dict[str, Any]:
        """The estimate as plain JSON values; bytes and seconds are numbers."""
        return estimate_json(self)

    def save(self, path: str | Path) -> Path:
        """Write the page (.html) and return where it is."""
        return write_page(check_ending(path, ".html"), html_page(self))


def estimate(
    model: str | Callable[[], Any],
    on: str | Machine | Sequence[str | Machine],
    *,
    batch: int | None = None,
    inputs: str | Sequence[str] = (),
    loss: str | None = None,
    optimizer: str | None = None,
    precision: str = "fp32",
    largest: str | None = None,
    policy: str = "ferry",
    changes: Mapping[str, str] | None = None,
    weights: bool = False,
    stream: bool = False,
) -> Estimate:
    """Whether a training step of `model` fits each machine, plain and with a plan, and what it costs there.

    model: a built-in name, "module:function", "file.py:function", or a factory. on: names of the table, "file.yaml", "this", or
    machines. inputs: "8x3x512x512", one for each input. largest: "batch" or "resolution", to find out how far it can go.
    policy: "ferry" plans; "swap-all" swaps everything as earlier systems did. changes: values of the machines' entries to change.
    weights: where a step does not fit otherwise, weights, their gradients and the optimizer's state wait on the tier, too.
    stream: where nothing fits, say what would do for a step that runs slab by slab, on CPUs.
    Nothing is executed and nothing allocated, but on "this": there the step's heaviest ops are timed one by one for up to ten
    seconds, in a process of their own.

        print(ferry.estimate("resnet50", on="v100-16gb-nvlink2", batch=512))
    """
    spec = find_model(model)
    asked = [on] if isinstance(on, str | Machine) else list(on)
    machines = [resolve_machine(each, dict(changes or {})) for each in asked]
    if not machines:
        raise BadModel("name at least one machine; `ferry machines` lists them")
    study = Study(
        model=spec,
        inputs=choose_inputs(spec, [inputs] if isinstance(inputs, str) else list(inputs), batch),
        loss=choose("loss", loss or spec.loss, LOSSES),
        optimizer=choose("optimizer", optimizer or spec.optimizer, OPTIMIZERS),
        precision=choose("precision", precision, PRECISIONS),
        policy=choose("policy", policy, tuple(POLICIES)),
        axis=None if largest is None else choose("axis", largest, AXES),
        weights=weights,
        stream=stream,
    )
    for machine in machines:
        rate_of(machine, precision)
    rows = tuple(study.estimate_on(machine) for machine in machines)
    return Estimate(spec.name, study.inputs, study.loss, study.optimizer, study.precision, study.policy, rows, study.axis)


@dataclass(frozen=True)
class Study:
    """Everything about the step that does not depend on the machine; it remembers the traces it captured."""

    model: EstimatedModel
    inputs: Inputs
    loss: str
    optimizer: str
    precision: str
    policy: str = "ferry"
    axis: str | None = None
    weights: bool = False
    stream: bool = False

    def estimate_on(self, machine: Machine) -> MachineEstimate:
        """The row of one machine."""
        now = self.estimate_step(self._start, machine)
        row = MachineEstimate(machine, now, self._timings.get(machine.name))
        if self.axis is None:
            return row
        return replace(row, largest_plain=self._find_largest_plain(machine), largest=self._find_largest(machine))

    def estimate_step(self, size: int, machine: Machine, policy: str | None = None) -> StepEstimate:
        """What becomes of a step of that batch or resolution on a machine; `policy` None is the study's own."""
        policy = policy or self.policy
        step = self._estimate_plain(size, machine)
        if step.fits_plain and policy == "ferry":
            return step
        captured = self.traces(_PLANNED_KERNELS[machine.kind]).at(size)
        trace = keep_small(self._time(captured, machine), MIN_NBYTES)
        planned = _plan_step(replace(step, trace=trace), machine, policy)
        if not planned.fits and self.weights and machine.tiers:
            windowed = self._estimate_windowed(step, size, machine, policy)
            planned = min(planned, windowed, key=lambda each: each.smallest_nbytes or 0)
        if not planned.fits and self.stream and machine.kind == "cpu":
            planned = replace(planned, streamed_nbytes=self._streamed_nbytes(captured, size, planned.smallest_nbytes))
        return planned

    def _estimate_windowed(self, step: StepEstimate, size: int, machine: Machine, policy: str) -> StepEstimate:
        """The step where weights, their gradients and the optimizer's state move as well."""
        trace = keep_small(self._time(self.traces(_WINDOWED_KERNELS[machine.kind]).at(size), machine), MIN_NBYTES)
        windowed = find_windowed(trace, MIN_NBYTES)
        floor_nbytes = windowed.floor.nbytes
        tier = machine.tiers[0]
        if floor_nbytes > machine.usable_nbytes or (tier.capacity_nbytes is not None and windowed.nbytes > tier.capacity_nbytes):
            return replace(step, trace=trace, smallest_nbytes=floor_nbytes)
        window_nbytes = windowed.window_for(machine.usable_nbytes)
        planned = _plan_step(replace(step, trace=windowed.with_window(window_nbytes)), machine, policy)
        in_nbytes, out_nbytes = windowed.traffic(window_nbytes)
        link = link_to(machine, tier.name)
        traffic = WeightTraffic(
            windowed.nbytes, window_nbytes, in_nbytes, out_nbytes, link.seconds_in(in_nbytes), link.seconds_out(out_nbytes)
        )
        return replace(planned, weights=traffic)

    def _streamed_nbytes(self, trace: Trace, size: int, smallest_nbytes: int | None) -> int | None:
        if trace.framework != "torch":
            return None
        from tensorferry.engines.torch.stream.decision import count_rows_of, streamed_floor_nbytes
        from tensorferry.engines.torch.stream.rules import can_stream

        num_rows = max(count_rows_of(given.shape, is_whole=given.dtype.startswith("int")) for given in self.inputs_at(size))
        floor_nbytes = streamed_floor_nbytes(trace, num_rows, can_stream)
        return floor_nbytes if smallest_nbytes is None or floor_nbytes < smallest_nbytes else None

    def _estimate_plain(self, size: int, machine: Machine) -> StepEstimate:
        trace = self._time(self.traces(machine.kind).at(size), machine)
        return StepEstimate(self.inputs_at(size), trace, trace.plain_peak_nbytes, machine.usable_nbytes)

    def _time(self, trace: Trace, machine: Machine) -> Trace:
        timing = self.timing_on(machine)
        return time_trace(trace, machine, self.precision, timing.corrections if timing is not None else None)

    def timing_on(self, machine: Machine) -> Timing | None:
        """What the step's ops take on the machine at hand, timed once; None for others, and for a step of TensorFlow."""
        if not machine.at_hand:
            return None
        if machine.name not in self._timings:
            trace = self.traces(machine.kind).at(self._start)
            calls = self._calls
            self._timings[machine.name] = time_step(trace, calls, machine, self.precision) if calls else None
        return self._timings[machine.name]

    @cached_property
    def _timings(self) -> dict[str, Timing | None]:
        return {}

    @cached_property
    def _calls(self) -> list[Any]:
        """Of the step that was asked about, with a CPU's kernels."""
        return []

    def traces(self, kernels: str) -> TracesBySize:
        """The traces of all sizes for one kind of kernels."""
        return self._traces_by_kernels[kernels]

    @cached_property
    def _traces_by_kernels(self) -> dict[str, TracesBySize]:
        step = self.model.edge_step if self.axis == "resolution" else 1
        kinds = {kernels: self._make_traces(kernels, step) for kernels in ("gpu", "cpu", "cpu-lean")}
        return kinds | {_ONE_BY_ONE: self._make_traces("gpu", step, updates_at_once=False)}

    def _make_traces(self, kernels: str, step: int, *, updates_at_once: bool = True) -> TracesBySize:
        num_edges = len(self.inputs[0].edges) if self.axis == "resolution" else 1

        def capture(size: int) -> Trace:
            inputs = self.inputs_at(size)
            asked = TrainingStep(inputs, self.loss, self.optimizer, self.precision, kernels, updates_at_once)
            noted = self._calls if kernels == "cpu" and size == self._start else None
            return self._steps_of(inputs).capture(asked, noted)

        return TracesBySize(
            capture, lambda size: float(size) ** num_edges, self._start, step, counts_samples=self.axis == "batch"
        )

    def _steps_of(self, inputs: Inputs) -> StepCapture:
        if self.model.is_same_for_all_batches and self.axis != "resolution":
            return self._steps
        return StepCapture(lambda: self.model.make_model(inputs))

    @cached_property
    def _steps(self) -> StepCapture:
        return StepCapture(lambda: self.model.make_model(self.inputs))

    @property
    def _start(self) -> int:
        first = self.inputs[0]
        return max(first.edges) if self.axis == "resolution" else first.shape[0]

    def inputs_at(self, size: int) -> Inputs:
        """The inputs of that batch or resolution."""
        if self.axis == "resolution":
            return self.model.derive(tuple(given.with_edge(size) for given in self.inputs))
        return self.model.derive(tuple(given.with_batch(size) for given in self.inputs))

    def _find_largest_plain(self, machine: Machine) -> LargestSize:
        traces = self.traces(machine.kind)
        size = traces.find_largest(lambda trace: trace.plain_peak_nbytes <= machine.usable_nbytes)
        return LargestSize(size, self._estimate_plain(size, machine) if size else None)

    def _find_largest(self, machine: Machine) -> LargestSize:
        traces = self.traces((_WINDOWED_KERNELS if self.weights else _PLANNED_KERNELS)[machine.kind])
        capacity = machine.tiers[0].capacity_nbytes if machine.tiers else 0

        def fits(trace: Trace) -> bool:
            over_nbytes = trace.plain_peak_nbytes - machine.usable_nbytes
            if over_nbytes <= 0:
                return True
            small = keep_small(trace, MIN_NBYTES)
            floor = find_windowed(small, MIN_NBYTES).floor if self.weights else find_floor(small)
            return floor.nbytes <= machine.usable_nbytes and (capacity is None or over_nbytes <= capacity)

        size = traces.find_largest(fits)
        while size:
            step = self.estimate_step(size, machine)
            if step.fits:
                return LargestSize(size, step)
            size = min(size - traces.step, int(_SHRINK * size)) // traces.step * traces.step
        return LargestSize(0, None)


def _plan_step(step: StepEstimate, machine: Machine, policy: str) -> StepEstimate:
    try:
        plan = POLICIES[policy](step.trace, machine.usable_nbytes, machine)
    except BudgetTooSmall as error:
        return replace(step, smallest_nbytes=error.smallest_nbytes)
    except TierFull:
        return replace(step, smallest_nbytes=find_floor(step.trace).nbytes)
    return replace(step, plan=plan, timeline=simulate(step.trace, plan, machine))


def choose_inputs(model: EstimatedModel, texts: list[str], batch: int | None) -> Inputs:
    """What a model is fed: what was written, or its own, with another batch where one is given."""
    inputs: tuple[Input, ...] = tuple(map(parse_input, texts)) or model.inputs
    if not inputs:
        raise BadModel(f"what {model.name!r} is fed is not known; say so, as in --input 8x3x224x224")
    if batch is not None:
        if batch < 1:
            raise BadModel(f"the batch must be above zero, received {batch}")
        inputs = tuple(given.with_batch(batch) for given in inputs)
    return model.derive(inputs)


def choose(what: str, value: str, known: Sequence[str]) -> str:
    """The value, or `BadModel` where it is not known."""
    if value not in known:
        raise BadModel(f"unknown {what} {value!r}{did_you_mean(value, known)}; choose from {', '.join(known)}")
    return value
