"""The public surface: small, documented, and free of charge until used."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import tensorferry as ferry

ROOT = Path(__file__).parents[1]


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_importing_the_package_loads_no_framework_and_no_numpy() -> None:
    heavy = {"torch", "tensorflow", "keras", "jax", "numpy", "scipy", "rich"}
    assert _run(f"import sys, tensorferry; print(sorted({heavy!r} & set(sys.modules)))") == "[]"


def test_importing_the_package_starts_no_thread_and_changes_no_environment() -> None:
    code = """
import os, threading
before = dict(os.environ)
import tensorferry
print(threading.active_count(), before == dict(os.environ))
"""
    assert _run(code) == "1 True"


def test_the_public_names_are_the_documented_ones() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    documented = re.findall(r"^\| `(\w+)", page, flags=re.MULTILINE)
    assert sorted(documented) == ferry.__all__


@pytest.mark.parametrize("name", ferry.__all__)
def test_every_public_name_loads_and_has_a_docstring(name: str) -> None:
    assert getattr(ferry, name).__doc__
    assert name in dir(ferry)


def test_functions_stay_functions_when_their_modules_are_loaded_first() -> None:
    code = """
import tensorferry.engines.capture, tensorferry.plan.simulate
import tensorferry as ferry
print(callable(ferry.capture), callable(ferry.simulate))
"""
    assert _run(code) == "True True"


def test_every_error_is_public_and_caught_as_a_ferry_error_but_for_the_one_warning() -> None:
    import tensorferry.errors

    raised = {n: e for n, e in vars(tensorferry.errors).items() if isinstance(e, type) and issubclass(e, BaseException)}
    assert raised.keys() <= set(ferry.__all__)
    public = {n: e for n in ferry.__all__ if isinstance(e := getattr(ferry, n), type) and issubclass(e, BaseException)}
    assert {n for n, e in public.items() if not issubclass(e, ferry.FerryError)} == {"StreamWarning"}
    assert issubclass(ferry.StreamWarning, Warning)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'small_model'"):
        _ = ferry.small_model  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("use", "framework", "extra"),
    [
        ("large_model", "torch", "torch"),
        ("capture(lambda: None, None)", "torch", "torch"),
        ("tensorflow", "tensorflow", "tensorflow"),
        ("LargeModel", "keras", "tensorflow"),
    ],
)
def test_a_missing_framework_says_what_to_install(use: str, framework: str, extra: str) -> None:
    code = f"""
import sys
sys.modules["{framework}"] = None
import tensorferry as ferry
try:
    ferry.{use}
except ferry.MissingExtra as error:
    print(error)
"""
    name = use.partition("(")[0]
    assert _run(code) == f'{name} needs {framework}, which is not installed: pip install "tensorferry[{extra}]"'


def test_what_needs_no_framework_works_without_one() -> None:
    code = """
import sys
sys.modules["torch"] = None
import tensorferry as ferry
print(ferry.Trace(ops=(), storages=()), ferry.make_plan.__name__)
"""
    assert _run(code) == "trace of 0 ops, 0 storages, 0 of them movable make_plan"


def test_the_installed_version_is_the_one_the_package_names() -> None:
    assert version("tensorferry") == ferry.__version__
