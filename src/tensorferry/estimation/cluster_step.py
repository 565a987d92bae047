"""One step of a training that is split over a cluster, as one rank sees it: what it computes, what it waits for, what it holds.

    step = micro-batches x (forward + backward + exposed traffic)   tensor: two all-reduces a layer each way, Shoeybi et al. 2019
         + (stages - 1) / interleave x one micro-batch               pipeline: the bubble of 1F1B, Narayanan et al. 2021
         + gradients that backward does not hide                     data: buckets of 25 MiB, as in Li et al. 2020 (DDP)
         + optimizer + stragglers

Sharded weights (fsdp) are gathered one unit ahead in forward and in backward and their gradients reduced on the same lane, as in
Zhao et al. 2023. The slowest of n ranks decides: their seconds scatter like a normal distribution, whose largest of n draws lies
sqrt(2 ln n) deviations above the mean; micro-batches between two waits average out. `JITTER` is that deviation.

Limits: small kernels that a host cannot launch fast enough, data loading, and traffic that slows compute are not in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, sqrt

from tensorferry.estimation.collectives import (
    ClusterLinks,
    RankGroup,
    all_reduce_seconds,
    gather_seconds,
    place_group,
    send_seconds,
)
from tensorferry.estimation.profile import Piece, StepProfile
from tensorferry.estimation.split import ClusterSplit

BUCKET_NBYTES = 25 * 2**20
JITTER = 0.01  # of a micro-batch; clusters that were measured scatter by about that


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How a step is carried out on a cluster."""

    split: ClusterSplit
    links: ClusterLinks
    num_micro_batches: int = 1
    interleave: int = 1  # model chunks a pipeline stage holds
    reduced_share: float = 1.0  # bytes of a gradient on the wire, over those of its weight
    gathered_share: float = 1.0  # the same of a gathered weight
    recompute: bool = False
    overlap: bool = True  # gradients travel while backward runs


@dataclass(frozen=True, slots=True)
class RankSpan:
    """A piece of work on one lane of a rank."""

    lane: str  # "compute", "tensor", "weights", "gradients" or "wait"
    name: str
    start: float
    seconds: float


@dataclass(frozen=True)
class MemoryByKind:
    """Bytes that one GPU holds at the most, by what they are."""

    weight_nbytes: float
    gradient_nbytes: float
    state_nbytes: float
    activation_nbytes: float

    @property
    def total_nbytes(self) -> float:
        """All of it."""
        return self.weight_nbytes + self.gradient_nbytes + self.state_nbytes + self.activation_nbytes


@dataclass(frozen=True)
class ClusterStep:
    """Where the seconds of a step go, and the last micro-batch as a timeline."""

    compute_seconds: float
    tensor_seconds: float
    weights_seconds: float  # waiting for sharded weights and their gradients
    pipeline_seconds: float  # the bubble, and handing over
    gradient_seconds: float  # waiting for gradients after backward
    optimizer_seconds: float
    straggler_seconds: float
    spans: tuple[RankSpan, ...] = field(default=(), repr=False)

    @property
    def seconds(self) -> float:
        """The whole step."""
        parts = (self.compute_seconds, self.tensor_seconds, self.weights_seconds, self.pipeline_seconds)
        return sum(parts) + self.gradient_seconds + self.optimizer_seconds + self.straggler_seconds


@dataclass(frozen=True)
class _MicroBatch:
    compute_seconds: float
    tensor_seconds: float
    weights_seconds: float
    ready: tuple[tuple[float, float], ...]  # when gradients of how many bytes are there, after the start of backward
    forward_end: float
    spans: tuple[RankSpan, ...]

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.tensor_seconds + self.weights_seconds


