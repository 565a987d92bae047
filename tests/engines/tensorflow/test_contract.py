"""The contract on TensorFlow, and what its edited graphs must keep for that."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, ClassVar

import pytest
from contract import Contract, Outcome, Trained, Training, Way
from networks import MACHINE, NETWORKS, Bench, Network
from tensorflow.python.eager import context
from tensorflow.python.util._pywrap_util_port import IsMklEnabled

from tensorferry.machine import Machine, TierSpeed
from tensorferry.plan import Action, Decision, Lane, Plan, find_floor, make_plan
from tensorferry.plan.options import find_recomputations
from tensorferry.plan.schedule import make_tables

SLOW = Machine("slow", 2**30, (TierSpeed("disk", 1e5, 1e5),))


@cache
def bench_of(network: Network, device: str | None = None) -> Bench:
    return Bench(network, device=device)


@pytest.fixture(scope="module", autouse=True)
def _close_benches() -> Iterator[None]:
    yield
    for network in NETWORKS:
        bench_of(network).close()
    bench_of.cache_clear()


@pytest.fixture(scope="module", params=NETWORKS, ids=lambda network: network.name)
def bench(request: pytest.FixtureRequest) -> Bench:
    return bench_of(request.param)


class OnTensorFlow(Training):
    """In a graph that is edited to follow any decisions."""

    def __init__(self, network: Network, device: str | None = None) -> None:
        super().__init__(network.name)
        self.network = network
        self.device = device

    @property
    def bench(self) -> Bench:
        return bench_of(self.network, self.device)

    def train_plain(self) -> Outcome:
        return self.bench.plain

    def train(self, way: Way) -> Trained:
        bench, is_watched = self.bench, way is Way.EVERYTHING_LEAVES
        decisions = self._decide(way)
        outcome = bench.run(decisions, gated_nbytes=0, watched=True) if is_watched else bench.run(decisions)
        lanes = Counter(copy.lane for copy in bench.log.copies)
        if is_watched:
            assert lanes[Lane.OUT] == lanes[Lane.IN] == len(bench.recording.trace.movable)
        moved = {action: sum(d.nbytes for d in decisions if d.action is action) for action in Action}
        return Trained(
            outcome,
            lanes[Lane.OUT],
            lanes[Lane.IN],
            moved[Action.SWAP],
            moved[Action.RECOMPUTE],
            is_planned=not is_watched,
            peak_nbytes=None,  # an allocator that rounds up to twice the size says little of networks as small as these
            budget_nbytes=0,
        )

    def _decide(self, way: Way) -> list[Decision]:
        match way:
            case Way.EVERYTHING_LEAVES:
                return self.bench.swap_all()
            case Way.SLOW_LINK:
                return _recompute_all(self.bench)
            case _:
                return list(_tight_plan(self.bench, MACHINE, recompute=way is Way.TIGHT).decisions)


def _tight_plan(bench: Bench, machine: Machine, *, recompute: bool = True) -> Plan:
    trace = bench.recording.trace
    floor_nbytes = find_floor(trace).nbytes
    return make_plan(trace, floor_nbytes + (trace.plain_peak_nbytes - floor_nbytes) // 5, machine, recompute=recompute)


def _recompute_all(bench: Bench) -> list[Decision]:
    replays = find_recomputations(make_tables(bench.recording.trace))
    storages = bench.recording.trace.storages

    def choose(s: int) -> Decision:
        if s not in replays:
            return bench.keep(s)
        return Decision(s, Action.RECOMPUTE, storages[s].nbytes, replay=replays[s].ops, sources=replays[s].sources)

    return bench.decide(choose)


TRAININGS = [OnTensorFlow(network) for network in NETWORKS]
RECOMPUTABLE = [training for training in TRAININGS if training.name not in ("frozen", "recurrent")]  # where anything is


class TestOnTensorFlow(Contract):
    trainings: ClassVar = {
        Way.EVERYTHING_LEAVES: TRAININGS,
        Way.TIGHT: TRAININGS,
        Way.SLOW_LINK: RECOMPUTABLE,
        Way.WITHOUT_RECOMPUTE: TRAININGS[:1],
    }


def test_results_are_identical_under_a_tight_plan_for_a_slow_link(bench: Bench) -> None:
    plan = _tight_plan(bench, SLOW)
    assert plan.nbytes(Action.SWAP) + plan.nbytes(Action.RECOMPUTE) > 0
    assert bench.run(plan.decisions) == bench.plain


def test_units_that_add_little_share_a_gate_and_results_are_identical(bench: Bench) -> None:
    shared = bench.run(bench.swap_all(), gated_nbytes=bench.recording.trace.plain_peak_nbytes)
    assert len(bench.log.passed) < len(bench.recording.trace.ops)
    assert shared == bench.plain


def test_without_sharing_every_unit_has_a_gate(bench: Bench) -> None:
    bench.run(bench.swap_all(), num_steps=1, gated_nbytes=0)
    assert len(bench.log.passed) == len(bench.recording.trace.ops)


@pytest.mark.parametrize("share", [0.3, 2.0, 100.0], ids=["some room", "more", "room for everything"])
def test_results_are_identical_where_units_run_side_by_side(bench: Bench, share: float) -> None:
    trace = bench.recording.trace
    room_nbytes = [int(share * trace.plain_peak_nbytes)] * len(trace.ops)
    decisions = bench.decide(lambda s: bench.swap(s) if s % 3 else bench.keep(s))
    together = bench.run(decisions, gated_nbytes=0, room_nbytes=room_nbytes)
    assert len(bench.log.passed) < len(trace.ops)  # a gate for a group, not for every unit
    assert together == bench.plain


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_results_are_identical_when_the_optimizers_state_is_away_too(network: Network) -> None:
    bench = Bench(network, with_state=True)
    states = bench.recording.states
    assert bool(states) == (network.optimizer == "adam")
    ops = bench.recording.trace.ops
    assert ops[0].name == ops[-1].name == "what is there between steps"  # which a refusal may have to name
    swapped = bench.run(bench.swap_all(), gated_nbytes=0, watched=True)
    assert {copy.storage for copy in bench.log.copies} >= states.keys()
    plan = make_plan(bench.recording.trace, find_floor(bench.recording.trace).nbytes, MACHINE)
    planned = bench.run(plan.decisions)
    roomy = bench.run(plan.decisions, room_nbytes=[2**40] * len(bench.recording.trace.ops))
    assert swapped == planned == roomy == bench_of(network).plain
    bench.close()


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
    return bench_of(next(network for network in NETWORKS if network.name == name))


def test_onednn_finds_the_pooling_op_of_every_gradient_when_everything_is_swapped() -> None:
    """Where it does not, another kernel takes the gradient, which may round in another way."""
    bench = _named("inception")
    nodes = _optimised(lambda: bench.run(bench.swap_all(), num_steps=1))
    gradients = [node for node in nodes if "MaxPoolGrad" in node.op]
    assert len(gradients) == 2
    assert all(node.input[1].startswith("tensorferry/again") for node in gradients)
    if IsMklEnabled():
        assert all(node.op.startswith("_Mkl") and node.attr["workspace_enabled"].b for node in gradients)


@pytest.mark.parametrize("name", ["squeezing", "frozen"])
def test_tensorflow_merges_the_same_ops_when_everything_is_swapped(name: str) -> None:
    """A merged op may round in another way than those it was made of."""
    bench = _named(name)
    runs = [lambda: bench.run_plain(1), lambda: bench.run(bench.swap_all(), num_steps=1)]
    plain, swapped = (Counter(node.op for node in _optimised(run) if node.op.startswith(("_Mkl", "_Fused"))) for run in runs)
    assert any("WithBias" in op for op in plain) or not IsMklEnabled()
    assert swapped == plain


def test_an_edit_that_was_undone_leaves_the_graph_as_it_was(bench: Bench) -> None:
    before = [(op.name, [t.name for t in op.inputs], [c.name for c in op.control_inputs]) for op in _ops(bench)]
    bench.run(bench.swap_all(), num_steps=1)
    assert [(op.name, [t.name for t in op.inputs], [c.name for c in op.control_inputs]) for op in _ops(bench)] == before


def _ops(bench: Bench) -> list:
    return [op for op in bench.concrete.graph.get_operations() if not op.name.startswith("tensorferry/")]
