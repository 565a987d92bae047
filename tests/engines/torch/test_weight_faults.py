"""Whatever ends a training whose weights move, at whatever copy: each weight is there, as it was before or after its update."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from adversary import Adversary, AdversaryIn, AdversaryOut, adversary_opener
from narrow_window import InANarrowWindow
from torch import nn

import tensorferry as ferry

WIDTH, NUM_LAYERS = 48, 5
NUM_STEPS, MOMENTUM = 3, 0.9
NUM_POINTS = 12  # at which something goes wrong


class FullOut(AdversaryOut):
    """A copy that found no room; its block stays."""

    def run(self) -> None:
        self._ended = True

    def slot(self) -> Any:
        raise ferry.TierFull("adversary: no room")


class InterruptedIn(AdversaryIn):
    """A copy during which somebody presses Ctrl-C."""

    is_over = False

    def wait(self, seconds: float) -> bool:
        if not self.is_over:
            self.is_over = True
            raise KeyboardInterrupt
        return super().wait(seconds)

    def done(self) -> bool:
        return self._ended


class PressedIn(AdversaryIn):
    """A copy during which Ctrl-C is really pressed."""

    is_over = False

    def wait(self, seconds: float) -> bool:
        if not self.is_over:
            self.is_over = True
            os.kill(os.getpid(), signal.SIGINT)
        return super().wait(seconds)

    def done(self) -> bool:
        return self._ended


class PressedAtTheEnd(Adversary):
    """Ctrl-C is pressed in the first copy after its context has begun to end."""

    is_ending = False

    def copy_in(self, slot: Any, label: str, into: torch.UntypedStorage | None = None) -> AdversaryIn:
        if not self.is_ending:
            return super().copy_in(slot, label, into)
        self.is_ending = False
        copy = PressedIn(self, slot, label, into)
        self.in_lane.append(copy)
        return copy


class Failing(Adversary):
    """Fails in one copy, and never again."""

    def __init__(self, seed: int, *, full_at: int = -1, interrupted_at: int = -1) -> None:
        super().__init__(seed)
        self._full_at, self._interrupted_at = full_at, interrupted_at
        self._num_out = self._num_in = 0

    def copy_out(self, block: torch.UntypedStorage, label: str) -> AdversaryOut:
        self._num_out += 1
        if self._num_out != self._full_at:
            return super().copy_out(block, label)
        copy = FullOut(self, block, label)
        self.out_lane.append(copy)
        return copy

    def copy_in(self, slot: Any, label: str, into: torch.UntypedStorage | None = None) -> AdversaryIn:
        self._num_in += 1
        if self._num_in != self._interrupted_at:
            return super().copy_in(slot, label, into)
        copy = InterruptedIn(self, slot, label, into)
        self.in_lane.append(copy)
        return copy


def _make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(NUM_LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=MOMENTUM)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, i: int) -> None:
    model(torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(i))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def _values(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for parameter in model.parameters():
        yield parameter.detach()
        if (momentum := optimizer.state[parameter].get("momentum_buffer")) is not None:
            yield momentum


def _steps_of_plain() -> list[list[torch.Tensor]]:
    model, optimizer = _make()
    found = []
    for i in range(NUM_STEPS):
        _step(model, optimizer, i)
        found.append([value.clone() for value in _values(model, optimizer)])
    return found


def _train_until(adversary: Adversary) -> tuple[bool, list[torch.Tensor], int]:
    """Whether something ended the training, what the model and its optimizer hold then, and how many steps there were."""
    model, optimizer = _make()
    large = InANarrowWindow(40 * 2**10, model, 7 * 2**20, "auto", True, 512, 10.0, adversary_opener(adversary), weights=True)
    has_ended, num_steps = False, 0
    try:
        with large:
            for i in range(NUM_STEPS):
                _step(model, optimizer, i)
                num_steps += 1
    except (ferry.TierFull, KeyboardInterrupt):
        has_ended = True
    assert all(value.untyped_storage().nbytes() for value in _values(model, optimizer))
    return has_ended, list(_values(model, optimizer)), num_steps


def _assert_before_or_after(found: list[torch.Tensor], num_steps: int) -> None:
    plain = _steps_of_plain()
    before, after = plain[max(0, num_steps - 1)], plain[min(num_steps, NUM_STEPS - 1)]
    assert len(found) == len(before)
    for value, old, new in zip(found, before, after, strict=True):
        # a momentum is updated in two ops
        assert any(torch.equal(value, each) for each in (old, new, old * MOMENTUM))


@pytest.mark.parametrize("cause", ["full_at", "interrupted_at"])
def test_a_training_that_a_copy_ends_leaves_every_weight_and_its_state(cause: str) -> None:
    whole = Adversary(seed=0)
    assert not _train_until(whole)[0]
    num_copies = min(whole.num_copies_out, whole.num_copies_in)
    num_ended = 0
    for point in range(num_copies // 2, num_copies, max(1, num_copies // 2 // NUM_POINTS)):
        has_ended, found, num_steps = _train_until(Failing(point, **{cause: point}))  # type: ignore[arg-type]
        if num_steps:
            _assert_before_or_after(found, num_steps)
        num_ended += has_ended
    assert num_ended


def test_ctrl_c_while_weights_come_back_waits_until_all_of_them_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = _make()
    adversary = PressedAtTheEnd(seed=0)
    large = InANarrowWindow(40 * 2**10, model, 7 * 2**20, "auto", True, 512, 10.0, adversary_opener(adversary), weights=True)
    with pytest.raises(KeyboardInterrupt), large:
        for i in range(NUM_STEPS):
            _step(model, optimizer, i)
        adversary.is_ending = True
    assert not adversary.is_ending, "nothing came back"
    assert "coming back" in capsys.readouterr().err
    found, plain = list(_values(model, optimizer)), _steps_of_plain()[-1]
    assert all(torch.equal(value, expected) for value, expected in zip(found, plain, strict=True))