def cost_step(profile: StepProfile, settings: ClusterSettings) -> ClusterStep:
    """What a step costs; `profile` is of one tensor shard, and whole in every other way."""
    split, num = settings.split, settings.num_micro_batches
    if settings.recompute:
        profile = profile.recomputed()
    stages = [profile.stage(number, split.pipeline) for number in sorted({0, min(1, split.pipeline - 1), split.pipeline - 1})]
    parts = [_run_micro_batch(stage, settings) for stage in stages]
    slowest = max(range(len(stages)), key=lambda i: parts[i].seconds)
    part, stage = parts[slowest], stages[slowest]
    bubble, sends = _pipeline(profile, parts, settings)
    gradient_seconds, spans = _reduce_gradients(part, settings)
    if split.pipeline > 1:  # the embedding stands on the first and on the last stage
        shared = profile.pieces[0].weight_nbytes * settings.reduced_share / split.fsdp
        gradient_seconds += all_reduce_seconds(shared, RankGroup(2, 1), settings.links)
    optimizer_seconds = max(each.total.optimizer_seconds for each in stages) / split.fsdp
    deviations = sqrt(2 * log(split.num_gpus)) if split.num_gpus > 1 else 0.0
    end = max([span.start + span.seconds for span in spans], default=0.0)
    return ClusterStep(
        compute_seconds=num * part.compute_seconds,
        tensor_seconds=num * part.tensor_seconds,
        weights_seconds=num * part.weights_seconds,
        pipeline_seconds=bubble + sends,
        gradient_seconds=gradient_seconds,
        optimizer_seconds=optimizer_seconds,
        straggler_seconds=JITTER * deviations * part.compute_seconds * sqrt(num),
        spans=(
            *spans,
            RankSpan(
                "compute", f"optimizer, {stage.total.weight_nbytes / split.fsdp / 4e6:,.0f} M weights", end, optimizer_seconds
            ),
        ),
    )


def hold(profile: StepProfile, settings: ClusterSettings, is_mixed: bool) -> MemoryByKind:
    """What the fullest GPU holds; `is_mixed`: weights have a copy in half precision, which the profile counts as activation."""
    split = settings.split
    if settings.recompute:
        profile = profile.recomputed()
    return max(
        (_hold_stage(profile.stage(number, split.pipeline), number, settings, is_mixed) for number in {0, split.pipeline - 1}),
        key=lambda memory: memory.total_nbytes,
    )


def _hold_stage(stage: StepProfile, number: int, settings: ClusterSettings, is_mixed: bool) -> MemoryByKind:
    split, total = settings.split, stage.total
    in_flight = 1.0
    if split.pipeline > 1:
        in_flight = float(min(settings.num_micro_batches, split.pipeline - number))
        if settings.interleave > 1:
            in_flight *= 1 + (split.pipeline - 1) / (split.pipeline * settings.interleave)
    layers = sum(piece.activation_nbytes for piece in stage.pieces[1:-1])
    ends = stage.pieces[0].activation_nbytes + (stage.pieces[-1].activation_nbytes if len(stage.pieces) > 1 else 0.0)
    copies = 0.5 * total.weight_nbytes if is_mixed else 0.0
    hidden = 0.0 if settings.recompute else copies
    largest = max(unit.weight_nbytes for unit in _units(stage.pieces)) if split.fsdp > 1 else 0.0
    return MemoryByKind(
        weight_nbytes=(total.weight_nbytes + copies) / split.fsdp + 2 * largest * settings.gathered_share,
        gradient_nbytes=total.weight_nbytes / split.fsdp + largest * settings.reduced_share,
        state_nbytes=total.state_nbytes / split.fsdp,
        activation_nbytes=max(0.0, in_flight * layers + ends - (in_flight * hidden if layers else hidden)),
    )


def _run_micro_batch(stage: StepProfile, settings: ClusterSettings) -> _MicroBatch:
    """Forward and backward of one micro-batch, with the traffic that every one of them has."""
    split, links = settings.split, settings.links
    total = stage.total
    tensor = all_reduce_seconds(stage.boundary_nbytes, place_group(split.tensor, 1, links.gpus_per_node), links)
    num_forward = 2 * stage.num_layers + 1
    num_backward = num_forward + (2 * stage.num_layers if settings.recompute else 0)
    forward_tensor, backward_tensor = num_forward * tensor, num_backward * tensor
    lanes = _Lanes(settings)
    units = _units(stage.pieces) if split.fsdp > 1 else stage.pieces
    forward_end = lanes.run_forward(units, forward_tensor)
    ready = lanes.run_backward(units, backward_tensor)
    compute = total.forward_seconds + total.backward_seconds
    waited = lanes.end - compute - forward_tensor - backward_tensor if split.fsdp > 1 else 0.0
    return _MicroBatch(compute, forward_tensor + backward_tensor, max(0.0, waited), tuple(ready), forward_end, tuple(lanes.spans))


