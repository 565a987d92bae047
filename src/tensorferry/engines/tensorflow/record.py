"""From a traced graph to a `Trace`: what each unit reads and makes, how long a buffer lives, what may move.

Elementwise ops write into the buffer of an input that nobody else needs any more. The trace shows that as an op whose output
is new and whose workspace is as much less: so one storage ends, the next begins, and nothing more is held.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import Any

import tensorflow as tf

from tensorferry.engines.tensorflow.compat import IsMklEnabled
from tensorferry.engines.tensorflow.compiled import workspace_nbytes
from tensorferry.engines.tensorflow.graph import (
    NESTED,
    SHAPE_READERS,
    VIEWS,
    GraphLayout,
    Unit,
    find_variables,
    is_on_host,
    kinds,
    lay_out,
    matches,
    pooling_gradient,
    tensor_nbytes,
)
from tensorferry.machine import Machine
from tensorferry.trace import Kind, Op, Phase, Storage, Trace

TRACKED_SHARE = 16  # storages of at least this part of the smallest that may move are in the trace

_IN_PLACE = kinds(
    "Add AddV2 AddN Sub Mul Div RealDiv DivNoNan Maximum Minimum Square SquaredDifference Neg Exp Log Log1p Sqrt Rsqrt "
    "Reciprocal Sigmoid Tanh Relu Relu6 Elu Selu LeakyRelu Softplus Softsign Erf Abs Sign Pow Select SelectV2 ReluGrad "
    "Relu6Grad EluGrad SigmoidGrad TanhGrad LeakyReluGrad SoftplusGrad RsqrtGrad BiasAdd Softmax LogSoftmax ClipByValue"
)
# cheap, the same bits every time, and nothing but their output: may be run again
_REPLAYABLE = (_IN_PLACE - kinds("Softmax LogSoftmax AddN")) | kinds("Cast ConcatV2 Pad Tile Transpose Slice BroadcastTo")
# oneDNN pairs these with their gradients through this edge, and may give other bits where it cannot
_PAIRED = kinds("MaxPool MaxPool3D MaxPoolV2 LRN FusedBatchNormV3")

_PRECISIONS = {tf.bfloat16: "bf16", tf.float16: "fp16"}


@dataclass(frozen=True)
class VariableState:
    """A variable of the optimizer, which nothing but the update of the weights needs: before and after it may be elsewhere."""

    variable: Any
    handle: tf.Tensor  # inside the graph
    readers: tuple[Any, ...]  # ops of the step that take the handle
    is_updated: bool  # this storage is what the update leaves; otherwise what it finds


@dataclass(frozen=True)
class Recording:
    """A trace, and which tensors its storages are."""

    layout: GraphLayout
    trace: Trace
    tensors: list[Any]  # by storage: the tensor that holds it, or None for a variable
    states: dict[int, VariableState]  # by storage: variables that may move
    unknown: list[Any] = field(repr=False)  # ops with an output whose size the graph does not tell

    def with_measures(self, seconds: Sequence[float], workspace_nbytes: Sequence[int]) -> "Recording":
        """The same with what a step measured, by position."""
        ops = tuple(
            replace(op, seconds=s, workspace_nbytes=w) for op, s, w in zip(self.trace.ops, seconds, workspace_nbytes, strict=True)
        )
        return replace(self, trace=replace(self.trace, ops=ops, measured=True))


@dataclass(slots=True)
class _Life:
    """A storage while the graph is walked."""

    tensor: Any
    nbytes: int
    kind: Kind
    label: str
    writers: list[int] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)
    lasting: bool = False  # outlives the step
    state: VariableState | None = None


def record(
    graph: Any,
    *,
    min_nbytes: int,
    machine: Machine | None = None,
    leave: Sequence[str] = (),
    optimizer_names: frozenset[str] = frozenset(),
    with_state: bool = False,
) -> Recording:
    """The trace of a traced graph, its seconds from the machine's rates; without a machine there are none.

    Storages of `min_nbytes` or more may move, unless the op that makes them matches one of the `leave` patterns. The optimizer's
    state moves only `with_state`.
    """
    layout = lay_out(graph, max(1, min_nbytes // TRACKED_SHARE), framed=with_state)
    walk = _Walk(layout, max(1, min_nbytes // TRACKED_SHARE), optimizer_names)
    walk.run()
    if with_state:
        walk.free_states(min_nbytes, leave)
    storages = tuple(_storage(life, min_nbytes, leave, layout) for life in walk.lives)
    ops = tuple(_op(unit, walk, machine) for unit in layout.units)
    trace = Trace(ops, storages, framework="tensorflow", device="cpu", measured=False).check()
    unknown = [op for op in graph.get_operations() if any(_is_unknown(t) for t in op.outputs)]
    states = {s: life.state for s, life in enumerate(walk.lives) if life.state is not None}
    return Recording(layout, trace, [life.tensor for life in walk.lives], states, unknown)


def _is_unknown(tensor: tf.Tensor) -> bool:
    return tensor.dtype not in (tf.resource, tf.variant, tf.string) and tensor.shape.num_elements() is None


class _Walk:
    """Finds every storage's life, unit by unit."""

    def __init__(self, layout: GraphLayout, tracked_nbytes: int, optimizer_names: frozenset[str]) -> None:
        self.layout = layout
        self.tracked_nbytes = tracked_nbytes
        self.lives: list[_Life] = []
        self.index: dict[str, int] = {}  # root tensor's name -> storage
        self.reads: dict[Unit, list[int]] = {}
        self.makes: dict[Unit, list[int]] = {}
        self.saved_nbytes: dict[Unit, int] = {}  # by writing into an input's buffer
        self.variables: dict[int, tuple[Any, tf.Tensor]] = {}  # by storage: a variable and its handle
        self._add_variables(optimizer_names)
        self._add_inputs()
        self._last_use = self._find_last_uses()

    def _add(self, name: str, life: _Life) -> int:
        self.index[name] = len(self.lives)
        self.lives.append(life)
        return self.index[name]

    def _add_variables(self, optimizer_names: frozenset[str]) -> None:
        early = {
            t.op.name for unit in self.layout.units if unit.phase is not Phase.OPTIMIZER for op in unit.ops for t in op.inputs
        }
        for variable, handle in find_variables(self.layout.graph):
            nbytes = tensor_nbytes(variable)
            if nbytes < self.tracked_nbytes:
                continue
            readers = {c.name for c in handle.consumers() if c.type == "ReadVariableOp"}
            if variable.trainable:
                kind = Kind.PARAMETER
            else:
                kind = Kind.BUFFER if readers & early and variable.name not in optimizer_names else Kind.OPTIMIZER
            self.variables[self._add(handle.name, _Life(None, nbytes, kind, variable.name, lasting=True))] = variable, handle

    def _add_inputs(self) -> None:
        for tensor in self.layout.graph.inputs:
            nbytes = tensor_nbytes(tensor)
            if nbytes >= self.tracked_nbytes:
                self._add(tensor.name, _Life(tensor, nbytes, Kind.INPUT, tensor.op.name, lasting=True))

    def _find_last_uses(self) -> dict[str, int]:
        """By root: the position of the last unit that reads it."""
        last: dict[str, int] = {}
        for unit in self.layout.units:
            for op in unit.ops:
                if op.type not in SHAPE_READERS:
                    for t in op.inputs:
                        last[self.layout.root(t).name] = unit.position
        for t in self.layout.graph.outputs:
            last[self.layout.root(t).name] = len(self.layout.units)
        return last

    def run(self) -> None:
        """Walk all units in order."""
        for unit in self.layout.units:
            self._visit(unit)
        for t in self.layout.graph.outputs:
            s = self.index.get(self.layout.root(t).name)
            if s is not None:
                self.lives[s].lasting = True

    def free_states(self, min_nbytes: int, leave: Sequence[str]) -> None:
        """Make two storages of every variable that only the update needs: what it finds, and what it leaves."""
        units = self.layout.units
        for s, (variable, handle) in self.variables.items():
            life = self.lives[s]
            if life.kind is not Kind.OPTIMIZER or life.nbytes < min_nbytes or not life.uses or matches(life.label, leave):
                continue
            readers = tuple(handle.consumers())
            if not is_on_host(handle) or not all(self._happens_in_units(op) for op in readers):
                continue
            last = units[life.uses[-1]]
            updated = replace(life, writers=[last.position], uses=[units[-1].position])
            updated.state = VariableState(variable, handle, readers, is_updated=True)
            life.state, life.lasting = VariableState(variable, handle, readers, is_updated=False), False
            life.uses.insert(0, 0)
            self.reads[units[0]].append(s)
            self.makes[last].append(len(self.lives))
            self.saved_nbytes[last] += life.nbytes
            self.reads[units[-1]].append(len(self.lives))
            self.lives.append(updated)

    def _happens_in_units(self, op: Any) -> bool:
        """Whether units do all that is done with a variable by an op which takes its handle."""
        if op.type in VIEWS:
            return all(self._happens_in_units(reader) for t in op.outputs for reader in t.consumers())
        return op in self.layout.unit_of

    def _visit(self, unit: Unit) -> None:
        inside = {t.name for op in unit.ops for t in op.outputs}
        read: dict[int, None] = {}
        for op in unit.ops:
            for t in op.inputs:
                s = self.index.get(self.layout.root(t).name)
                if s is not None and t.name not in inside:
                    read[s] = None
        for s in read:
            life = self.lives[s]
            life.uses.append(unit.position)
            if unit.phase is Phase.OPTIMIZER and life.writers and self.layout.units[life.writers[0]].phase is Phase.BACKWARD:
                life.kind = Kind.GRADIENT
        self.reads[unit] = list(read)
        exits = set(unit.exits()) if unit.fused else set(unit.ops)
        made = []
        for op in unit.ops:
            if op in exits:
                made += [self._make(unit, op, t) for t in op.outputs if tensor_nbytes(t) >= self.tracked_nbytes]
        self.makes[unit] = made
        self.saved_nbytes[unit] = self._saved_in_place(unit, made)

    def _make(self, unit: Unit, op: Any, tensor: tf.Tensor) -> int:
        life = _Life(tensor, tensor_nbytes(tensor), Kind.ACTIVATION, op.name, writers=[unit.position])
        return self._add(tensor.name, life)

    def _saved_in_place(self, unit: Unit, made: list[int]) -> int:
        op = unit.ops[-1]
        if unit.fused or op.type not in _IN_PLACE or len(made) != 1:
            return 0
        new = self.lives[made[0]]
        for s in self.reads[unit]:
            old = self.lives[s]
            ends = old.tensor is not None and self._last_use[self.layout.root(old.tensor).name] == unit.position
            if ends and not old.lasting and old.nbytes == new.nbytes and old.tensor.dtype == new.tensor.dtype:
                return new.nbytes
        return 0


