"""A plan as a step reads it while it runs: by the position of an op, and by the ordinal of a save."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensorferry.engines.torch.lean import runs_in_parts
from tensorferry.engines.torch.state import StateStorage
from tensorferry.plan import Action, Decision, Plan
from tensorferry.trace import Kind, Trace


@dataclass(frozen=True)
class StepSchedule:
    """A plan as a step reads it: by op position, and by the ordinal of a save."""

    trace: Trace
    plan: Plan
    funcs: list[Any]
    saved_storages: list[int]  # by ordinal
    states: list[tuple[StateStorage, int]]  # of the optimizer, each with its place in the trace
    reuses_freed: bool  # whether the plan has room for freed memory that is kept for the next allocation
    loose_nbytes: list[int]  # each op's workspace if nothing that it frees were given back or used again
    random: frozenset[int] = frozenset()  # ops before which the state of a generator is kept

    @cached_property
    def demand_nbytes(self) -> list[int]:
        """What each op allocates: new outputs and workspace."""
        demand = [op.workspace_nbytes for op in self.trace.ops]
        for storage in self.trace.storages:
            if not storage.was_there:
                demand[storage.writers[0]] += storage.nbytes
        return demand

    @cached_property
    def most_nbytes(self) -> list[int]:
        """What each op allocates in all, whether it frees it again or not."""
        ops = zip(self.demand_nbytes, self.trace.ops, self.loose_nbytes, strict=True)
        return [demand - op.workspace_nbytes + max(op.workspace_nbytes, loose) for demand, op, loose in ops]

    @cached_property
    def _by_storage(self) -> dict[int, Decision]:
        return {decision.storage: decision for decision in self.plan.decisions}

    @cached_property
    def decisions(self) -> list[Decision | None]:
        """By ordinal; None for what cannot move."""
        return [self._by_storage.get(storage) for storage in self.saved_storages]

    @cached_property
    def swapped_states(self) -> list[StateStorage]:
        """The optimizer's state that waits elsewhere until it is used."""
        swapped = {decision.storage for decision in self.plan.decisions if decision.action is Action.SWAP}
        return [state for state, storage in self.states if storage in swapped]

    def unused_states(self, position: int) -> list[StateStorage]:
        """The optimizer's state that is resident and that no op up to that position uses, what is wanted last first."""
        storages = self.trace.storages
        wanted = [(storages[i].wanted_at or 0, state) for state, i in self.states if state.resident and not state.is_gone]
        wanted.sort(key=lambda entry: entry[0], reverse=True)
        return [state for wanted_at, state in wanted if wanted_at > position]

    @cached_property
    def nbytes(self) -> list[int | None]:
        """By ordinal; None for an input, which may be a part of something larger."""
        storages = [self.trace.storages[storage] for storage in self.saved_storages]
        return [None if storage.kind is Kind.INPUT else storage.nbytes for storage in storages]

    def goes_on(self, ordinal: int) -> bool:
        """Whether what is swapped at a save goes on to the tier behind the first."""
        decision = self.decisions[ordinal]
        return decision is not None and decision.read_at is not None

    @cached_property
    def states_going_on(self) -> frozenset[int]:
        """The optimizer's state that does, by its place in the trace."""
        return frozenset(storage for _, storage in self.states if self._by_storage[storage].read_at is not None)

    @cached_property
    def reads(self) -> dict[int, list[int | StateStorage]]:
        """What to read back from the tier behind when an op starts."""
        due: dict[int, list[int | StateStorage]] = {}
        for decision in self.plan.decisions:
            if decision.read_at is not None:
                due.setdefault(decision.read_at, []).append(self._first[decision.storage])
        return due

    @cached_property
    def _first(self) -> dict[int, int | StateStorage]:
        """By storage: the ordinal of its first save, or the optimizer's state that it is."""
        first: dict[int, int | StateStorage] = {storage: state for state, storage in self.states}
        for ordinal, storage in enumerate(self.saved_storages):
            first.setdefault(storage, ordinal)
        return first

    @cached_property
    def swap_ins(self) -> dict[int, list[int | StateStorage]]:
        """What to swap in when an op starts: ordinals, and the optimizer's state."""
        due: dict[int, list[int | StateStorage]] = {}
        swaps = [d for d in self.plan.decisions if d.action is Action.SWAP and d.swap_in_at is not None]
        for decision in sorted(swaps, key=lambda d: self.trace.storages[d.storage].wanted_at or 0):
            due.setdefault(decision.swap_in_at or 0, []).append(self._first[decision.storage])
        return due

    @cached_property
    def noted(self) -> frozenset[int]:
        """Ops that may have to run again."""
        return frozenset(i for decision in self.plan.decisions for i in decision.replay)

    @cached_property
    def quiet(self) -> list[Any]:
        """By op: its func where the plan has nothing to do but to see that there is room, else None."""
        busy = self.noted | self.random | self.swap_ins.keys() | self.reads.keys() | {len(self.trace.ops) - 1}
        return [None if i in busy or runs_in_parts(func) else func for i, func in enumerate(self.funcs)]

    @cached_property
    def last_wanted(self) -> int:
        """After this op nothing that was saved is needed any more."""
        return max((self.trace.storages[s].wanted_at or 0 for s in self.saved_storages), default=-1)
