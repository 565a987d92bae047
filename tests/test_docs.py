"""What the pages promise: their Python runs, top to bottom as a reader would type it, and their commands and links exist."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tensorferry.cli import make_parser

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SAVED_BLOCK = re.compile(r"(?:Save this as `([\w.]+)`:\n\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OPTION = re.compile(r"--[a-z][a-z0-9-]*")
_FRAMEWORKS = ("torch._dynamo", "keras", "tensorferry.engines.torch", "tensorferry.train.start", "onnxruntime", "openvino")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def _blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in _BLOCK.findall(page.read_text()) if found == language]


def _commands() -> Iterator[tuple[str, list[str]]]:
    for page in PAGES:
        for block in _blocks(page, "console"):
            for line in block.splitlines():
                if line.startswith("$ "):
                    yield page.name, shlex.split(line[2:], comments=True)


def _named(pages: list[Path]) -> list:
    return [pytest.param(page, id=page.name) for page in pages]


@pytest.fixture(scope="module")
def python(warm_python: Callable[..., str]) -> str:
    return warm_python(*_FRAMEWORKS, TF_CPP_MIN_LOG_LEVEL="3")


@pytest.mark.slow
@pytest.mark.parametrize("page", _named([page for page in PAGES if _blocks(page, "python") and page not in TUTORIALS]))
def test_the_python_of_a_page_runs(page: Path, python: str, tmp_path: Path) -> None:
    _run_script(python, "\n".join(_blocks(page, "python")), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", _named(TUTORIALS))
def test_a_tutorial_works_as_a_reader_types_it(page: Path, python: str, tmp_path: Path) -> None:
    """Python, files to save and commands, from top to bottom; a command with `&` runs until the end."""
    parts = ["import atexit, subprocess"]
    for name, language, text in _SAVED_BLOCK.findall(page.read_text()):
        if name:
            parts.append(f"open({name!r}, 'w').write({text!r})")
        if language == "python":
            parts.append(text)
        elif language == "console":
            parts += [_as_python(line, python) for line in text.splitlines() if line.startswith("$ ferry")]
    _run_script(python, "\n".join(parts), tmp_path)


def _as_python(line: str, python: str) -> str:
    *arguments, last = shlex.split(line.removeprefix("$ ferry"), comments=True)
    command = [python, "-m", "tensorferry.cli", *arguments, *([] if last == "&" else [last])]
    return f"atexit.register(subprocess.Popen({command}).terminate)" if last == "&" else f"subprocess.run({command}, check=True)"


def _run_script(python: str, text: str, folder: Path) -> None:
    script = folder / "page.py"
    script.write_text(text)
    done = subprocess.run([python, "-W", "error", script.name], cwd=folder, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("page", "command"), [pytest.param(*c, id=f"{c[0]}: {shlex.join(c[1])}") for c in _commands()])
def test_the_commands_of_a_page_exist(page: str, command: list[str]) -> None:
    match command:
        case ["ferry", *arguments]:
            make_parser().parse_args([argument for argument in arguments if argument != "&"])
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text()
            assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets if "=" not in target)
        case ["python", script, *arguments]:
            assert set(_OPTION.findall(" ".join(arguments))) <= set(_OPTION.findall(_show_help(script)))
        case ["pip", "install", *_] | ["git", "clone", *_] | ["perf_analyzer", *_]:
            pass  # not ours
        case _:
            pytest.fail(f"{page} shows a command that nothing here checks: {shlex.join(command)}")


@cache
def _show_help(script: str) -> str:
    return subprocess.run([sys.executable, ROOT / script, "--help"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("page", _named(PAGES))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    missing = [link for link in _LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not missing


def test_the_readme_shows_a_first_success() -> None:
    assert _blocks(ROOT / "README.md", "python")