def _storage(life: _Life, min_nbytes: int, leave: Sequence[str], layout: GraphLayout) -> Storage:
    last = max((*life.uses, *life.writers), default=0)
    storage = Storage(
        nbytes=life.nbytes,
        kind=life.kind,
        writers=tuple(life.writers),
        uses=tuple(life.uses),
        freed_after=None if life.lasting else last,
        label=life.label,
    )
    if life.state is not None:
        moments = [*life.writers, *life.uses]  # with the beginning and the end of the step
        return replace(storage, idle_after=moments[0], wanted_at=moments[1])
    tensor = life.tensor
    if tensor is None or life.lasting or life.nbytes < min_nbytes or not life.uses:
        return storage
    if tensor.op.type in NESTED or matches(life.label, leave):
        return storage
    moments = [life.writers[-1], *life.uses]
    j = max(range(1, len(moments)), key=lambda i: moments[i] - moments[i - 1])
    if tensor.op.type in _PAIRED and not _can_part(tensor, layout, moments[j]):
        return storage
    if moments[j] - moments[j - 1] < 2 or any(sums_in_any_order(unit) for unit in map(layout.units.__getitem__, moments[1:j])):
        return storage
    return replace(storage, saved_at=moments[0] + 1, idle_after=moments[j - 1], wanted_at=moments[j])


