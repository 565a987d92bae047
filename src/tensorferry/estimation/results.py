"""What an estimate found: a row a machine, with the step under a plan or plain; as values, and as JSON."""

from dataclasses import asdict, dataclass
from typing import Any

from tensorferry.estimation.models import Inputs
from tensorferry.estimation.step import Timing
from tensorferry.machine import Machine
from tensorferry.plan import Action, Lane, Plan, Timeline
from tensorferry.trace import Trace

FORMAT = "tensorferry-estimate-1"


@dataclass(frozen=True, slots=True)
class WeightTraffic:
    """What moves of weights, their gradients and optimizer state in a step, and how long the link is busy with it."""

    nbytes: int  # of all that moves
    window_nbytes: int  # of it resident
    in_nbytes: int
    out_nbytes: int
    in_seconds: float
    out_seconds: float

    def seconds(self, lane: Lane) -> float:
        """How long a lane of the link is busy."""
        return {Lane.IN: self.in_seconds, Lane.OUT: self.out_seconds}.get(lane, 0.0)


@dataclass(frozen=True)
class StepEstimate:
    """One step of one size on one machine, under a plan or plain."""

    inputs: Inputs
    trace: Trace  # timed for the machine
    plain_peak_nbytes: int  # when everything is kept
    usable_nbytes: int
    plan: Plan | None = None  # None: it fits plain, or not at all
    timeline: Timeline | None = None
    smallest_nbytes: int | None = None  # where it does not fit: what would do
    streamed_nbytes: int | None = None  # the same where ops run slab by slab, if that is less
    weights: WeightTraffic | None = None  # where they move

    @property
    def fits(self) -> bool:
        """Whether it trains."""
        return self.smallest_nbytes is None

    @property
    def fits_plain(self) -> bool:
        """Whether it trains with everything kept."""
        return self.plain_peak_nbytes <= self.usable_nbytes

    @property
    def step_seconds(self) -> float:
        """The predicted step."""
        seconds = self.timeline.step_seconds if self.timeline is not None else self.trace.seconds
        return max(seconds, *(self._busy_seconds(lane) for lane in (Lane.OUT, Lane.IN)))

    @property
    def overhead(self) -> float:
        """How much longer than with endless memory, as a share."""
        return self.step_seconds / self.trace.seconds - 1 if self.trace.seconds else 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples of the batch a second."""
        return self.inputs[0].shape[0] / self.step_seconds if self.step_seconds else 0.0

    def busy(self, lane: Lane) -> float:
        """The share of the step in which a lane works."""
        if self.timeline is None or not self.step_seconds:
            return 1.0 if lane is Lane.COMPUTE else 0.0
        return self._busy_seconds(lane) / self.step_seconds

    def _busy_seconds(self, lane: Lane) -> float:
        of_plan = self.timeline.busy_seconds(lane) if self.timeline is not None else 0.0
        return of_plan + (self.weights.seconds(lane) if self.weights is not None else 0.0)

    @property
    def bottleneck(self) -> str:
        """What the step waits for most beyond its own compute."""
        if not self.fits:
            return "memory"
        if self.timeline is None or self.overhead < 0.01:
            return "compute"
        waited = self.timeline.stall_seconds + self.step_seconds - self.timeline.step_seconds
        stalled = waited / self.step_seconds
        recomputed = self.overhead / (1 + self.overhead) - stalled
        return "link" if stalled > recomputed else "recompute"


@dataclass(frozen=True)
class LargestSize:
    """The largest size that trains, and its step; `size` zero: none does."""

    size: int
    step: StepEstimate | None


@dataclass(frozen=True)
class MachineEstimate:
    """What is predicted for one machine."""

    machine: Machine
    step: StepEstimate
    timing: Timing | None = None  # where ops were timed on the machine; None: all seconds are the roofline's
    largest_plain: LargestSize | None = None  # where the largest was asked for
    largest: LargestSize | None = None


@dataclass(frozen=True)
class EstimateData:
    """What is predicted for a model on some machines, for whoever shows it."""

    model: str
    inputs: Inputs
    loss: str
    optimizer: str
    precision: str
    policy: str
    rows: tuple[MachineEstimate, ...]
    axis: str | None = None  # "batch" or "resolution": what was made as large as possible


def estimate_json(estimate: EstimateData) -> dict[str, Any]:
    """The whole estimate; keys name their unit."""
    return {
        "format": FORMAT,
        "model": estimate.model,
        "inputs": [str(given) for given in estimate.inputs],
        "loss": estimate.loss,
        "optimizer": estimate.optimizer,
        "precision": estimate.precision,
        "policy": estimate.policy,
        "rows": [_row_json(row, estimate.axis) for row in estimate.rows],
    }


def _row_json(row: MachineEstimate, axis: str | None) -> dict[str, Any]:
    machine = asdict(row.machine) | {"usable_nbytes": row.machine.usable_nbytes}
    found = {"machine": machine} | _step_json(row.step) | {"timing": None if row.timing is None else asdict(row.timing)}
    if axis is not None:
        found["largest"] = {"axis": axis, "plain": _largest_json(row.largest_plain), "planned": _largest_json(row.largest)}
    return found


def _largest_json(largest: LargestSize | None) -> dict[str, Any] | None:
    if largest is None or largest.step is None:
        return None
    return {"size": largest.size} | _step_json(largest.step)


def _step_json(step: StepEstimate) -> dict[str, Any]:
    plan = step.plan
    planned = {f"{action}_nbytes": plan.nbytes(action) for action in Action} if plan is not None else {}
    return {
        "inputs": [str(given) for given in step.inputs],
        "plain_peak_nbytes": step.plain_peak_nbytes,
        "fits_plain": step.fits_plain,
        "fits": step.fits,
        "smallest_nbytes": step.smallest_nbytes,
        "streamed_nbytes": step.streamed_nbytes,
        "weights": None if step.weights is None else asdict(step.weights),
        "plan": None if plan is None else planned | {"peak_nbytes": plan.peak_nbytes, "tier": plan.tier},
        "plain_seconds": step.trace.seconds,
        "step_seconds": step.step_seconds if step.fits else None,
        "overhead": step.overhead if step.fits else None,
        "compute_busy": step.busy(Lane.COMPUTE),
        "copy_out_busy": step.busy(Lane.OUT),
        "copy_in_busy": step.busy(Lane.IN),
        "samples_per_second": step.samples_per_second if step.fits else None,
        "bottleneck": step.bottleneck,
    }
