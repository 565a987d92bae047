"""The examples in docstrings are true."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import tensorferry

MODULES = [module.name for module in pkgutil.walk_packages(tensorferry.__path__, "tensorferry.") if "__main__" not in module.name]


@pytest.mark.parametrize("name", [*MODULES, "capped", "results"])
def test_the_examples_of_a_module_are_true(name: str) -> None:
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("keras", "tensorflow"):
            raise
        pytest.skip(f"{error.name} is not installed, which {name} runs models with")
    assert doctest.testmod(module).failed == 0


def test_there_are_examples() -> None:
    assert (
        sum(
            doctest.testmod(import_module(f"tensorferry.{name}")).attempted
            for name in ("units", "trace.trace", "machine.machine")
        )
        >= 5
    )