def _can_part(tensor: tf.Tensor, layout: GraphLayout, wanted_at: int) -> bool:
    """Whether a pooling op's output may leave: its gradient pairs with a clone then, and something else wants it back first."""
    gradient = pooling_gradient(tensor)
    unit = layout.unit_of.get(gradient) if gradient else None
    return unit is not None and unit.position > wanted_at and not unit.fused


def sums_in_any_order(unit: Unit) -> bool:
    """AddN begins its sum with an input that nobody else will read, so a later reader of an input changes its rounding."""
    return any(op.type == "AddN" and len(op.inputs) > 2 for op in unit.ops)


def _op(unit: Unit, walk: _Walk, machine: Machine | None) -> Op:
    flops = sum(_flops(op) for op in unit.ops)
    touched = sum(walk.lives[s].nbytes for s in (*walk.reads[unit], *walk.makes[unit]))
    return Op(
        name=unit.name,
        phase=unit.phase,
        seconds=_seconds(flops, touched, machine) if machine else 0.0,
        inputs=tuple(walk.reads[unit]),
        outputs=tuple(walk.makes[unit]),
        flops=flops,
        touched_nbytes=touched,
        workspace_nbytes=max(_unfolded_nbytes(op) + workspace_nbytes(op) for op in unit.ops) - walk.saved_nbytes[unit],
        replayable=not unit.fused and unit.phase is Phase.FORWARD and unit.ops[0].type in _REPLAYABLE,
        precision=_precision(unit.ops[0]),
    )


