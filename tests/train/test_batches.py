"""Batches by step: every sample once an epoch, the same ones wherever a run begins, loaded ahead, errors passed on."""

import itertools
import threading

import numpy as np
import pytest
from tiny import Tiny, TinySettings

from tensorferry import BadData
from tensorferry.recipes.recipe import Arrays
from tensorferry.train.batches import NUM_AHEAD, Batches


class Numbers:
    """Samples that say which they are, and a draw."""

    def __init__(self, num: int) -> None:
        self.num = num
        self.num_read = 0
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return self.num

    def read(self, index: int, rng: np.random.Generator) -> Arrays:
        with self.lock:
            self.num_read += 1
        return {"number": np.array(index), "draw": rng.random(2)}


RECIPE = Tiny(TinySettings(batch=4))


def _all(num: int, done: int = 0, last: int = 30, seed: int = 3) -> list[Arrays]:
    with Batches(RECIPE, Numbers(num), seed, done, last) as batches:
        return list(batches)


@pytest.mark.parametrize("num", [1, 3, 4, 10, 37])
def test_every_sample_is_seen_once_an_epoch_in_full_batches(num: int) -> None:
    batches = _all(num)
    assert {len(batch["number"]) for batch in batches} == {4}
    seen = list(itertools.chain.from_iterable(batch["number"].tolist() for batch in batches))
    epochs = [seen[at : at + num] for at in range(0, len(seen) - num + 1, num)]
    assert all(sorted(epoch) == list(range(num)) for epoch in epochs)
    if num == 37:
        assert epochs[0] != epochs[1]


@pytest.mark.parametrize("done", [1, 9, 10, 29])
def test_a_run_that_begins_later_finds_the_same_batches(done: int) -> None:
    for ours, theirs in zip(_all(37, done), _all(37)[done:], strict=True):
        assert np.array_equal(ours["number"], theirs["number"])
        assert np.array_equal(ours["draw"], theirs["draw"])


def test_a_sample_varies_from_epoch_to_epoch_and_from_seed_to_seed() -> None:
    draws = {batch["draw"].tobytes() for seed in (1, 2) for batch in _all(4, seed=seed)}
    assert len(draws) == 60


def test_batches_are_loaded_ahead_and_no_further() -> None:
    samples = Numbers(1000)
    with Batches(RECIPE, samples, 3, 0, 100) as batches:
        batches.wait_until_full()
        assert samples.num_read == 4 * NUM_AHEAD
        next(iter(batches))
        assert batches.wait_seconds >= 0


def test_an_error_while_loading_reaches_the_loop() -> None:
    class Broken(Numbers):
        def read(self, index: int, rng: np.random.Generator) -> Arrays:
            raise BadData(f"sample {index} cannot be read")

    with Batches(RECIPE, Broken(5), 3, 0, 10) as batches, pytest.raises(BadData, match="cannot be read"):
        next(iter(batches))


def test_without_samples_there_is_nothing_to_train_on() -> None:
    with pytest.raises(BadData, match="no samples"):
        Batches(RECIPE, Numbers(0), 3, 0, 10)
