"""Predictions beside published figures, error for error: nothing is hidden and nothing tuned for a row.

    python benchmarks/published.py           everything, about a minute
    python benchmarks/published.py --save    the same, and its result file
    python benchmarks/published.py --scale   trainings on many GPUs instead, about a minute

Throughput: the figures that the roofline's efficiencies were fitted to, so their errors say how well one set of shares fits all.
Limits and cost: none of these was used for fitting. The swap-all policy is that of the system which published them, so its
predictions stand beside its figures; ferry's own plans are compared with it in the same simulator. Ends with code 1 where ferry's
plan is slower than swap-all's anywhere, or less than twice as fast on PCIe 3 at 2.4 times the plain limit.

With --scale: the two smallest counts of GPUs of each family are fitted (how fast its software computes, and the links within
reason), and the rest is predicted. "Unfitted" is what the roofline and the table's links give by themselves.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from published_scale import DATA, predict_scale
from results import FigureTable, parse_options, save_result
from tensorferry.estimation.estimate import Study
from tensorferry.estimation.models import Input, find_model
from tensorferry.estimation.results import MachineEstimate
from tensorferry.machine import find_machine, time_trace
from tensorferry.trace import Phase

RESNET_SOURCE = "NVIDIA DeepLearningExamples, ResNet50 v1.5 for PyTorch, container 21.03, one GPU"
BERT_SOURCE = "NVIDIA DeepLearningExamples, BERT for PyTorch, pre-training, container 20.06, one GPU"
TFLMS_PAPER = "IBM, TFLMS: paper (arXiv:1807.02037) and announcements, 2018"
TFLMS_CASE = "IBM, TFLMS case study: 3D image segmentation (2018)"
TFLMS_2 = "IBM, performance results with TFLMS v2 (2019)"
MATZEK = "Matzek, GTC 2019 S9426: 2.1 times faster with half the GPUs"
NVLINK, PCIE, SHARED = "v100-16gb-nvlink2", "v100-16gb-pcie3", "v100-16gb-pcie3-shared"
RATIOS = (1.4, 2.4)


@dataclass(frozen=True)
class Line:
    """One figure."""

    what: str
    published: str
    predicted: str
    error: float | None  # predicted over published, less one; None: no single figure was published
    source: str


@dataclass(frozen=True)
class Duel:
    """Ferry's plan and swap-all for the same step on the same machine."""

    what: str
    machine: str
    ratio: float
    swap_all_overhead: float
    ferry_overhead: float

    @property
    def speedup(self) -> float:
        """How many times faster ferry's step is."""
        return (1 + self.swap_all_overhead) / (1 + self.ferry_overhead)

    @property
    def holds(self) -> bool:
        """Whether it is what is claimed: never slower, and on PCIe at the larger ratio at least twice as fast."""
        return self.speedup >= (2.0 if self.machine in (PCIE, SHARED) and self.ratio == max(RATIOS) else 1.0) - 1e-9


