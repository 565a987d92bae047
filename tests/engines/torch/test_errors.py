"""What goes wrong, and that nothing is lost when it does."""

import os
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from adversary import Adversary, AdversaryOut, adversary_opener
from cases import Residual, classify, images
from torch import nn

import tensorferry as ferry
from tensorferry.engines.torch import LargeTraining
from tensorferry.engines.torch.open_device import OpenedDevice
from tensorferry.errors import (
    BadBudget,
    BadModel,
    BadTier,
    BadUse,
    BudgetTooSmall,
    CopyStuck,
    GraphFreed,
    NotSupported,
    SavedTensorModified,
    TierFull,
)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Residual()


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fewer than before are what earlier tests of this process had left."""
    threads, files = set(threading.enumerate()), set(os.listdir("/proc/self/fd"))
    yield
    assert not set(threading.enumerate()) - threads
    assert not set(os.listdir("/proc/self/fd")) - files


def _still_trains(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    classify(model, images(0), optimizer)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def _large(model: nn.Module, **options: Any) -> LargeTraining:
    return ferry.large_model(model, **{"budget": "1GiB", "min_nbytes": 512} | options)


@pytest.mark.parametrize("budget", ["2 potatoes", "", "GiB", 0, -1, "-2GiB", "0GiB", 1.5, None, True])
def test_an_unreadable_budget_is_refused_at_once(model: nn.Module, budget: Any) -> None:
    with pytest.raises(BadBudget, match="2GiB"):
        ferry.large_model(model, budget=budget)


def test_something_that_is_no_module_is_refused() -> None:
    with pytest.raises(BadModel, match=r"torch\.nn\.Module"):
        ferry.large_model(lambda x: x, budget="1GiB")  # type: ignore[arg-type]


@pytest.mark.parametrize("tier", ["tape", "disk:", "shm:/x", "pinned", 3])
def test_an_unknown_tier_is_refused(model: nn.Module, tier: Any) -> None:
    with pytest.raises(BadTier), _large(model, tier=tier):
        pass
    _still_trains(model)


def test_a_missing_tier_folder_is_refused(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(BadTier, match="nowhere"), _large(model, tier=f"disk:{tmp_path / 'nowhere'}"):
        pass
    _still_trains(model)


def test_a_tier_folder_that_cannot_be_written_is_refused(model: nn.Module) -> None:
    with pytest.raises(BadTier), _large(model, tier="disk:/proc"):
        pass
    _still_trains(model)


def test_a_budget_below_the_floor_is_refused_before_the_step_runs(model: nn.Module) -> None:
    ran = []
    model.head.register_forward_hook(lambda *_: ran.append(1))
    with pytest.raises(BudgetTooSmall, match="convolution") as caught, _large(model, budget=20_000):
        model(images(0)[0])
    assert ran == []
    assert caught.value.smallest_nbytes > 20_000
    _still_trains(model)


def test_a_budget_that_was_refused_is_refused_again_for_the_same_inputs(model: nn.Module) -> None:
    with _large(model, budget=20_000):
        for _ in range(2):
            with pytest.raises(BudgetTooSmall):
                model(images(0)[0])


class _Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, batch: dict[str, list[torch.Tensor]]) -> torch.Tensor:
        return self.layer(batch["rows"][0])


def test_inputs_inside_of_others_are_told_apart_by_their_shapes() -> None:
    model = _Nested()
    with _large(model, budget="64MiB"):
        model({"rows": [torch.randn(4, 64)]}).sum().backward()
        with pytest.raises(BudgetTooSmall):
            model({"rows": [torch.randn(2**20, 64)]})


class _Switched(nn.Module):
    """What it needs depends on more than the shapes of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, *, wide: bool = False) -> torch.Tensor:
        x = self.layer(x)
        return x.repeat(1, 2**16).exp() if wide or not self.training else x


def test_calls_are_told_apart_by_their_switches_and_by_the_models_mode() -> None:
    model, x = _Switched(), torch.randn(4, 64)
    with _large(model, budget="64MiB"):
        model(x).sum().backward()
        with pytest.raises(BudgetTooSmall, match="one step needs"):
            model(x, wide=True)
        model.eval()
        with pytest.raises(BudgetTooSmall, match="one step needs"):
            model(x)


def test_calls_that_were_followed_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorferry.engines.torch.choice._MAX_CALLS", 2)
    model = _Switched()
    with _large(model, budget="64MiB") as big:
        for num_rows in range(1, 5):
            model(torch.randn(num_rows, 64)).sum().backward()
        assert len(big._choice._calls) == 2


def test_a_context_is_entered_once(model: nn.Module) -> None:
    large = _large(model)
    with large, pytest.raises(BadUse, match="entered before"):
        large.__enter__()
    with pytest.raises(BadUse, match="entered before"):
        large.__enter__()
    _still_trains(model)


def test_there_is_nothing_to_report_before_the_context_is_entered(model: nn.Module) -> None:
    with pytest.raises(BadUse, match="enter the context first"):
        _large(model).report()
    with pytest.raises(BadUse, match="enter the context first"):
        _ = _large(model).peak_nbytes
    with pytest.raises(BadUse, match="known once the context is entered"):
        _ = _large(model, budget="auto").budget_nbytes


def test_a_saved_tensor_modified_in_place_is_an_error(model: nn.Module) -> None:
    with pytest.raises(SavedTensorModified, match="in place"), _large(model):
        x = model.stem(images(0)[0])
        y = (x * x).sum()
        x.add_(1.0)
        y.backward()
    _still_trains(model)


