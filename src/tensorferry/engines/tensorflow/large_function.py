"""Run a training step inside a budget: `large_function`.

The step is traced once for every kind of input (shapes and types), edited to follow a plan, and run. See `history` for how a
plan comes about and `planned` for how the graph follows it.
"""

import inspect
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from tensorferry.engines.budget import AUTO_SHARE, MIN_NBYTES, Margin
from tensorferry.engines.core.history import StepKinds, make_report
from tensorferry.engines.tensorflow.allocator import DeviceMemory
from tensorferry.engines.tensorflow.compiled import compiled_nbytes
from tensorferry.engines.tensorflow.edit import same_rewrites
from tensorferry.engines.tensorflow.graph import tensor_nbytes
from tensorferry.engines.tensorflow.history import GraphHistory
from tensorferry.engines.tensorflow.loops import kept_nbytes
from tensorferry.engines.tensorflow.notes import notes_on
from tensorferry.engines.tensorflow.record import Recording, record
from tensorferry.engines.tensorflow.swap import GraphCopies
from tensorferry.errors import BudgetTooSmall, NotSupported
from tensorferry.machine import Machine, free_memory_nbytes
from tensorferry.plan import Action, find_floor
from tensorferry.plan.floor import Floor, stopped, too_small
from tensorferry.report import Report
from tensorferry.tiers import open_tier, this_machine
from tensorferry.trace import Kind, Op, Phase, Trace
from tensorferry.units import parse_bytes

# the allocator hands out up to twice what was asked for, as its holes have it
_MARGIN = Margin(share=0.06, min_nbytes=16 * 2**20)
# where the allocator cannot grow, a hole that is too small is of no use
_CAPPED_MARGIN = Margin(share=0.15, min_nbytes=16 * 2**20)
# by so much the floor of a step that has run was seen above what its graph alone tells: a share of it, and what a process's first
# step leaves of itself, such as code that is loaded
_COLD_SHARE, _COLD_NBYTES = 0.1, 32 * 2**20
_COPYING_KERNEL = "Conv3DBackpropFilter"  # oneDNN was seen to copy its largest input, outside of the allocator
_OP_NBYTES = 19 * 1024  # what TensorFlow holds at most for an op of a graph, which is while it optimises a function of it
# of a cap on the process, for oneDNN: the largest op's scratch, and what its other kernels keep for every thread that made them
_SCRATCH_FACTOR = 1.5
_UNKNOWN_NBYTES = 32 * 2**20  # of a cap on the process, for what nobody foresees: the heap's slack, stacks
_MAX_KINDS = 8  # kinds of step remembered


@dataclass(frozen=True)
class FunctionSettings:
    """What a user may choose."""

    budget: str | int = "auto"
    tier: str = "auto"
    recompute: bool = True
    min_nbytes: int = MIN_NBYTES  # smaller storages stay
    fetch_ahead: int = 0  # ops; the plan chooses, this only makes it earlier
    leave: Sequence[str] = ()  # patterns of names of ops or layers that are left alone
    watchdog_seconds: float = 120.0


def large_function(function: Callable[..., Any], budget: str | int = "auto", **settings: Any) -> "LargeFunction":
    """A function that runs the training step `function` inside a budget in bytes, bit for bit as without it.

    `function` is what `tf.function` would take, or a `tf.function`. It runs forward, backward and the update of the weights.
    Keywords: `tier` ("auto", "disk", "disk:/path", "shm"), `recompute`, `min_nbytes` (smaller tensors stay), `fetch_ahead` (ops),
    `leave` (patterns of op names that stay).

        step = ferry.tensorflow.large_function(train_step, budget="1GiB")
        for x, y in dataset:
            loss = step(x, y)
        print(step.report())
    """
    return LargeFunction(function, FunctionSettings(budget, **settings))


