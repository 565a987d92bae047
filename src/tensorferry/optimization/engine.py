"""The inference engine, to be called, reported on and saved; `optimize` is the one call from a trained model to it."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel, BadOption
from tensorferry.messages import did_you_mean
from tensorferry.optimization.agreement import ReferenceAnswers, ask_original, class_axis
from tensorferry.optimization.build import COARSE, ScratchFolder, SearchOptions, Tell
from tensorferry.optimization.candidates import SearchResult, has_bf16
from tensorferry.optimization.gate import MIN_AGREEMENT, AnswerGate
from tensorferry.optimization.metric import MAX_DROP, refuse_targets
from tensorferry.optimization.report import OptimizationReport
from tensorferry.optimization.repository import read_target
from tensorferry.optimization.samples import Arrays, choose_rows, name_samples, read_samples, read_targets, split_samples
from tensorferry.optimization.saving import SavableModel, save_model
from tensorferry.optimization.search import ASK_SHARE, search
from tensorferry.optimization.sources.loading import LoadedSource, SourceOptions, load_source
from tensorferry.optimization.sources.source import Source
from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.tensors import Array

PRECISIONS = ("auto", "fp32", "bf16", "int8", "int4")


class Engine:
    """An inference engine: a model as this hardware runs it fastest while it still gives the model's answers.

    `engine(x)` takes the model's inputs as arrays and gives its output as an array, several as a dict.
    """

    def __init__(self, source: Source, reference: ReferenceAnswers, result: SearchResult, folder: ScratchFolder) -> None:
        assert result.chosen.candidate is not None
        self.source = source
        self.reference = reference
        self.result = result
        self.candidate = result.chosen.candidate
        self.signature = source.signature
        self._folder = folder  # its files live as long as the engine
        self._runtime = self.candidate.load(self.signature)
        self._runner = self._runtime.new_runner()
        self._is_closed = False

    def __call__(self, *arrays: Any, **by_name: Any) -> Array | Arrays:
        """The outputs for inputs in order or by name."""
        self._refuse_closed()
        if arrays and by_name:
            raise BadModel("give the inputs in order or by name, not both")
        example = by_name or (arrays[0] if len(arrays) == 1 else arrays)
        names = [tensor.name for tensor in self.signature.outputs]
        results = self._runner.run(name_samples(example, self.signature), names)
        return results[0] if len(results) == 1 else dict(zip(names, results, strict=True))

    def __repr__(self) -> str:
        return f"<Engine of {self.source.title}: {self.candidate.title}, {self.result.speedup:.2f}x the original>"

    def report(self) -> OptimizationReport:
        """Every candidate that was tried, and why it won or lost."""
        return OptimizationReport(self.result)

    def save(self, path: str | Path, pipeline: bool = True) -> Path:
        """Save where a server finds it, as "models/reviews" (the next version) or "models/reviews/1"; returns that folder.

        Where the model came with a transform, clients send an image or a text, unless `pipeline` is off.
        """
        root, name, version = read_target(Path(path))
        return self.save_as(root, name, version, pipeline)

    def save_as(self, repository: Path, name: str, version: int | None = None, pipeline: bool = True) -> Path:
        """The same with the parts apart: a name may be a number, too."""
        self._refuse_closed()
        model = SavableModel(self.source, self.reference, self.result)
        return save_model(model, repository, name, version, pipeline)

    def close(self) -> None:
        """Give back the weights and the files; what was saved stays."""
        if self._is_closed:
            return
        self._is_closed = True
        self._runner.close()
        self._runtime.close()
        self._folder.remove()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise BadModel("this engine is closed: its weights and files are gone; call and save it before close()")


def optimize(
    model: Any,
    example: Any = None,
    *,
    precision: str = "auto",
    min_agreement: float | None = None,
    judge: str = "auto",
    targets: Any = None,
    max_drop: float | None = None,
    calibrate: Any = None,
    labels: Sequence[str] = (),
    weights: str | Path | None = None,
    seconds: float = 120.0,
    trust: bool = False,
    tell: Tell = lambda _: None,
) -> Engine:
    """The fastest inference engine that gives the answers of `model`: a module, a Keras model, or the path of one or of a run.

    `example` is a batch of real inputs (an array, a tuple, arrays by name, or a file of them; rows first): answers are compared
    on it, so the more rows the better. `precision` "auto" tries fp32, and bf16 where the CPU has it; "int8" also quantises
    ("fp32,int8" does without bf16), "int4" the weights of large products still further; both are calibrated on `calibrate` or
    half of the rows. A candidate passes if it agrees with the
    original on `min_agreement` (0.99) of the rows or more, as `judge` counts: "top1" the same class, "nearest" the same nearest
    neighbour (embeddings), "close" within 1 %. With `targets`, the right classes, it passes if it loses at most `max_drop` of
    accuracy (0.005) or Dice (0.002) instead.
    """
    precisions = _read_precision(precision)
    _check_gate(min_agreement, targets, max_drop)
    if not seconds > 0:
        raise BadOption(f"expected seconds above zero, received {seconds!r}")
    if isinstance(labels, str):
        raise BadOption(f"expected labels one by one, received the text {labels!r}; write for example ('cat', 'dog')")
    if calibrate is not None and not COARSE & set(precisions):
        raise BadOption("samples to calibrate on are for int8, which is not asked for; add --int8 (precision='int8' in Python)")
    began = time.perf_counter()
    folder = ScratchFolder()
    try:
        tell("loading the model")
        example = read_samples(Path(example)) if isinstance(example, str | Path) else example
        source_options = SourceOptions(example, tuple(labels), None if weights is None else Path(weights), trust)
        loaded = load_source(model, source_options, folder.new())
        source, num_rows = loaded.source, len(next(iter(loaded.samples.values())))
        rows, calibration = choose_rows(num_rows), None
        notes: tuple[str, ...] = ()
        right = loaded.targets if targets is None else read_targets(_as_path(targets), num_rows)
        if COARSE & set(precisions):
            split = split_samples(loaded.samples, loaded.read_calibration(_as_path(calibrate)))
            rows, calibration, notes = split.compared, split.calibration, (split.note,)
        tell(f"asking the original: {source.title} in {source.framework}")
        samples = {name: array[rows] for name, array in loaded.samples.items()}
        ask_by = time.perf_counter() + ASK_SHARE * seconds
        reference = _ask(loaded, samples, judge, ask_by, None if right is None else right[rows])
        if targets is not None and right is not None and not reference.metric:
            answers = reference.batches[0].answers[0]
            raise refuse_targets(right, answers, class_axis(answers))
        gate = _make_gate(min_agreement, max_drop, reference.metric)
        options = SearchOptions(precisions, gate, seconds, calibration, notes)
        return Engine(source, reference, search(source, reference, options, folder, tell, began), folder)
    except BaseException:
        folder.remove()
        raise


def _as_path(given: Any) -> Any:
    return Path(given) if isinstance(given, str) else given


def _check_gate(min_agreement: float | None, targets: Any, max_drop: float | None) -> None:
    """Refuse what cannot be asked for."""
    if min_agreement is not None and not 0 < min_agreement <= 1:
        raise BadOption(f"expected an agreement above 0 and at most 1, received {min_agreement!r}; write for example 0.99")
    if max_drop is not None and not 0 <= max_drop < 1:
        raise BadOption(f"expected a drop from 0 up and below 1, received {max_drop!r}; write 0.005 for half a point")
    if min_agreement is not None and (targets is not None or max_drop is not None):
        raise BadOption("agreement is asked for where the right answers are not known, a drop where they are; give one of them")


def _make_gate(min_agreement: float | None, max_drop: float | None, metric: str) -> AnswerGate:
    if max_drop is not None and not metric:
        raise BadOption("a drop is measured against the right answers; give them with --targets (targets in Python)")
    if min_agreement is not None or not metric:
        return AnswerGate(MIN_AGREEMENT if min_agreement is None else min_agreement)
    return AnswerGate(MIN_AGREEMENT, MAX_DROP[metric] if max_drop is None else max_drop)


def _ask(loaded: LoadedSource, samples: Arrays, judge: str, deadline: float, targets: Array | None) -> ReferenceAnswers:
    source = loaded.source
    try:
        return ask_original(source.original.new_runner(), source.signature, samples, judge, deadline, targets)
    except InvalidRequest as error:
        if not loaded.is_invented:
            raise
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in samples.items())
        raise BadModel(f"{error}; the inputs were invented, with sizes that may be wrong: {shapes}. Give --samples") from None


def _read_precision(precision: str) -> tuple[str, ...]:
    words = precision.split(",")
    for word in words:
        if word not in PRECISIONS:
            raise BadOption(f"unknown precision {word!r}{did_you_mean(word, PRECISIONS)}; choose from {', '.join(PRECISIONS)}")
    if len(words) > 1:
        if "auto" in words:
            raise BadOption(f"auto chooses precisions by itself, so it stands alone; received {precision!r}")
        return tuple(each for each in PRECISIONS if each in words)
    if precision == "bf16" and not has_bf16():
        raise BadOption("this CPU does not compute in bf16 by itself, so it would be slower than fp32; take precision auto")
    finer = {"auto": ("fp32", "bf16"), "int8": ("fp32", "bf16", "int8"), "int4": ("fp32", "bf16", "int8", "int4")}
    return finer.get(precision, (precision,))
