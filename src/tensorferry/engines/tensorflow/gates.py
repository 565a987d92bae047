"""Which units run side by side, and where gates stand.

Where memory is short, units run one after another, as the simulator has it. Elsewhere they need not: a group of units for
which there is room even if nothing is freed before its end runs as TensorFlow likes, its threads on several units at once. That
takes less CPU time than all threads on one unit after another: a sixth less was seen where a network has branches.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tensorferry.plan import Lane, Timeline, Work
from tensorferry.plan.schedule import OpSchedule, Tables

# of what nothing holds, for one group: while it runs, as much again may be on pages of free blocks that it was expected to use
# and did not, and as much in blocks that are larger than asked for
_GROUP_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class UnitGroup:
    """Units by position, from `start` up to, not including, `stop`: each waits for its inputs and for the group before."""

    start: int
    stop: int


@dataclass(slots=True)
class Demand:
    """What the units from one gate up to the next add."""

    nbytes: int = 0  # at most at once
    blocks: list[int] = field(default_factory=list)  # bytes of every storage that they make


def find_room(tables: Tables, timeline: Timeline, limit_nbytes: int) -> list[int]:
    """What of a limit nothing holds before each unit, in a simulated step."""
    moments = [seconds for seconds, _ in timeline.resident]
    held = [nbytes for _, nbytes in timeline.resident]
    room = []
    spans = (span for span in timeline.spans if span.lane is Lane.COMPUTE and span.work is Work.OP)
    for span, demand_nbytes in zip(spans, tables.demand_nbytes, strict=True):
        first, last = bisect_right(moments, span.start) - 1, bisect_left(moments, span.start + span.seconds)
        room.append(limit_nbytes + demand_nbytes - max(held[first : max(first + 1, last)]))
    return room


def group_units(tables: Tables, room_nbytes: Sequence[int], starts: Collection[int], alone: Collection[int]) -> list[UnitGroup]:
    """All units in groups as long as there is room for them.

    A new one begins at each of `starts`; those of `alone` share theirs with nobody.
    """
    num_units = len(tables.new_nbytes)
    groups = []
    start = 0
    while start < num_units:
        stop, total_nbytes = start + 1, _most_nbytes(tables, start)
        while stop < num_units and stop not in starts and start not in alone and stop not in alone:
            total_nbytes += _most_nbytes(tables, stop)
            if total_nbytes > _GROUP_SHARE * room_nbytes[start]:
                break
            stop += 1
        groups.append(UnitGroup(start, stop))
        start = stop
    return groups


def find_gates(
    tables: Tables, schedule: OpSchedule, groups: Sequence[UnitGroup], starts: Collection[int], gated_nbytes: int
) -> dict[int, Demand]:
    """By position: the gates, one at each of `starts`, and one wherever units without one would add `gated_nbytes` or more."""
    made = defaultdict(list)
    for storage in tables.trace.storages:
        if not storage.was_there:
            made[storage.writers[0]].append(storage.nbytes)
    gates = {0: Demand()}
    gate, held_nbytes = gates[0], 0
    for group in groups:
        units = range(group.start, group.stop)
        replayed = [k for s in schedule.recompute.get(group.start, ()) for k in schedule.replayed_ops[s]]
        adds_nbytes = sum(tables.new_nbytes[k] for k in replayed)
        if len(units) == 1:
            adds_nbytes += tables.demand_nbytes[group.start]
        else:
            adds_nbytes += sum(_most_nbytes(tables, i) for i in units)
        if group.start in starts or max(held_nbytes, 0) + adds_nbytes >= gated_nbytes:
            gates[group.start] = gate = Demand()
            held_nbytes = 0
        gate.nbytes = max(gate.nbytes, held_nbytes + adds_nbytes)
        gate.blocks += [nbytes for i in (*replayed, *units) for nbytes in made[i]]
        held_nbytes += sum(tables.new_nbytes[i] - tables.freed_nbytes[i] for i in units)
    return gates


def _most_nbytes(tables: Tables, i: int) -> int:
    """What a unit adds at most: side by side with others it may not find an input whose buffer it could write into."""
    return tables.new_nbytes[i] + max(0, tables.workspace_nbytes[i])
