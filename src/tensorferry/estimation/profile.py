"""What one GPU does in one micro-batch, cut into the pieces that a cluster communicates for: layers, or gradients as they come.

A transformer is made of like layers, so two short ones are followed, of one and of two layers: their difference is a layer, the
rest is what stands before and after all layers. That takes a second for any depth. Other models are followed whole, and a piece
ends wherever backward has finished a gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorferry.estimation.models import EstimatedModel, Inputs
from tensorferry.estimation.step import StepCapture, TrainingStep
from tensorferry.machine import Machine, time_trace
from tensorferry.machine.roofline import EFFICIENCY
from tensorferry.trace import Kind, Phase, Storage, Trace


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the model: its seconds in one micro-batch and its bytes."""

    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    optimizer_seconds: float = 0.0
    weight_nbytes: float = 0.0  # as the optimizer holds them; gradients are as large
    state_nbytes: float = 0.0
    activation_nbytes: float = 0.0

    def __sub__(self, other: "Piece") -> "Piece":
        return self._combine(other, lambda mine, yours: max(0.0, mine - yours))

    def __add__(self, other: "Piece") -> "Piece":
        return self._combine(other, lambda mine, yours: mine + yours)

    def _combine(self, other: "Piece", work_out: Callable[[float, float], float]) -> "Piece":
        return Piece(**{name: work_out(getattr(self, name), getattr(other, name)) for name in Piece.__slots__})


@dataclass(frozen=True)
class StepProfile:
    """One micro-batch on one GPU, with nothing to wait for: pieces in the order of forward."""

    pieces: tuple[Piece, ...]
    micro_batch: int
    num_layers: int = 0  # of a transformer: all pieces but the first and the last are its layers; 0: any other model
    boundary_nbytes: float = 0.0  # what one layer hands to the next

    @property
    def total(self) -> Piece:
        """All pieces as one."""
        return sum(self.pieces, Piece())

    def slowed(self, factor: float) -> "StepProfile":
        """The same where everything computes `factor` times as long."""
        slow = (
            replace(
                piece,
                forward_seconds=factor * piece.forward_seconds,
                backward_seconds=factor * piece.backward_seconds,
                optimizer_seconds=factor * piece.optimizer_seconds,
            )
            for piece in self.pieces
        )
        return replace(self, pieces=tuple(slow))

    def recomputed(self) -> "StepProfile":
        """The same where backward runs the forward of every layer again, from what the layer was given."""
        if not self.num_layers:
            return self
        layers = [
            replace(
                piece,
                backward_seconds=piece.backward_seconds + piece.forward_seconds,
                activation_nbytes=self.boundary_nbytes,
            )
            for piece in self.pieces[1:-1]
        ]
        one_layer = max(0.0, self.pieces[1].activation_nbytes - self.boundary_nbytes)
        last = replace(self.pieces[-1], activation_nbytes=self.pieces[-1].activation_nbytes + one_layer)
        return replace(self, pieces=(self.pieces[0], *layers, last))

    def stage(self, number: int, num_stages: int) -> "StepProfile":
        """The part of one pipeline stage."""
        if num_stages == 1:
            return self
        share = self.num_layers // num_stages
        layers = self.pieces[1 : 1 + share]
        first = self.pieces[0] if number == 0 else Piece()
        last = self.pieces[-1] if number == num_stages - 1 else Piece()
        if number == num_stages - 1:  # an embedding that is also the output stands on both ends
            last = replace(last, weight_nbytes=self.pieces[0].weight_nbytes, state_nbytes=self.pieces[0].state_nbytes)
        return replace(self, pieces=(first, *layers, last), num_layers=share)


@dataclass(frozen=True)
class TrainedModel:
    """A model and how it is trained, whatever the machine and the cluster."""

    model: EstimatedModel
    inputs: Inputs  # their batch is not used
    loss: str
    optimizer: str
    precision: str


def make_profile(trained: TrainedModel, machine: Machine, micro_batch: int, num_shards: int = 1) -> StepProfile:
    """The profile of one of `num_shards` tensor shards on a machine."""
    inputs = trained.model.derive(tuple(given.with_batch(micro_batch) for given in trained.inputs))
    shape = trained.model.transformer
    if shape is None:
        trace = _follow(trained, machine, inputs, lambda: trained.model.make_model(inputs))
        return StepProfile(_cut_at_gradients(trace, machine), micro_batch)
    one, two = (
        _as_piece(_follow(trained, machine, inputs, _Maker(shape.make_model, inputs, depth, num_shards)), machine)
        for depth in (1, 2)
    )
    layer = two - one
    ends = one - layer
    embedding = Piece(weight_nbytes=ends.weight_nbytes, state_nbytes=ends.state_nbytes, optimizer_seconds=ends.optimizer_seconds)
    head = replace(ends, weight_nbytes=0.0, state_nbytes=0.0, optimizer_seconds=0.0)
    element_nbytes = 2 if trained.precision in ("fp16", "bf16") else 4
    num_tokens = micro_batch * inputs[0].shape[1]
    boundary = num_tokens * shape.width * element_nbytes
    return StepProfile((embedding, *[layer] * shape.num_layers, head), micro_batch, shape.num_layers, boundary)


