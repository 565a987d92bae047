"""Predictions at scale beside published figures, row by row: `python benchmarks/published.py --scale`.

A family's two smallest counts of GPUs are fitted, the rest is predicted; nothing is tuned for a row. What is fitted: how long the
family's software computes against the roofline, since frameworks differ by half; and bandwidth and latency of the links, which
stay near the table's as long as two counts, which scatter by about a percent, do not say otherwise. What the table's links and
the roofline alone would give stands beside it.
"""

import csv
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path

from results import FigureTable
from scale_families import Family, LinkFit, PublishedStep, SkippedFamily, gpt_profile, make_mlperf_bert, read_families
from tensorferry.estimation.cluster import estimate_cluster
from tensorferry.estimation.cluster_step import ClusterSettings, cost_step, hold
from tensorferry.estimation.collectives import make_links
from tensorferry.estimation.split import ClusterSplit
from tensorferry.machine import find_network
from tensorferry.units import format_bytes

DATA = Path(__file__).parent / "data"
SCATTER = 0.005  # of a published throughput: what one system's two tables of BERT on eight GPUs differ by, over sqrt(2)
DOUBT = 1.0  # of the table's links, as the standard deviation of a logarithm
BANDWIDTHS = [0.02 * 1.14**i for i in range(30)] + [1.1]  # nothing is faster than its data sheet
LATENCIES = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]


@dataclass(frozen=True)
class ScaleLine:
    """A published figure beside what was predicted."""

    family: str
    num_gpus: int
    label: str
    published: float
    predicted: float
    unfitted: float  # by the table's links and the roofline
    is_fitted: bool
    unit: str

    @property
    def error(self) -> float:
        """Predicted over published, less one."""
        return self.predicted / self.published - 1


def fit_links(steps: tuple[PublishedStep, ...]) -> LinkFit:
    """What explains the steps best without straying from the table further than they ask for."""
    best, least = LinkFit(), float("inf")
    for bandwidth in [1.0, *BANDWIDTHS]:
        for latency in LATENCIES:
            fit = _fit_slowness(steps, LinkFit(1.0, bandwidth, latency))
            errors = [log(step.predict(fit) / step.published) / SCATTER for step in steps]
            cost = sum(error**2 for error in errors) + (log(bandwidth) / DOUBT) ** 2 + (log(latency) / DOUBT) ** 2
            if cost < least:
                best, least = fit, cost
    return best


def _fit_slowness(steps: tuple[PublishedStep, ...], fit: LinkFit) -> LinkFit:
    for _ in range(8):
        # a throughput that is too high asks for slower compute, seconds that are too high for faster
        signs = [-1 if step.unit == "s/iter" else 1 for step in steps]
        mean = statistics.fmean(sign * log(step.predict(fit) / step.published) for sign, step in zip(signs, steps, strict=True))
        fit = LinkFit(fit.slowness * exp(mean), fit.bandwidth, fit.latency)
        if abs(mean) < 1e-4:
            break
    return fit


def predict_family(family: Family) -> tuple[LinkFit, list[ScaleLine]]:
    """The fit on the two smallest counts, and every row."""
    counts = sorted({step.num_gpus for step in family.steps})[:2]
    fit = fit_links(tuple(step for step in family.steps if step.num_gpus in counts))
    lines = [
        ScaleLine(
            family.name,
            step.num_gpus,
            step.label,
            step.published,
            step.predict(fit),
            step.predict(LinkFit()),
            step.num_gpus in counts,
            step.unit,
        )
        for step in family.steps
    ]
    return fit, lines


# ---- Megatron-LM on V100, and cases without counts to fit


def megatron_lines() -> Iterator[tuple[str, str, str, str]]:
    """What Megatron-LM published for V100, beside what is predicted with nothing fitted."""
    sizes = {1: (40, 1536, 16), 2: (44, 1920, 20), 4: (64, 2304, 24), 8: (76, 3072, 32)}  # 1.2, 2.0, 4.2 and 8.7 billion weights
    rates = {}
    for tensor, (num_layers, width, num_heads) in sizes.items():
        rates[tensor] = _megatron_rate(num_layers, width, num_heads, ClusterSplit(tensor=tensor))
    for tensor, published in ((2, 90.7), (4, 86.5), (8, 79.6)):
        predicted = 100 * rates[tensor] / rates[1]
        yield f"efficiency, tensor {tensor}", f"{published:.1f} %", f"{predicted:.1f} %", f"{predicted - published:+.1f} points"
    whole = 100 * _megatron_rate(72, 3072, 32, ClusterSplit(64, 1, 8)) / rates[1]
    yield "efficiency, 8.3B, tensor 8 x data 64, 512 GPUs", "76 %", f"{whole:.1f} %", f"{whole - 76:+.1f} points"
    profile = gpt_profile(72, 3072, 32, "v100-32gb-nvlink2", 8, 8, 1024)
    memory = hold(profile, _megatron_settings(ClusterSplit(64, 1, 8)), is_mixed=True)
    yield "8.3B, memory a GPU", "below 32 GB", format_bytes(memory.total_nbytes), ""


def _megatron_settings(split: ClusterSplit) -> ClusterSettings:
    links = make_links(find_network("nvswitch"), find_network("8xib-edr"), 16)
    return ClusterSettings(split, links, reduced_share=0.5, gathered_share=0.5, recompute=True)


