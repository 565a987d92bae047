"""An allocation that fails inside the context is made again when room has been made, and changes nothing but time."""

from collections import Counter
from typing import Any

import pytest
import torch
from emulated.accelerator import Emulated, Order
from emulated.networks import DEVICE, WIDTH, layers, train, values
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tensorferry.engines.torch import LargeTraining
from tensorferry.engines.torch.accelerator import AcceleratorDevice
from tensorferry.engines.torch.out_of_memory import OutOfMemoryRetry, may_run_again

MIB = 2**20
ORDERS = pytest.mark.parametrize("order", [Order.MAIN_LATE, Order.SIDE_LATE, Order.RANDOM], ids=lambda order: order.name)


def _dropping(num_layers: int = 6) -> nn.Module:
    torch.manual_seed(0)
    parts = [part for _ in range(num_layers) for part in (nn.Linear(WIDTH, WIDTH), nn.Dropout(0.25), nn.GELU())]
    return nn.Sequential(*parts, nn.Linear(WIDTH, 1)).to(DEVICE)


def _train(
    model: nn.Module, emulated: Emulated, share: float = 1.0, *, large: bool
) -> tuple[list[float], list[torch.Tensor], int]:
    """Losses and state; from the seventh step on the device has only a share of what a step takes, which the plan is not told."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    if not large:
        return train(model, optimizer, 8, rows=4096), values(optimizer), 0
    with LargeTraining(model, "1GiB", "auto", True, 2**16, 10.0) as entered:
        losses = train(model, optimizer, 6, rows=4096)
        plan_nbytes = entered.report().measured_peak_nbytes
        emulated.set_capacity(int(share * plan_nbytes))
        losses += train(model, optimizer, 2, rows=4096, first=6)
        retry: OutOfMemoryRetry = entered._store.retry
    return losses, values(optimizer), retry.num_retries


@ORDERS
@pytest.mark.parametrize("build", [layers, _dropping], ids=["layers", "dropout"])
def test_a_step_that_finds_less_memory_than_planned_goes_on_with_the_same_bits(
    emulated: Emulated, order: Order, build: Any
) -> None:
    losses, state, _ = _train(build(), emulated, large=False)
    emulated.set_order(order)
    found, found_state, num_retries = _train(build(), emulated, share=0.6, large=True)
    assert found == losses
    assert all(map(torch.equal, state, found_state))
    assert num_retries > 0


class EveryFirstAttemptFails(TorchDispatchMode):
    """Each call of some ops, and each allocation for a copy in, fails once, after it has drawn its random numbers."""

    def __init__(self, *ops: str) -> None:
        super().__init__()
        self.ops = ops
        self.begun = False
        self.failed: Counter[str] = Counter()
        self._is_second = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        is_copy_in = func is torch.ops.aten.empty.memory_format and kwargs.get("dtype") is torch.uint8 and args[0] != [0]
        if (is_copy_in and kwargs["device"].type == "emulated") or func._schema.name in self.ops:
            self._is_second = self.begun and not self._is_second
            if self._is_second:
                func(*args, **kwargs)
                self.failed[func._schema.name] += 1
                raise torch.OutOfMemoryError("the first attempt")
        return func(*args, **kwargs)


@pytest.mark.parametrize(("recompute", "first"), [(False, 0), (True, 0), (False, 7)], ids=["swap", "recompute", "settled"])
def test_every_op_and_every_copy_in_may_fail_once(emulated: Emulated, recompute: bool, first: int) -> None:
    model = _dropping()
    torch.accelerator.reset_peak_memory_stats()
    losses, state, _ = _train(model, emulated, large=False)
    budget = int(0.6 * emulated.highest_in_use_nbytes())
    del model
    model = _dropping()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    coming: list[tuple[int, int]] = []
    emulated.set_order(Order.SIDE_LATE)
    ops = ("aten::addmm", "aten::mm", "aten::gelu", "aten::gelu_backward", "aten::native_dropout")
    with EveryFirstAttemptFails(*ops) as attempts, LargeTraining(model, budget, "auto", recompute, 2**16, 10.0) as entered:
        retry, store = entered._store.retry, entered._store
        make_room = retry.make_room

        def watch() -> None:
            before = sum(saved.copy_in is not None for saved in store._alive)
            make_room()
            coming.append((before, sum(saved.copy_in is not None for saved in store._alive)))

        retry.make_room = watch
        found = train(model, optimizer, first, rows=4096)
        attempts.begun = True
        assert found + train(model, optimizer, 8 - first, rows=4096, first=first) == losses
    assert all(map(torch.equal, state, values(optimizer)))
    assert {"aten::empty", *ops} == attempts.failed.keys()
    # what was on its way back is let go as well
    assert max(before for before, _ in coming) > 0
    assert max(after for _, after in coming) == 0
    assert "made again with more room" in " ".join(entered.report().notes)


def test_a_random_op_that_a_settled_plan_has_nothing_to_do_for_draws_the_same_numbers_again(emulated: Emulated) -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1), nn.Dropout(0.25)).to(DEVICE)

    losses, state, _ = _train(build(), emulated, large=False)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    with EveryFirstAttemptFails("aten::native_dropout") as attempts, LargeTraining(model, "1GiB", "auto", True, 2**16, 10.0):
        found = train(model, optimizer, 7, rows=4096)
        attempts.begun = True
        assert found + train(model, optimizer, 1, rows=4096, first=7) == losses
    assert all(map(torch.equal, state, values(optimizer)))
    assert attempts.failed["aten::native_dropout"] == 1


def test_a_random_op_that_ran_again_without_its_generators_state_draws_other_numbers(
    emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, _, _ = _train(_dropping(), emulated, large=False)
    monkeypatch.setattr(AcceleratorDevice, "set_random_state", lambda *_: None)
    found, _, _ = _train(_dropping(), emulated, share=0.6, large=True)
    assert found != losses


def test_plans_leave_more_room_until_nothing_fails(emulated: Emulated) -> None:
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with LargeTraining(model, "1GiB", "auto", True, 2**16, 10.0) as entered:
        train(model, optimizer, 6, rows=4096)
        emulated.set_capacity(int(0.85 * entered.report().measured_peak_nbytes))
        train(model, optimizer, 10, rows=4096)
        num_retries = entered._store.retry.num_retries
        train(model, optimizer, 3, rows=4096)
    assert num_retries > 0
    assert entered._store.retry.num_retries == num_retries


def test_without_room_that_is_made_the_second_attempt_fails_too_and_says_what_was_done(
    emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LargeTraining, "_swap_out_all", lambda _: None)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory") as caught:
        _train(layers(), emulated, share=0.6, large=True)
    assert "expandable_segments" in caught.value.__notes__[0]


def test_an_op_that_may_have_changed_something_is_not_run_twice(emulated: Emulated) -> None:
    num_calls = []
    model = layers(num_layers=2)
    with torch.library._scoped_library("outofmemory", "FRAGMENT") as library:
        library.define("send(Tensor data) -> Tensor")

        def send(data: torch.Tensor) -> torch.Tensor:
            num_calls.append(data)
            raise torch.OutOfMemoryError("no memory to send")

        library.impl("send", send, "PrivateUse1")
        with (
            pytest.raises(torch.OutOfMemoryError, match="no memory to send") as caught,
            LargeTraining(model, "1GiB", "auto", True, 2**16, 10.0),
        ):
            torch.ops.outofmemory.send(model(torch.ones(8, WIDTH, device=DEVICE)))
    assert len(num_calls) == 1
    assert "did not run outofmemory::send again" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add.Tensor", True),
        ("native_dropout.default", True),
        ("nonzero.default", True),
        ("_foreach_add.List", True),
        ("add_.Tensor", False),
        ("_foreach_add_.List", False),
        ("_fused_adamw_.default", False),
        ("add.out", False),
        ("native_batch_norm.default", False),
        ("cudnn_batch_norm.default", False),
        ("copy_.default", False),
    ],
)
def test_only_ops_that_leave_everything_as_it_was_may_run_again(name: str, expected: bool) -> None:
    packet, overload = name.split(".")
    assert may_run_again(getattr(getattr(torch.ops.aten, packet), overload)) is expected


def test_collectives_may_not_run_again() -> None:
    assert not may_run_again(torch.ops._c10d_functional.all_reduce.default)
