"""Copies that do not end: the step says so, and what they hold goes back when they do."""

import threading
from collections.abc import Iterator
from typing import Any

import networks  # noqa: F401  # before TensorFlow is loaded
import numpy as np
import pytest
import tensorflow as tf

import tensorferry as ferry
from tensorferry.engines.tensorflow.allocator import DeviceMemory
from tensorferry.engines.tensorflow.swap import Crossings
from tensorferry.tiers import Slot, open_tier
from tensorferry.tiers.files import FileTier


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is written before this is set."""
    may_write = threading.Event()
    write = FileTier.write

    def hang(self: FileTier, block: memoryview) -> Slot:
        may_write.wait()
        return write(self, block)

    monkeypatch.setattr(FileTier, "write", hang)
    yield may_write
    may_write.set()


def _release_counted(monkeypatch: pytest.MonkeyPatch) -> list[Slot]:
    released: list[Slot] = []
    release = FileTier.release

    def count(self: FileTier, slot: Slot) -> None:
        release(self, slot)
        released.append(slot)

    monkeypatch.setattr(FileTier, "release", count)
    return released


def test_a_step_with_copies_that_hang_ends_and_leaves_no_slot_behind(
    hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = _release_counted(monkeypatch)
    tier = open_tier("auto")
    crossings = Crossings(tier, DeviceMemory(0), 0.2)
    crossings.begin_step({}, {}, 2**40, recording=False)
    for storage in range(3):
        crossings.leave(storage, np.full(2**20, storage, np.uint8))
    crossings.fetch(0, np.empty(2**20, np.uint8))
    crossings.end_step()
    assert isinstance(crossings.error, ferry.CopyStuck)
    hanging.set()
    crossings._out.shutdown(wait=True)
    crossings._in.shutdown(wait=True)
    assert len(released) == 3
    assert len(set(map(id, released))) == 3  # each once
    crossings.close()
    tier.close()


@pytest.mark.parametrize("with_state", [False, True], ids=["activations", "and the optimizer's state"])
def test_a_copy_that_hangs_is_our_error_and_closing_does_not_wait_for_it(
    hanging: threading.Event, with_state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = __import__("tensorferry.engines.tensorflow.large_function", fromlist=["LargeFunction"])
    monkeypatch.setattr(module.LargeFunction._record, "__kwdefaults__", {"with_state": with_state})
    weights, momentum = (tf.Variable(tf.ones((64, 64))) for _ in range(2))

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            for _ in range(4):
                x = tf.nn.relu(x @ weights)
            loss = tf.reduce_mean(x)
        momentum.assign(0.9 * momentum + tape.gradient(loss, weights))
        weights.assign_sub(momentum)
        return loss

    large = ferry.tensorflow.large_function(step, budget="8GiB", min_nbytes=4096, watchdog_seconds=0.2)
    with pytest.raises((ferry.CopyStuck, ferry.TierLost), match=r"has not ended after 0\.2 s"):
        large(tf.ones((64, 64)))
    large.close()