def _seconds(flops: int, touched_nbytes: int, machine: Machine) -> float:
    rate = machine.flops_per_second.get("fp32", 0.0)
    return max(flops / rate if rate else 0.0, touched_nbytes / (machine.memory_nbytes_per_second or 1e10))


def _precision(op: Any) -> str:
    return _PRECISIONS.get(op.outputs[0].dtype, "fp32") if op.outputs else "fp32"


def _flops(op: Any) -> int:
    """Of the ops that compute rather than copy."""
    match op.type:
        case "Conv2D" | "Conv3D" | "DepthwiseConv2dNative":
            return 2 * _elements(op.outputs[0]) * prod(op.inputs[1].shape[:-1])
        case "Conv2DBackpropInput" | "Conv3DBackpropInputV2":
            return 2 * _elements(op.inputs[2]) * prod(op.inputs[1].shape[:-1])
        case "Conv2DBackpropFilter" | "Conv3DBackpropFilterV2":
            return 2 * _elements(op.inputs[2]) * prod(op.outputs[0].shape[:-1])
        case "MatMul" | "BatchMatMulV2" | "BatchMatMul":
            inner = op.inputs[0].shape[-2 if op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x") else -1]
            return 2 * _elements(op.outputs[0]) * (inner or 0)
    return 0


def _unfolded_nbytes(op: Any) -> int:
    """The matrix over which a gradient of a convolution is computed, a sample at a time: all that its kernel meets at each place.

    Only TensorFlow's own kernels for a CPU make one.
    """
    match op.type:
        case "Conv2DBackpropInput" | "Conv3DBackpropInputV2":
            kernel = op.inputs[1]
        case "Conv2DBackpropFilter" | "Conv3DBackpropFilterV2":
            kernel = op.outputs[0]
        case _:
            return 0
    places = op.inputs[2].shape[1:-1]
    if not _has_own_kernels() or kernel.shape.rank is None or not places.is_fully_defined():
        return 0
    return int(prod(kernel.shape[:-1]) * prod(places) * kernel.dtype.size)


@cache
def _has_own_kernels() -> bool:
    return not (IsMklEnabled() or tf.config.list_physical_devices("GPU"))


def _elements(tensor: tf.Tensor) -> int:
    return tensor.shape.num_elements() or 0
