"""What goes through a window of weights, gradients and optimizer state in a step."""

import pytest

from tensorferry.plan.weights import WindowedStep, find_windowed
from tensorferry.trace import Kind, Op, Phase, Storage, Trace

SIZE = 2**20


@pytest.fixture(name="windowed", scope="module")
def make_windowed() -> WindowedStep:
    """Two layers forward and backward, and the update of both with one tensor of state each."""
    phases = [Phase.FORWARD] * 2 + [Phase.BACKWARD] * 2 + [Phase.OPTIMIZER] * 2
    weights, gradients, states = (0, 1), (2, 3), (4, 5)
    reads = [(0,), (1,), (1,), (0,), (0, 2, 4), (1, 3, 5)]
    writes: list[tuple[int, ...]] = [(), (), (3,), (2,), (0, 4), (1, 5)]
    ops = tuple(Op("op", phase, 0.0, *moved) for phase, moved in zip(phases, zip(reads, writes, strict=True), strict=True))
    storages = []
    for i, kind in (
        *((i, Kind.PARAMETER) for i in weights),
        *((i, Kind.GRADIENT) for i in gradients),
        *((i, Kind.OPTIMIZER) for i in states),
    ):
        uses, writers = (tuple(at for at in range(6) if i in table[at]) for table in (reads, writes))
        storages.append(Storage(SIZE, kind, writers, uses, freed_after=uses[-1] if kind is Kind.GRADIENT else None))
    return find_windowed(Trace(ops, tuple(storages)), min_nbytes=1)


def test_all_of_it_moves_and_the_widest_op_sets_the_window(windowed: WindowedStep) -> None:
    assert windowed.nbytes == 6 * SIZE
    assert windowed.min_window_nbytes == 3 * SIZE


def test_a_window_for_everything_needs_no_copies(windowed: WindowedStep) -> None:
    assert windowed.traffic(6 * SIZE) == (0, 0)


def test_the_narrowest_window_brings_in_what_each_op_uses_and_takes_out_what_was_written(windowed: WindowedStep) -> None:
    # in: a weight for forward, a state for one update, all three of the other; out: both weights and states, a gradient
    assert windowed.traffic(3 * SIZE) == (5 * SIZE, 5 * SIZE)


def test_a_wider_window_never_moves_more(windowed: WindowedStep) -> None:
    moved = [sum(windowed.traffic(n * SIZE)) for n in (3, 4, 5, 6)]
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > moved[-1] == 0
