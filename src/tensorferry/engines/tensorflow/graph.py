"""A traced graph as a plan sees it: units of work in the order they are to run, and the storages behind the tensors.

A unit is what must stay together. oneDNN merges a convolution with its padding or its bias, and the gradients of its filter and
of its bias; a control edge between them would forbid that and change the rounding, so they are one unit, and edges end at its
border. What Grappler would fuse stays apart in any case: see `same_rewrites`.

Gradients are applied as soon as they are known. By itself TensorFlow may let all of them wait until the end of the step.
"""

import fnmatch
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tensorferry.trace import Phase


def kinds(names: str) -> frozenset[str]:
    """A set of op types."""
    return frozenset(names.split())


# their output is their first input's buffer
VIEWS = kinds(
    "Identity IdentityN Reshape Squeeze ExpandDims StopGradient PreventGradient CheckNumerics EnsureShape PlaceholderWithDefault "
    "ReadVariableOp Bitcast"
)
SHAPE_READERS = kinds("Shape ShapeN Size Rank BroadcastGradientArgs ConcatOffset")
_NOT_WORK = kinds("Placeholder Const VarHandleOp NoOp Assert _Arg _Retval")
# called with other graphs, whose tensors are not looked at
NESTED = kinds(
    "PartitionedCall StatefulPartitionedCall While StatelessWhile If StatelessIf Case StatelessCase SymbolicGradient MapDefun"
)
SCOPE = "tensorferry"  # of what is added to a graph
_BEGIN, _END = f"{SCOPE}_step_begins", f"{SCOPE}_step_ends"
BETWEEN_STEPS = "what is there between steps"  # in place of an op's name
_UNSIZED = (tf.resource, tf.variant, tf.string)
# read what a pooling op read, what it made, and the gradient of that
_POOLING_GRADIENTS = kinds("MaxPoolGrad MaxPool3DGrad")


def tensor_nbytes(tensor: tf.Tensor) -> int:
    """Bytes of a tensor; 0 where its shape is not known or it is no block of numbers."""
    if tensor.dtype in _UNSIZED:
        return 0
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def pooling_gradient(tensor: tf.Tensor) -> Any | None:
    """The op that oneDNN pairs with the one that made a tensor, as it reads that very tensor; alone it may round otherwise."""
    gradients = [op for op in tensor.consumers() if op.type in _POOLING_GRADIENTS and op.inputs[1] is tensor]
    return gradients[0] if len(gradients) == 1 else None


def find_variables(graph: Any) -> list[tuple[Any, tf.Tensor]]:
    """The variables of a graph, each with its handle inside, in an order that is the same for every trace of a step."""
    inner = {id(external): (position, internal) for position, (external, internal) in enumerate(graph.captures)}
    captured = [variable for variable in graph.variables if id(variable.handle) in inner]
    captured.sort(key=lambda variable: inner[id(variable.handle)][0])
    return [(variable, inner[id(variable.handle)][1]) for variable in captured]


def find_assigned(graph: Any) -> list[Any]:
    """The variables on the host that get a new value, rather than a change to theirs."""
    return [
        variable
        for variable, handle in find_variables(graph)
        if is_on_host(handle) and any(op.type == "AssignVariableOp" for op in handle.consumers())
    ]


def is_on_host(handle: tf.Tensor) -> bool:
    """Whether a variable lives on the host."""
    return not handle.device or tf.DeviceSpec.from_string(handle.device).device_type == "CPU"


@dataclass(eq=False, slots=True)
class Unit:
    """Ops that run together; the first gives the unit its name."""

    ops: list[Any]
    phase: Phase
    position: int = -1
    fused: bool = False  # no control edge may touch its ops

    @property
    def name(self) -> str:
        """The op that does the work."""
        op = self.ops[0]
        return BETWEEN_STEPS if op.name in (_BEGIN, _END) else f"{op.name}:{op.type}"

    def entries(self) -> list[Any]:
        """The ops that do not wait for another op of the unit."""
        inside = set(self.ops)
        return [op for op in self.ops if not any(t.op in inside for t in op.inputs)]

    def exits(self) -> list[Any]:
        """The ops whose end is the unit's end."""
        inside = set(self.ops)
        return [op for op in self.ops if not any(c in inside for t in op.outputs for c in t.consumers())]