def _megatron_rate(num_layers: int, width: int, num_heads: int, split: ClusterSplit) -> float:
    """Flops a second and GPU, in any unit; batch 8 of length 1,024."""
    profile = gpt_profile(num_layers, width, num_heads, "v100-32gb-nvlink2", 8, split.tensor, 1024)
    seconds = cost_step(profile, _megatron_settings(split)).seconds
    return num_layers * width**2 * (1 + 1024 / (6 * width) + 51200 / (16 * num_layers * width)) / split.tensor / seconds


def hard_lines(fits: dict[str, LinkFit]) -> Iterator[tuple[str, str, str, str]]:
    """Cases that no family leads up to."""
    vgg = estimate_cluster(
        "vgg16", "p100-16gb", gpus=512, per_node=4, network="roce-25", inside="pcie3", batch=64 * 512, micro_batch=64
    )
    one = estimate_cluster("vgg16", "p100-16gb", gpus=1, batch=64, micro_batch=64)
    predicted = 100 * vgg.point.samples_per_second / 512 / one.point.samples_per_second
    yield "VGG-16, 512 P100, RoCE 25, efficiency against one GPU", "68 %", f"{predicted:.1f} %", f"{predicted - 68:+.1f} points"
    fit = next((fit for name, fit in fits.items() if name.startswith("bert, MLPerf") and "H100" in name), LinkFit())
    rate = _bert_at(3472, 4, fit)
    yield "BERT large, 3,472 H100, batch 4 a GPU, sequences a second", "not in the data", f"{rate:,.0f}", ""


def _bert_at(num_gpus: int, batch: int, fit: LinkFit) -> float:
    row = {"gpus": str(num_gpus), "gbs": str(num_gpus * batch), "throughput": "1", "kind": "H100"}
    return make_mlperf_bert(row).predict(fit)


# ---- tables


def predict_scale(folder: Path = DATA) -> tuple[list[FigureTable], dict[str, object], list[str]]:
    """Tables, raw figures, and sentences that stand below."""
    families, skipped = read_families(folder)
    fits: dict[str, LinkFit] = {}
    lines: list[ScaleLine] = []
    for family in families:
        fits[family.name], found = predict_family(family)
        lines += found
    held_out = [abs(line.error) for line in lines if not line.is_fitted]
    megatron, hard = list(megatron_lines()), list(hard_lines(fits | _fit_pairs(folder)))
    columns = ("figure", "published", "predicted", "error")
    tables = [
        _make_table(lines),
        FigureTable("Megatron-LM on V100, nothing fitted", columns, megatron),
        FigureTable("Hard cases", columns, hard),
        FigureTable(
            "Fitted, against the table",
            ("family", "compute", "bandwidth", "latency"),
            [_fit_row(name, fit) for name, fit in fits.items()],
        ),
    ]
    figures: dict[str, object] = {
        "lines": [asdict(line) | {"error": line.error} for line in lines],
        "fits": {name: asdict(fit) for name, fit in fits.items()},
        "median_error": statistics.median(held_out),
        "worst_error": max(held_out),
        "skipped": [asdict(each) for each in skipped],
    }
    return tables, figures, _make_notes(lines, held_out, skipped)


def _fit_pairs(folder: Path) -> dict[str, LinkFit]:
    """MLPerf's BERT on H100 has two counts here: enough to fit, not to check."""
    with open(folder / "mlperf.csv") as file:
        rows = [
            row | {"kind": "H100"} for row in csv.DictReader(file) if row["benchmark"] == "bert" and "H100" in row["platform"]
        ]
    steps = sorted(map(make_mlperf_bert, rows), key=lambda step: step.num_gpus)[:2]
    return {"bert, MLPerf, H100": fit_links(tuple(steps))} if len(steps) == 2 else {}


def _make_table(lines: list[ScaleLine]) -> FigureTable:
    cells = []
    for line in lines:
        name = line.family + (f", {line.label}" if line.label else "")
        error = f"{100 * line.error:+.1f} %"
        plain = f"{100 * (line.unfitted / line.published - 1):+.0f} %"
        figures = [f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}" for value in (line.published, line.predicted)]
        cells.append((name, f"{line.num_gpus:,}", *figures, line.unit, error, "fitted" if line.is_fitted else "predicted", plain))
    return FigureTable(
        "Throughput at scale", ("family", "GPUs", "published", "predicted", "unit", "error", "how", "unfitted"), cells
    )


def _fit_row(name: str, fit: LinkFit) -> tuple[str, ...]:
    return name, f"{fit.slowness:.2f}x", f"{fit.bandwidth:.2f}x", f"{fit.latency:.2f}x"


def _make_notes(lines: list[ScaleLine], held_out: list[float], skipped: list[SkippedFamily]) -> list[str]:
    worst = max((line for line in lines if not line.is_fitted), key=lambda line: abs(line.error))
    above = sum(error > 0.10 for error in held_out)
    median = 100 * statistics.median(held_out)
    return [
        f"{len(held_out)} predicted rows: median error {median:.1f} %, worst {100 * abs(worst.error):.1f} % "
        f"({worst.family}, {worst.num_gpus:,} GPUs); {above} of them are off by more than 10 %.",
        "Not predicted: "
        + "; ".join(f"{count} families ({reason})" for reason, count in Counter(each.reason for each in skipped).items())
        + ".",
        "Rows marked as predicted took no part in the fit, but they were in view while the model was written: three settings of "
        "how far the fit may stray were tried, NVLink's share in the table was raised from 0.65 to 0.8, and Megatron's gradients "
        "on A100 were first taken to overlap. Errors on rows that nobody here has seen may be larger.",
    ]
