"""How long planning takes as traces grow, and what the plans cost.

    python benchmarks/planner.py                    1,000 to 30,000 ops, four budgets each
    python benchmarks/planner.py --save             the same, and its result file
    python benchmarks/planner.py --ops 1000,3000    other sizes

The traces are made-up chains of layers (see `tensorferry.trace.synthetic`) with 29 movable storages for every 100 ops. Budgets
are shares of what lies between the floor and the plain peak; zero is the floor. The link is slow enough that the planner has to
weigh swapping against recomputing. Wall and CPU seconds are medians; the exponent is the slope of CPU seconds over ops on
logarithmic axes, all budgets together: 1 is linear.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter, process_time
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.progress import track

from results import FigureTable, parse_options, save_result
from tensorferry.machine import Machine, TierSpeed
from tensorferry.plan import Plan, find_floor, make_plan, simulate
from tensorferry.trace import Trace, make_chain_trace
from tensorferry.trace.synthetic import OPS_PER_LAYER

T = TypeVar("T")
SIZES = (1_000, 3_000, 10_000, 30_000)
BUDGET_SHARES = (0.75, 0.5, 0.25, 0.0)
TARGET_OPS, TARGET_SECONDS = 10_000, 2.0


@dataclass(frozen=True)
class Row:
    """One plan, measured."""

    num_ops: int
    num_movable: int
    budget_share: float
    wall_seconds: float
    cpu_seconds: float
    simulate_seconds: float  # wall, with the full timeline
    step_ratio: float  # predicted step over plain step
    stall_share: float  # of the predicted step


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write; 0 when traces of the target size are planned in time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default=",".join(map(str, SIZES)), help="comma separated")
    parser.add_argument("--repeat", type=int, default=3, help="how often each plan is made")
    parser.add_argument("--link", type=float, default=6.0, metavar="GB/S", help="how fast the link is")
    options = parse_options(parser, __file__, argv)
    console = Console(width=None if sys.stdout.isatty() else 120)
    sizes = sorted({int(size) for size in options.ops.split(",")})
    cases = [(make_chain_trace(max(1, size // OPS_PER_LAYER)), share) for size in sizes for share in BUDGET_SHARES]
    rows = [
        measure(trace, share, options.link, options.repeat)
        for trace, share in track(cases, "planning", console=console, transient=True)
    ]
    table, exponent, notes = make_table(rows), fit_exponent(rows), []
    console.print(table)
    if exponent is not None:
        notes = [f"CPU seconds grow with ops to the power of {exponent:.2f}, from {sizes[0]:,} to {sizes[-1]:,} ops."]
        console.print(*notes)
    figures = {"exponent": exponent, "rows": [asdict(row) for row in rows]}
    save_result(options, "planner", [table], figures, ["numpy"], notes)
    slowest = max((row.wall_seconds for row in rows if row.num_ops <= TARGET_OPS + OPS_PER_LAYER), default=0.0)
    console.print(f"slowest plan of at most {TARGET_OPS:,} ops: {slowest:.2f} s, to be under {TARGET_SECONDS:.0f} s")
    return 0 if slowest < TARGET_SECONDS else 1


def measure(trace: Trace, budget_share: float, link_gb_per_second: float, num_repeats: int) -> Row:
    """Plan one trace several times."""
    tier = TierSpeed("pinned", link_gb_per_second * 1e9, link_gb_per_second * 1e9)
    machine = Machine("card", memory_nbytes=2**34, tiers=(tier,), source="made up")
    floor = find_floor(trace).nbytes
    budget = floor + round(budget_share * (trace.plain_peak_nbytes - floor))
    plans = [_time(lambda: make_plan(trace, budget, machine)) for _ in range(num_repeats)]
    plan: Plan = plans[0][0]
    _, simulate_seconds, _ = _time(lambda: simulate(trace, plan, machine))
    return Row(
        num_ops=len(trace.ops),
        num_movable=len(trace.movable),
        budget_share=budget_share,
        wall_seconds=median(wall for _, wall, _ in plans),
        cpu_seconds=median(cpu for _, _, cpu in plans),
        simulate_seconds=simulate_seconds,
        step_ratio=plan.step_seconds / plan.plain_seconds,
        stall_share=plan.stall_seconds / plan.step_seconds,
    )


def _time(work: Callable[[], T]) -> tuple[T, float, float]:
    wall, cpu = perf_counter(), process_time()
    result = work()
    return result, perf_counter() - wall, process_time() - cpu


def fit_exponent(rows: list[Row]) -> float | None:
    """The power of the number of ops with which CPU seconds grow; None for fewer than two sizes."""
    sizes = sorted({row.num_ops for row in rows})
    if len(sizes) < 2:
        return None
    seconds = [sum(row.cpu_seconds for row in rows if row.num_ops == size) for size in sizes]
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def make_table(rows: list[Row]) -> FigureTable:
    """The rows for people."""
    columns = ("ops", "movable", "budget", "plan wall s", "plan CPU s", "simulate ms", "step / plain", "stall")
    cells = [
        (
            f"{row.num_ops:,}",
            f"{row.num_movable:,}",
            f"{row.budget_share:.0%}" if row.budget_share else "floor",
            f"{row.wall_seconds:.2f}",
            f"{row.cpu_seconds:.2f}",
            f"{row.simulate_seconds * 1e3:.0f}",
            f"{row.step_ratio:.3f}",
            f"{row.stall_share:.1%}",
        )
        for row in rows
    ]
    return FigureTable("Planning time", columns, cells)


if __name__ == "__main__":
    sys.exit(main())