class LargeFunction:
    """What `large_function` returns."""

    def __init__(self, function: Callable[..., Any], settings: FunctionSettings, notes: Sequence[str] = ()) -> None:
        self._function = _as_tf_function(function)
        self._settings = settings
        self._notes = list(notes)
        self._kinds: StepKinds[GraphHistory] = StepKinds(_MAX_KINDS)
        self._last: GraphHistory | None = None
        self._num_steps = 0
        self._outside_nbytes = 0
        self._highest_nbytes = 0
        with ExitStack() as stack:
            self._device = DeviceMemory(0)
            stack.callback(self._device.close)
            self._tier = open_tier(settings.tier)
            stack.callback(self._tier.close)
            self._copies = GraphCopies(self._tier, self._device, settings.watchdog_seconds)
            stack.callback(self._copies.close)
            self.budget_nbytes = (
                int(free_memory_nbytes() * AUTO_SHARE) if settings.budget == "auto" else parse_bytes(settings.budget)
            )
            self._exit = stack.pop_all()
        self._finalizer = weakref.finalize(self, self._exit.close)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step."""
        args, kwargs = self._with_defaults(args, kwargs)
        history = self._find_history(args, kwargs)
        if history.wants_plan:
            self._plan(history)
        self._device.begin_step()
        history.begin_step(self._refuse_unit)
        try:
            with same_rewrites():
                result = history.function(*args, **kwargs)
        except Exception as error:
            try:
                history.recover_states()
            finally:
                self._copies.end_step()
            if self._copies.error is not None:
                raise self._copies.error from error
            raise
        self._end_step(history)
        return result

    def close(self) -> None:
        """End the copy threads and give the tier back; `report` still works."""
        self._highest_nbytes = self._device.highest_resident_nbytes() if self._finalizer.alive else self._highest_nbytes
        self._finalizer()

    # steps

    def _with_defaults(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All arguments, arrays as tensors: an edited graph has the function's parameters, and none of their defaults."""
        bound = inspect.signature(self._function.python_function).bind(*args, **kwargs)
        bound.apply_defaults()
        return tf.nest.map_structure(_as_tensor, (bound.args, bound.kwargs))

    def _find_history(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GraphHistory:
        kind = _kind_of((args, kwargs))
        self._last = self._kinds.find(kind) or self._kinds.add(kind, self._trace(args, kwargs))
        return self._last

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GraphHistory:
        settings = self._settings
        # a trace of its own: its graph will be edited, and a function gives the same graph to all who ask
        function = self._function._clone(self._function.python_function)
        concrete = function.get_concrete_function(*args, **kwargs)
        graph = concrete.graph
        recording = self._record(graph)
        if not self._kinds:
            there_nbytes = sum(map(tensor_nbytes, (*graph.variables, *(t for t in graph.inputs if t.dtype != tf.resource))))
            self._device.include(max(0, there_nbytes - self._device.allocated_nbytes()))
        for note in notes_on(recording):
            self._note(note)
        return GraphHistory(recording, concrete.function_type, self._copies, settings.min_nbytes)

    def _record(self, graph: Any, *, with_state: bool = False) -> Recording:
        settings = self._settings
        return record(graph, min_nbytes=settings.min_nbytes, machine=this_machine(), leave=settings.leave, with_state=with_state)

    def _plan(self, history: GraphHistory) -> None:
        self._device.trim()
        held_nbytes = self._device.allocated_nbytes()
        if history.wants_record:
            # before its first run a function is neither optimised nor are its kernels made
            layout = history.recording.layout
            expected_nbytes = len(layout.graph.get_operations()) * _OP_NBYTES + (kept_nbytes(layout.nested) or 0)
            expected_nbytes += compiled_nbytes(layout.nested)
            self._outside_nbytes = max(self._outside_nbytes, self._device.outside_nbytes() + expected_nbytes)
            self._device.keep_back(expected_nbytes + int(_SCRATCH_FACTOR * history.scratch_nbytes) + _UNKNOWN_NBYTES)
        trace = history.with_overhead(held_nbytes + self._outside_nbytes)
        floor = find_floor(trace)
        if history.wants_record and self._warm_floor(trace).nbytes > self._limit_nbytes:
            # the last resort, as between steps all of it has to be back; later it would take one function more, and its memory
            history.recording = self._record(history.recording.layout.graph, with_state=True)
            trace = history.with_overhead(held_nbytes + self._outside_nbytes)
            floor = find_floor(trace)
        if floor.nbytes > self._limit_nbytes:
            if history.plan is not None:
                history.keep_plan()  # what was learnt since is no reason to end a training that runs
                return
            if history.wants_record:
                raise self._too_small_to_record(history, trace)
            self._check_recorded(trace, floor)
        if trace.plain_peak_nbytes > self._limit_nbytes:
            self._device.save_memory(self._limit_nbytes, self.budget_nbytes)
        if history.wants_record:
            self._prepare_record(history, floor, held_nbytes)
            return
        machine = Machine("this machine", memory_nbytes=self.budget_nbytes, tiers=(self._tier.speed(),))
        history.make_plan(
            max(self._limit_nbytes, floor.nbytes),
            machine,
            outside_nbytes=self._outside_nbytes,
            recompute=self._settings.recompute,
            fetch_ahead=self._settings.fetch_ahead,
        )
        assert history.plan is not None
        self._tier.check_room(history.plan.nbytes(Action.SWAP))

    def _check_recorded(self, trace: Trace, floor: Floor) -> None:
        """Refuse to go on after a first step that was above the budget, or that a hard cap may not let run again.

        One that stayed within it swapped everything, as a plan at the floor does, so the next ones stay within it too.
        """
        highest_nbytes = self._device.highest_resident_nbytes()
        if highest_nbytes > self.budget_nbytes or self._device.room() is not None:
            raise self._too_small(trace, replace(floor, nbytes=max(floor.nbytes, highest_nbytes)))

    def _refuse_unit(self, gate: int, demand_nbytes: int) -> None:
        """Stop a first step before a unit of its forward pass takes it above the budget. Later on some weights have changed."""
        assert self._last is not None
        trace = self._last.trace
        if not self._device.is_short and self._device.resident_nbytes() + demand_nbytes > self._limit_nbytes:
            self._device.save_memory(self._limit_nbytes, self.budget_nbytes)  # more is held than the graph had told
            self._device.make_room(demand_nbytes, (), at_once=True)
        if trace.ops[gate].phase is not Phase.FORWARD or not self._device.over_budget_nbytes(demand_nbytes):
            return
        weights_nbytes = sum(storage.nbytes for storage in trace.storages if storage.kind is Kind.PARAMETER)
        held_nbytes = self._device.resident_nbytes()
        raise stopped(
            trace.ops[gate].name, self.budget_nbytes, {Kind.PARAMETER: weights_nbytes}, held_nbytes, demand_nbytes, None
        )

    def _prepare_record(self, history: GraphHistory, floor: Floor, held_nbytes: int) -> None:
        trace = history.trace
        self._tier.check_room(sum(trace.storages[s].nbytes for s in trace.movable))
        self._device.reserve(
            min(self._limit_nbytes, trace.plain_peak_nbytes) - self._outside_nbytes - held_nbytes,
            self.budget_nbytes - self._outside_nbytes - history.scratch_nbytes,
        )
        if floor.nbytes > self._limit_nbytes:  # under a cap the allocator may have got less than hoped for
            raise self._too_small_to_record(history, trace)
        history.prepare_record()
        history.keep_plan()

    def _end_step(self, history: GraphHistory) -> None:
        log = self._copies.end_step()
        if self._copies.error is not None:
            raise self._copies.error
        self._num_steps += 1
        self._device.tidy(history.assigned)
        if history.wants_record:
            known_nbytes = self._outside_nbytes if self._num_steps > 1 else 0  # before the first step it was a guess
            self._outside_nbytes = max(known_nbytes, log.outside_nbytes)
            history.end_recording(log, with_scratch=not self._device.is_bounded)
            return
        peaks = self._device.peaks()
        peak_nbytes = peaks.allocated_nbytes + self._outside_nbytes if self._device.is_bounded else peaks.resident_nbytes
        timeline = history.timeline(log, self._outside_nbytes, peak_nbytes)
        history.end_step(log, timeline, peak_nbytes - self._limit_nbytes)

    def _warm_floor(self, trace: Trace) -> Floor:
        """What the floor may turn out to be when a step has run, from a trace of which nothing has been measured."""
        if self._device.has_statistics and self._device.room() is None:  # a cap leaves room for what oneDNN copies by itself
            ops = (replace(op, workspace_nbytes=op.workspace_nbytes + _foresee_copy(trace, op)) for op in trace.ops)
            trace = replace(trace, ops=tuple(ops))
        floor = find_floor(trace)
        return replace(floor, nbytes=floor.nbytes + int(_COLD_SHARE * floor.nbytes) + _COLD_NBYTES)

    def _too_small_to_record(self, history: GraphHistory, trace: Trace) -> BudgetTooSmall:
        is_known = kept_nbytes(history.recording.layout.nested) is not None
        error = self._too_small(trace, self._warm_floor(trace), is_enough=is_known)
        if is_known:
            return error
        return BudgetTooSmall(f"{error} What its loops keep for their gradients is not known before and comes on top.", None)

    def _too_small(self, trace: Trace, floor: Floor, *, is_enough: bool = True) -> BudgetTooSmall:
        room = self._device.room()
        if room is None or room.nbytes + self._outside_nbytes >= self.budget_nbytes:
            smallest = replace(floor, nbytes=_MARGIN.budget_for(floor.nbytes))
            return too_small(trace, self.budget_nbytes, smallest, is_enough=is_enough)
        smallest = replace(floor, nbytes=_CAPPED_MARGIN.budget_for(floor.nbytes - self._outside_nbytes) + self._outside_nbytes)
        error = too_small(trace, room.nbytes + self._outside_nbytes, smallest, is_enough=is_enough)
        return BudgetTooSmall(f"{error} {room.note}", error.smallest_nbytes)

    @property
    def _limit_nbytes(self) -> int:
        room, limit_nbytes = self._device.room(), _MARGIN.limit_of(self.budget_nbytes)
        if room is None:
            return limit_nbytes
        capped_nbytes = _CAPPED_MARGIN.limit_of(room.nbytes) + self._outside_nbytes
        return capped_nbytes if self._device.is_bounded else min(limit_nbytes, capped_nbytes)

    # what a user asks

    @property
    def peak_nbytes(self) -> int:
        """The most that the steps so far have held at once."""
        return self._device.highest_resident_nbytes() if self._finalizer.alive else self._highest_nbytes

    def report(self) -> Report:
        """What was planned and what was measured, for the kind of step that was last planned."""
        return make_report(
            self._kinds.last_planned or self._last,
            budget_nbytes=self.budget_nbytes,
            peak_nbytes=self.peak_nbytes,
            process_peak_nbytes=self._device.before_nbytes + self.peak_nbytes,
            num_steps=self._num_steps,
            num_plans=self._kinds.num_plans,
            tier=self._tier.describe,
            notes=self._notes,
        )

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)


def _foresee_copy(trace: Trace, op: Op) -> int:
    if not op.kernel.startswith(_COPYING_KERNEL):
        return 0
    return max((trace.storages[s].nbytes for s in op.inputs), default=0)


def _as_tf_function(function: Callable[..., Any]) -> Any:
    if not hasattr(function, "get_concrete_function"):
        return tf.function(function)
    if getattr(function, "_jit_compile", None):
        raise NotSupported(
            "this tf.function has jit_compile=True, and XLA's programs cannot be planned; make it with jit_compile=False"
        )
    return function


def _as_tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray) else value


def _kind_of(value: Any) -> Any:
    """What tells kinds of step apart: the structure, shapes and types of the arguments."""
    flat = tf.nest.flatten(value)
    return (
        repr(tf.nest.map_structure(lambda _: 0, value)),
        tuple((tuple(x.shape), x.dtype) if hasattr(x, "dtype") else repr(x) for x in flat),
    )
