"""What the planner is held against on small traces.

`fastest_choice` tries every combination of keep, swap and recompute, with the planner's own fetch placement, and simulates each.
It bounds how good a choice of actions can be, not how good their timing.

`lower_bound_seconds` is a mixed-integer program. No plan that keeps to the budget under the simulator's rules can be faster than
its optimum, whatever it chooses and whenever it copies; but the optimum may be out of reach, because the program lets storages
come and go op by op without the bytes of copies under way, and asks of a replay only that it would fit if everything else that
may be away were.
"""

from itertools import accumulate, product

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from tensorferry.machine import Machine, link_to
from tensorferry.plan import Action
from tensorferry.plan.options import Options, find_recomputations
from tensorferry.plan.schedule import Gap, make_tables
from tensorferry.plan.search import try_actions
from tensorferry.trace import Trace


def make_options(trace: Trace, machine: Machine) -> Options:
    tables = make_tables(trace)
    return Options(tables, find_recomputations(tables), link_to(machine, machine.tiers[0].name))


def fastest_choice(options: Options, budget_nbytes: int) -> float:
    """The seconds of the fastest of all combinations of actions that fit."""
    ways = ((Action.KEEP, *ways) for ways in options.ways_out.values())
    choices = (dict(zip(options.ways_out, actions, strict=True)) for actions in product(*ways))
    moved = ({s: action for s, action in choice.items() if action is not Action.KEEP} for choice in choices)
    candidates = (try_actions(options, budget_nbytes, actions) for actions in moved)
    return min(candidate.cost.seconds for candidate in candidates if candidate is not None)


def lower_bound_seconds(options: Options, budget_nbytes: int) -> float:
    """Seconds that no plan within the budget can beat."""
    return _Program(options, budget_nbytes).solve()


class _Program:
    """The variables: away[k, i], the k-th storage is swapped out while op i runs; redone[k, i], it is dropped when idle and made
    again before op i; waited[i], all stalls before op i runs."""

    def __init__(self, options: Options, budget_nbytes: int) -> None:
        self.options, self.budget = options, budget_nbytes
        self.num_ops = len(options.tables.seconds)
        self.gaps = [options.tables.gaps[s] for s in options.ways_out]
        swaps = [(k, i) for k, gap in enumerate(self.gaps) for i in range(gap.leaves_at, gap.wanted_at)]
        redos = [(k, i) for k, gap in enumerate(self.gaps) for i in range(gap.idle_after + 2, gap.wanted_at + 1)]
        redos = [(k, i) for k, i in redos if self._replay_fits(self.gaps[k], i)]
        self.away = {pair: number for number, pair in enumerate(swaps)}
        self.redone = {pair: number for number, pair in enumerate(redos, start=len(swaps))}
        self.waited = len(swaps) + len(redos)
        self.num_variables = self.waited + self.num_ops
        self.rows: list[np.ndarray] = []
        self.limits: list[float] = []

    def solve(self) -> float:
        self._keep_to_budget()
        self._one_way_out()
        self._copy_out_in_time()
        self._copy_in_in_time()
        self._wait_forward()
        cost, upper = np.zeros(self.num_variables), np.ones(self.num_variables)
        for (k, _), variable in self.redone.items():
            cost[variable] = self.options.recomputations[self.gaps[k].storage].seconds
        cost[-1] = 1.0
        upper[self.waited :] = np.inf
        whole = np.arange(self.num_variables) < self.waited
        constraint = LinearConstraint(np.array(self.rows), -np.inf, np.array(self.limits))
        # HiGHS 1.12 ends some of these in "solve error" when it presolves them
        settings = {"mip_rel_gap": 1e-6, "presolve": False}
        result = milp(cost, integrality=whole, bounds=Bounds(0, upper), constraints=constraint, options=settings)
        assert result.success, result.message
        return float(result.fun) + self.options.plain_seconds

    def _replay_fits(self, gap: Gap, op: int) -> bool:
        """Whether recomputing before `op` fits beside what is never away then and the replay's own sources."""
        replay = self.options.recomputations.get(gap.storage)
        if replay is None:
            return False
        tables = self.options.tables
        sources = [tables.gaps[s] for s in replay.movable_sources]
        held = int(tables.lowest[op]) - tables.demand_nbytes[op] - (gap.nbytes if op == gap.wanted_at else 0)
        held += sum(source.nbytes for source in sources if source.leaves_at <= op < source.wanted_at)
        made = accumulate(tables.new_nbytes[i] for i in replay.ops)
        return all(held + new + tables.workspace_nbytes[i] <= self.budget for new, i in zip(made, replay.ops, strict=True))

    def _at_most(self, row: np.ndarray, limit: float) -> None:
        self.rows.append(row)
        self.limits.append(limit)

    def _row(self) -> np.ndarray:
        return np.zeros(self.num_variables)

    def _keep_to_budget(self) -> None:
        for i, plain in enumerate(self.options.tables.trace.plain_resident.tolist()):
            row = self._row()
            for k, gap in enumerate(self.gaps):
                if (k, i) in self.away:
                    row[self.away[k, i]] = -gap.nbytes
                if i > gap.idle_after:
                    for back in range(i + 1, gap.wanted_at + 1):
                        if (k, back) in self.redone:
                            row[self.redone[k, back]] = -gap.nbytes
            self._at_most(row, self.budget - plain)

    def _one_way_out(self) -> None:
        for k, i in self.away:
            row = self._row()
            row[self.away[k, i]] = 1
            row[[variable for (other, _), variable in self.redone.items() if other == k]] = 1
            self._at_most(row, 1)
        for k in range(len(self.gaps)):
            row = self._row()
            row[[variable for (other, _), variable in self.redone.items() if other == k]] = 1
            self._at_most(row, 1)

    def _elapsed(self, row: np.ndarray, first: int, last: int, waited_before: int) -> float:
        """Take from `row` the time between two ops that waiting and replays make; returns what the ops themselves take."""
        row[self.waited + last] -= 1
        if waited_before >= 0:
            row[self.waited + waited_before] += 1
        for (k, i), variable in self.redone.items():
            if first <= i <= last:
                row[variable] -= self.options.recomputations[self.gaps[k].storage].seconds
        return sum(self.options.tables.seconds[first:last])

    def _copy_out_in_time(self) -> None:
        """What is away during op `last` was copied after it was saved: lane time from `first` on must suffice."""
        for last in range(self.num_ops):
            for first in range(last + 1):
                row = self._row()
                for k, gap in enumerate(self.gaps):
                    if (k, last) in self.away and gap.saved_at >= first:
                        row[self.away[k, last]] = self.options.link.seconds_out(gap.nbytes)
                if row.any():
                    self._at_most(row, self._elapsed(row, first, last, first - 1))

    def _copy_in_in_time(self) -> None:
        """What is away during op `first` and wanted by op `last` is copied in between."""
        for first in range(self.num_ops):
            for last in range(first + 1, self.num_ops):
                row = self._row()
                for k, gap in enumerate(self.gaps):
                    if (k, first) in self.away and gap.wanted_at <= last:
                        row[self.away[k, first]] = self.options.link.seconds_in(gap.nbytes)
                if row.any():
                    self._at_most(row, self._elapsed(row, first, last, first))

    def _wait_forward(self) -> None:
        for i in range(1, self.num_ops):
            row = self._row()
            row[self.waited + i - 1], row[self.waited + i] = 1, -1
            self._at_most(row, 0)