def test_a_parameter_modified_between_forward_and_backward_is_an_error(model: nn.Module) -> None:
    with pytest.raises(SavedTensorModified), _large(model):
        out = model(images(0)[0]).sum()
        with torch.no_grad():
            model.head.weight.mul_(2.0)
        out.backward()
    _still_trains(model)


def test_a_second_backward_through_a_freed_graph_is_an_error(model: nn.Module) -> None:
    with _large(model):
        loss = model(images(0)[0]).sum()
        loss.backward()
        with pytest.raises(GraphFreed, match="retain_graph"):
            loss.backward()
        model.zero_grad()
        model(images(0)[0]).sum().backward()
    _still_trains(model)


def test_an_exception_in_the_middle_of_a_step_leaks_nothing(model: nn.Module) -> None:
    adversary = Adversary(seed=0)
    large = LargeTraining(model, "1GiB", "auto", True, 512, 10.0, adversary_opener(adversary))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with large:
        classify(model, images(0), optimizer)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                _fail_after_forward(model)
            classify(model, images(0), optimizer)
    assert adversary.num_slots == 0
    _still_trains(model)


def _fail_after_forward(model: nn.Module) -> None:
    model(images(0)[0]).sum()
    _ = 1 / 0


def test_a_graph_that_outlives_the_context_can_still_be_used(model: nn.Module) -> None:
    model(images(0)[0]).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.load_state_dict(Residual().state_dict() | model.state_dict())
    with _large(model):
        loss = model(images(0)[0]).sum()
    loss.backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(expected, model.parameters(), strict=True))


class _StuckOut(AdversaryOut):
    def done(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        return False


class _Stuck(Adversary):
    def copy_out(self, block: torch.UntypedStorage, label: str) -> AdversaryOut:
        return _StuckOut(self, block, label)


def test_a_stuck_copy_is_an_error_that_says_what_it_waited_for(model: nn.Module) -> None:
    def open_stuck(model: nn.Module, tier: str, budget_nbytes: int | None, held_nbytes: int, stack: ExitStack) -> OpenedDevice:
        stuck = _Stuck(seed=0)
        return OpenedDevice(stuck, stuck, budget_nbytes or 0)

    large = LargeTraining(model, "1GiB", "auto", True, 512, 0.01, open_stuck)
    with pytest.raises(CopyStuck, match=r"waited 0 s for .* to reach adversary"), large:
        model(images(0)[0])
    _still_trains(model)


def test_a_tier_folder_removed_under_way_does_no_harm(model: nn.Module, tmp_path: Path) -> None:
    folder = tmp_path / "tier"
    folder.mkdir()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with _large(model, tier=f"disk:{folder}"):
        classify(model, images(0), optimizer)
        folder.rmdir()
        classify(model, images(1), optimizer)
    _still_trains(model)


class _NoRoom(Adversary):
    def check_room(self, nbytes: int) -> None:
        raise TierFull(f"{nbytes} bytes needed, 0 free")


def test_a_tier_without_room_for_the_first_step_is_refused_before_it_runs(model: nn.Module) -> None:
    ran = []
    model.head.register_forward_hook(lambda *_: ran.append(1))
    large = LargeTraining(model, "1GiB", "auto", True, 512, 10.0, adversary_opener(_NoRoom(seed=0)))
    with pytest.raises(TierFull), large:
        model(images(0)[0])
    assert ran == []
    _still_trains(model)


def test_a_full_disk_in_the_middle_of_a_step_is_an_error_and_the_model_lives_on() -> None:
    """A process may write files of 64 KiB only: the first swap that needs more fails as on a full disk."""
    program = """
        import resource, signal, sys
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        import torch
        import tensorferry as ferry
        from cases import Residual, classify, images
        torch.manual_seed(0)
        model = Residual()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            with ferry.large_model(model, budget="1GiB", min_nbytes=512):
                resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
                classify(model, images(0), optimizer)
        except ferry.FerryError as error:
            print(type(error).__name__, error)
        classify(model, images(0), optimizer)
        print("still trains")
    """
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path])},
    )
    first, second = done.stdout.splitlines()
    assert first.startswith(TierFull.__name__)
    assert second == "still trains"


def test_a_batched_tensor_that_somebody_keeps_does_not_keep_a_training_from_beginning(model: nn.Module) -> None:
    kept: list[torch.Tensor] = []

    def square(row: torch.Tensor) -> torch.Tensor:
        kept.append(row)
        return row * row

    torch.func.vmap(square)(torch.ones(3, 4))
    with ferry.large_model(model, budget="4GiB") as big:
        model(images(0)[0]).sum().backward()
    assert big.peak_nbytes > 0


def test_gradients_by_torch_func_are_refused_with_what_to_do_and_work_again_outside(model: nn.Module) -> None:
    x, _ = images(0)

    def gradient() -> torch.Tensor:
        return torch.func.grad(lambda x: model.eval()(x).sum())(x)

    with ferry.large_model(model, budget="1GiB"), pytest.raises(NotSupported, match=r"inside ferry\.large_model.*backward"):
        gradient()
    assert gradient().shape == x.shape


def test_a_compiled_model_does_not_warn_of_the_engines_own_hooks(model: nn.Module) -> None:
    compiled = torch.compile(model, backend="eager")
    with ferry.large_model(compiled, budget="1GiB"):  # type: ignore[arg-type]
        compiled(images(0)[0]).sum().backward()
    assert not any("global hooks" in str(message) for _, message, *_ in warnings.filters)
