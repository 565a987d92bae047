"""A plan, carried out in the graph.

                       unit 5         unit 6            ...   unit 40          unit 41
    plain          [  conv a  ]──▶[  relu  ]                             ┌▶[ gradient of a ]
                        └────────────────────── a ───────────────────────┘

    swapped        [  conv a  ]──▶ gate ──▶[  relu  ]   ...          gate ──▶[ gradient of a ]
                        └▶ swap out                     room ─▶ empty ─▶ swap in ─▶ gate (waits)
                                                                 └───────── a again ─────────┘

Units run in the plan's order, one after another or, where there is room for it, several of a group at once (see `gates`): a
control edge holds the next one back where data does not, and a gate where it allocates much or reads what was away. A gate is a
node that waits; see `swap`. Recomputed storages are clones of the ops that made them, behind the gate of the unit that wants
them. A pooling op whose output may leave runs again right before its gradient, which has to read the output of such an op and of
nothing else.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import tensorflow as tf

from tensorferry.engines.tensorflow.edit import Edit
from tensorferry.engines.tensorflow.gates import Demand, UnitGroup, find_gates, group_units
from tensorferry.engines.tensorflow.graph import SCOPE, SHAPE_READERS, Unit, pooling_gradient
from tensorferry.engines.tensorflow.record import Recording, sums_in_any_order
from tensorferry.engines.tensorflow.swap import Gate, Gates, GraphCopies
from tensorferry.plan import Action, Decision
from tensorferry.plan.schedule import Tables, find_due, make_op_schedule, make_tables

_HOST = "/device:CPU:0"


def carry_out(
    recording: Recording,
    decisions: Iterable[Decision],
    edit: Edit,
    copies: GraphCopies,
    *,
    gated_nbytes: int,
    room_nbytes: Sequence[int] | None = None,
) -> Gates:
    """Edit the graph so that it follows these decisions.

    Units that together add less than `gated_nbytes` share a gate; with 0 each has its own, to see what it does. `room_nbytes`, by
    position, is what nothing holds before a unit; without it all run one after another.
    """
    return _Plan(recording, list(decisions), edit, copies).carry_out(gated_nbytes, room_nbytes)


class _Plan:
    def __init__(self, recording: Recording, decisions: list[Decision], edit: Edit, copies: GraphCopies) -> None:
        self.recording = recording
        self.layout = recording.layout
        self.units = list(recording.layout.units)
        self.states = recording.states
        self.edit = edit
        self.copies = copies
        self.tables: Tables = make_tables(recording.trace)
        moved = [d for d in decisions if d.action is not Action.KEEP]
        self.decisions = {d.storage: d for d in moved}
        self.schedule = make_op_schedule(self.tables, moved)
        self.due = find_due(self.tables.gaps, moved)
        self.storage_of = {t.name: s for s, t in enumerate(recording.tensors) if t is not None}
        self.again: dict[int, tf.Tensor] = {}  # by storage: the tensor that stands for it after its gap
        self.swap_ins: dict[int, Any] = {}  # by storage: the node that starts its copy in
        self.late: defaultdict[int, list[tuple[Any, int]]] = defaultdict(list)  # by storage: who reads it after its gap

    def carry_out(self, gated_nbytes: int, room_nbytes: Sequence[int] | None) -> Gates:
        for s in self.tables.gaps:  # whether they leave or not: a plan is made for one way of doing it
            self._pool_again(self.recording.tensors[s])
        self._find_late_readers()
        swap_outs = {s: self._add_swap_out(s) for s, d in self.decisions.items() if d.action is Action.SWAP}
        swap_in_at: defaultdict[int, list[int]] = defaultdict(list)
        for s, decision in self.decisions.items():
            if decision.action is Action.SWAP:
                swap_in_at[self._swap_in_position(decision)].append(s)
        gates: dict[int, Gate] = {}
        rooms: dict[int, tuple[int, ...]] = {}
        groups, demands = self._divide(gated_nbytes, room_nbytes, swap_in_at)
        swap_out_at: defaultdict[int, list[Any]] = defaultdict(list)
        for s, node in swap_outs.items():
            swap_out_at[self.tables.gaps[s].saved_at].append(node)
        before: list[Any] = []  # what must have ended before the next group
        for group in groups:
            i = group.start
            # starting a copy out only takes a note, but on a single thread it would otherwise wait for its turn
            before += swap_out_at.pop(i, ())
            now = [s for s in swap_in_at.get(i, ()) if self.due[s] == i]
            early = [s for s in swap_in_at.get(i, ()) if self.due[s] > i]
            if now:
                rooms[i] = tuple(self.tables.gaps[s].nbytes for s in now)
                self._add_swap_ins(now, [self._add_room(i, before)], swap_outs)
            if i in demands:
                arrivals = tuple(self.schedule.wanted.get(i, ()))
                swapped_in = [self.tables.gaps[s].nbytes for s in early]
                gates[i] = Gate(arrivals, demands[i].nbytes + sum(swapped_in), (*swapped_in, *demands[i].blocks))
                before = [self._add_gate(i, [*before, *(self.swap_ins[s] for s in arrivals)])]
                self._add_swap_ins(early, before, swap_outs)
                before += [self.swap_ins[s] for s in early]
                for s in arrivals:
                    if s in self.states:
                        before.append(self._give_back(s, before[:1]))
                    elif self._is_elsewhere(s):
                        self._send_back(s, before)
            for s in self.schedule.recompute.get(i, ()):
                before = [*before, *self._add_replay(s, before)]
            before = self._run_group(group, before, swap_out_at)
        return Gates(gates, rooms, frozenset(swap_outs) & frozenset(self.states))

    def _divide(
        self, gated_nbytes: int, room_nbytes: Sequence[int] | None, swap_in_at: dict[int, list[int]]
    ) -> tuple[list[UnitGroup], dict[int, Demand]]:
        """All units in groups, and where gates stand."""
        starts = {0, *swap_in_at, *self.schedule.wanted, *self.schedule.recompute}
        if room_nbytes is None:
            groups = [UnitGroup(i, i + 1) for i in range(len(self.units))]
        else:
            alone = {unit.position for unit in self.units if sums_in_any_order(unit)}
            groups = group_units(self.tables, room_nbytes, starts, alone)
        return groups, find_gates(self.tables, self.schedule, groups, starts, gated_nbytes)

    def _run_group(self, group: UnitGroup, before: list[Any], swap_out_at: dict[int, list[Any]]) -> list[Any]:
        """Let the units of a group start after these ops; what has to end before the next group."""
        ends = []
        for unit in self.units[group.start : group.stop]:
            waits = [] if self._waits_inside(unit, group) else before
            self._hold_back(unit, [*waits, *swap_out_at.get(unit.position, ())])
            ends += self._ends(unit)
        return ends

    def _waits_inside(self, unit: Unit, group: UnitGroup) -> bool:
        """Whether all of a unit waits for inputs that its own group makes."""
        inside = range(group.start, unit.position)
        sources = ((self.layout.unit_of.get(self.layout.root(t).op) for t in op.inputs) for op in unit.entries())
        return all(any(source is not None and source.position in inside for source in each) for each in sources)

    def _swap_in_position(self, decision: Decision) -> int:
        gap = self.tables.gaps[decision.storage]
        due = self.due[decision.storage]
        return due if decision.swap_in_at is None else max(gap.leaves_at, min(decision.swap_in_at, due))

    def _find_late_readers(self) -> None:
        wanted = {s: self.tables.gaps[s].wanted_at for s in self.decisions}
        for unit in self.units:
            for op in unit.ops:
                if op.type in SHAPE_READERS:
                    continue
                for index, tensor in enumerate(op.inputs):
                    s = self.storage_of.get(self.layout.root(tensor).name)
                    if s in wanted and unit.position >= wanted[s]:
                        self.late[s].append((op, index))

    # nodes

    def _add_swap_out(self, s: int) -> Any:
        state = self.states.get(s)
        if state is None:
            tensor, swap_out = self.recording.tensors[s], partial(self.copies.swap_out, s)
        else:
            swap_out = partial(self.copies.swap_out_variable, s, state.variable)
            with self._adding("state", state.readers if state.is_updated else ()):
                tensor = tf.raw_ops.ReadVariableOp(resource=state.handle, dtype=state.variable.dtype)
        return self._add_call("swap_out", swap_out, [tensor])

    def _give_back(self, s: int, after: list[Any]) -> Any:
        """Let a variable hold again what has arrived."""
        state = self.states[s]
        with self._adding("state", after):
            given = tf.raw_ops.AssignVariableOp(resource=state.handle, value=self.again[s])
        if not state.is_updated:
            for op in state.readers:
                self.edit.run_after(op, [given])
        return given

    def _add_room(self, i: int, after: list[Any]) -> Any:
        return self._add_call("room", partial(self.copies.make_room, i), after=after)

    def _add_swap_ins(self, storages: list[int], after: list[Any], swap_outs: dict[int, Any]) -> None:
        for s in sorted(storages, key=self.due.__getitem__):
            form = self.states[s].variable if s in self.states else self.recording.tensors[s]
            with self._adding("swap_in", [*after, swap_outs[s]]):
                empty = tf.raw_ops.Empty(shape=form.shape.as_list(), dtype=form.dtype, init=False)
            self.swap_ins[s] = self._add_call("swap_in", partial(self.copies.swap_in, s), [empty])
            if s in self.states or self._is_elsewhere(s):
                self.again[s] = empty
            else:
                self._read_instead(s, empty)

    def _is_elsewhere(self, s: int) -> bool:
        """Whether a storage lives on another device than the host."""
        device = self.recording.tensors[s].device
        return bool(device) and tf.DeviceSpec.from_string(device).replace(job=None, replica=None, task=None).to_string() != _HOST

    def _send_back(self, s: int, after: list[Any]) -> None:
        """Let a storage that has arrived on the host go on to its device.

        A copy between devices starts as soon as its source exists and knows of no control edge, so the node that is held
        back until the bytes are there has to be on the host too.
        """
        arrived = self.again[s]
        with self._adding("back", after):
            # Grappler removes an Identity, and its control edge with it
            back = tf.raw_ops.PlaceholderWithDefault(input=arrived, shape=arrived.shape)
        self._read_instead(s, back)

    @contextmanager
    def _adding(self, kind: str, after: Iterable[Any] = ()) -> Iterator[None]:
        """While inside, new nodes belong to the host."""
        with self.edit.adding(f"{SCOPE}/{kind}", after), tf.device(_HOST):
            yield

    def _add_call(
        self, kind: str, function: Callable[..., Any], inputs: Sequence[tf.Tensor] = (), after: Iterable[Any] = ()
    ) -> Any:
        return self.edit.call(f"{SCOPE}/{kind}", function, inputs, after, _HOST)

    def _add_gate(self, i: int, after: list[Any]) -> Any:
        return self._add_call("gate", partial(self.copies.pass_gate, i), after=after)

    def _add_replay(self, s: int, before: list[Any]) -> list[Any]:
        """Run the ops again that made storage `s`; the last of them is what has to end."""
        made: dict[int, tf.Tensor] = {}
        after = list(before)
        at = self.due[s]
        for k in self.schedule.replayed_ops[s]:
            (op,) = self.units[k].ops
            inputs = [self._value_at(tensor, made, at) for tensor in op.inputs]
            clone = self._clone(op, inputs, after)
            for old, new in zip(op.outputs, clone.outputs, strict=True):
                if old.name in self.storage_of:
                    made[self.storage_of[old.name]] = new
            after = [clone]
        self._read_instead(s, made[s])
        return after

    def _pool_again(self, tensor: tf.Tensor | None) -> None:
        """Let the gradient of the pooling op that made a tensor, if one did, pair with a clone of that op."""
        gradient = pooling_gradient(tensor) if tensor is not None else None
        if tensor is None or gradient is None:
            return
        clone = self._clone(tensor.op, [gradient.inputs[0]])
        self.edit.wire(gradient, 1, clone.outputs[0])
        unit = self.layout.unit_of[gradient]
        self.units[unit.position] = replace(unit, ops=[clone, *unit.ops])

    def _clone(self, op: Any, inputs: list[tf.Tensor], after: Iterable[Any] = ()) -> Any:
        with self.edit.adding(f"{SCOPE}/again", after), tf.device(op.device):
            return self.edit.graph._create_op_internal(
                op.type, inputs, [t.dtype for t in op.outputs], attrs=dict(op.node_def.attr), op_def=op.op_def
            )

    def _value_at(self, tensor: tf.Tensor, made: dict[int, tf.Tensor], position: int) -> tf.Tensor:
        """What an op that runs again at `position` reads instead of `tensor`."""
        s = self.storage_of.get(self.layout.root(tensor).name)
        if s is None:
            return tensor
        if s in made:
            return self._like(made[s], tensor)
        if s in self.again and self.due[s] <= position:
            return self._like(self.again[s], tensor)
        return tensor

    def _read_instead(self, s: int, value: tf.Tensor) -> None:
        self.again[s] = value
        for op, index in self.late[s]:
            self.edit.wire(op, index, self._like(value, op.inputs[index]))

    def _like(self, value: tf.Tensor, view: tf.Tensor) -> tf.Tensor:
        """The same view of another storage."""
        if value.dtype == view.dtype and value.shape == view.shape:
            return value
        with self.edit.adding(f"{SCOPE}/view"):
            if value.dtype != view.dtype:
                value = tf.bitcast(value, view.dtype)
            return value if value.shape == view.shape else tf.reshape(value, view.shape)

    # order

    def _hold_back(self, unit: Unit, before: list[Any]) -> None:
        """Let a unit start after these ops; inside a fused unit no op may have a control edge, so its input waits instead."""
        if not before:
            return
        waiting: dict[str, tf.Tensor] = {}
        for op in unit.entries():
            if not unit.fused:
                direct = {t.op for t in op.inputs}
                others = [other for other in before if other not in direct]
                if others:
                    self.edit.run_after(op, others)
                continue
            index = self._index_to_hold(op, unit)
            tensor = op.inputs[index]
            if tensor.name not in waiting:
                with self.edit.adding(f"{SCOPE}/wait", before), tf.device(op.device):
                    waiting[tensor.name] = tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=tensor.shape)
            self.edit.wire(op, index, waiting[tensor.name])

    def _index_to_hold(self, op: Any, unit: Unit) -> int:
        """The input that an op of a fused unit is held back by: the gradient that all of them read, else the first."""
        inside = set(unit.ops)
        if op.type.startswith(("Conv2DBackpropFilter", "Conv3DBackpropFilter")):
            return 2
        return next(i for i, t in enumerate(op.inputs) if t.op not in inside)

    def _ends(self, unit: Unit) -> list[Any]:
        exits = unit.exits()
        if not unit.fused:
            return exits
        with self.edit.adding(f"{SCOPE}/end"), tf.device(exits[0].device):
            return [tf.raw_ops.PlaceholderWithDefault(input=op.outputs[0], shape=op.outputs[0].shape).op for op in exits]
