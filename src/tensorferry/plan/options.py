"""What a plan may do to each movable storage of one trace on one machine, and what each way costs by itself.

A storage can be recomputed when all ops that wrote it may be run again and each of their inputs is, when the storage is
wanted, either still what the op read (a weight, a saved activation wherever it waits) or can be made again on the way.
Limit: chains of such ops are kept short, because a long one is a second forward pass and its intermediates need memory.
Checkmate (Jain et al. 2020, arXiv:1910.02653) searches over chains of any length with an integer program.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import inf, log2

from tensorferry.machine import Link
from tensorferry.plan.plan import Action, Decision
from tensorferry.plan.schedule import Tables
from tensorferry.plan.two_tiers import SecondTier
from tensorferry.trace import Trace

COST_STEPS_PER_OCTAVE = 4
MAX_REPLAYED_OPS = 6


@dataclass(frozen=True, slots=True)
class Recomputation:
    """One way to make a storage again."""

    ops: tuple[int, ...]  # in order
    sources: tuple[int, ...]  # storages that the ops read and do not make themselves
    movable_sources: tuple[int, ...]  # those of them that a plan decides about
    seconds: float


@dataclass(frozen=True)
class Options:
    """Every movable storage may be kept; swapping is limited by the tier, recomputing to storages that can be made again."""

    tables: Tables
    recomputations: dict[int, Recomputation]
    link: Link
    swap_capacity_nbytes: float = inf  # of all tiers together; zero: no swapping
    second: SecondTier | None = None  # behind the tier that the link leads to

    @cached_property
    def plain_seconds(self) -> float:
        """The step's own seconds."""
        return self.tables.trace.seconds

    @cached_property
    def movable_nbytes(self) -> int:
        """The bytes of all movable storages."""
        return sum(gap.nbytes for gap in self.tables.gaps.values())

    @cached_property
    def starts(self) -> list[float]:
        """The seconds at which each op starts when nothing moves."""
        return [0.0, *accumulate(self.tables.seconds)]

    @cached_property
    def ways_out(self) -> dict[int, tuple[Action, ...]]:
        """How each storage can leave; only storages with a gap worth the name."""
        able = [gap for gap in self.tables.gaps.values() if gap.nbytes and gap.leaves_at < gap.wanted_at]
        swap = (Action.SWAP,) if self.swap_capacity_nbytes > 0 else ()
        return {gap.storage: swap + ((Action.RECOMPUTE,) if gap.storage in self.recomputations else ()) for gap in able}

    @cached_property
    def recompute_cost(self) -> dict[int, int]:
        """What recomputing costs a byte, in coarse steps, so that about equal ones compare equal."""
        nbytes = {s: max(1, self.tables.gaps[s].nbytes) for s in self.recomputations}
        seconds = {s: max(recomputation.seconds, 1e-12) for s, recomputation in self.recomputations.items()}
        return {s: round(COST_STEPS_PER_OCTAVE * log2(seconds[s] / nbytes[s])) for s in self.recomputations}

    @cached_property
    def _fixed(self) -> dict[tuple[int, Action], Decision]:
        gaps = self.tables.gaps
        kept = {(s, Action.KEEP): Decision(s, Action.KEEP, gap.nbytes) for s, gap in gaps.items()}
        redone = {
            (s, Action.RECOMPUTE): Decision(s, Action.RECOMPUTE, gaps[s].nbytes, replay=again.ops, sources=again.sources)
            for s, again in self.recomputations.items()
        }
        return kept | redone

    def decision(self, s: int, action: Action, swap_in_at: int | None = None, read_at: int | None = None) -> Decision:
        """The decision to do this to storage `s`."""
        fixed = self._fixed.get((s, action))
        return fixed or Decision(s, action, self.tables.gaps[s].nbytes, swap_in_at, read_at=read_at)

    def recompute_extra_nbytes(self, op: int, storages: list[int]) -> int:
        """How far recomputing these storages before `op` exceeds what the op itself is going to add."""
        tables, held, most = self.tables, -sum(self.tables.gaps[s].nbytes for s in storages), 0
        for s in sorted(storages, key=lambda s: self.recomputations[s].ops[-1]):
            made = 0
            for i in self.recomputations[s].ops:
                made += tables.new_nbytes[i]
                most = max(most, held + made + tables.workspace_nbytes[i])
            held += tables.gaps[s].nbytes
        return max(0, most - tables.demand_nbytes[op])


def find_recomputations(tables: Tables) -> dict[int, Recomputation]:
    """How to recompute every movable storage that can be."""
    found = ((s, _find_recomputation(tables, s)) for s in tables.gaps)
    return {s: recomputation for s, recomputation in found if recomputation is not None}


def _find_recomputation(tables: Tables, target: int) -> Recomputation | None:
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
    return Recomputation(
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
