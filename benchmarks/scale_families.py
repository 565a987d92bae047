"""Published steps at several counts of GPUs, read from benchmarks/data, as families that one fit of the links is made for.

A family is one model, framework, system, length and precision. What a row leaves out is filled in from what its source says of
the whole family: InfiniBand ports, GPUs of a node, how the model was split. Rows of models that are not known here are named, not
dropped in silence.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tensorferry.estimation.cluster_step import ClusterSettings, cost_step
from tensorferry.estimation.collectives import make_links
from tensorferry.estimation.models import EstimatedModel, Input, find_model, make_gpt
from tensorferry.estimation.profile import Piece, StepProfile, TrainedModel, make_profile
from tensorferry.estimation.split import ClusterSplit
from tensorferry.machine import find_machine, find_network
from tensorferry.machine.roofline import EFFICIENCY

GPT_SIZES = {"22B": (48, 6144, 64), "175B": (96, 12288, 96), "530B": (105, 20480, 128), "1T": (128, 25600, 160)}
MEGATRON_VOCABULARY = 51200
LLAMA_405B = (126, 16384, 405e9, 2 * 128256 * 16384)  # layers, width, weights, of which before and after all layers
MACHINES = {"DGX A100 40GB": "a100-40gb", "DGX A100": "a100-80gb", "A100 80GB": "a100-80gb", "DGX-2H": "v100-32gb-nvlink2"}
Row = dict[str, str]


@dataclass(frozen=True)
class LinkFit:
    """What a family's two smallest counts tell."""

    slowness: float = 1.0  # of compute, against the roofline
    bandwidth: float = 1.0  # of both tiers, against the table
    latency: float = 1.0


@dataclass(frozen=True)
class PublishedStep:
    """One published figure and all that is needed to predict it."""

    num_gpus: int
    published: float
    unit: str
    profile: StepProfile
    settings: ClusterSettings
    work: float  # in the unit's seconds: what a step of one second would give
    label: str = ""

    def predict(self, fit: LinkFit) -> float:
        """The figure, in its own unit."""
        links = self.settings.links
        fitted = replace(
            links,
            inside_nbytes_per_second=links.inside_nbytes_per_second * fit.bandwidth,
            node_nbytes_per_second=links.node_nbytes_per_second * fit.bandwidth,
            inside_latency_seconds=links.inside_latency_seconds * fit.latency,
            between_latency_seconds=links.between_latency_seconds * fit.latency,
        )
        seconds = cost_step(self.profile.slowed(fit.slowness), replace(self.settings, links=fitted)).seconds
        return seconds if self.unit == "s/iter" else self.work / seconds


@dataclass(frozen=True)
class Family:
    """Rows that one fit is made for, by count."""

    name: str
    steps: tuple[PublishedStep, ...]


@dataclass(frozen=True)
class SkippedFamily:
    """Rows that are not predicted, and why."""

    name: str
    reason: str


def read_families(folder: Path) -> tuple[list[Family], list[SkippedFamily]]:
    """All families of the two files; those with fewer than three counts have nothing to predict."""
    grouped = [*_read_scaling(folder / "scaling.csv"), *_read_mlperf(folder / "mlperf.csv")]
    families, skipped = [], []
    for name, rows, make in grouped:
        counts = sorted({int(row["gpus"]) for row in rows})
        if make is None:
            skipped.append(SkippedFamily(name, "the model, or how it was split, is not known here"))
        elif len(counts) < 3:
            skipped.append(SkippedFamily(name, "fewer than three counts of GPUs"))
        else:
            families.append(Family(name, tuple(sorted(map(make, rows), key=lambda step: step.num_gpus))))
    return families, skipped


Grouped = tuple[str, list[Row], Callable[[Row], PublishedStep] | None]


def _read_scaling(path: Path) -> Iterator[Grouped]:
    groups: dict[str, list[Row]] = defaultdict(list)
    with open(path) as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        groups[_name_family(row)].append(row)
    for name, found in groups.items():
        members = found
        if members[0]["model"].startswith("bert-large"):
            # rows without a batch are other runs of one GPU or one node
            members = [
                row | {"accumulation": row["accumulation"] or _derive_accumulation(row, rows)}
                for row in members
                if row["batch_per_gpu"]
            ]
            if members:
                yield name, members, _make_bert
        elif members[0]["model"].startswith("gpt ") and "mp" in members[0]["model"]:
            yield name, members, _make_megatron
        elif members[0]["unit"] == "s/iter":
            yield name, members, _make_seconds
        else:
            yield name, members, None


def _name_family(row: Row) -> str:
    model, precision = row["model"], row["precision"]
    if model.startswith("gpt ") and " mp" in model:
        return "GPT, Megatron-LM, A100, weak scaling"
    if row["unit"] == "s/iter":
        return f"GPT, Megatron-LM, A100, {'selective' if 'selective' in precision else 'full'} recompute"
    if model.startswith("llama"):
        return f"{model.split()[0]}, {row['framework']}, {row['system']}, {row['seq']}, {precision.split(' mem')[0]}"
    return f"{model.removesuffix(' pretrain')}, {row['framework']}, {row['system']}, {row['seq']}, {precision}"


