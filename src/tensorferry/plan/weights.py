"""A step whose weights, gradients of weights and optimizer state wait on the tier whenever no op uses them.

They pass through a window of so many bytes: an op's own are in it while it runs, and the rest of it holds what comes next. So a
plan needs to know of them only how large the window is. What is left of the trace is planned as ever.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace

from tensorferry.plan.floor import Floor, find_floor
from tensorferry.trace import Kind, Phase, Storage, Trace

_ROOM_SHARE = 0.5  # of what a budget has beyond the floor: the other half lets activations stay


@dataclass(frozen=True)
class WindowedStep:
    """A step without what moves through the window."""

    trace: Trace  # the storages that move hold no bytes in it
    whole: Trace  # in this one they do
    moving: frozenset[int]
    nbytes: int  # of all that moves
    min_window_nbytes: int  # what the widest op uses at once

    @property
    def floor(self) -> Floor:
        """The smallest that the step can hold, with the narrowest window."""
        return find_floor(self.with_window(self.min_window_nbytes))

    def with_window(self, window_nbytes: int) -> Trace:
        """The trace of the step with a window of that size, full all the time."""
        return replace(self.trace, overhead_nbytes=self.trace.overhead_nbytes + window_nbytes)

    def window_for(self, limit_nbytes: int) -> int:
        """How wide a window to give a step that may hold so much."""
        room_nbytes = limit_nbytes - self.floor.nbytes
        return min(self.nbytes, self.min_window_nbytes + max(0, int(_ROOM_SHARE * room_nbytes)))

    def traffic(self, window_nbytes: int) -> tuple[int, int]:
        """The bytes that come in and go out in a step after others, through a window of that size.

        What makes room is what is wanted last, and what was not written to goes without a copy, as in the engine.
        """
        return _WindowTraffic(self, window_nbytes).run()


class _WindowTraffic:
    """What is resident while a step is gone through, over and over."""

    def __init__(self, step: WindowedStep, window_nbytes: int) -> None:
        self._storages, self._ops, self._window_nbytes = step.whole.storages, step.whole.ops, window_nbytes
        self._used = [{*op.inputs, *op.outputs} & step.moving for op in self._ops]
        self._uses: dict[int, list[int]] = {}
        for i, used in enumerate(self._used):
            for s in used:
                self._uses.setdefault(s, []).append(i)
        self._is_dirty: dict[int, bool] = {}  # by what is resident
        self._held_nbytes = self._in_nbytes = self._out_nbytes = 0

    def run(self) -> tuple[int, int]:
        for _ in range(2):  # the second begins with what the first has left
            self._in_nbytes = self._out_nbytes = 0
            for i, op in enumerate(self._ops):
                for s in self._used[i]:
                    self._use(s, i)
                for s in {*op.outputs} & self._used[i]:
                    self._is_dirty[s] = True
                self._make_room(i)
                for s in self._used[i]:
                    if self._uses[s][-1] == i and not self._storages[s].was_there:
                        self._drop(s)
        return self._in_nbytes, self._out_nbytes

    def _use(self, s: int, i: int) -> None:
        if s not in self._is_dirty:
            is_made = self._uses[s][0] == i and not self._storages[s].was_there
            self._in_nbytes += 0 if is_made else self._storages[s].nbytes
            self._is_dirty[s] = False
            self._held_nbytes += self._storages[s].nbytes

    def _make_room(self, i: int) -> None:
        while self._held_nbytes > self._window_nbytes:
            others = self._is_dirty.keys() - self._used[i]
            if not others:
                return
            last = max(others, key=lambda s: self._wanted_at(s, i))
            self._out_nbytes += self._storages[last].nbytes if self._is_dirty[last] else 0
            self._drop(last)

    def _wanted_at(self, s: int, i: int) -> int:
        uses = self._uses[s]
        place = bisect_right(uses, i)
        return uses[place] if place < len(uses) else len(self._ops) + uses[0]

    def _drop(self, s: int) -> None:
        if self._is_dirty.pop(s, None) is not None:
            self._held_nbytes -= self._storages[s].nbytes


def find_windowed(trace: Trace, min_nbytes: int) -> WindowedStep:
    """The step of a trace when its weights, their gradients and the optimizer's state move, smaller ones aside."""
    optimizer_ops = {i for i, op in enumerate(trace.ops) if op.phase is Phase.OPTIMIZER}
    moving = {i for i, storage in enumerate(trace.storages) if storage.nbytes >= min_nbytes and _moves(storage, optimizer_ops)}
    touched = (sum(trace.storages[s].nbytes for s in {*op.inputs, *op.outputs} & moving) for op in trace.ops)
    storages = tuple(_without_bytes(storage) if i in moving else storage for i, storage in enumerate(trace.storages))
    return WindowedStep(
        trace=replace(trace, storages=storages),
        whole=trace,
        moving=frozenset(moving),
        nbytes=sum(trace.storages[s].nbytes for s in moving),
        min_window_nbytes=max(touched, default=0),
    )


def _moves(storage: Storage, optimizer_ops: set[int]) -> bool:
    if storage.kind in (Kind.PARAMETER, Kind.OPTIMIZER):
        return True
    return storage.kind is Kind.GRADIENT and not optimizer_ops.isdisjoint(storage.uses)


def _without_bytes(storage: Storage) -> Storage:
    return replace(storage, nbytes=0, saved_at=None, idle_after=None, wanted_at=None)