def main(argv: list[str] | None = None) -> int:
    """Predict, print, write; 0 where ferry's plans are what is claimed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", action="store_true", help="trainings on many GPUs, from benchmarks/data")
    parser.add_argument("--data", type=Path, default=DATA, metavar="FOLDER", help="with --scale: other files of the same form")
    options = parse_options(parser, __file__, argv)
    console = Console(width=170)
    if options.scale:
        tables, figures, notes = predict_scale(options.data)
        console.print(*tables, *notes, sep="\n")
        save_result(options, "published-scale", tables, figures, ["torch"], notes)
        return 0
    throughput = [*predict_resnet(), *predict_bert()]
    studies = make_studies()
    rows = {name: study.estimate_on(find_machine(NVLINK)) for name, study in studies.items()}
    limits = list(compare_limits(rows))
    duels = [duel for name in studies for duel in fight(name, studies[name], rows[name])]
    costs = list(compare_costs(duels))
    tables = [
        make_table("Throughput, samples a second (used for fitting)", throughput),
        make_table("What fits a V100 with 16 GB", limits),
        make_table("What swapping everything costs", costs),
        make_duels_table(duels),
    ]
    console.print(*tables, sep="\n")
    lines = {"throughput": throughput, "limits": limits, "costs": costs}
    figures = {name: [asdict(line) for line in found] for name, found in lines.items()}
    figures["duels"] = [asdict(duel) for duel in duels]
    save_result(options, "published", tables, figures, ["torch"])
    return 0 if all(duel.holds for duel in duels) else 1


# ---- throughput


def predict_resnet() -> Iterator[Line]:
    """ResNet-50, whole steps."""
    for machine, precision, batch, published in (
        (PCIE, "fp32", 128, 367),
        (PCIE, "fp16", 256, 1200),
        ("a100-80gb", "tf32", 256, 938),
        ("a100-80gb", "fp16", 256, 2470),
    ):
        study = Study(find_model("resnet50"), (Input((batch, 3, 224, 224)),), "cross_entropy", "sgd", precision)
        predicted = batch / _seconds(study, machine, batch)
        yield _line(f"ResNet-50, {machine}, {precision}, batch {batch}", published, predicted, RESNET_SOURCE)


def predict_bert() -> Iterator[Line]:
    """BERT large; gradients were accumulated over hundreds of batches, so the optimizer is left out."""
    for machine, precision, length, num_hidden, batch, published in (
        (PCIE, "fp32", 128, 20, 8, 40),
        (PCIE, "fp16", 128, 20, 16, 164),
        (PCIE, "fp32", 512, 80, 2, 9),
        (PCIE, "fp16", 512, 80, 4, 34),
        ("a100-40gb", "tf32", 128, 20, 54, 234),
        ("a100-40gb", "fp16", 128, 20, 64, 415),
        ("a100-40gb", "tf32", 512, 80, 8, 41),
        ("a100-40gb", "fp16", 512, 80, 16, 78),
    ):
        model = replace(find_model("bert-large"), derive=lambda inputs: inputs)
        inputs = (Input((batch, length), "int64"), Input((batch, num_hidden), "int64"))
        study = Study(model, inputs, "token_cross_entropy", "adam", precision)
        predicted = batch / _seconds(study, machine, batch, without=Phase.OPTIMIZER)
        yield _line(f"BERT large, {machine}, {precision}, {batch} x {length}", published, predicted, BERT_SOURCE)


def _seconds(study: Study, machine: str, batch: int, without: Phase | None = None) -> float:
    trace = time_trace(study.traces("gpu").at(batch), find_machine(machine), study.precision)
    return sum(op.seconds for op in trace.ops if op.phase is not without)


# ---- limits


def make_studies() -> dict[str, Study]:
    """The models whose limits were published, with what was made larger in each."""
    unet = Study(_isensee(), (Input((1, 4, 144, 144, 144)),), "mse", "adam", "fp32", axis="resolution")
    batch = {name: _builtin(name, "batch") for name in ("resnet50", "resnet152")}
    return batch | {"googlenet": _builtin("googlenet", "resolution"), "unet": unet}


def _builtin(name: str, axis: str) -> Study:
    model = find_model(name)
    return Study(model, model.inputs, model.loss, model.optimizer, "fp32", axis=axis)


def _isensee() -> Any:
    def make() -> Any:
        from isensee import IsenseeUNet

        return IsenseeUNet()

    return replace(find_model(make), name="unet", edge_step=16)


def compare_limits(rows: dict[str, MachineEstimate]) -> Iterator[Line]:
    """The largest sizes; swap-all and ferry reach the same ones, because both can go down to the floor."""
    plain, _ = _sizes(rows["resnet50"])
    yield _line("ResNet-50, largest batch, plain", 176, plain, TFLMS_PAPER, "{:.0f}")
    for name, published, text, source in (
        ("resnet50", 4.9, "4.7x to 5x", TFLMS_PAPER),
        ("resnet152", 4.6, "4.6x", TFLMS_PAPER),
        ("googlenet", 2.5, "2.5x", TFLMS_PAPER),
    ):
        plain, largest = _sizes(rows[name])
        what = "edge of the image" if name == "googlenet" else "batch"
        line = _line(f"{name}, largest {what}, swapping over plain", published, largest / plain, source, "{:.2f}x")
        yield replace(line, published=text)
    plain, largest = _sizes(rows["unet"])
    yield _line("3D U-Net, largest edge, plain", 144, plain, TFLMS_CASE, "{:.0f}")
    line = _line("3D U-Net, voxels, swapping over plain", (192 / 144) ** 3, (largest / plain) ** 3, TFLMS_CASE, "{:.2f}x")
    yield replace(line, published="2.4x (192^3)")
    yield _line("3D U-Net, voxels, swapping over plain, next version", 6.9, (largest / plain) ** 3, TFLMS_2, "{:.2f}x")


def _sizes(row: MachineEstimate) -> tuple[int, int]:
    assert row.largest_plain is not None
    assert row.largest is not None
    return row.largest_plain.size, row.largest.size


# ---- cost


def fight(name: str, study: Study, row: MachineEstimate) -> Iterator[Duel]:
    """Both policies at sizes beyond the plain limit, over three links."""
    plain, _ = _sizes(row)
    for ratio in RATIOS:
        inputs, real_ratio = _grow(study, plain, ratio)
        grown = replace(study, inputs=inputs, axis=None)
        for machine in (NVLINK, PCIE, SHARED):
            swap_all, ferry = (
                grown.estimate_step(inputs[0].shape[0], find_machine(machine), policy) for policy in ("swap-all", "ferry")
            )
            yield Duel(f"{name} {inputs[0]} ({real_ratio:.2f}x)", machine, ratio, swap_all.overhead, ferry.overhead)


def _grow(study: Study, plain: int, ratio: float) -> tuple[tuple[Input, ...], float]:
    """Inputs about `ratio` times the largest plain ones in samples, pixels or voxels, and the ratio they really have."""
    first = study.inputs[0]
    if study.axis == "batch":
        batch = round(ratio * plain)
        return (first.with_batch(batch),), batch / plain
    step, num_edges = study.model.edge_step, len(first.edges)
    sizes = [(a, b) for a in range(step, 4 * plain, step) for b in (a, a + step)]
    a, b = min(sizes, key=lambda pair: abs(pair[0] ** (num_edges - 1) * pair[1] / plain**num_edges / ratio - 1))
    shape = (*first.shape[:2], *[a] * (num_edges - 1), b)
    return (Input(shape),), a ** (num_edges - 1) * b / plain**num_edges


def compare_costs(duels: list[Duel]) -> Iterator[Line]:
    """What swapping was measured to cost the 3D U-Net, beside what swap-all is predicted to."""
    found = {(duel.machine, duel.ratio): duel.swap_all_overhead for duel in duels if duel.what.startswith("unet")}
    for ratio, published, text in ((1.4, 0.03, "+3 %"), (2.4, 0.275, "+27 to 28 %")):
        predicted = found[NVLINK, ratio]
        line = _line(f"3D U-Net at {ratio}x, NVLink 2, step", 1 + published, 1 + predicted, TFLMS_CASE)
        yield replace(line, published=text, predicted=f"+{100 * predicted:.0f} %")
    slower = {machine: (1 + found[machine, 2.4]) / (1 + found[NVLINK, 2.4]) for machine in (PCIE, SHARED)}
    yield Line("3D U-Net at 2.4x, PCIe 3 over NVLink 2", "no figure", f"{slower[PCIE]:.1f}x slower", None, TFLMS_CASE)
    yield _line("3D U-Net at 2.4x, PCIe 3 shared by two over NVLink 2", 4.2, slower[SHARED], MATZEK, "{:.1f}x slower")


# ---- tables


def _line(what: str, published: float, predicted: float, source: str, form: str = "{:,.4g}") -> Line:
    return Line(what, form.format(published), form.format(predicted), predicted / published - 1, source)


def make_table(title: str, lines: list[Line]) -> FigureTable:
    """One row a published figure."""
    errors = ["" if line.error is None else f"{100 * line.error:+.0f} %" for line in lines]
    cells = [(line.what, line.published, line.predicted, error, line.source) for line, error in zip(lines, errors, strict=True)]
    return FigureTable(title, ("figure", "published", "predicted", "error", "source"), cells)


def make_duels_table(duels: list[Duel]) -> FigureTable:
    """One row a step on a machine."""
    cells = []
    for duel in duels:
        overheads = [f"{100 * share:+.0f} %" for share in (duel.swap_all_overhead, duel.ferry_overhead)]
        cells.append((duel.what, duel.machine, *overheads, f"{duel.speedup:.2f}x", "" if duel.holds else "NOT AS CLAIMED"))
    columns = ("step", "machine", "swap-all", "ferry", "ferry faster by", "")
    return FigureTable("ferry and swap-all, overhead", columns, cells)


if __name__ == "__main__":
    sys.exit(main())
