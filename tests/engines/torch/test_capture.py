"""Traces: what is recorded from a real step and from one that never ran."""

from pathlib import Path

import pytest
import torch
from cases import Residual, Skip, classify, images
from torch import nn

from tensorferry import Machine, NotTraceable, Trace, capture
from tensorferry.trace import Kind, Phase

MACHINE = Machine("any", memory_nbytes=2**34, tiers=(), flops_per_second={"fp32": 1e11}, memory_nbytes_per_second=1e10)


def _capture(model: nn.Module, *, fake: bool) -> Trace:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = images(0)
    return capture(lambda: classify(model, batch, optimizer), model, optimizer, fake=fake, machine=MACHINE, min_nbytes=512)


@pytest.fixture(params=[True, False], ids=["fake", "real"])
def trace(request: pytest.FixtureRequest) -> Trace:
    torch.manual_seed(0)
    return _capture(Residual(), fake=request.param)


def test_a_trace_knows_phases_kinds_and_layers(trace: Trace) -> None:
    phases = [op.phase for op in trace.ops]
    assert phases == sorted(phases, key=[Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER].index)
    assert {storage.kind for storage in trace.storages} == set(Kind)
    first = next(op for op in trace.ops if "convolution" in op.name)
    assert first.name == "stem convolution"
    assert first.flops > 0


def test_what_is_saved_for_backward_can_move_in_its_gap(trace: Trace) -> None:
    assert len(trace.movable) >= 5
    for s in trace.movable:
        storage = trace.storages[s]
        assert storage.kind is Kind.ACTIVATION
        assert storage.saved_at is not None
        assert storage.idle_after is not None
        assert storage.wanted_at is not None
        assert trace.ops[storage.wanted_at].phase is Phase.BACKWARD
        assert trace.ops[storage.idle_after].phase is Phase.FORWARD


def test_parameters_and_optimizer_state_count_from_the_start(trace: Trace) -> None:
    for storage in trace.storages:
        if storage.kind in (Kind.PARAMETER, Kind.OPTIMIZER):
            assert storage.born_at == 0
            assert storage.freed_after is None


def test_a_fake_trace_has_the_ops_and_movable_bytes_of_the_real_one() -> None:
    torch.manual_seed(0)
    fake, real = (_capture(Skip(), fake=fake) for fake in (True, False))
    forward = {Phase.FORWARD, Phase.BACKWARD}
    names = [[op.name.split()[-1] for op in trace.ops if op.phase in forward] for trace in (fake, real)]
    assert names[0] == names[1]
    assert [fake.storages[s].nbytes for s in fake.movable] == [real.storages[s].nbytes for s in real.movable]
    assert [op.flops for op in fake.ops if op.phase in forward] == [op.flops for op in real.ops if op.phase in forward]


def test_a_fake_capture_changes_nothing() -> None:
    torch.manual_seed(0)
    model = Residual(dropout=0.5)
    optimizer = torch.optim.AdamW(model.parameters())
    classify(model, images(0), optimizer)
    before = [t.clone() for t in (*model.parameters(), *model.buffers())]
    state = {id(p): {k: v.clone() for k, v in s.items()} for p, s in optimizer.state.items()}
    randomness = torch.get_rng_state()
    batch = images(0)
    capture(lambda: classify(model, batch, optimizer), model, optimizer, fake=True, machine=MACHINE)
    assert all(type(p) is nn.Parameter for p in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, (*model.parameters(), *model.buffers()), strict=True))
    assert all(torch.equal(v, optimizer.state[p][k]) for p in model.parameters() for k, v in state[id(p)].items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), randomness)


def test_a_step_that_looks_at_values_cannot_be_followed_without_running() -> None:
    model = Residual()
    x = images(0)[0]
    with pytest.raises(NotTraceable, match="fake=False"):
        capture(lambda: model(x).sum().item(), model, fake=True, machine=MACHINE)
    assert all(type(p) is nn.Parameter for p in model.parameters())


def test_a_captured_trace_survives_json(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == trace
    assert "movable" in str(trace)
