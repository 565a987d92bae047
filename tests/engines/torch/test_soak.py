"""Hundreds of small steps of random shapes and budgets leave no bytes, files or threads behind."""

import copy
import gc
import os
import random
import threading

import pytest
import torch
from adversary import Adversary, adversary_opener
from cases import Residual
from narrow_window import InANarrowWindow
from slab_ops import streaming
from torch.nn import functional

import tensorferry as ferry
from tensorferry.engines.torch import LargeTraining

NUM_CONTEXTS = 20
NUM_STEPS = 50


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, edge: int, dice: random.Random) -> None:
    x, y = torch.randn(2, 3, edge, edge), torch.randint(5, (2,))
    loss = functional.cross_entropy(model(x), y)
    if dice.random() < 0.1:
        return  # a graph that is never used
    loss.backward(retain_graph=dice.random() < 0.1)
    optimizer.step()
    optimizer.zero_grad()


def _num_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("where", ["disk", "adversary", "weights"])
def test_a_thousand_steps_leak_nothing(where: str) -> None:
    dice = random.Random(0)
    torch.manual_seed(0)
    model = Residual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    _step(model, optimizer, 16, random.Random(1))
    tensors = _num_tensors()  # first: it collects what earlier tests left, and the files of that
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for i in range(NUM_CONTEXTS // 5 if where == "weights" else NUM_CONTEXTS):
        adversary = Adversary(seed=i)
        budget = dice.randrange(2**26, 2**31)
        if where == "disk":
            large = ferry.large_model(
                model, budget, tier=dice.choice(["disk", "shm"]), min_nbytes=2048, recompute=dice.random() < 0.5
            )
        else:
            how = adversary_opener(adversary)
            if where == "weights":  # through a window that hardly has room for an op
                narrow = 2 * max(parameter.nbytes for parameter in model.parameters())
                large = InANarrowWindow(narrow, model, 7 * 2**20, "auto", True, 256, 10.0, how, weights=True)
            else:
                large = LargeTraining(model, 7 * 2**20, "auto", True, 2048, 10.0, how, weights=False)
        with large:
            for _ in range(NUM_STEPS):
                _step(model, optimizer, dice.choice([8, 12, 16]), dice)
                if dice.random() < 0.1:
                    copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        assert adversary.num_slots == 0
        del large
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files
    assert _num_tensors() <= tensors


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_streamed_steps_of_any_shape_leak_nothing() -> None:
    dice = random.Random(0)
    torch.manual_seed(0)
    model = Residual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    _step(model, optimizer, 16, random.Random(1))
    tensors = _num_tensors()
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for i in range(NUM_CONTEXTS // 4):
        with streaming(dice.randrange(4_000, 64_000)) as streamer:
            for _ in range(NUM_STEPS // 5):
                streamer.begin_step(streamer.sizes)
                _step(model, optimizer, dice.choice([8, 12, 16]), dice)
                if dice.random() < 0.1:
                    with pytest.raises(ZeroDivisionError):
                        _fail_in_forward(model)
            _num_tensors()  # it collects graphs that were never used
            streamer.io.release_departed()
            assert not streamer.io.live(), i
            assert streamer.counts.num_stored
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files
    assert _num_tensors() <= tensors


def _fail_in_forward(model: torch.nn.Module) -> None:
    out = model(torch.randn(2, 3, 16, 16)).square()
    raise ZeroDivisionError(out.shape)