def _derive_accumulation(row: Row, rows: Iterable[Row]) -> str:
    """A family trains with one global batch whatever the precision."""
    keys = ("model", "framework", "system", "gpus", "seq")
    for other in rows:
        if other["accumulation"] and all(other[key] == row[key] for key in keys):
            return str(max(1, round(int(other["batch_per_gpu"]) * int(other["accumulation"]) / int(row["batch_per_gpu"]))))
    return "1"


def _make_bert(row: Row) -> PublishedStep:
    length, batch, num_gpus = int(row["seq"]), int(row["batch_per_gpu"]), int(row["gpus"])
    machine = next(name for key, name in MACHINES.items() if row["system"].startswith(key))
    is_dgx2 = machine.startswith("v100")
    per_node = 16 if is_dgx2 else 8
    inside, between = ("nvswitch", "8xib-edr") if is_dgx2 else ("nvlink3", "ib-hdr")
    num_micro_batches = int(row["accumulation"])
    settings = ClusterSettings(
        ClusterSplit(data=num_gpus),
        make_links(find_network(inside), find_network(between), min(per_node, num_gpus)),
        num_micro_batches,
        reduced_share=0.5 if row["precision"] == "fp16" else 1.0,
        overlap=False,  # NVIDIA's scripts reduce after the last micro-batch of a step
    )
    work = float(batch * num_micro_batches * num_gpus)
    return PublishedStep(
        num_gpus, float(row["value"]), row["unit"], _bert(length, machine, row["precision"], batch), settings, work
    )


@cache
def _bert(length: int, machine: str, precision: str, batch: int) -> StepProfile:
    model = find_model("bert-large")
    return _profile(model, (Input((batch, length), "int64"),), machine, precision, batch)


def _profile(
    model: EstimatedModel, inputs: tuple[Input, ...], machine: str, precision: str, batch: int, num_shards: int = 1
) -> StepProfile:
    return make_profile(TrainedModel(model, inputs, model.loss, "adam", precision), find_machine(machine), batch, num_shards)


