"""How careful a plan is."""

from hypothesis import given, settings
from hypothesis import strategies as st
from small import small_trace
from traces import random_machine, random_trace

from tensorferry.engines.tensorflow.history import with_caution
from tensorferry.plan import find_floor, make_plan
from tensorferry.plan.schedule import make_tables

SEEDS = st.integers(0, 10**9)


def test_ops_keep_their_caution_but_for_those_at_the_floor() -> None:
    trace = small_trace(workspace_nbytes=30)
    lowest = make_tables(trace).lowest
    floor_nbytes = find_floor(trace).nbytes
    careful = with_caution(trace, 20, floor_nbytes)
    added = [new.workspace_nbytes - old.workspace_nbytes for new, old in zip(careful.ops, trace.ops, strict=True)]
    assert added == [min(20, floor_nbytes - nbytes) for nbytes in lowest]
    assert min(added) == 0
    assert max(added) == 20


def test_no_caution_changes_nothing() -> None:
    trace = small_trace(workspace_nbytes=30)
    assert with_caution(trace, 0, find_floor(trace).nbytes) == trace


@settings(max_examples=60, deadline=None)
@given(SEEDS, SEEDS, st.floats(0.0, 1.5), st.floats(0.0, 0.5))
def test_caution_never_makes_a_plan_impossible(trace_seed: int, machine_seed: int, share: float, caution: float) -> None:
    trace = random_trace(trace_seed)
    floor_nbytes = find_floor(trace).nbytes
    limit_nbytes = floor_nbytes + int(share * (trace.plain_peak_nbytes - floor_nbytes))
    careful = with_caution(trace, int(caution * limit_nbytes), limit_nbytes)
    assert find_floor(careful).nbytes <= limit_nbytes
    assert make_plan(careful, limit_nbytes, random_machine(machine_seed)).peak_nbytes <= limit_nbytes
