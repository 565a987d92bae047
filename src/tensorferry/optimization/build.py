"""Build every file that could serve, and let in those that give the original's answers; of the others, tell the reason."""

import math
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tensorferry.errors import MissingExtra
from tensorferry.extras import install_command
from tensorferry.machine import count_cores
from tensorferry.optimization.agreement import Comparison, ReferenceAnswers
from tensorferry.optimization.candidates import CandidateResult, TriedFile, has_bf16, make_candidate
from tensorferry.optimization.check import check_candidate
from tensorferry.optimization.gate import AnswerGate
from tensorferry.optimization.layer_search import describe_kept, find_fewest, rank_layers, take_probe
from tensorferry.optimization.measure import has_free_batch, take_rows, time_batch
from tensorferry.optimization.quantise import Prepare, QuantisedModel, Quantiser, list_quantisers
from tensorferry.optimization.samples import Arrays
from tensorferry.optimization.sources.source import Route, Source, quiet_exporters, root_cause
from tensorferry.serve.core.tensors import Array
from tensorferry.serve.runtimes.runtime import Runner

COARSE = frozenset({"int8", "int4"})  # precisions that have to be calibrated
NOT_BUILT = "not built: the time was up"
_LOOK_SECONDS = 0.1
_CHEAP_SECONDS = 0.5  # of all samples: such a file is compared, and its layers looked for, however fast others are
_TOO_SLOW = 1.5  # times the time of the fastest file that passed, at a glance: such an int8 file is not compared any more
_WORTH_TRYING = 0.9  # of the time of the fastest int8 file that passed: what is hardly faster is slower with layers in fp32
_RANK_SHARE = 0.6  # of the time to look for sensitive layers: ranking them; the rest is for trying how many must stay

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
    gate: AnswerGate = field(default_factory=AnswerGate)
    seconds: float = 120.0
    calibration: Arrays | None = None  # for int8: samples that answers are not compared on
    notes: tuple[str, ...] = ()  # how the samples were split


@dataclass(frozen=True)
class BuiltFile:
    """A file that gives the original's answers."""

    backend: str
    precision: str
    path: Path
    route: str
    comparison: Comparison
    variant: str = ""
    kept: tuple[str, ...] = ()  # layers of an int8 file that stay in fp32
    settings: Mapping[str, str] = field(default_factory=dict)  # of its runtime, that it needs to be what it is
    seconds: float = math.inf  # of one row, at a glance


@dataclass(frozen=True)
class NearMiss:
    """An int8 file that the gate did not let in, and what it was made with."""

    plain: BuiltFile
    quantiser: Quantiser
    model: QuantisedModel
    agreement: float
    seconds: float  # of one row, at a glance; with layers in fp32 it takes longer


@dataclass(frozen=True)
class PreparedModel:
    """A calibrated model, and its file with all layers in int8."""

    model: QuantisedModel
    path: Path


