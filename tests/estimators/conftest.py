"""Every estimator, trained once for all tests that only ask it."""

from typing import Any

import numpy as np
import pytest
from premade import CLASSIFIERS, REGRESSORS, make

from tensorferry import datasets


@pytest.fixture(scope="session")
def trained() -> dict[str, Any]:
    """Every estimator on penguins: species for classifiers, body mass for regressors."""
    penguins = datasets.load("penguins")
    known = np.flatnonzero(~np.isnan(penguins.numpy()["body_mass_g"]))
    masses = penguins.select(known).with_target("body_mass_g")
    classes = {name: make(name).fit(penguins.split(0.8)[0]) for name in CLASSIFIERS}
    return classes | {name: make(name).fit(masses.split(0.8)[0]) for name in REGRESSORS}
