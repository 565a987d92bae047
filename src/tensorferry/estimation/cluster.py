"""`estimate_cluster`: what a training costs on many GPUs, how well it scales, what each GPU holds, and how to split it.

model ──▶ one micro-batch on one GPU, not run ──▶ pieces ──▶ + collectives on two tiers of links ──▶ a step, and a curve
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel, BadOption
from tensorferry.estimation.cluster_page import cluster_page
from tensorferry.estimation.cluster_results import ClusterData, ClusterPoint, cluster_json
from tensorferry.estimation.cluster_step import ClusterSettings, MemoryByKind, cost_step, hold
from tensorferry.estimation.cluster_table import render_cluster
from tensorferry.estimation.collectives import ClusterLinks, make_links
from tensorferry.estimation.estimate import LOSSES, OPTIMIZERS, PRECISIONS, choose, choose_inputs
from tensorferry.estimation.machines import resolve_machine
from tensorferry.estimation.models import Input, find_model
from tensorferry.estimation.profile import StepProfile, TrainedModel, make_profile
from tensorferry.estimation.split import AUTO, ClusterSplit, check_split, parse_split
from tensorferry.machine import Machine, find_network
from tensorferry.machine.networks import BETWEEN, INSIDE, usual_networks
from tensorferry.machine.roofline import rate_of
from tensorferry.pages import check_ending, write_page
from tensorferry.units import format_bytes

_MOST_MICRO_BATCH = 256
_NEARLY = 0.97  # of the fastest split's throughput: a simpler one that reaches it is preferred
_MOST_SPLITS = 400  # of which `auto` looks at every one


class ClusterEstimate(ClusterData):
    """What is predicted for a model on a cluster. Print it, save the page, or take its figures."""

    def __str__(self) -> str:
        return render_cluster(self)

    def to_json(self) -> dict[str, Any]:
        """The estimate as plain JSON values; bytes and seconds are numbers."""
        return cluster_json(self)

    def save(self, path: str | Path) -> Path:
        """Write the page (.html) and return where it is."""
        return write_page(check_ending(path, ".html"), cluster_page(self))


def estimate_cluster(
    model: str | Callable[[], Any],
    on: str | Machine,
    *,
    gpus: int,
    per_node: int = 8,
    parallel: str = "data",
    inside: str | None = None,
    network: str | None = None,
    batch: int | None = None,
    micro_batch: int | None = None,
    interleave: int = 1,
    recompute: bool = False,
    inputs: str | Sequence[str] = (),
    loss: str | None = None,
    optimizer: str | None = None,
    precision: str = "fp32",
    reduce: str = "fp32",
    samples: int | None = None,
    tokens: int | None = None,
    price: float | None = None,
    changes: dict[str, str] | None = None,
) -> ClusterEstimate:
    """What a step of `model` costs on `gpus` GPUs of a kind, without running anything.

    parallel: "data", "fsdp", "tensor=8,data=64", "pipeline=4" and so on, or "auto". inside, network: names of
    `ferry machines --networks`; None is what the GPU's vendor uses. batch: of all GPUs. micro_batch: of one GPU at a time;
    None is the largest that fits. reduce: the precision of gradients on the wire. samples, tokens: to train on in all. price: of
    one GPU for an hour.

        print(ferry.estimate_cluster("bert-large", "a100-80gb", gpus=256, batch=65536, precision="fp16"))
    """
    spec, machine = find_model(model), resolve_machine(on, changes or {})
    if machine.kind != "gpu":
        raise BadOption(f"clusters are estimated for GPUs, and {machine.name} is a {machine.kind}; `ferry machines` lists others")
    given = choose_inputs(spec, [inputs] if isinstance(inputs, str) else list(inputs), None)
    trained = TrainedModel(
        spec,
        given,
        choose("loss", loss or spec.loss, LOSSES),
        choose("optimizer", optimizer or spec.optimizer, OPTIMIZERS),
        choose("precision", precision, PRECISIONS),
    )
    if tokens is not None:
        samples = _count_samples(tokens, given[0])
    rate_of(machine, precision)
    choose("precision of gradients", reduce, ("fp32", "fp16", "bf16"))
    _check_counts(gpus, per_node, micro_batch, interleave)
    usual = usual_networks(machine.name)
    networks = (
        usual[0] if inside is None else find_network(inside, INSIDE),
        usual[1] if network is None else find_network(network, BETWEEN),
    )
    study = ClusterStudy(
        trained,
        machine,
        make_links(*networks, min(per_node, gpus)),
        batch,
        micro_batch,
        interleave,
        recompute,
        0.5 if reduce != "fp32" else 1.0,
    )
    if parallel == AUTO:
        split, reason = study.choose_split(gpus)
    else:
        split, reason = parse_split(parallel, gpus), ""
        check_split(split, spec.transformer, spec.name, interleave, study.links.gpus_per_node)
    point = study.estimate_split(split)
    return ClusterEstimate(
        model=spec.name,
        inputs=given,
        optimizer=trained.optimizer,
        precision=precision,
        machine=machine,
        networks=networks,
        gpus_per_node=study.links.gpus_per_node,
        point=point,
        curve=tuple(study.scaling_curve(point)),
        reason=reason,
        interleave=interleave,
        recompute=recompute,
        num_samples=samples,
        price_per_gpu_hour=price,
    )


def _count_samples(num_tokens: int, text: Input) -> int:
    if text.dtype != "int64" or len(text.shape) != 2:
        raise BadOption(f"--tokens is for models of text, and this one is fed {text}; say --samples")
    return max(1, num_tokens // text.shape[1])


def _check_counts(gpus: int, per_node: int, micro_batch: int | None, interleave: int) -> None:
    for name, count in (
        ("--gpus", gpus),
        ("--per-node", per_node),
        ("--micro-batch", micro_batch or 1),
        ("--interleave", interleave),
    ):
        if count < 1:
            raise BadOption(f"expected {name} to be above zero, received {count}")
    if gpus > per_node and gpus % per_node:
        raise BadOption(f"{gpus} GPUs are no whole number of nodes with {per_node}; change --gpus or --per-node")


@dataclass(frozen=True)
class ClusterStudy:
    """A training on one kind of cluster; it remembers the profiles it made."""

    trained: TrainedModel
    machine: Machine
    links: ClusterLinks
    batch: int | None  # of all GPUs; None: the model's own on each replica
    micro_batch: int | None
    interleave: int = 1
    recompute: bool = False
    reduced_share: float = 1.0
    slowness: float = 1.0  # of compute, against the roofline: other than one only where a published step says so
    _profiles: dict[tuple[int, int], StepProfile] = field(default_factory=dict, repr=False, compare=False)

    def profile(self, micro_batch: int, num_shards: int) -> StepProfile:
        """Of one micro-batch on one tensor shard."""
        key = (micro_batch, num_shards)
        if key not in self._profiles:
            self._profiles[key] = make_profile(self.trained, self.machine, micro_batch, num_shards)
        return self._profiles[key].slowed(self.slowness)

    def estimate_split(self, split: ClusterSplit, batch: int | None = None, micro_batch: int | None = None) -> ClusterPoint:
        """A split of the batch, or of another one, over its GPUs."""
        batch = batch or self._batch_of(split)
        per_replica, left = divmod(batch, split.num_replicas)
        if left or not per_replica:
            raise BadOption(
                f"a batch of {batch:,} cannot be cut into {split.num_replicas:,} equal parts; change --batch or --parallel"
            )
        micro = micro_batch or self.micro_batch or self._largest_micro_batch(split, per_replica)
        if per_replica % micro:
            raise BadOption(
                f"micro-batches of {micro:,} do not divide the {per_replica:,} samples of each replica; change --micro-batch"
            )
        profile = self.profile(micro, split.tensor)
        settings = self.settings(split, per_replica // micro)
        return ClusterPoint(
            split,
            batch,
            micro,
            settings.num_micro_batches,
            cost_step(profile, settings),
            self._hold(profile, settings),
            self.machine.usable_nbytes,
        )

    def settings(self, split: ClusterSplit, num_micro_batches: int) -> ClusterSettings:
        """How a step of that split is carried out."""
        return ClusterSettings(
            split,
            self.links,
            num_micro_batches,
            self.interleave,
            self.reduced_share,
            0.5 if self._is_mixed else 1.0,
            self.recompute,
        )

    def _hold(self, profile: StepProfile, settings: ClusterSettings) -> MemoryByKind:
        return hold(profile, settings, self._is_mixed)

    @property
    def _is_mixed(self) -> bool:
        return self.trained.precision in ("fp16", "bf16")

    def _batch_of(self, split: ClusterSplit) -> int:
        return self.batch or self.trained.inputs[0].shape[0] * split.num_replicas

    def _largest_micro_batch(self, split: ClusterSplit, per_replica: int) -> int:
        """The largest that fits, by halving; with a pipeline no larger than leaves four micro-batches a stage."""
        sizes = [size for size in range(1, min(per_replica, _MOST_MICRO_BATCH) + 1) if per_replica % size == 0]
        if split.pipeline > 1:
            sizes = [size for size in sizes if per_replica // size >= 4 * split.pipeline] or [1]
        fewer, more = 0, len(sizes)  # the first size is taken even where it does not fit
        while more - fewer > 1:
            middle = (fewer + more) // 2
            settings = self.settings(split, per_replica // sizes[middle])
            memory = self._hold(self.profile(sizes[middle], split.tensor), settings)
            fewer, more = (middle, more) if memory.total_nbytes <= self.machine.usable_nbytes else (fewer, middle)
        return sizes[fewer]

    def scaling_curve(self, point: ClusterPoint) -> Iterator[ClusterPoint]:
        """From one node (or the fewest that hold a replica) up: the same micro-batches, fewer of them for each replica."""
        split = point.split
        way = "fsdp" if split.fsdp > 1 and split.data == 1 else "data"
        fixed = split.num_gpus // getattr(split, way)
        smallest = max(fixed, min(self.links.gpus_per_node, split.num_gpus))
        sizes, size = [], split.num_gpus
        while size > smallest and size % 2 == 0 and (size // 2) % fixed == 0 and size // 2 >= smallest:
            sizes.append(size)
            size //= 2
        for num_gpus in sorted([*sizes, size]):
            smaller = replace(split, **{way: num_gpus // fixed})
            yield self.estimate_split(smaller, point.batch, point.micro_batch)

    def choose_split(self, num_gpus: int) -> tuple[ClusterSplit, str]:
        """The simplest split of those that fit and are about as fast as the fastest, and why."""
        found: list[ClusterPoint] = []
        for split in self._splits(num_gpus):
            try:
                found.append(self.estimate_split(split))
            except BadOption:
                continue
        fitting = [point for point in found if point.fits]
        if not found:
            raise BadOption(f"no split of {num_gpus} GPUs cuts the batch evenly; change --batch")
        if not fitting:
            least = min(found, key=lambda point: point.memory.total_nbytes)
            raise BadModel(
                f"{self.trained.model.name} fits {num_gpus} of {self.machine.name} in no split; {least.split} comes nearest with "
                f"{format_bytes(least.memory.total_nbytes)} of {format_bytes(self.machine.usable_nbytes)} a GPU. "
                "Take more GPUs, a smaller batch, or --recompute."
            )
        fastest = max(fitting, key=lambda point: point.samples_per_second)
        near = [point for point in fitting if point.samples_per_second >= _NEARLY * fastest.samples_per_second]
        chosen = min(near, key=_complexity)
        return chosen.split, _explain(chosen, fastest, found, fitting)

    def _splits(self, num_gpus: int) -> list[ClusterSplit]:
        shape = self.trained.model.transformer
        powers = [2**i for i in range(num_gpus.bit_length()) if num_gpus % 2**i == 0]
        splits = []
        for tensor in powers if shape is not None else [1]:
            for pipeline in powers if shape is not None else [1]:
                for shard in (False, True):
                    rest, left = divmod(num_gpus, tensor * pipeline)
                    if left or (shard and rest == 1) or not rest:
                        continue
                    split = ClusterSplit(1 if shard else rest, rest if shard else 1, tensor, pipeline)
                    try:
                        check_split(split, shape, "", self.interleave if pipeline > 1 else 1, self.links.gpus_per_node)
                    except BadOption:
                        continue
                    splits.append(split)
        return splits[:_MOST_SPLITS]


def _complexity(point: ClusterPoint) -> tuple[int, float]:
    split = point.split
    ways = (split.fsdp > 1) + 2 * (split.tensor > 1) + 4 * (split.pipeline > 1)
    return ways, -point.samples_per_second


def _explain(chosen: ClusterPoint, fastest: ClusterPoint, found: list[ClusterPoint], fitting: list[ClusterPoint]) -> str:
    text = f"{len(fitting)} of {len(found)} splits fit"
    plain = next((point for point in found if point.split.data == point.split.num_gpus), None)
    if plain is not None and not plain.fits:
        text += f", data alone does not ({format_bytes(plain.memory.total_nbytes)} a GPU)"
    if chosen is fastest:
        return f"{text}; {chosen.split} is the fastest of them"
    slower = 1 - chosen.samples_per_second / fastest.samples_per_second
    return f"{text}; {chosen.split} is the simplest within {100 * slower:.1f} % of the fastest, {fastest.split}"