@dataclass(frozen=True)
class _Maker:
    make_model: Callable[[Inputs, int, int], Any]
    inputs: Inputs
    num_layers: int
    num_shards: int

    def __call__(self) -> Any:
        return self.make_model(self.inputs, self.num_layers, self.num_shards)


def _follow(trained: TrainedModel, machine: Machine, inputs: Inputs, make_model: Callable[[], Any]) -> Trace:
    step = TrainingStep(inputs, trained.loss, trained.optimizer, trained.precision, machine.kind)
    return time_trace(StepCapture(make_model).capture(step), machine, trained.precision)


def _as_piece(trace: Trace, machine: Machine) -> Piece:
    seconds = {phase: sum(op.seconds for op in trace.ops if op.phase is phase) for phase in Phase}
    there = [storage for storage in trace.storages if storage.was_there]
    nbytes = {kind: sum(storage.nbytes for storage in there if storage.kind is kind) for kind in Kind}
    weights, state = nbytes[Kind.PARAMETER], nbytes[Kind.OPTIMIZER]
    # one pass of a fused kernel: weights and state are read and written, gradients read
    optimizer_nbytes = 3 * weights + 2 * state
    return Piece(
        seconds[Phase.FORWARD],
        seconds[Phase.BACKWARD],
        optimizer_nbytes / (machine.memory_nbytes_per_second * EFFICIENCY[machine.kind].memory),
        float(weights),
        float(state),
        float(_activation_peak(trace)),
    )


def _activation_peak(trace: Trace) -> int:
    """The most that a step holds before its optimizer runs, beyond weights, gradients and state."""
    end = _optimizer_start(trace)
    change = np.zeros(end + 1, dtype=np.int64)
    for storage in trace.storages:
        is_held = storage.kind in (Kind.PARAMETER, Kind.OPTIMIZER) or _is_of_weight(storage, end)
        if not is_held and storage.born_at < end:
            change[storage.born_at] += storage.nbytes
            if storage.freed_after is not None and storage.freed_after + 1 < end:
                change[storage.freed_after + 1] -= storage.nbytes
    workspace = np.fromiter((op.workspace_nbytes for op in trace.ops[:end]), dtype=np.int64, count=end)
    return int((np.cumsum(change[:-1]) + workspace).max(initial=0))


def _optimizer_start(trace: Trace) -> int:
    return next((i for i, op in enumerate(trace.ops) if op.phase is Phase.OPTIMIZER), len(trace.ops))


def _is_of_weight(storage: Storage, optimizer_start: int) -> bool:
    """Whether it is the gradient of a weight, which the optimizer waits for; others are of activations, and go at once."""
    lives_on = storage.freed_after is None or storage.freed_after >= optimizer_start
    return storage.kind is Kind.GRADIENT and lives_on


def _cut_at_gradients(trace: Trace, machine: Machine) -> tuple[Piece, ...]:
    """Pieces that end where backward finishes a gradient; one piece where the trace does not tell gradients apart."""
    whole = _as_piece(trace, machine)
    end = _optimizer_start(trace)
    ready: dict[int, int] = {}  # bytes of gradients, by the op that finished them
    for storage in trace.storages:
        writers = [i for i in storage.writers if trace.ops[i].phase is Phase.BACKWARD]
        if writers and _is_of_weight(storage, end):
            ready[writers[-1]] = ready.get(writers[-1], 0) + storage.nbytes
    gradient_nbytes = sum(ready.values())
    if not gradient_nbytes or not whole.backward_seconds:
        return (whole,)
    pieces: list[Piece] = []
    seconds = 0.0
    left = dict(ready)
    for i, op in enumerate(trace.ops):
        seconds += op.seconds if op.phase is Phase.BACKWARD else 0.0
        if i not in left:
            continue
        share, time_share = left.pop(i) / gradient_nbytes, seconds / whole.backward_seconds
        pieces.append(
            Piece(
                forward_seconds=time_share * whole.forward_seconds,
                backward_seconds=seconds,
                optimizer_seconds=share * whole.optimizer_seconds,
                weight_nbytes=share * whole.weight_nbytes,
                state_nbytes=share * whole.state_nbytes,
            )
        )
        seconds = 0.0
    left_over = whole - sum(pieces, Piece())  # the image's own gradient, and what holds no weights
    return (pieces[-1] + left_over, *reversed(pieces[:-1]))
