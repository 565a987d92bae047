"""Batches by step, loaded ahead on threads so that the model does not wait for its data.

Samples come as one endless row: an epoch's samples in an order of their own, then the next epoch's. A step takes its batch from
its place in that row, so every batch is full and any step can be the first.

Every random number depends on the run's seed and on what it is for, never on what was drawn before. So a run that begins at any
step draws what an uninterrupted one would have drawn there, and no generator has to be saved.
"""

import os
import random
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from enum import IntEnum
from functools import lru_cache
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from tensorferry.errors import BadData, BadOption
from tensorferry.recipes.recipe import Arrays, Recipe, Samples
from tensorferry.scaling.team import ALONE, Team

NUM_AHEAD = 3  # batches; each is memory that the step does not have
_MAX_THREADS = 4


class Batches:
    """The batches of the steps after `done` up to `last`, in order; `wait_seconds` is how long the last one was waited for.

    Where W ranks divide the rows, rank r of them takes rows r, r + W, r + 2W, ... of each.
    """

    def __init__(self, recipe: Recipe, samples: Samples, seed: int, done: int, last: int, team: Team = ALONE) -> None:
        if not len(samples):
            raise BadData("there is nothing to train on: the data has no samples")
        if recipe.settings.batch < team.num_row_ranks:
            raise BadOption(
                f"a batch of {recipe.settings.batch} has no row for each of {team.num_row_ranks} workers; start fewer"
            )
        self._team = team
        self.wait_seconds = 0.0
        self._recipe = recipe
        self._samples = samples
        self._seed = seed
        self._steps = iter(range(done + 1, last + 1))
        self._order = lru_cache(maxsize=4)(self._make_order)
        self._pool = ThreadPoolExecutor(min(NUM_AHEAD, _MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="ferry-batch")
        self._ahead: deque[Future[Arrays]] = deque()
        for _ in range(NUM_AHEAD):
            self._load_next()

    def __iter__(self) -> Iterator[Arrays]:
        while self._ahead:
            began = time.perf_counter()
            batch = self._ahead.popleft().result()
            self.wait_seconds = time.perf_counter() - began
            self._load_next()
            yield batch

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def wait_until_full(self) -> None:
        """Block until all that is loaded ahead is there, so that its memory is not taken for a step's."""
        for future in self._ahead:
            future.exception()

    def _load_next(self) -> None:
        step = next(self._steps, None)
        if step is not None:
            self._ahead.append(self._pool.submit(self._load, step))

    def _load(self, step: int) -> Arrays:
        size = self._recipe.settings.batch
        places = range((step - 1) * size, step * size)[self._team.row_rank :: self._team.num_row_ranks]
        return self._recipe.collate([self._read(*divmod(place, len(self._samples))) for place in places])

    def _read(self, epoch: int, place: int) -> Arrays:
        number = int(self._order(epoch)[place])
        return self._samples.read(number, sample_rng(self._seed, epoch, number))

    def _make_order(self, epoch: int) -> NDArray[np.int64]:
        return order_rng(self._seed, epoch).permutation(len(self._samples))


class _Use(IntEnum):
    """What a draw is for; it comes first, because numbers that end in zeros would give the same generator."""

    ORDER = 1
    SAMPLE = 2
    STEP = 3


def draw_seed() -> int:
    """A seed for a run that nobody gave one."""
    return random.SystemRandom().randrange(2**31)


def order_rng(seed: int, epoch: int) -> np.random.Generator:
    """The generator that puts an epoch's samples in order."""
    return np.random.default_rng([_Use.ORDER, seed, epoch])


def sample_rng(seed: int, epoch: int, number: int) -> np.random.Generator:
    """The generator that varies one sample in one epoch."""
    return np.random.default_rng([_Use.SAMPLE, seed, epoch, number])


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """What the framework's own generators begin a step with (dropout and the like); step 0 is before the first."""
    ranked = (rank,) if rank else ()  # each drops other units; the first of several drops those that one alone would
    return int(np.random.SeedSequence([_Use.STEP, seed, step, *ranked]).generate_state(1)[0])
