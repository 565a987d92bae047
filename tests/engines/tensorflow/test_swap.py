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
from tensorferry.engines.tensorflow.swap import Gate, Gates, GraphCopies
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


def _watch_slots(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Slot], list[Slot]]:
    """The slots that are written from now on, and those that are released."""
    written: list[Slot] = []
    released: list[Slot] = []
    write, release = FileTier.write, FileTier.release

    def watch_write(self: FileTier, block: memoryview) -> Slot:
        written.append(write(self, block))
        return written[-1]

    def watch_release(self: FileTier, slot: Slot) -> None:
        release(self, slot)
        released.append(slot)

    monkeypatch.setattr(FileTier, "write", watch_write)
    monkeypatch.setattr(FileTier, "release", watch_release)
    return written, released


@pytest.mark.parametrize("states", [frozenset(), frozenset({0, 1})], ids=["activations", "and the optimizer's state"])
def test_a_step_with_copies_that_hang_ends_and_leaves_no_slot_behind(
    hanging: threading.Event, monkeypatch: pytest.MonkeyPatch, states: frozenset[int]
) -> None:
    written, released = _watch_slots(monkeypatch)
    tier = open_tier("auto")
    copies = GraphCopies(tier, DeviceMemory(0), 0.2)
    copies.begin_step(Gates(states=states), 2**40, recording=False)
    for storage in range(3):
        copies.swap_out(storage, np.full(2**20, storage, np.uint8))
    copies.swap_in(0, np.empty(2**20, np.uint8))
    copies.end_step()
    assert isinstance(copies.error, ferry.CopyStuck)
    hanging.set()
    for lane in copies._lanes.values():
        lane.close()
    assert len(written) > 0
    assert sorted(map(id, released)) == sorted(map(id, written))  # each once
    tier.close()


def test_a_step_that_ends_well_leaves_no_slot_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    written, released = _watch_slots(monkeypatch)
    tier = open_tier("auto")
    copies = GraphCopies(tier, DeviceMemory(0), 30.0)
    copies.begin_step(Gates({7: Gate(arrivals=(0, 1))}, states=frozenset({0})), 2**40, recording=False)
    blocks = [np.empty(2**20, np.uint8) for _ in range(2)]
    for storage in range(3):
        copies.swap_out(storage, np.full(2**20, storage, np.uint8))
    for storage, block in enumerate(blocks):
        copies.swap_in(storage, block)
    copies.pass_gate(7)
    assert [int(block.max()) for block in blocks] == [0, 1]
    assert len(released) == 1  # what is on the tier of a variable stays until the step has ended
    log = copies.end_step()
    assert copies.error is None
    assert sorted(map(id, released)) == sorted(map(id, written))
    assert len(written) == 3
    assert len(log.copies) == 5
    copies.close()
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
