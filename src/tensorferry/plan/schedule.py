"""A plan's decisions, sorted by the op at whose start or end something happens to a storage.

The simulator and an engine follow the same schedule. Another action gets its moments here and its rule in `simulate`.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tensorferry.errors import BadPlan
from tensorferry.plan.plan import Action, Decision
from tensorferry.plan.tables import Gap, Tables

Agenda = defaultdict[int, list[int]]  # op -> storages


def _agenda() -> Agenda:
    return defaultdict(list)


@dataclass
class Schedule:
    """What happens at which op."""

    leave: Agenda = field(default_factory=_agenda)  # op starts: copies out to queue
    fetch: Agenda = field(default_factory=_agenda)  # op starts: copies in to queue
    arrive: Agenda = field(default_factory=_agenda)  # op starts: swapped storages it cannot start without
    replay: Agenda = field(default_factory=_agenda)  # op starts: storages to recompute first, in order
    idle: Agenda = field(default_factory=_agenda)  # op ends: only the plan still holds these
    replayed_ops: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by storage


def make_schedule(tables: Tables, decisions: Iterable[Decision]) -> Schedule:
    """The schedule of decisions that belong to this trace; `check_decisions` says whether they do."""
    moved = [decision for decision in decisions if decision.action is not Action.KEEP]
    due = find_due(tables.gaps, moved)
    schedule = Schedule()
    for decision in moved:
        s = decision.storage
        gap = tables.gaps[s]
        schedule.idle[gap.idle_after].append(s)
        if decision.action is Action.SWAP:
            schedule.leave[gap.saved_at].append(s)
            schedule.arrive[due[s]].append(s)
            if decision.fetch_at is not None:
                schedule.fetch[decision.fetch_at].append(s)
        else:
            schedule.replay[due[s]].append(s)
            schedule.replayed_ops[s] = decision.replay
    for storages in (*schedule.fetch.values(), *schedule.arrive.values()):
        storages.sort(key=due.__getitem__)
    for storages in schedule.replay.values():
        storages.sort(key=lambda s: schedule.replayed_ops[s][-1])
    return schedule


def find_due(gaps: dict[int, Gap], moved: Sequence[Decision]) -> dict[int, int]:
    """The op before which each moved storage must be back: backward's first use, or an earlier replay that starts from it."""
    due = {decision.storage: gaps[decision.storage].wanted_at for decision in moved}
    replays = [decision for decision in moved if decision.action is Action.RECOMPUTE]
    # a replay's sources were final before its last op ran, so this order meets every storage after all that start from it
    for decision in sorted(replays, key=lambda decision: decision.replay[-1], reverse=True):
        for source in decision.sources:
            if due.get(source, -1) > due[decision.storage]:
                due[source] = due[decision.storage]
    return due


def check_decisions(tables: Tables, decisions: Sequence[Decision]) -> None:
    """Raise `BadPlan` where the decisions cannot be carried out on this trace."""
    known = [(s, gap.nbytes) for s, gap in tables.gaps.items()]
    given = [(decision.storage, decision.nbytes) for decision in decisions]
    if known != given:
        odd = next((pair for pair in given if pair not in known), None) or next(
            (pair for pair in known if pair not in given), None
        )
        where = f"first at storage {odd[0]} of {odd[1]} bytes" if odd else "in their order"
        raise BadPlan(
            f"the plan decides about {len(given)} storages, the trace has {len(known)} movable ones, and they differ {where}; "
            "plan again from this trace"
        )
    last_op = {decision.storage: decision.replay[-1] for decision in decisions if decision.replay}
    num_ops, num_storages = len(tables.trace.ops), len(tables.trace.storages)
    for decision in decisions:
        s, ops = decision.storage, decision.replay
        if decision.fetch_at is not None and not 0 <= decision.fetch_at < num_ops:
            raise BadPlan(f"storage {s} is to be fetched at op {decision.fetch_at}, the trace has {num_ops}; plan again")
        if decision.action is not Action.RECOMPUTE:
            continue
        if not set(tables.trace.storages[s].writers) <= set(ops) or not ops or not all(0 <= i < num_ops for i in ops):
            raise BadPlan(f"storage {s} is to be recomputed by ops {list(ops)}, which do not make it; plan again")
        for source in decision.sources:
            if not 0 <= source < num_storages or last_op.get(source, -1) >= ops[-1]:
                raise BadPlan(f"storage {s} is to be recomputed from storage {source}, which is made later; plan again")