class _Lanes:
    """Compute and traffic of one rank through a micro-batch; two lanes, each doing one thing at a time."""

    def __init__(self, settings: ClusterSettings) -> None:
        split, links = settings.split, settings.links
        self._settings = settings
        self._group = place_group(split.fsdp, split.tensor, links.gpus_per_node)
        self.spans: list[RankSpan] = []
        self.clock = 0.0  # of compute
        self.traffic = 0.0  # when the lane of weights and gradients is free
        self._gathered = 0.0  # when the unit that computes next is there

    @property
    def end(self) -> float:
        return max(self.clock, self.traffic)

    def run_forward(self, units: Sequence[Piece], tensor_seconds: float) -> float:
        total = sum(unit.forward_seconds for unit in units) or 1.0
        self._gather(units, 0, self.clock)
        for number, unit in enumerate(units):
            waits = tensor_seconds * unit.forward_seconds / total
            self._compute(units, number, f"forward {number + 1} of {len(units)}", unit.forward_seconds, waits)
        return self.clock

    def run_backward(self, units: Sequence[Piece], tensor_seconds: float) -> list[tuple[float, float]]:
        """When the gradients of how many bytes are ready."""
        begin, ready = self.clock, []
        backward = list(reversed(units))
        total = sum(unit.backward_seconds for unit in backward) or 1.0
        self._gather(backward, 0, self.clock)
        for number, unit in enumerate(backward):
            waits = tensor_seconds * unit.backward_seconds / total
            self._compute(backward, number, f"backward {len(backward) - number} of {len(backward)}", unit.backward_seconds, waits)
            nbytes = unit.weight_nbytes * self._settings.reduced_share
            ready.append((self.clock - begin, nbytes / self._settings.split.fsdp))
            self._send("reduce-scatter of gradients", nbytes, self.clock)
        return ready

    def _compute(self, units: Sequence[Piece], number: int, name: str, seconds: float, tensor_seconds: float) -> None:
        start = max(self.clock, self._gathered)
        self._gather(units, number + 1, start)
        self.spans.append(RankSpan("compute", name, start, seconds))
        if tensor_seconds:
            self.spans.append(RankSpan("tensor", "all-reduce of activations", start + seconds, tensor_seconds))
        self.clock = start + seconds + tensor_seconds

    def _gather(self, units: Sequence[Piece], number: int, earliest: float) -> None:
        if number < len(units):
            nbytes = units[number].weight_nbytes * self._settings.gathered_share
            self._send("all-gather of weights", nbytes, earliest)
            self._gathered = self.traffic if self._group.num_ranks > 1 else 0.0

    def _send(self, name: str, nbytes: float, earliest: float) -> None:
        seconds = gather_seconds(nbytes, self._group, self._settings.links)
        if seconds:
            start = max(self.traffic, earliest)
            self.spans.append(RankSpan("weights", name, start, seconds))
            self.traffic = start + seconds


def _units(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Neighbours joined until each has a bucket's bytes: what is gathered and sharded as one."""
    units: list[Piece] = []
    for piece in pieces:
        if units and units[-1].weight_nbytes < BUCKET_NBYTES:
            units[-1] = units[-1] + piece
        else:
            units.append(piece)
    return tuple(units)


def _reduce_gradients(part: _MicroBatch, settings: ClusterSettings) -> tuple[float, tuple[RankSpan, ...]]:
    """The wait after the last backward, and the micro-batch's spans with those of the gradients."""
    split, links = settings.split, settings.links
    group = place_group(split.data, split.tensor * split.fsdp, links.gpus_per_node)
    end = max([span.start + span.seconds for span in part.spans], default=0.0)
    lane, spans, waiting = 0.0, list(part.spans), 0.0
    if group.num_ranks == 1:
        return 0.0, part.spans
    for number, (moment, nbytes) in enumerate(part.ready):
        waiting += nbytes
        if waiting < BUCKET_NBYTES and number + 1 < len(part.ready):
            continue
        seconds = all_reduce_seconds(waiting, group, links)
        start = max(lane, part.forward_end + moment if settings.overlap else end)
        spans.append(RankSpan("gradients", "all-reduce of gradients", start, seconds))
        lane, waiting = start + seconds, 0.0
    return max(0.0, lane - end), tuple(spans)


def _pipeline(profile: StepProfile, parts: Sequence[_MicroBatch], settings: ClusterSettings) -> tuple[float, float]:
    """Seconds of the bubble, and of handing activations and their gradients over."""
    split = settings.split
    if split.pipeline == 1:
        return 0.0, 0.0
    middle = max(0, split.pipeline - 2)
    mean = (parts[0].seconds + parts[-1].seconds + middle * parts[min(1, len(parts) - 1)].seconds) / (2 + middle)
    stride = split.tensor * split.fsdp * split.data
    one = send_seconds(profile.boundary_nbytes / split.tensor, stride, settings.links)
    sends = 2 * one * settings.interleave * (settings.num_micro_batches + split.pipeline - 1)
    return (split.pipeline - 1) / settings.interleave * mean, sends
