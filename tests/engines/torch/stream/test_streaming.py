"""Training in a budget below the smallest exact one."""

import json
import os
import signal
import threading
from typing import Any

import pytest
import torch
from programs import run_program
from slab_ops import gradients_of
from torch import nn

import tensorferry as ferry
from tensorferry.engines.torch.stream.decision import StreamSizes
from tensorferry.recipes.models.unet3d import UNet3d, compute_loss, make_batch
from tensorferry.report.report import report_from_json, report_to_json
from tensorferry.tiers.files import FileTier

PROGRAM = """
    import json, sys, warnings
    import torch
    import tensorferry as ferry
    from tensorferry.engines.resident import ResidentMeter
    from tensorferry.recipes.models.unet3d import UNet3d, compute_loss, make_batch

    torch.set_num_threads(2)
    batch = make_batch(edge=64)
    warm = UNet3d(base=2)
    compute_loss(warm, *make_batch(edge=16)).backward()
    torch.optim.SGD(warm.parameters(), lr=0.1, momentum=0.9).step()
    _ = ferry.large_model
    meter = ResidentMeter()
    before = meter.now_nbytes()
    torch.manual_seed(0)
    model = UNet3d(num_levels=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    budget, losses = int(sys.argv[1]), []
    told = {}
    try:
        with warnings.catch_warnings(record=True) as caught, ferry.large_model(model, budget=budget, stream="auto") as big:
            for step in range(2):
                loss = compute_loss(model, *batch)
                loss.backward()
                norm = float(sum(p.grad.double().square().sum() for p in model.parameters()) ** 0.5)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        report = big.report()
        told = {"rounding": report.within_rounding, "notes": report.notes, "norm": norm,
                "warnings": [w.category.__name__ for w in caught]}
    except ferry.BudgetTooSmall as error:
        told = {"exact": error.smallest_nbytes, "streamed": error.streamed_nbytes, "message": str(error)}
    print(json.dumps({"losses": losses, "peak": meter.highest_nbytes() - before, **told}))
"""


@pytest.fixture(scope="module")
def refused() -> dict[str, Any]:
    return run_program(PROGRAM, 2**20)


@pytest.fixture(scope="module")
def streamed(refused: dict[str, Any]) -> dict[str, Any]:
    return run_program(PROGRAM, refused["streamed"])


def test_a_refusal_names_the_exact_and_the_streamed_floor(refused: dict[str, Any]) -> None:
    assert refused["streamed"] < refused["exact"]
    assert "exact" in refused["message"]
    assert "with stream='auto', within rounding" in refused["message"]


def test_auto_warns_once(streamed: dict[str, Any]) -> None:
    assert streamed["warnings"] == ["StreamWarning"]


def test_the_named_streamed_budget_holds_measured_from_outside(refused: dict[str, Any], streamed: dict[str, Any]) -> None:
    assert streamed["rounding"]
    assert len(streamed["losses"]) == 2
    assert streamed["peak"] <= refused["streamed"]


