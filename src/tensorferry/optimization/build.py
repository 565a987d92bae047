"""Build every file that could serve, and let in those that give the original's answers; of the others, tell the reason."""

import math
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tensorferry.errors import MissingExtra
from tensorferry.extras import install_command
from tensorferry.machine import count_cores
from tensorferry.optimization.agreement import Comparison, ReferenceAnswers, compare_answers
from tensorferry.optimization.candidates import Candidate, CandidateResult, has_bf16, make_candidate
from tensorferry.optimization.quantise import Quantiser, list_quantisers
from tensorferry.optimization.samples import Arrays
from tensorferry.optimization.sources.source import Route, Source, quiet_exporters, root_cause

FP32_DIFFERENCE = 1e-4  # the largest relative difference that other orders of summation explain
NOT_BUILT = "not built: the time was up"

Tell = Callable[[str], None]  # told what is being done


class ScratchFolder:
    """New empty folders, all removed together: when asked, when this object is dropped, or at exit."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="ferry-optimize-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        self._num_made = 0

    def new(self) -> Path:
        """One more empty folder."""
        self._num_made += 1
        made = self.path / str(self._num_made)
        made.mkdir()
        return made


@dataclass(frozen=True)
class SearchOptions:
    """What the user asked for."""

    precisions: tuple[str, ...] = ("fp32", "bf16")
    min_agreement: float = 0.99
    seconds: float = 120.0
    calibration: Arrays | None = None  # for int8: samples that answers are not compared on


@dataclass(frozen=True)
class BuiltFile:
    """A file that gives the original's answers."""

    backend: str
    precision: str
    path: Path
    route: str
    comparison: Comparison
    variant: str = ""


@dataclass(frozen=True)
class Builder:
    """Writes files into `folder` and compares each with the original; those that do not pass are in `rejected`."""

    reference: ReferenceAnswers
    options: SearchOptions
    folder: ScratchFolder
    tell: Tell
    rejected: list[CandidateResult] = field(default_factory=list)

    def build_all(self, source: Source, deadline: float) -> list[BuiltFile]:
        """The files that passed, fp32 first. After `deadline` none is begun, if one is there."""
        plain: list[BuiltFile] = []
        for backend in dict.fromkeys(route.backend for route in source.routes):
            routes = [route for route in source.routes if route.backend == backend]
            plain += self._build_plain(routes, deadline if plain else math.inf)
        precisions = self.options.precisions
        built = list(plain) if "fp32" in precisions else []
        for each in plain:
            if "bf16" in precisions and each.backend == "openvino" and has_bf16():
                if built and time.perf_counter() > deadline:
                    self._reject(_title("openvino", "bf16", each.path), "bf16", each.route, NOT_BUILT)
                else:
                    built += self._admit(replace(each, precision="bf16"))
        for each in plain if "int8" in precisions else ():
            for quantiser in list_quantisers(each.backend):
                built += self._build_int8(each, quantiser, deadline)
        return built

    def _build_plain(self, routes: list[Route], deadline: float) -> list[BuiltFile]:
        """The file of the first route that gives the original's answers in fp32; nothing where none does."""
        for route in routes:
            target = self.folder.new()
            title = _title(route.backend, "fp32", target)
            if time.perf_counter() > deadline:
                self._reject(title, "fp32", route.title, NOT_BUILT)
                break
            self.tell(f"exporting: {route.title}")
            try:
                with quiet_exporters():
                    path = route.write(target)
            except Exception as error:  # whatever an exporter raises at a model that it does not know
                hint = f"; {install_command('optimize')}" if isinstance(error, ModuleNotFoundError) else ""
                self._reject(title, "fp32", route.title, f"cannot be exported: {root_cause(error)}{hint}")
                continue
            admitted = list(self._admit(BuiltFile(route.backend, "fp32", path, route.title, Comparison(0, 0))))
            if admitted:
                return admitted
        return []

    def _build_int8(self, plain: BuiltFile, quantiser: Quantiser, deadline: float) -> Iterator[BuiltFile]:
        assert self.options.calibration is not None
        title = _title(plain.backend, "int8", plain.path, quantiser.variant)
        if time.perf_counter() > deadline:
            self._reject(title, "int8", quantiser.title, NOT_BUILT)
            return
        self.tell(f"quantising: {quantiser.title}")
        try:
            with quiet_exporters():
                path = quantiser.write(plain.path, self.options.calibration, self.folder.new())
        except MissingExtra as error:
            self._reject(title, "int8", quantiser.title, str(error))
        except Exception as error:  # whatever a quantiser raises at a graph that it does not know
            self._reject(title, "int8", quantiser.title, f"cannot be quantised: {root_cause(error)}")
        else:
            yield from self._admit(replace(plain, precision="int8", path=path, route=quantiser.title, variant=quantiser.variant))

    def _admit(self, built: BuiltFile) -> Iterator[BuiltFile]:
        """The file with what it reached, if it passes."""
        candidate = make_candidate(built.backend, built.precision, built.path, count_cores(), built.variant)
        comparison, reason = check_candidate(candidate, self.reference, self.options.min_agreement)
        if reason:
            rejected = CandidateResult(candidate.title, built.precision, built.route, reason, comparison, nbytes=candidate.nbytes)
            self.rejected.append(rejected)
        else:
            assert comparison is not None
            yield replace(built, comparison=comparison)

    def _reject(self, title: str, precision: str, route: str, reason: str) -> None:
        self.rejected.append(CandidateResult(title, precision, route, reason))


def check_candidate(candidate: Candidate, reference: ReferenceAnswers, min_agreement: float) -> tuple[Comparison | None, str]:
    """How a freshly loaded candidate answers, and why it is rejected; no reason: it passes."""
    try:
        runtime = candidate.load(reference.signature)
    except Exception as error:  # a file that was written without an error may still be no model
        return None, f"cannot be loaded: {root_cause(error)}"
    runner = runtime.new_runner()
    try:
        comparison = compare_answers(reference, runner)
    finally:
        runner.close()
        runtime.close()
    if comparison.fault:
        return comparison, f"other answers: {comparison.fault}"
    if comparison.agreement < min_agreement:
        reached, asked = _percent(comparison.agreement), _percent(min_agreement)
        return comparison, f"agrees on {reached} of the samples; {asked} are asked for"
    if candidate.precision == "fp32" and comparison.difference > FP32_DIFFERENCE:
        difference = f"{comparison.difference:.2g}"
        return comparison, f"differs by {difference} of the largest value; fp32 may differ by {FP32_DIFFERENCE:g}"
    return comparison, ""


def _title(backend: str, precision: str, path: Path, variant: str = "") -> str:
    return make_candidate(backend, precision, path, count_cores(), variant).title


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"
