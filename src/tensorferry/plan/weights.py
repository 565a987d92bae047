"""A step whose weights, gradients of weights and optimizer state wait on the tier whenever no op uses them.

They pass through a window of so many bytes: an op's own are in it while it runs, and the rest of it holds what comes next. So a
plan needs to know of them only how large the window is. What is left of the trace is planned as ever.
"""

from dataclasses import dataclass, replace

from tensorferry.plan.floor import Floor, find_floor
from tensorferry.trace import Kind, Phase, Storage, Trace

_ROOM_SHARE = 0.5  # of what a budget has beyond the floor: the other half lets activations stay


@dataclass(frozen=True)
class WindowedStep:
    """A step without what moves through the window."""

    trace: Trace  # the storages that move hold no bytes in it
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


def find_windowed(trace: Trace, min_nbytes: int) -> WindowedStep:
    """The step of a trace when its weights, their gradients and the optimizer's state move, smaller ones aside."""
    optimizer_ops = {i for i, op in enumerate(trace.ops) if op.phase is Phase.OPTIMIZER}
    moving = {i for i, storage in enumerate(trace.storages) if storage.nbytes >= min_nbytes and _moves(storage, optimizer_ops)}
    touched = (sum(trace.storages[s].nbytes for s in {*op.inputs, *op.outputs} & moving) for op in trace.ops)
    storages = tuple(_without_bytes(storage) if i in moving else storage for i, storage in enumerate(trace.storages))
    return WindowedStep(
        trace=replace(trace, storages=storages),
        nbytes=sum(trace.storages[s].nbytes for s in moving),
        min_window_nbytes=max(touched, default=0),
    )


def _moves(storage: Storage, optimizer_ops: set[int]) -> bool:
    if storage.kind in (Kind.PARAMETER, Kind.OPTIMIZER):
        return True
    return storage.kind is Kind.GRADIENT and not optimizer_ops.isdisjoint(storage.uses)


def _without_bytes(storage: Storage) -> Storage:
    return replace(storage, nbytes=0, saved_at=None, idle_after=None, wanted_at=None)
