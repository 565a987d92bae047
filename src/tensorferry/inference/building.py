"""Build every file that could serve, and let in those that give the original's answers; of the others, tell the reason."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tensorferry.errors import MissingExtra
from tensorferry.extras import install_command
from tensorferry.inference.candidates import Candidate, has_bf16, make_candidate
from tensorferry.inference.exam import Exam, Match, examine
from tensorferry.inference.folder import Folder
from tensorferry.inference.outcome import Finding
from tensorferry.inference.quantise import list_quantisers
from tensorferry.inference.source import Arrays, Route, Source, quiet_exporters, root_cause
from tensorferry.machine import count_cores

FP32_DIFFERENCE = 1e-4  # the largest relative difference that other orders of summation explain
NOT_BUILT = "not built: the time was up"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Wishes:
    """What the user asked for."""

    precisions: tuple[str, ...] = ("fp32", "bf16")
    min_agreement: float = 0.99
    seconds: float = 120.0
    calibration: Arrays | None = None  # for int8: samples that are not in the exam


@dataclass(frozen=True)
class Built:
    """A file that gives the original's answers."""

    backend: str
    precision: str
    path: Path
    route: str
    match: Match
    variant: str = ""


def build_all(
    source: Source, exam: Exam, wishes: Wishes, folder: Folder, lost: list[Finding], tell: Tell, deadline: float
) -> list[Built]:
    """The files that passed, fp32 first; the others are added to `lost`. After `deadline` none is begun, if one is there."""
    plain: list[Built] = []
    for backend in dict.fromkeys(route.backend for route in source.routes):
        routes = [route for route in source.routes if route.backend == backend]
        plain += _build_plain(routes, exam, wishes, folder, lost, tell, deadline if plain else math.inf)
    built = list(plain) if "fp32" in wishes.precisions else []
    for each in plain:
        if "bf16" in wishes.precisions and each.backend == "openvino" and has_bf16():
            if built and time.perf_counter() > deadline:
                lost.append(Finding(_title("openvino", "bf16", each.path), "bf16", each.route, NOT_BUILT))
            else:
                built += _admit(replace(each, precision="bf16"), exam, wishes, lost)
    for each in plain if "int8" in wishes.precisions else ():
        built += _build_int8(each, exam, wishes, folder, lost, tell, deadline)
    return built


def _build_int8(
    plain: Built, exam: Exam, wishes: Wishes, folder: Folder, lost: list[Finding], tell: Tell, deadline: float
) -> Iterator[Built]:
    assert wishes.calibration is not None
    for quantiser in list_quantisers(plain.backend):
        title = _title(plain.backend, "int8", plain.path, quantiser.variant)
        if time.perf_counter() > deadline:
            lost.append(Finding(title, "int8", quantiser.title, NOT_BUILT))
            continue
        tell(f"quantising: {quantiser.title}")
        try:
            with quiet_exporters():
                path = quantiser.write(plain.path, wishes.calibration, folder.new())
        except MissingExtra as error:
            lost.append(Finding(title, "int8", quantiser.title, str(error)))
        except Exception as error:  # whatever a quantiser raises at a graph that it does not know
            lost.append(Finding(title, "int8", quantiser.title, f"cannot be quantised: {root_cause(error)}"))
        else:
            built = Built(plain.backend, "int8", path, quantiser.title, plain.match, quantiser.variant)
            yield from _admit(built, exam, wishes, lost)


def _build_plain(
    routes: list[Route], exam: Exam, wishes: Wishes, folder: Folder, lost: list[Finding], tell: Tell, deadline: float
) -> list[Built]:
    """The file of the first route that gives the original's answers in fp32; nothing where none does."""
    for route in routes:
        target = folder.new()
        title = _title(route.backend, "fp32", target)
        if time.perf_counter() > deadline:
            lost.append(Finding(title, "fp32", route.title, NOT_BUILT))
            break
        tell(f"exporting: {route.title}")
        try:
            with quiet_exporters():
                path = route.write(target)
        except Exception as error:  # whatever an exporter raises at a model that it does not know
            hint = f"; {install_command('optimize')}" if isinstance(error, ModuleNotFoundError) else ""
            lost.append(Finding(title, "fp32", route.title, f"cannot be exported: {root_cause(error)}{hint}"))
            continue
        admitted = list(_admit(Built(route.backend, "fp32", path, route.title, Match(0, 0)), exam, wishes, lost))
        if admitted:
            return admitted
    return []


def _admit(built: Built, exam: Exam, wishes: Wishes, lost: list[Finding]) -> Iterator[Built]:
    """The file with what it reached, if it passes; otherwise it is among the lost, with the reason."""
    candidate = make_candidate(built.backend, built.precision, built.path, count_cores(), built.variant)
    match, reason = judge_candidate(candidate, exam, wishes.min_agreement)
    if reason:
        lost.append(Finding(candidate.title, built.precision, built.route, reason, match, nbytes=candidate.nbytes))
    else:
        assert match is not None
        yield replace(built, match=match)


def judge_candidate(candidate: Candidate, exam: Exam, min_agreement: float) -> tuple[Match | None, str]:
    """How a freshly loaded candidate does in the exam, and why it fails; no reason: it passes."""
    try:
        runtime = candidate.load(exam.signature)
    except Exception as error:  # a file that was written without an error may still be no model
        return None, f"cannot be loaded: {root_cause(error)}"
    runner = runtime.new_runner()
    try:
        match = examine(exam, runner)
    finally:
        runner.close()
        runtime.close()
    if match.fault:
        return match, f"other answers: {match.fault}"
    if match.agreement < min_agreement:
        return match, f"agrees on {_percent(match.agreement)} of the samples; {_percent(min_agreement)} are asked for"
    if candidate.precision == "fp32" and match.difference > FP32_DIFFERENCE:
        return match, f"differs by {match.difference:.2g} of the largest value; fp32 may differ by {FP32_DIFFERENCE:g}"
    return match, ""


def _title(backend: str, precision: str, path: Path, variant: str = "") -> str:
    return make_candidate(backend, precision, path, count_cores(), variant).title


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"