@dataclass(frozen=True)
class GraphLayout:
    """A graph's units in order; `roots` follows views to the tensor whose buffer they share."""

    graph: Any
    units: list[Unit]
    unit_of: dict[Any, Unit]  # by op
    roots: dict[str, tf.Tensor] = field(repr=False)  # by tensor name
    nested: list[Any]  # ops that call other graphs

    def root(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor whose buffer this one shares."""
        return self.roots.get(tensor.name, tensor)


def lay_out(graph: Any, tracked_nbytes: int, *, framed: bool = False) -> GraphLayout:
    """The units of a traced graph that touch a tensor of at least `tracked_nbytes`.

    `framed`: the first and the last unit do nothing. What is held by the one and by the other is held between steps.
    """
    _untie(graph)
    begin, end = _find_frame(graph)  # in any case: an edit takes what a graph gets later for its own
    ops = _find_alive(graph)
    roots = _find_roots(ops)
    heavy = [op for op in ops if _is_heavy(op, tracked_nbytes)]
    phases = _find_phases(ops)
    units, unit_of = _make_units(heavy, phases, set(ops))
    _order(ops, units, unit_of)
    units.sort(key=lambda unit: unit.position)
    if framed:
        units = [Unit([begin], Phase.OPTIMIZER), *units, Unit([end], Phase.OPTIMIZER)]
    for position, unit in enumerate(units):
        unit.position = position
    return GraphLayout(graph, units, unit_of, roots, [op for op in ops if op.type in NESTED])


def _untie(graph: Any) -> None:
    """Let readers of an IdentityN read its inputs: Keras passes all gradients through one, so that each would wait for all."""
    for op in graph.get_operations():
        if op.type == "IdentityN":
            for output, source in zip(op.outputs, op.inputs, strict=True):
                for reader in output.consumers():
                    for index, tensor in enumerate(reader.inputs):
                        if tensor is output:
                            reader._update_input(index, source)


def _find_frame(graph: Any) -> tuple[Any, Any]:
    """The ops that stand for a step's beginning and end; a graph that has none gets them."""
    known = {op.name: op for op in graph.get_operations()}
    if _END in known:
        return known[_BEGIN], known[_END]
    with graph.as_default(), tf.control_dependencies(None):
        begin, end = tf.raw_ops.NoOp(name=_BEGIN), tf.raw_ops.NoOp(name=_END)
    graph.control_outputs.append(end)
    return begin, end


def _find_alive(graph: Any) -> list[Any]:
    """The ops that something waits for; TensorFlow leaves out the others."""
    alive = {t.op for t in (*graph.outputs, *graph.inputs)} | set(graph.control_outputs)
    frontier = list(alive)
    while frontier:
        op = frontier.pop()
        for other in (*(t.op for t in op.inputs), *op.control_inputs):
            if other not in alive:
                alive.add(other)
                frontier.append(other)
    return [op for op in graph.get_operations() if op in alive]


def _find_roots(ops: Sequence[Any]) -> dict[str, tf.Tensor]:
    roots: dict[str, tf.Tensor] = {}
    for op in ops:
        if op.type in VIEWS and op.inputs:
            for i, output in enumerate(op.outputs):
                source = op.inputs[i if op.type == "IdentityN" else 0]
                roots[output.name] = roots.get(source.name, source)
    return roots


def _is_heavy(op: Any, tracked_nbytes: int) -> bool:
    if op.type in VIEWS or op.type in SHAPE_READERS or op.type in _NOT_WORK:
        return False
    if op.type in NESTED:
        return True
    return any(tensor_nbytes(t) >= tracked_nbytes for t in (*op.outputs, *op.inputs))


def _find_phases(ops: Sequence[Any]) -> dict[Any, Phase]:
    """Gradient tapes name what they make; what comes after the last of them applies the gradients."""
    by_tape = [i for i, op in enumerate(ops) if "gradient_tape/" in op.name or op.name.startswith("gradients/")]
    first, last = (by_tape[0], by_tape[-1]) if by_tape else (len(ops), len(ops))
    return {op: Phase.FORWARD if i < first else Phase.BACKWARD if i <= last else Phase.OPTIMIZER for i, op in enumerate(ops)}


def _make_units(heavy: Sequence[Any], phases: dict[Any, Phase], alive: Collection[Any]) -> tuple[list[Unit], dict[Any, Unit]]:
    position = {op: i for i, op in enumerate(heavy)}
    unit_of: dict[Any, Unit] = {}
    # those that take others in come first
    for op in sorted(heavy, key=lambda op: not op.type.startswith("Conv2D")):
        if op in unit_of:
            continue
        members = [op, *(other for other in _merged_with(op, alive) if other not in unit_of)]
        unit = Unit(members, phases[op], fused=len(members) > 1)
        # a unit runs where its last member would have: by then everything it reads is there
        unit.position = max(position.get(member, 0) for member in members)
        for member in members:
            unit_of[member] = unit
    return list(dict.fromkeys(unit_of[op] for op in heavy)), unit_of


def _merged_with(op: Any, alive: Collection[Any]) -> list[Any]:
    """What oneDNN may merge a convolution, or the gradient of its filter, with: small as it may be, it is no unit of its own."""
    if op.type == "Conv2D":
        source, readers = op.inputs[0].op, _readers(op.outputs[0], alive)
        padding = [source] if source.type == "Pad" and _readers(source.outputs[0], alive) == [op] else []
        return padding + (readers if [reader.type for reader in readers] == ["BiasAdd"] else [])
    if op.type == "Conv2DBackpropFilter":
        # of several that read the same gradient, any two may be merged
        readers = [reader for reader in _readers(op.inputs[2], alive) if reader is not op]
        biases = [reader for reader in readers if reader.type == "BiasAddGrad"]
        return biases and biases + [reader for reader in readers if reader.type == op.type]
    return []


def _readers(tensor: tf.Tensor, alive: Collection[Any]) -> list[Any]:
    """What reads more of a tensor than its shape; the gradients of weights that are frozen are traced, and never run."""
    return [op for op in tensor.consumers() if op in alive and op.type not in SHAPE_READERS]


def _order(ops: Sequence[Any], units: Sequence[Unit], unit_of: dict[Any, Unit]) -> None:
    """Give every unit its position: as it was traced, but what applies a gradient right after the gradient.

    What an update makes of its state alone, such as a momentum times its decay, could be made at once, and would then be held
    through all of the step. It waits for the update.
    """
    reached: dict[Any, int] = {}  # by op: the position of the last unit it waits for
    keys: dict[Unit, tuple[int, int, int]] = {}
    for i, op in enumerate(ops):
        before = max((reached[o] for o in (*(t.op for t in op.inputs), *op.control_inputs) if o in reached), default=-1)
        unit = unit_of.get(op)
        if unit is None:
            reached[op] = before
        elif unit.phase is Phase.OPTIMIZER:
            reached[op] = max(before, keys[unit][0] if unit in keys else -1)
            keys[unit] = (reached[op], 1, i)
        else:
            reached[op] = unit.position
            keys[unit] = (unit.position, 0, i)
    _put_off(ops, unit_of, keys)
    for position, unit in enumerate(sorted(units, key=keys.__getitem__)):
        unit.position = position


def _put_off(ops: Sequence[Any], unit_of: dict[Any, Unit], keys: dict[Unit, tuple[int, int, int]]) -> None:
    """Let units of the update that wait for nothing come just before the first that waits for them."""
    wanted: dict[Any, tuple[int, int]] = {}  # by op: how the key of the first unit begins that waits for it
    for op in reversed(ops):
        unit = unit_of.get(op)
        first = wanted.get(op)
        if unit is not None:
            position, _, i = keys[unit]
            if position < 0 and first is not None and first[1]:
                keys[unit] = (*first, i)
            first = keys[unit][:2]
        if first is not None:
            for before in (*(t.op for t in op.inputs), *op.control_inputs):
                wanted[before] = min(wanted.get(before, first), first)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name, or a layer on its path, is one of those that are to be left alone."""
    parts = name.split("/")
    return any(fnmatch.fnmatch(name, pattern) or any(fnmatch.fnmatch(part, pattern) for part in parts) for pattern in patterns)
