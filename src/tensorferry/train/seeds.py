"""Where chance comes from: every draw depends on the run's seed and on what it is for, never on what was drawn before.

So a run that begins at any step draws what an uninterrupted one would have drawn there, and no generator has to be saved.
"""

import random
from enum import IntEnum

import numpy as np


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


def step_seed(seed: int, step: int) -> int:
    """What the framework's own generators begin a step with (dropout and the like); step 0 is before the first."""
    return int(np.random.SeedSequence([_Use.STEP, seed, step]).generate_state(1)[0])