@dataclass(frozen=True)
class Builder:
    """Writes files into `folder` and compares each with the original; those that do not pass are in `rejected`."""

    reference: ReferenceAnswers
    options: SearchOptions
    folder: ScratchFolder
    tell: Tell
    rejected: list[CandidateResult] = field(default_factory=list)
    tried: list[TriedFile] = field(default_factory=list)  # every file that gave answers, in order
    prepared: dict[tuple[Path, Prepare], PreparedModel | Exception] = field(default_factory=dict)  # some differ in settings only

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
        if COARSE & set(precisions):
            built += self._build_all_coarse(plain, deadline)
        return built

    def _build_all_coarse(self, plain: list[BuiltFile], deadline: float) -> list[BuiltFile]:
        """Of each backend, what passes as a whole, and of the rest, the nearest first, what passes with some layers in fp32."""
        built = []
        # OpenVINO computes int8 faster: where there is no time for both, the other one is left out
        for each in sorted(plain, key=lambda each: each.backend != "openvino"):
            missed = []
            for quantiser in list_quantisers(each.backend):
                if quantiser.precision not in self.options.precisions:
                    continue
                found = self._build_coarse(each, quantiser, deadline)
                if isinstance(found, BuiltFile):
                    built.append(found)
                elif found is not None and found.model.layers:
                    missed.append(found)
            for near in sorted(missed, key=lambda near: -near.agreement):
                fastest = min((one.seconds for one in self.tried if one.precision in COARSE and one.passed), default=math.inf)
                if near.seconds < _WORTH_TRYING * fastest or self._is_cheap(near.seconds):
                    built += self._keep_layers(near, deadline)
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

    def _build_coarse(self, plain: BuiltFile, quantiser: Quantiser, deadline: float) -> BuiltFile | NearMiss | None:
        precision = quantiser.precision
        title = _title(plain.backend, precision, plain.path, quantiser.variant)
        if time.perf_counter() > deadline:
            self._reject(title, precision, quantiser.title, NOT_BUILT)
            return None
        self.tell(f"quantising: {quantiser.title}")
        prepared = self._prepare(plain.path, quantiser)
        if isinstance(prepared, Exception):
            told = str(prepared) if isinstance(prepared, MissingExtra) else f"cannot be quantised: {root_cause(prepared)}"
            self._reject(title, precision, quantiser.title, told)
            return None
        file = replace(
            plain,
            precision=precision,
            path=prepared.path,
            route=quantiser.title,
            variant=quantiser.variant,
            settings=quantiser.settings,
        )
        for admitted in self._admit(file):
            return admitted
        comparison = self.rejected[-1].comparison
        if comparison is None or comparison.fault:
            return None
        return NearMiss(plain, quantiser, prepared.model, comparison.agreement, self.tried[-1].seconds)

    def _prepare(self, path: Path, quantiser: Quantiser) -> PreparedModel | Exception:
        """The calibrated model, prepared once for all that differ in settings of their runtime only; or why it cannot be."""
        assert self.options.calibration is not None
        key = (path, quantiser.prepare)
        if key not in self.prepared:
            try:
                with quiet_exporters():
                    model = quantiser.prepare(path, self.options.calibration, self.folder.new())
                    self.prepared[key] = PreparedModel(model, model.write((), self.folder.new()))
            except Exception as error:  # whatever a quantiser raises at a graph that it does not know
                self.prepared[key] = error
        return self.prepared[key]

    def _keep_layers(self, near: NearMiss, deadline: float) -> Iterator[BuiltFile]:
        """The file with as few layers in fp32 as the gate needs, where there are such few."""
        assert self.options.calibration is not None
        self.tell(f"looking for sensitive layers: {near.quantiser.title}")
        layers, probe = near.model.layers, take_probe(self.options.calibration)
        found: dict[int, BuiltFile] = {}
        began = time.perf_counter()
        try:
            ranked = rank_layers(layers, partial(self._answer, near), probe, began + _RANK_SHARE * (deadline - began))
        except Exception as error:  # what quantises as a whole may not in part
            self._reject_search(near, f"the search for sensitive layers failed: {root_cause(error)}")
            return
        if not ranked:
            self._reject_search(near, "no time to look for its sensitive layers; give more with --seconds")
            return
        order = [each.layer for each in ranked]

        def passes(num_kept: int) -> bool:
            self.tell(f"keeping {num_kept} of {len(layers)} layers in fp32: {near.quantiser.title}")
            found.update((num_kept, file) for file in self._admit(self._write_kept(near, order[:num_kept])))
            return num_kept in found

        fewest = find_fewest(len(layers), passes, deadline)
        if fewest is not None:
            yield found[fewest]

    def _write_kept(self, near: NearMiss, kept: Collection[str]) -> BuiltFile:
        with quiet_exporters():
            path = near.model.write(kept, self.folder.new())
        count = "1 layer" if len(kept) == 1 else f"{len(kept)} layers"
        return replace(
            near.plain,
            precision=near.quantiser.precision,
            path=path,
            route=f"{near.quantiser.title}; in fp32: {describe_kept(kept)}",
            variant=f"{near.quantiser.variant}, {count} in fp32",
            kept=tuple(kept),
            settings=near.quantiser.settings,
        )

    def _answer(self, near: NearMiss, kept: Collection[str], probe: Arrays) -> list[Array]:
        """What the model answers with these layers in fp32."""
        file = self._write_kept(near, kept)
        signature = self.reference.signature
        runtime = make_candidate(file.backend, file.precision, file.path, count_cores(), settings=file.settings).load(signature)
        runner = runtime.new_runner()
        try:
            return list(runner.run(probe, [tensor.name for tensor in signature.outputs]))
        finally:
            runner.close()
            runtime.close()
            shutil.rmtree(file.path.parent, ignore_errors=True)

    def _admit(self, built: BuiltFile) -> Iterator[BuiltFile]:
        """The file with what it reached, if it passes."""
        candidate = make_candidate(
            built.backend, built.precision, built.path, count_cores(), built.variant, settings=built.settings
        )
        looks: list[float] = []

        def look(runner: Runner) -> str:
            looks.append(self._look(runner))
            fastest = min((each.seconds for each in self.tried if each.passed), default=math.inf)
            if built.precision not in COARSE or looks[0] < _TOO_SLOW * fastest or self._is_cheap(looks[0]):
                return ""
            return f"{looks[0] / fastest:.1f}x the time of the fastest at a glance; its answers were not compared"

        comparison, reason = check_candidate(candidate, self.reference, self.options.gate, look)
        if comparison is not None and not comparison.fault and looks:
            self.tried.append(TriedFile(candidate.title, built.precision, looks[0], comparison, not reason, len(built.kept)))
        if reason:
            rejected = CandidateResult(candidate.title, built.precision, built.route, reason, comparison, nbytes=candidate.nbytes)
            self.rejected.append(rejected)
        else:
            assert comparison is not None
            yield replace(built, comparison=comparison, seconds=min(looks, default=math.inf))

    def _is_cheap(self, seconds: float) -> bool:
        """Whether all samples are asked in no time, where one row takes so long."""
        return seconds * self.reference.num_samples < _CHEAP_SECONDS

    def _look(self, runner: Runner) -> float:
        """Seconds of one row, at a glance."""
        signature, sample = self.reference.signature, self.reference.batches[0].inputs
        return time_batch(runner, signature, take_rows(sample, 1) if has_free_batch(signature) else sample, _LOOK_SECONDS)

    def _reject_search(self, near: NearMiss, reason: str) -> None:
        precision = near.quantiser.precision
        title = _title(near.plain.backend, precision, near.plain.path, f"{near.quantiser.variant}, some layers in fp32")
        self._reject(title, precision, near.quantiser.title, reason)

    def _reject(self, title: str, precision: str, route: str, reason: str) -> None:
        self.rejected.append(CandidateResult(title, precision, route, reason))


def _title(backend: str, precision: str, path: Path, variant: str = "") -> str:
    return make_candidate(backend, precision, path, count_cores(), variant).title