def _make_megatron(row: Row) -> PublishedStep:
    """A row of Narayanan et al. 2021, table 1: TFLOP/s a GPU by their formula, activations recomputed."""
    match = re.search(r"h(\d+) L(\d+) mp(\d+)", row["model"])
    assert match is not None, row["model"]
    width, num_layers, num_model = map(int, match.groups())
    num_gpus, batch = int(row["gpus"]), int(row["batch_per_gpu"].removeprefix("global "))
    tensor, pipeline = min(8, num_model), max(1, num_model // 8)
    interleave = 2 if pipeline > 1 and num_layers % (2 * pipeline) == 0 else 1
    split = ClusterSplit(num_gpus // num_model, 1, tensor, pipeline)
    per_replica = batch // split.data
    micro = max(
        size
        for size in (1, 2, 4, 8, 16)
        if per_replica % size == 0 and per_replica // size >= (4 * pipeline if pipeline > 1 else 1)
    )
    step = _gpt_step(num_layers, width, max(tensor, width // 128), split, micro, per_replica // micro, interleave, recompute=True)
    length = int(row["seq"])
    flops = (
        96 * batch * length * num_layers * width**2 * (1 + length / (6 * width) + MEGATRON_VOCABULARY / (16 * num_layers * width))
    )
    return replace(
        step, published=float(row["value"]), unit=row["unit"], work=flops / num_gpus / 1e12, label=row["model"].split()[1]
    )


def _make_seconds(row: Row) -> PublishedStep:
    """A row of Korthikanti et al. 2022, table 5: seconds of an iteration with micro-batches of one (22B: four)."""
    words = row["model"].split()
    num_layers, width, num_heads = GPT_SIZES[words[1]]
    pipeline = next((int(word[2:]) for word in words if word.startswith("PP")), 1)
    interleave = next((int(word[1:]) for word in words if re.fullmatch(r"v\d+", word)), 1)
    batch = int(row["batch_per_gpu"].removeprefix("global "))
    micro = 4 if pipeline == 1 else 1
    split = ClusterSplit(1, 1, 8, pipeline)
    step = _gpt_step(num_layers, width, num_heads, split, micro, batch // micro, interleave, "full" in row["precision"])
    return replace(step, published=float(row["value"]), unit=row["unit"], label=words[1])


def _gpt_step(
    num_layers: int, width: int, num_heads: int, split: ClusterSplit, micro: int, num: int, interleave: int, recompute: bool
) -> PublishedStep:
    links = make_links(find_network("nvlink3"), find_network("ib-hdr"), 8)
    # Megatron-LM reduced gradients after backward until 2023
    settings = ClusterSettings(split, links, num, interleave, 0.5, 0.5, recompute, overlap=False)
    profile = gpt_profile(num_layers, width, num_heads, "a100-80gb", micro, split.tensor)
    return PublishedStep(split.num_gpus, 0.0, "", profile, settings, 0.0)


@cache
def gpt_profile(
    num_layers: int, width: int, num_heads: int, machine: str, micro: int, num_shards: int, length: int = 2048
) -> StepProfile:
    """A GPT of Megatron-LM in fp16."""
    model = make_gpt(num_layers, width, num_heads, length, MEGATRON_VOCABULARY)
    return _profile(model, (Input((micro, length), "int64"),), machine, "fp16", micro, num_shards)


# ---- MLPerf


def _read_mlperf(path: Path) -> Iterator[Grouped]:
    groups: dict[str, list[Row]] = defaultdict(list)
    with open(path) as file:
        for row in csv.DictReader(file):
            if row["gpus"] and row["throughput"]:
                kind = next((kind for kind in ("GB200", "B200", "H200", "H100") if kind in row["platform"]), "")
                cluster = re.split(r"_", row["system"])[0]
                groups[f"{row['benchmark']}, MLPerf {row['round']}, {cluster}, {kind}"].append(row | {"kind": kind})
    makers = {"bert": make_mlperf_bert, "llama31_405b": _make_llama, "gpt3": _make_gpt3}
    for name, rows in groups.items():
        yield name, rows, makers.get(rows[0]["benchmark"]) if rows[0]["kind"] in ("H100", "GB200") else None


def _links_of(kind: str, num_gpus: int) -> tuple[str, ClusterSettings]:
    """Machine and settings; GB200 systems have racks of 72 GPUs on one NVLink, of which benchmarks use 64 or 72."""
    is_rack = kind == "GB200"
    per_node = min(num_gpus, (72 if num_gpus % 72 == 0 else 64) if is_rack else 8)
    links = make_links(find_network("nvlink5" if is_rack else "nvlink4"), find_network("ib-ndr"), per_node)
    return "gb200-186gb" if is_rack else "h100-80gb", ClusterSettings(ClusterSplit(data=num_gpus), links, reduced_share=0.5)


def make_mlperf_bert(row: Row) -> PublishedStep:
    """BERT large, texts of 512; submissions pack them without padding, which is not modelled."""
    num_gpus, batch = int(row["gpus"]), int(row["gbs"])
    machine, settings = _links_of(row["kind"], num_gpus)
    return PublishedStep(
        num_gpus, float(row["throughput"]), "seq/s", _bert(512, machine, "fp16", batch // num_gpus), settings, float(batch)
    )


def _make_llama(row: Row) -> PublishedStep:
    """405B: TP 8 (GB200: 4), PP 8 with interleave 8, CP 2, micro-batches of one, as the submissions' configurations say."""
    num_gpus, batch, length = int(row["gpus"]), int(row["gbs"]), int(row["seq"])
    machine, settings = _links_of(row["kind"], num_gpus)
    tensor, pipeline, context = (4 if row["kind"] == "GB200" else 8), 8, 2
    num_layers, width, num_weights, at_ends = LLAMA_405B
    replicas = num_gpus // (tensor * pipeline * context)
    num_tokens = length // context
    rate = find_machine(machine).flops_per_second["bf16"] * EFFICIENCY["gpu"].matmul["bf16"]
    layer = _piece_of((num_weights - at_ends) / num_layers / tensor, num_tokens / rate)
    ends = _piece_of(at_ends / tensor, num_tokens / rate / 2)
    profile = StepProfile(
        (Piece(weight_nbytes=ends.weight_nbytes), *[layer] * (num_layers + 2), replace(ends, weight_nbytes=0.0)),
        1,
        num_layers + 2,
        2 * num_tokens * width,
    )
    split = ClusterSplit(replicas * context, 1, tensor, pipeline)
    settings = replace(settings, split=split, num_micro_batches=batch // replicas, interleave=8)
    return PublishedStep(num_gpus, float(row["throughput"]), "samples/s", profile, settings, float(batch))


def _piece_of(num_weights: float, seconds_per_flop: float) -> Piece:
    """By arithmetic alone: two flops a weight and token in forward, four in backward."""
    forward = 2 * num_weights * seconds_per_flop
    return Piece(forward, 2 * forward, 0.0, 4 * num_weights, 8 * num_weights)


def _make_gpt3(row: Row) -> PublishedStep:
    """175B: TP 4, PP 8 with interleave 6, micro-batches of two."""
    num_gpus, batch, length = int(row["gpus"]), int(row["gbs"]), int(row["seq"])
    machine, settings = _links_of(row["kind"], num_gpus)
    split = ClusterSplit(num_gpus // 32, 1, 4, 8)
    num = int(row["accum"])
    profile = gpt_profile(96, 12288, 96, machine, max(1, batch // split.data // num), 4, length)
    settings = replace(settings, split=split, num_micro_batches=num, interleave=6)
    return PublishedStep(num_gpus, float(row["throughput"]), "tokens/s", profile, settings, float(batch * length))
