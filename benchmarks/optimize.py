"""How much faster an engine answers than the original, whether it gives the same answers, and whether it was the best choice.

    python benchmarks/optimize.py                              MiniLM (128 tokens), ResNet-50, EfficientNet-lite0, 3D U-Net (64^3)
    python benchmarks/optimize.py --models minilm,lite0        some of them
    python benchmarks/optimize.py --models toy --seconds 5     to try the benchmark itself
    python benchmarks/optimize.py --no-bf16                    as on a CPU without bf16
    python benchmarks/optimize.py --save                       all of them, and their result file

Every model is searched once with int8 allowed; the default is the best without it. Then every engine that passed, and the
original, are timed again in turns, all of them and for longer: that is the exhaustive measurement, whose medians are shown.
ResNet-50's original is PyTorch or the SavedModel of its Keras twin, whichever is faster. ResNet-50 and the U-Net have random
weights: their agreement says that the arithmetic is right, not that a trained model would keep its answers in int8.
EfficientNet-lite0's gate is 95 %: in bf16 it keeps 96.9 % of its answers. 1.8x rests on bf16, which not every CPU has; the first
line says whether this one does.
"""

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import tensorferry as ferry
from optimize_subjects import SUBJECTS, Samples, Subject
from results import FigureTable, parse_options, save_result
from tensorferry.machine import count_cores
from tensorferry.optimization.candidates import CandidateResult, has_bf16, thread_counts
from tensorferry.optimization.engine import Engine
from tensorferry.optimization.measure import take_rows, time_batch, time_in_turns
from tensorferry.serve.runtimes.runtime import Runner

DEFAULT_SPEEDUP, INT8_SPEEDUP, MAX_DIFFERENCE, MAX_REGRET = 1.8, 3.0, 1e-4, 1.05
ORIGINAL, RIVAL = "original", "SavedModel"


COLUMNS = (
    *("model", "original", "ms", "default engine", "ms", "x"),
    *("int8", "ms", "x", "agrees", "fp32 differs", "choice / best"),
)


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
    int8_agreement: float | None
    difference: float  # of the fp32 engines, the largest
    regret: float  # the chosen engine's seconds over the best engine's

    @property
    def default_speedup(self) -> float:
        """How many times faster than the original."""
        return self.original_seconds / self.default_seconds

    @property
    def int8_speedup(self) -> float | None:
        """The same for int8."""
        return None if self.int8_seconds is None else self.original_seconds / self.int8_seconds


def run_model(name: str, subject: Subject, seconds: float, console: Console, precision: str = "int8") -> Row:
    """Search, then measure everything that passed."""
    samples = subject.samples()
    engine = ferry.optimize(
        subject.make().eval(),
        samples,
        precision=precision,
        min_agreement=subject.min_agreement,
        judge=subject.judge,
        seconds=seconds,
        tell=lambda step: console.print(f"{name}: {step}", style="dim", highlight=False),
    )
    console.print(engine.report())
    medians = _time_all(engine, subject, samples, seconds)
    row = _judge(name, engine, medians)
    engine.close()
    return row


def _time_all(engine: Engine, subject: Subject, samples: Samples, seconds: float) -> dict[str, float]:
    runtimes = {each.title: each.candidate.load(engine.signature) for each in _passed(engine) if each.candidate is not None}
    runners: dict[str, Runner] = {title: runtime.new_runner() for title, runtime in runtimes.items()}
    runners[ORIGINAL] = engine.source.original.new_runner()
    one = take_rows(engine.reference.batches[0].inputs, 1)
    medians = time_in_turns(runners, engine.signature, one, seconds / 4, num_rounds=40)
    for num_threads in thread_counts(count_cores())[1:]:  # the original, too, gets the number of threads that suits it
        engine.source.set_num_threads(num_threads)
        medians[ORIGINAL] = min(medians[ORIGINAL], time_batch(runners[ORIGINAL], engine.signature, one, seconds / 16))
    engine.source.set_num_threads(0)
    if subject.rival is not None:
        medians[RIVAL] = _time_rival(subject.rival(), samples, seconds / 8)
    for title, runner in runners.items():
        runner.close()
        if title in runtimes:
            runtimes[title].close()
    return medians


def _time_rival(model: Any, samples: Samples, seconds: float) -> float:
    """The Keras twin as a SavedModel, on the same images with their channels last."""
    import tempfile

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
        inputs = {runtime.signature.inputs[0].name: images[:1].transpose(0, 2, 3, 1).copy()}
        return time_batch(runtime.new_runner(), runtime.signature, inputs, seconds)


