"""How long it takes to put a plan into a traced TensorFlow graph.

    python benchmarks/rewrite.py                ResNets of 50, 80 and 101 layers at batch 16: 6,500 to 13,000 ops
    python benchmarks/rewrite.py --blocks 16    one size: this many bottlenecks in the third stage
    python benchmarks/rewrite.py --save         all sizes, and their result file

Nothing is trained. A training step is traced as Keras does it; then the graph is read into a trace ("read"), planned for
the smallest budget, which moves most ("plan"), edited ("edit") and made into a function ("make"). Rewriting is
all but planning, which has a benchmark of its own. Seconds are wall; CPU seconds of all four stand beside them.
"""

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from time import perf_counter, process_time
from typing import Any, TypeVar

from rich.console import Console

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

from results import FigureTable, parse_options, save_result
from tensorferry.engines.tensorflow.allocator import DeviceMemory
from tensorferry.engines.tensorflow.edit import Edit
from tensorferry.engines.tensorflow.planned import carry_out
from tensorferry.engines.tensorflow.record import record
from tensorferry.engines.tensorflow.swap import GraphCopies
from tensorferry.machine import Machine, TierSpeed
from tensorferry.plan import Action, find_floor, make_plan
from tensorferry.recipes.models.keras.fit import compile_model
from tensorferry.recipes.models.keras.resnet import resnet
from tensorferry.tiers import open_tier

T = TypeVar("T")
BLOCKS = (6, 16, 23)  # in the third stage; 6 is ResNet-50, 23 is ResNet-101
TARGET_OPS, TARGET_SECONDS = 10_000, 3.0
_MIN_NBYTES = 2**20
_WATCHDOG_SECONDS = 60.0
_MACHINE = Machine("card", memory_nbytes=2**34, tiers=(TierSpeed("disk", 2e9, 2e9),), source="made up")


@dataclass(frozen=True)
class Row:
    """One graph, rewritten."""

    num_ops: int
    num_moved: int  # storages swapped or recomputed
    read_seconds: float
    plan_seconds: float
    edit_seconds: float
    make_seconds: float
    cpu_seconds: float

    @property
    def rewrite_seconds(self) -> float:
        """What it takes once there is a plan, and to have something to plan."""
        return self.read_seconds + self.edit_seconds + self.make_seconds


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write; 0 when graphs of the target size are rewritten in time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", default=",".join(map(str, BLOCKS)), help="comma separated")
    options = parse_options(parser, __file__, argv)
    console = Console(width=None if sys.stdout.isatty() else 120)
    rows = [measure(int(num_blocks)) for num_blocks in options.blocks.split(",")]
    table = make_table(rows)
    console.print(table)
    save_result(options, "rewrite", [table], {"rows": [asdict(row) for row in rows]}, ["tensorflow", "tensorflow-cpu", "keras"])
    # a graph is seldom of exactly the target's size
    slowest = max(row.rewrite_seconds * min(1.0, TARGET_OPS / row.num_ops) for row in rows)
    console.print(f"rewriting {TARGET_OPS:,} ops: {slowest:.2f} s, to be under {TARGET_SECONDS:.0f} s")
    return 0 if slowest < TARGET_SECONDS else 1


def measure(num_blocks: int) -> Row:
    """Rewrite the training step of one ResNet."""
    model = compile_model(resnet((3, 4, num_blocks, 3)))  # a graph holds its variables only weakly
    function = trace_step(model)
    cpu = process_time()
    num_ops = len(function.graph.get_operations())
    recording, read = _time(lambda: record(function.graph, min_nbytes=_MIN_NBYTES, machine=_MACHINE))
    floor_nbytes = find_floor(recording.trace).nbytes
    plan, planning = _time(lambda: make_plan(recording.trace, floor_nbytes, _MACHINE))
    with closing(open_tier("shm")) as tier, closing(DeviceMemory(0)) as device:
        copies = GraphCopies(tier, device, _WATCHDOG_SECONDS)
        with closing(copies):
            edit = Edit(function.graph)
            _, editing = _time(lambda: carry_out(recording, plan.decisions, edit, copies, gated_nbytes=_MIN_NBYTES))
            _, making = _time(lambda: edit.make_function(function.function_type))
    num_moved = sum(decision.action is not Action.KEEP for decision in plan.decisions)
    return Row(num_ops, num_moved, read, planning, editing, making, process_time() - cpu)


def trace_step(model: keras.Model) -> Any:
    """A training step as a concrete function."""
    model.optimizer.build(model.trainable_variables)
    batch = (tf.TensorSpec((16, 224, 224, 3)), tf.TensorSpec((16,), tf.int32))
    return tf.function(model.train_step).get_concrete_function(batch)


def _time(work: Callable[[], T]) -> tuple[T, float]:
    started = perf_counter()
    return work(), perf_counter() - started


def make_table(rows: list[Row]) -> FigureTable:
    """The rows for people."""
    cells = []
    for row in rows:
        seconds = (row.read_seconds, row.plan_seconds, row.edit_seconds, row.make_seconds, row.rewrite_seconds, row.cpu_seconds)
        cells.append((f"{row.num_ops:,}", f"{row.num_moved:,}", *(f"{value:.2f}" for value in seconds)))
    columns = ("ops", "moved", "read s", "plan s", "edit s", "make s", "rewrite s", "CPU s")
    return FigureTable("Rewriting time", columns, cells)


if __name__ == "__main__":
    sys.exit(main())