def test_a_streamed_training_learns_what_a_plain_one_does(streamed: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = UNet3d(num_levels=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for loss in streamed["losses"]:
        plain = compute_loss(model, *make_batch(edge=64))
        plain.backward()
        norm = float(sum(gradient.double().square().sum() for gradient in gradients_of(model)) ** 0.5)
        optimizer.step()
        optimizer.zero_grad()
        assert loss == pytest.approx(plain.item(), rel=1e-5)
    assert streamed["norm"] == pytest.approx(norm, rel=1e-3)


class Small(nn.Module):
    """A chain that streams wherever it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv3d(1, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU(), nn.Conv3d(16, 16, 3, padding=1))
        self.last = nn.Conv3d(16, 16, 1)
        self.fails_in = ""
        self.flips = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.body(x))
        if self.flips:
            out = out.flip(2)
        if self.fails_in == "forward":
            raise RuntimeError("in the middle")
        if self.fails_in == "Ctrl-C":
            os.kill(os.getpid(), signal.SIGINT)
        if self.fails_in == "backward":
            out.register_hook(_fail)
        return out


def _fail(_: torch.Tensor) -> None:
    raise RuntimeError("in the middle")


X = torch.randn(1, 1, 32, 32, 32, generator=torch.Generator().manual_seed(5))
BUDGET = "90MiB"  # slabs of a third of a tensor


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Have all code loaded, whichever test comes first: on some CPUs that takes more than the budget leaves for it."""
    Small()(X).square().mean().backward()
    with ferry.large_model(Small(), "1GiB", stream=True, tier="shm") as big:
        big._model(X).square().mean().backward()


def train(model: Small, num_steps: int = 2) -> tuple[Any, list[torch.Tensor]]:
    with ferry.large_model(model, budget=BUDGET, stream=True, tier="shm") as big:
        for _ in range(num_steps):
            model.zero_grad()
            model(X).square().mean().backward()
    return big, gradients_of(model)


def test_asked_for_streaming_needs_no_warning_and_repeats_to_the_bit() -> None:
    torch.manual_seed(0)
    model = Small()
    first, second = (train(model)[1] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_report_and_its_json_say_within_rounding() -> None:
    big, _ = train(Small())
    report = big.report()
    assert "within rounding" in str(report)
    data = json.loads(json.dumps(report_to_json(report)))
    assert data["within_rounding"] is True
    assert report_from_json(data).within_rounding


def test_a_streamed_step_is_planned_pass_by_pass_and_the_report_has_it_beside_what_was_measured() -> None:
    big, _ = train(Small(), num_steps=3)
    report = big.report()
    plan, measured = report.streamed, report.measured
    assert plan is not None
    assert measured is not None
    convolutions = [each for each in plan.passes if each.op == "convolution"]
    assert convolutions
    assert all(each.halo_rows == 2 for each in convolutions if each.num_slabs > 1)
    assert plan.written_nbytes >= X.nbytes
    assert plan.read_nbytes >= plan.written_nbytes
    assert plan.peak_nbytes <= report.budget_nbytes
    assert f"{len(plan.passes)} ops slab by slab" in str(report)
    assert report_from_json(json.loads(json.dumps(report_to_json(report)))).streamed == plan


@pytest.mark.parametrize("where", ["forward", "backward", "Ctrl-C"])
def test_an_error_in_the_middle_leaves_nothing_behind(where: str) -> None:
    torch.manual_seed(0)
    model = Small()
    _, expected = train(model)
    num_threads = threading.active_count()
    model.fails_in = where
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises((RuntimeError, KeyboardInterrupt), match=r"in the middle|^$"):
        train(model)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert threading.active_count() <= num_threads
    model.fails_in = ""
    _, again = train(model)
    assert all(torch.equal(a, b) for a, b in zip(expected, again, strict=True))


def test_a_full_tier_is_told_in_one_line_and_the_model_stays_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(self: FileTier, nbytes: int) -> tuple[int, int]:
        raise self._full(nbytes, 0)

    model = Small()
    with monkeypatch.context() as patch:
        patch.setattr(FileTier, "_reserve", no_room)
        with pytest.raises(ferry.TierFull, match="needed"):
            train(model)
    train(model)


def test_a_tier_without_room_for_a_step_is_told_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ran = Small(), []
    model.last.register_forward_hook(lambda *_: ran.append(True))
    asked: list[int] = []

    def no_room(self: FileTier, nbytes: int) -> None:
        asked.append(nbytes)
        raise self._full(nbytes, 0)

    monkeypatch.setattr(FileTier, "check_room", no_room)
    with pytest.raises(ferry.TierFull, match="needed"):
        train(model)
    assert not ran
    # the outputs of two convolutions, of 2 MiB each, and in backward a gradient
    assert asked[0] >= 2 * 2 * 2**20


def _gradients_in_turn(inputs: list[torch.Tensor]) -> tuple[list[list[torch.Tensor]], list[StreamSizes]]:
    torch.manual_seed(0)
    model, gradients, sizes = Small(), [], []
    with ferry.large_model(model, budget=BUDGET, stream=True, tier="shm") as big:
        for x in inputs:
            model.zero_grad()
            model(x).square().mean().backward()
            gradients.append(gradients_of(model))
            assert big._stream.session is not None
            sizes.append(big._stream.session.streamer.sizes)
    return gradients, sizes


def test_each_size_of_input_is_cut_for_itself_whatever_came_before() -> None:
    large = torch.randn(8, *X.shape[1:], generator=torch.Generator().manual_seed(6))
    alone, alone_sizes = _gradients_in_turn([large])
    after, after_sizes = _gradients_in_turn([X, large, X])
    assert after_sizes[1] == alone_sizes[0] != after_sizes[0] == after_sizes[2]
    assert all(torch.equal(a, b) for a, b in zip(alone[0], after[1], strict=True))


@pytest.mark.filterwarnings("ignore::tensorferry.errors.StreamWarning")
def test_auto_streams_the_inputs_that_need_it_and_keeps_the_bits_of_the_others() -> None:
    torch.manual_seed(0)
    model, small = Small(), X[:, :, :4, :4, :4]
    model(small).square().mean().backward()
    plain = gradients_of(model)
    kinds: list[str] = []
    model.last.register_forward_hook(lambda *_: kinds.append(type(big._step).__name__))
    with ferry.large_model(model, budget="90MiB", stream="auto", tier="shm") as big:
        for x in (small, torch.cat([X] * 16), small):
            model.zero_grad()
            model(x).square().mean().backward()
            found = gradients_of(model)
    assert kinds[1] == "StreamedStep" not in (kinds[0], kinds[2])
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


def test_slots_are_given_back_after_every_step() -> None:
    model = Small()
    with ferry.large_model(model, budget=BUDGET, stream=True, tier="shm") as big:
        for _ in range(2):
            model(X).square().mean().backward()
            big._stream.session.io.release_departed()
            assert not big._stream.session.io.live()


def test_an_output_that_outlives_the_context_comes_back() -> None:
    torch.manual_seed(0)
    model = Small()
    with ferry.large_model(model, budget=BUDGET, stream=True, tier="shm"):
        out = model(X).detach()
    torch.testing.assert_close(out + 0.0, model(X).detach() + 0.0, rtol=1e-4, atol=1e-5)


def test_an_op_without_a_rule_is_named_in_the_report() -> None:
    model = Small()
    model.flips = True
    big, _ = train(model, num_steps=1)
    assert any("flip has no rule for slabs" in note for note in big.report().notes)


def test_other_words_for_stream_are_refused() -> None:
    with pytest.raises(ferry.BadOption, match="stream to be True, False or 'auto', received 'sometimes'"):
        ferry.large_model(Small(), stream="sometimes")