def _judge(name: str, engine: Engine, medians: dict[str, float]) -> Row:
    passed = {each.title: each for each in _passed(engine)}
    plain = [title for title, each in passed.items() if each.precision != "int8"]
    int8 = [title for title, each in passed.items() if each.precision == "int8"]
    # candidates come in the order in which the search preferred them; the longer measurement judges that
    default, chosen, best8 = plain[0], engine.result.chosen.title, next(iter(int8), "")
    original = min((each for each in (ORIGINAL, RIVAL) if each in medians), key=medians.__getitem__)
    comparison = passed[best8].comparison if best8 else None
    return Row(
        model=name,
        original=f"{engine.source.framework} eager" if original == ORIGINAL else "TensorFlow SavedModel",
        original_seconds=medians[original],
        default=default,
        default_seconds=medians[default],
        int8=best8,
        int8_seconds=medians[best8] if best8 else None,
        int8_agreement=comparison.agreement if comparison else None,
        difference=max(
            each.comparison.difference for each in passed.values() if each.precision == "fp32" and each.comparison is not None
        ),
        regret=medians[chosen] / min(medians[title] for title in passed),
    )


def _passed(engine: Engine) -> list[CandidateResult]:
    return [each for each in engine.result.candidates if each.passed and each.speed is not None]


def make_table(rows: list[Row]) -> FigureTable:
    """A row a model."""
    cells = []
    for row in rows:
        int8 = ("none passed", "", "", "")
        if row.int8_seconds is not None and row.int8_speedup is not None and row.int8_agreement is not None:
            int8 = (row.int8, f"{1e3 * row.int8_seconds:.3g}", f"{row.int8_speedup:.2f}", f"{100 * row.int8_agreement:.1f} %")
        default = (row.default, f"{1e3 * row.default_seconds:.3g}", f"{row.default_speedup:.2f}")
        original = (row.original, f"{1e3 * row.original_seconds:.3g}")
        cells.append((row.model, *original, *default, *int8, f"{row.difference:.1e}", f"{row.regret:.3f}"))
    return FigureTable("One row (batch 1), medians", COLUMNS, cells)


def list_verdicts(rows: list[Row]) -> list[tuple[str, bool]]:
    """What was to be reached, and whether it was."""
    verdicts = []
    for row in rows:
        verdicts.append(
            (f"{row.model}: default engine at least {DEFAULT_SPEEDUP}x the original", row.default_speedup >= DEFAULT_SPEEDUP)
        )
        if row.int8_speedup is not None:
            verdicts.append((f"{row.model}: int8 at least {INT8_SPEEDUP:g}x the original", row.int8_speedup >= INT8_SPEEDUP))
        verdicts.append((f"{row.model}: fp32 differs by at most {MAX_DIFFERENCE:g}", row.difference <= MAX_DIFFERENCE))
        verdicts.append((f"{row.model}: the choice within 5 % of the best", row.regret <= MAX_REGRET))
    return verdicts


def main(argv: list[str] | None = None) -> int:
    """Run it and print the table; the exit code is 1 where a figure misses its mark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="minilm,resnet50,lite0,unet3d", help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--seconds", type=float, default=240.0, help="for the search of one model (default %(default)g)")
    parser.add_argument("--no-bf16", action="store_true", help="measure as on a CPU without bf16")
    options = parse_options(parser, __file__, argv)
    names = options.models.split(",")
    if unknown := [name for name in names if name not in SUBJECTS]:
        parser.error(f"unknown model {unknown[0]!r}; choose from {', '.join(SUBJECTS)}")
    console = Console(width=190)
    console.print(f"{count_cores()} cores, bf16 {'in' if has_bf16() else 'not in'} the CPU")
    precision = "fp32,int8" if options.no_bf16 else "int8"
    rows = [run_model(name, SUBJECTS[name], options.seconds, console, precision) for name in names]
    table = make_table(rows)
    console.print(table)
    verdicts = list_verdicts(rows)
    for text, is_met in verdicts:
        console.print(f"{'met   ' if is_met else 'missed'}  {text}", highlight=False)
    packages = ["torch", "tensorflow", "tensorflow-cpu", "onnxruntime", "openvino", "nncf"]
    save_result(options, "optimize", [table], {"rows": [asdict(row) for row in rows]}, packages)
    return 0 if all(is_met for _, is_met in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
