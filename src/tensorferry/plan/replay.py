"""How a storage can be made again in backward: the ops to run once more, and the storages they start from.

A storage can be recomputed when all ops that wrote it may be run again and each of their inputs is, when the storage is
wanted, either still what the op read (a weight, a saved activation wherever it waits) or can be made again on the way.
Chains of such ops are kept short: a long one is a second forward pass, and its intermediates need memory.
"""

from dataclasses import dataclass

from tensorferry.plan.tables import Tables
from tensorferry.trace import Trace

MAX_REPLAYED_OPS = 6


@dataclass(frozen=True, slots=True)
class Replay:
    """One way to make a storage again."""

    ops: tuple[int, ...]  # in order
    sources: tuple[int, ...]  # storages that the ops read and do not make themselves
    movable_sources: tuple[int, ...]  # those of them that a plan decides about
    seconds: float


def find_replays(tables: Tables) -> dict[int, Replay]:
    """The replay of every movable storage that has one."""
    found = ((s, _find_replay(tables, s)) for s in tables.gaps)
    return {s: replay for s, replay in found if replay is not None}


def _find_replay(tables: Tables, target: int) -> Replay | None:
    trace, wanted_at = tables.trace, tables.gaps[target].wanted_at
    if trace.storages[target].was_there:
        return None
    ops: set[int] = set(trace.storages[target].writers)
    made, sources = {target}, set()
    frontier = list(ops)
    while frontier:
        if len(ops) > MAX_REPLAYED_OPS:
            return None
        i = frontier.pop()
        if i >= wanted_at or not trace.ops[i].replayable:
            return None
        for s in trace.ops[i].inputs:
            if s in made:
                if s != target and trace.storages[s].writers[-1] > i:
                    return None
            elif _still_readable(trace, s, i, wanted_at):
                sources.add(s)
            elif s in sources or trace.storages[s].was_there or trace.storages[s].writers[-1] > i:
                return None
            else:
                made.add(s)
                frontier += [w for w in trace.storages[s].writers if w not in ops]
                ops.update(trace.storages[s].writers)
    return Replay(
        ops=tuple(sorted(ops)),
        sources=tuple(sorted(sources)),
        movable_sources=tuple(sorted(s for s in sources if s in tables.gaps)),
        seconds=sum(trace.ops[i].seconds for i in ops),
    )


def _still_readable(trace: Trace, s: int, reader: int, wanted_at: int) -> bool:
    """Whether storage `s` is alive when `wanted_at` starts and has not been written since `reader` read it."""
    storage = trace.storages[s]
    if storage.freed_after is not None and storage.freed_after < wanted_at:
        return False
    return not any(reader < w < wanted_at for w in storage.writers)
