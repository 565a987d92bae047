"""Which device is meant: the model's, not the current one and not all of them."""

import warnings

import pytest
import torch
from emulated.accelerator import Emulated
from emulated.networks import DEVICE, WIDTH, batch, layers, train
from torch import nn
from torch.nn import functional

import tensorferry as ferry
from tensorferry.engines.torch import LargeTraining
from tensorferry.engines.torch.accelerator import AcceleratorDevice, open_pinned_tier
from tensorferry.errors import TierFull
from tensorferry.trace import Kind

OTHER = "emulated:1"


class Spread(nn.Module):
    """A model with its head on another device."""

    def __init__(self, elsewhere: str) -> None:
        super().__init__()
        self.elsewhere = elsewhere
        self.body = layers(num_layers=3)[:-1]
        self.head = nn.Linear(WIDTH, 1).to(elsewhere)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(functional.gelu(self.body(x).to(self.elsewhere)))
        return scores


@pytest.mark.parametrize("elsewhere", [OTHER, "cpu"])
def test_a_part_of_the_model_and_the_loss_may_be_on_another_device(emulated: Emulated, elsewhere: str) -> None:
    def run(large: bool) -> tuple[list[float], list[torch.Tensor]]:
        torch.manual_seed(0)
        model = Spread(elsewhere)
        optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.01), []

        def step(i: int) -> None:
            x, y = batch(seed=i)
            loss = functional.mse_loss(model(x), y.to(elsewhere))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())

        if not large:
            for i in range(5):
                step(i)
        else:
            with LargeTraining(model, torch.accelerator.memory_allocated() + 14 * 2**20, "auto", True, 512, 10.0) as entered:
                for i in range(5):
                    step(i)
            report = entered.report()
            assert report.trace is not None
            on_device = sum(p.nbytes for p in model.parameters() if p.device.type == "emulated" and p.device.index == 0)
            found = sum(storage.nbytes for storage in report.trace.storages if storage.kind is Kind.PARAMETER)
            assert found == on_device
        return losses, [parameter.detach().cpu() for parameter in model.parameters()]

    plain, planned = run(large=False), run(large=True)
    assert plain[0] == planned[0]
    assert all(map(torch.equal, plain[1], planned[1]))


def test_an_automatic_budget_has_what_torch_keeps_for_reuse(emulated: Emulated) -> None:
    emulated.set_capacity(64 * 2**20, of_segments=True)
    kept = torch.zeros(2**23, device=DEVICE)  # 32 MiB
    del kept
    device = AcceleratorDevice(open_pinned_tier("auto"), torch.device(DEVICE))
    assert device.free_nbytes() == 64 * 2**20


def test_a_trace_measures_the_models_device(emulated: Emulated) -> None:
    model = layers(num_layers=2)
    x, y = batch()
    torch.accelerator.set_device_index(1)
    try:
        trace = ferry.capture(lambda: functional.mse_loss(model(x), y).backward(), model)
    finally:
        torch.accelerator.set_device_index(0)
    assert trace.overhead_nbytes >= 0
    assert trace.plain_peak_nbytes >= torch.accelerator.memory_allocated(DEVICE)


def test_a_forecast_wakes_no_other_device(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    module = torch.get_device_module("emulated")
    get_rng_state = module.get_rng_state
    monkeypatch.setattr(module, "get_rng_state", lambda device: asked.append(torch.device(device)) or get_rng_state(device))
    monkeypatch.setattr(torch.random, "_fork_rng_warned_already", False)
    model = layers(num_layers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ferry.large_model(model, "1GiB") as entered:
            train(model, torch.optim.SGD(model.parameters(), lr=0.1), num_steps=1)
    assert {device.index for device in asked} == {0}
    assert not [note for note in entered.report().notes if "could not be traced" in note]


def test_the_report_names_the_device_and_has_its_time(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AcceleratorDevice, "seconds_between", lambda *_: 123.0)  # between events on the device
    model = layers()
    with LargeTraining(model, "1GiB", "auto", True, 512, 10.0) as entered:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    report = entered.report()
    assert report.plan is not None
    assert "emulated" in report.plan.machine
    assert report.measured is not None
    assert report.measured.step_seconds == 123.0


def test_a_host_without_memory_to_pin_is_an_error_whose_advice_can_be_taken(emulated: Emulated) -> None:
    emulated.set_pinned_capacity(2**18)
    model = layers()
    with pytest.raises(TierFull, match="raise the budget") as caught, ferry.large_model(model, "1GiB"):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), num_steps=1)
    assert "disk" not in str(caught.value)


def test_a_side_stream_is_forgotten_when_its_work_is_done_and_what_it_made_is_not(
    emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, told = torch.Stream(device=DEVICE), []
    device = AcceleratorDevice(open_pinned_tier("auto"), torch.device(DEVICE))
    with side:
        device.before_op((), {})
        made = torch.ones(8, device=DEVICE)
    assert len(device._op_streams) == 2
    side.synchronize()
    device.wait_for_ops(device.out_stream)
    assert device._op_streams.keys() == {device.stream().stream_id}
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: told.append(1))
    device.before_op((made,), {})  # the main stream reads it, and the side stream may use its memory again
    assert told
    device.close()
    device.tier.close()
