"""The engine's contract: whatever moves, every bit of every result stays."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from networks import MACHINE, NETWORKS, Bench, Network
from tensorflow.python.eager import context
from tensorflow.python.util._pywrap_util_port import IsMklEnabled

from tensorferry.engines.tensorflow.allocator import DeviceMemory
from tensorferry.machine import Machine, TierSpeed
from tensorferry.plan import Action, Decision, find_floor, make_plan
from tensorferry.plan.options import find_recomputations
from tensorferry.plan.schedule import make_tables


@pytest.fixture(scope="module", params=NETWORKS, ids=lambda network: network.name)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    network: Network = request.param
    bench = Bench(network)
    yield bench
    bench.close()


def _swap(bench: Bench, s: int) -> Decision:
    storage = bench.recording.trace.storages[s]
    return Decision(s, Action.SWAP, storage.nbytes, swap_in_at=storage.wanted_at)


def test_results_are_identical_when_everything_is_swapped_and_watched(bench: Bench) -> None:
    plain = bench.run_plain()
    assert len(bench.recording.trace.movable) > 3
    swapped = bench.run(bench.decide(lambda s: _swap(bench, s)), gated_nbytes=0, watched=True)
    assert len(bench.log.copies) == 2 * len(bench.recording.trace.movable)
    assert swapped == plain


@pytest.mark.parametrize("slow_link", [False, True], ids=["fast link", "slow link"])
def test_results_are_identical_under_a_tight_plan(bench: Bench, slow_link: bool) -> None:
    trace = bench.recording.trace
    floor_nbytes = find_floor(trace).nbytes
    budget_nbytes = floor_nbytes + (trace.plain_peak_nbytes - floor_nbytes) // 5
    machine = Machine("slow", 2**30, (TierSpeed("disk", 1e5, 1e5),)) if slow_link else MACHINE
    plan = make_plan(trace, budget_nbytes, machine)
    assert plan.nbytes(Action.SWAP) + plan.nbytes(Action.RECOMPUTE) > 0
    assert bench.run(plan.decisions) == bench.run_plain()


def test_results_are_identical_when_all_is_recomputed_that_can_be(bench: Bench) -> None:
    replays = find_recomputations(make_tables(bench.recording.trace))
    storages = bench.recording.trace.storages

    def choose(s: int) -> Decision:
        nbytes = storages[s].nbytes
        if s not in replays:
            return Decision(s, Action.KEEP, nbytes)
        return Decision(s, Action.RECOMPUTE, nbytes, replay=replays[s].ops, sources=replays[s].sources)

    assert bench.run(bench.decide(choose)) == bench.run_plain()


def test_units_that_add_little_share_a_gate_and_results_are_identical(bench: Bench) -> None:
    decisions = bench.decide(lambda s: _swap(bench, s))
    plain = bench.run_plain()
    bench.run(decisions, num_steps=1, gated_nbytes=0)
    num_units = len(bench.log.passed)
    shared = bench.run(decisions, gated_nbytes=bench.recording.trace.plain_peak_nbytes)
    assert len(bench.log.passed) < num_units == len(bench.recording.trace.ops)
    assert shared == plain


@pytest.mark.parametrize("share", [0.3, 2.0, 100.0], ids=["some room", "more", "room for everything"])
def test_results_are_identical_where_units_run_side_by_side(bench: Bench, share: float) -> None:
    trace = bench.recording.trace
    room_nbytes = [int(share * trace.plain_peak_nbytes)] * len(trace.ops)
    decisions = bench.decide(lambda s: _swap(bench, s) if s % 3 else Decision(s, Action.KEEP, trace.storages[s].nbytes))
    plain = bench.run_plain()
    bench.run(decisions, num_steps=1, gated_nbytes=0)
    num_alone = len(bench.log.passed)
    together = bench.run(decisions, gated_nbytes=0, room_nbytes=room_nbytes)
    assert len(bench.log.passed) < num_alone  # a gate for a group, not for every unit
    assert together == plain


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_results_are_identical_when_the_optimizers_state_is_away_too(network: Network) -> None:
    bench = Bench(network, with_state=True)
    states = bench.recording.states
    assert bool(states) == (network.optimizer == "adam")
    swapped = bench.run(bench.decide(lambda s: _swap(bench, s)), gated_nbytes=0, watched=True)
    assert {copy.storage for copy in bench.log.copies} >= states.keys()
    plan = make_plan(bench.recording.trace, find_floor(bench.recording.trace).nbytes, MACHINE)
    planned = bench.run(plan.decisions)
    roomy = bench.run(plan.decisions, room_nbytes=[2**40] * len(bench.recording.trace.ops))
    assert swapped == planned == roomy == bench.run_plain()
    bench.close()


def test_a_device_reserves_more_than_31_bits_can_count() -> None:
    device = DeviceMemory(0)
    before_nbytes = device.resident_nbytes()
    device.reserve(5 * 2**30, 0)
    assert device.resident_nbytes() - before_nbytes < 2**30  # addresses, not pages
    device.close()


def _optimised(run: Callable[[], object]) -> list[Any]:
    """The nodes that TensorFlow makes of the functions that run."""
    context.enable_run_metadata()
    try:
        run()
        graphs = [graph for made in context.export_run_metadata().function_graphs for graph in made.partition_graphs]
    finally:
        context.disable_run_metadata()
    return [node for graph in graphs for node in graph.node]


def _named(name: str) -> Bench:
    return Bench(next(network for network in NETWORKS if network.name == name))


def test_onednn_finds_the_pooling_op_of_every_gradient_when_everything_is_swapped() -> None:
    """Where it does not, another kernel takes the gradient, which may round in another way."""
    bench = _named("inception")
    nodes = _optimised(lambda: bench.run(bench.decide(lambda s: _swap(bench, s)), num_steps=1))
    bench.close()
    gradients = [node for node in nodes if "MaxPoolGrad" in node.op]
    assert len(gradients) == 2
    assert all(node.input[1].startswith("tensorferry/again") for node in gradients)
    if IsMklEnabled():
        assert all(node.op.startswith("_Mkl") and node.attr["workspace_enabled"].b for node in gradients)


@pytest.mark.parametrize("name", ["squeezing", "frozen"])
def test_tensorflow_merges_the_same_ops_when_everything_is_swapped(name: str) -> None:
    """A merged op may round in another way than those it was made of."""
    bench = _named(name)
    runs = [lambda: bench.run_plain(1), lambda: bench.run(bench.decide(lambda s: _swap(bench, s)), num_steps=1)]
    plain, swapped = (Counter(node.op for node in _optimised(run) if node.op.startswith(("_Mkl", "_Fused"))) for run in runs)
    bench.close()
    assert any("WithBias" in op for op in plain) or not IsMklEnabled()
    assert swapped == plain


def test_an_edit_that_was_undone_leaves_the_graph_as_it_was(bench: Bench) -> None:
    before = [(op.name, [t.name for t in op.inputs], [c.name for c in op.control_inputs]) for op in _ops(bench)]
    bench.run(bench.decide(lambda s: _swap(bench, s)), num_steps=1)
    assert [(op.name, [t.name for t in op.inputs], [c.name for c in op.control_inputs]) for op in _ops(bench)] == before


def _ops(bench: Bench) -> list:
    return [op for op in bench.concrete.graph.get_operations() if not op.name.startswith("tensorferry/")]
