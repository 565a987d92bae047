"""Steps that are captured although neither the model nor the device is there."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from tensorferry import BadModel, NotTraceable, capture
from tensorferry.engines.torch.fake_model import LOSSES, OPTIMIZERS, FakeModel, StepOptions
from tensorferry.trace import Kind, Phase, Trace


class Net(nn.Module):
    """A convolution, a norm and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.LayerNorm(16)
        self.classify = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(functional.relu(self.conv(x)).flatten(2).transpose(1, 2))
        heads = tokens.unsqueeze(1)
        mixed = functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1)
        return self.classify(mixed.squeeze(1).mean(1))


IMAGES = (((8, 3, 16, 16), "fp32"),)


def _capture(make_model=Net, **how) -> Trace:
    return FakeModel(make_model).capture(StepOptions(**{"inputs": IMAGES, "loss": "cross_entropy"} | how))


def _nbytes(trace: Trace, kind: Kind) -> int:
    return sum(storage.nbytes for storage in trace.storages if storage.kind is kind)


def test_a_step_without_model_and_device_is_the_step_of_a_real_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 256, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch, classes = torch.zeros(8, 3, 16, 16), torch.zeros(8, dtype=torch.int64)

    def train() -> None:
        functional.cross_entropy(model(batch), classes).backward()
        optimizer.step()
        optimizer.zero_grad()

    train()
    real = capture(train, model, optimizer, min_nbytes=1)
    fake = _capture(lambda: nn.Sequential(*map(_remake, model)), kernels="cpu-lean")
    both = (Phase.FORWARD, Phase.BACKWARD)
    names = [[op.name.split()[-1] for op in trace.ops if op.phase in both and op.outputs] for trace in (fake, real)]
    assert names[0] == names[1]
    assert [fake.storages[s].nbytes for s in fake.movable] == [real.storages[s].nbytes for s in real.movable]
    for kind in (Kind.PARAMETER, Kind.OPTIMIZER, Kind.INPUT):
        assert _nbytes(fake, kind) == _nbytes(real, kind)


def _remake(module: nn.Module) -> nn.Module:
    match module:
        case nn.Conv2d():
            return nn.Conv2d(3, 16, 3, padding=1)
        case nn.Linear():
            return nn.Linear(16 * 256, 4)
        case _:
            return type(module)()


def test_what_was_there_before_the_step_counts() -> None:
    trace = _capture(optimizer="adam")
    standing = sum(_nbytes(trace, kind) for kind in (Kind.PARAMETER, Kind.INPUT))
    assert trace.overhead_nbytes == 0
    assert trace.plain_resident[0] >= standing + 2 * _nbytes(trace, Kind.PARAMETER)


def test_a_model_too_large_for_any_memory_is_followed_without_allocating_it() -> None:
    trace = _capture(lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 2**33), nn.Linear(2**33, 4)))
    assert _nbytes(trace, Kind.PARAMETER) > 2**44


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_is_followed_with_its_state(optimizer: str) -> None:
    state = {"sgd": 1, "rmsprop": 1, "adam": 2, "adamw": 2}[optimizer]
    trace = _capture(optimizer=optimizer, kernels="cpu")
    standing = [s for s in trace.storages if s.kind is Kind.OPTIMIZER and s.was_there and s.nbytes > 8]
    assert sum(s.nbytes for s in standing) == state * _nbytes(trace, Kind.PARAMETER)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != "token_cross_entropy"])
def test_every_loss_reaches_the_first_layer(loss: str) -> None:
    assert any("convolution_backward" in op.name for op in _capture(loss=loss).ops)


def test_classes_of_token_losses_are_in_the_last_dimension() -> None:
    trace = _capture(lambda: nn.Embedding(10, 7), inputs=(((2, 5), "int64"),), loss="token_cross_entropy")
    assert any("nll_loss_backward" in op.name for op in trace.ops)


def test_lower_precision_halves_what_convolutions_save_and_norms_stay_in_fp32() -> None:
    full, half = _capture(), _capture(precision="fp16")
    assert {op.precision for op in half.ops if "convolution" in op.name} == {"fp16"}
    assert {op.precision for op in half.ops if op.name.endswith("native_layer_norm")} == {"fp32"}
    assert {op.precision for op in full.ops if op.flops} == {"fp32"}


def test_kernels_of_an_accelerator_have_no_reordered_copies_and_one_optimizer_op_for_all() -> None:
    def make_model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), nn.Flatten(), nn.Linear(4096, 4))

    gpu, cpu, lean = (_capture(make_model, kernels=kernels) for kernels in ("gpu", "cpu", "cpu-lean"))
    most = [max(op.workspace_nbytes for op in trace.ops) for trace in (gpu, lean, cpu)]
    assert most[0] == 0 < most[1] < most[2]
    assert any("_foreach" in op.name for op in gpu.ops)
    assert not any("_foreach" in op.name for op in cpu.ops)


def test_attention_with_dropout_is_fused_on_an_accelerator() -> None:
    fused = [op for op in _capture(kernels="gpu").ops if "flash_attention" in op.name]
    assert len(fused) == 2
    assert all(op.flops > 0 for op in fused)


def test_a_factory_that_needs_real_numbers_is_called_without_fake_tensors() -> None:
    def make() -> nn.Module:
        assert torch.ones(3).sum().item() == 3.0
        return Net()

    assert _nbytes(_capture(make), Kind.PARAMETER) == _nbytes(_capture(), Kind.PARAMETER)


class Looks(Net):
    """Its path depends on a value."""

    def forward(self, x: Tensor) -> Tensor:
        scores = super().forward(x)
        return scores if scores.sum() > 0 else -scores


class Picks(Net):
    """Its output's size depends on values."""

    def forward(self, x: Tensor) -> Tensor:
        scores = super().forward(x)
        return scores[scores > 0]


@pytest.mark.parametrize("model", [Looks, Picks])
def test_control_flow_that_depends_on_values_is_refused_with_the_line(model: type[nn.Module]) -> None:
    with pytest.raises(NotTraceable, match=rf"depends on values at {Path(__file__).name}:\d+"):
        _capture(model)


def test_a_rejected_input_says_which_and_logs_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadModel, match="rejects an input of 8x5x16x16"):
        _capture(inputs=(((8, 5, 16, 16), "fp32"),))
    assert capfd.readouterr().err == ""


def _fail() -> nn.Module:
    raise OSError("no weights here")


def test_a_factory_that_fails_says_where_and_why() -> None:
    with pytest.raises(BadModel, match=rf"the factory failed at {Path(__file__).name}:\d+: OSError: no weights here"):
        FakeModel(_fail)


def test_a_factory_must_return_a_module_whose_output_has_a_gradient() -> None:
    with pytest.raises(BadModel, match="received int"):
        _capture(lambda: 42)
    with pytest.raises(BadModel, match="a tensor with a gradient"):
        _capture(lambda: Net().requires_grad_(False))
    with pytest.raises(BadModel, match="scores by class"):
        _capture(lambda: nn.Sequential(nn.Flatten(0), nn.Linear(8 * 768, 4), nn.Flatten(0)))


def test_a_capture_leaves_random_numbers_as_they_were() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    _capture()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kernels", ["gpu", "cpu"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_is_not_followed_changes_nothing(optimizer: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.1), nn.Flatten(), nn.Linear(8 * 14 * 14, 4))

    quick = _capture(make_model, optimizer=optimizer, kernels=kernels)
    monkeypatch.setattr("tensorferry.engines.torch.fake_model.QuickFakeMode", FakeTensorMode)
    assert _capture(make_model, optimizer=optimizer, kernels=kernels) == quick
