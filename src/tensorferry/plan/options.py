"""What a plan may do to each movable storage of one trace on one machine, and what each way costs by itself."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import inf, log2

from tensorferry.plan.link import Link
from tensorferry.plan.plan import Action, Decision
from tensorferry.plan.replay import Replay
from tensorferry.plan.tables import Tables

COST_STEPS_PER_OCTAVE = 4


@dataclass(frozen=True)
class Options:
    """Every movable storage may be kept; swapping is limited by the tier, recomputing to storages that have a replay."""

    tables: Tables
    replays: dict[int, Replay]
    link: Link
    swap_capacity_nbytes: float = inf  # zero: no swapping

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
        return {gap.storage: swap + ((Action.RECOMPUTE,) if gap.storage in self.replays else ()) for gap in able}

    @cached_property
    def replay_cost(self) -> dict[int, int]:
        """What replays cost a byte, in coarse steps, so that about equal ones compare equal."""
        nbytes = {s: max(1, self.tables.gaps[s].nbytes) for s in self.replays}
        return {
            s: round(COST_STEPS_PER_OCTAVE * log2(max(replay.seconds, 1e-12) / nbytes[s])) for s, replay in self.replays.items()
        }

    @cached_property
    def _fixed(self) -> dict[tuple[int, Action], Decision]:
        gaps = self.tables.gaps
        kept = {(s, Action.KEEP): Decision(s, Action.KEEP, gap.nbytes) for s, gap in gaps.items()}
        redone = {
            (s, Action.RECOMPUTE): Decision(s, Action.RECOMPUTE, gaps[s].nbytes, replay=replay.ops, sources=replay.sources)
            for s, replay in self.replays.items()
        }
        return kept | redone

    def decision(self, s: int, action: Action, fetch_at: int | None = None) -> Decision:
        """The decision to do this to storage `s`."""
        return self._fixed.get((s, action)) or Decision(s, action, self.tables.gaps[s].nbytes, fetch_at)

    def replay_swell(self, op: int, storages: list[int]) -> int:
        """How far recomputing these storages before `op` exceeds what the op itself is going to add."""
        tables, held, most = self.tables, -sum(self.tables.gaps[s].nbytes for s in storages), 0
        for s in sorted(storages, key=lambda s: self.replays[s].ops[-1]):
            made = 0
            for i in self.replays[s].ops:
                made += tables.new_nbytes[i]
                most = max(most, held + made + tables.workspace_nbytes[i])
            held += tables.gaps[s].nbytes
        return max(0, most - tables.demand_nbytes[op])
