"""What fits a budget, and which budget would do: told before the first step, and op by op while a step is recorded."""

from dataclasses import replace

import torch

from tensorferry.engines.budget import Margin
from tensorferry.engines.torch.model_memory import memory_by_kind
from tensorferry.plan import find_floor
from tensorferry.plan.floor import evaluation_stopped, part_too_small, stopped, too_small, too_small_to_begin
from tensorferry.trace import Kind, Trace

# for what the kernel's page counts and small allocations add; building a model touches a few MiB that are not its tensors
MARGIN = Margin(share=0.01, min_nbytes=6 * 2**20)
# what a process's first step leaves of itself, such as code that is loaded and the libraries' own buffers, grows with the step
_COLD_SHARE, _MAX_COLD_NBYTES = 0.02, 32 * 2**20
# a budget that is named before it has room for the most that was seen: of it, of kernels' workspace beyond what is told of it,
# and of the engine's own records, which grow with the number of ops
_MOST_COLD_SHARE, _MOST_COLD_NBYTES, _RECORDS_NBYTES_PER_OP = 0.05, 32 * 2**20, 4096
_BETWEEN_RUNS_NBYTES = 2 * 2**20  # by so much resident memory before a step differs from one run to the next


class BudgetLimits:
    """A budget, what of it a plan may use, and what is known of the budget that a training needs."""

    def __init__(self, budget_nbytes: int) -> None:
        self.budget_nbytes = budget_nbytes
        self.limit_nbytes = MARGIN.limit_of(budget_nbytes)
        self._named_nbytes: int | None = None  # a budget that would do, as far as is known
        self._asked_nbytes = 0  # the most that was held before an op that was recorded, with what it was expected to take

    def fits(self, floor_nbytes: int) -> bool:
        """Whether a step of which nothing has been measured is expected to run."""
        return floor_nbytes + cold_nbytes(floor_nbytes) <= self.limit_nbytes

    def refuse_model(self, model: torch.nn.Module, held_nbytes: int) -> None:
        """Refuse a budget that weights, and whatever else there is before a step, are above by themselves."""
        if held_nbytes > self.limit_nbytes:
            raise too_small_to_begin(self.budget_nbytes, memory_by_kind(model), held_nbytes)

    def refuse_below_floor(self, trace: Trace, *, is_cold: bool = False, is_part: bool = False) -> None:
        """`is_cold`: nothing of the trace has been measured, and maybe no step has run in this process.

        `is_part`: the step has more than the trace, and nobody knows how much.
        """
        floor = find_floor(trace)
        more_nbytes = cold_nbytes(floor.nbytes) if is_cold else 0
        # what was measured fitted into the budget once, margin or not
        is_below = floor.nbytes + more_nbytes > (self.limit_nbytes if is_cold else self.budget_nbytes)
        if is_part:
            if is_below:
                raise part_too_small(trace, self.budget_nbytes, replace(floor, nbytes=budget_to_name(floor.nbytes + more_nbytes)))
            return
        # a first step at the budget that is named is checked op by op, with the same estimates as this one
        named_nbytes = budget_to_name(
            floor.nbytes + _most_to_come_nbytes(trace, floor.nbytes) if is_cold else max(floor.nbytes, self._asked_nbytes)
        )
        self._named_nbytes = max(self._named_nbytes or 0, named_nbytes)
        if is_below:
            raise too_small(trace, self.budget_nbytes, replace(floor, nbytes=named_nbytes))

    def limit_of_step(self, num_steps: int, num_plans: int) -> int:
        """What a step that is recorded may hold, after so many others."""
        if num_plans:  # the margin is given up rather than a training that has begun
            return self.budget_nbytes
        if num_steps:  # and half of it for a step beside one that fitted
            return (self.budget_nbytes + self.limit_nbytes) // 2
        return self.limit_nbytes

    def refuse_op(self, name: str, held_nbytes: int, demand_nbytes: int, limit_nbytes: int, held: dict[Kind, int]) -> None:
        """Stop a step before an op takes it above its limit: all that can be swapped is already."""
        self._asked_nbytes = max(self._asked_nbytes, held_nbytes + demand_nbytes)
        if held_nbytes + demand_nbytes > limit_nbytes:
            raise stopped(name, self.budget_nbytes, held, held_nbytes, demand_nbytes, self._named_nbytes)

    def refuse_op_of_evaluation(
        self, name: str, held_nbytes: int, demand_nbytes: int, limit_nbytes: int, model: torch.nn.Module
    ) -> None:
        """Stop an evaluation before an op takes it above its limit: what can wait elsewhere does already."""
        if held_nbytes + demand_nbytes > limit_nbytes:
            raise evaluation_stopped(name, self.budget_nbytes, memory_by_kind(model), held_nbytes, demand_nbytes)


def budget_to_name(floor_nbytes: int) -> int:
    """The budget to name for a floor."""
    return MARGIN.budget_for(floor_nbytes + _BETWEEN_RUNS_NBYTES)


def cold_nbytes(floor_nbytes: int) -> int:
    """What a process's first step leaves of itself."""
    return min(int(_COLD_SHARE * floor_nbytes), _MAX_COLD_NBYTES)


def _most_to_come_nbytes(trace: Trace, floor_nbytes: int) -> int:
    """What steps may add to a floor that was told before the first of them."""
    return int(_MOST_COLD_SHARE * floor_nbytes) + _MOST_COLD_NBYTES + _RECORDS_NBYTES_PER_OP * len(trace.ops)
