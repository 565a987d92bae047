"""What an estimate of a cluster found; as values, and as JSON."""

from dataclasses import asdict, dataclass
from typing import Any

from tensorferry.estimation.cluster_step import ClusterStep, MemoryByKind
from tensorferry.estimation.models import Inputs
from tensorferry.estimation.split import ClusterSplit
from tensorferry.machine import Machine, Network

FORMAT = "tensorferry-cluster-estimate-1"


@dataclass(frozen=True)
class ClusterPoint:
    """One split of one batch: its step and what a GPU holds."""

    split: ClusterSplit
    batch: int  # of all GPUs
    micro_batch: int  # of a replica, at a time
    num_micro_batches: int
    step: ClusterStep
    memory: MemoryByKind
    usable_nbytes: int

    @property
    def num_gpus(self) -> int:
        """All of them."""
        return self.split.num_gpus

    @property
    def fits(self) -> bool:
        """Whether a GPU can hold its part."""
        return self.memory.total_nbytes <= self.usable_nbytes

    @property
    def samples_per_second(self) -> float:
        """Of all GPUs."""
        return self.batch / self.step.seconds


@dataclass(frozen=True)
class ClusterData:
    """What is predicted for a model on a cluster, for whoever shows it."""

    model: str
    inputs: Inputs
    optimizer: str
    precision: str
    machine: Machine
    networks: tuple[Network, Network]  # inside a node, between nodes
    gpus_per_node: int
    point: ClusterPoint
    curve: tuple[ClusterPoint, ...]  # from the smallest count to the one that was asked for
    reason: str = ""  # why this split, where it was to be chosen
    interleave: int = 1
    recompute: bool = False
    num_samples: int | None = None
    price_per_gpu_hour: float | None = None

    @property
    def efficiency(self) -> float:
        """Throughput a GPU, against the smallest count of the curve: one node, or the fewest that hold a replica."""
        return self.efficiency_of(self.point)

    def efficiency_of(self, point: ClusterPoint) -> float:
        """The same for any point of the curve."""
        first = self.curve[0]
        return (point.samples_per_second / point.num_gpus) / (first.samples_per_second / first.num_gpus)

    @property
    def tokens_per_sample(self) -> int | None:
        """The length of a text; None for anything else."""
        first = self.inputs[0]
        return first.shape[1] if first.dtype == "int64" and len(first.shape) == 2 else None

    @property
    def training_seconds(self) -> float | None:
        """To see all samples; None where their number was not given."""
        return None if self.num_samples is None else self.num_samples / self.point.samples_per_second

    @property
    def training_cost(self) -> float | None:
        """In the currency of the price; None where that or the samples were not given."""
        if self.training_seconds is None or self.price_per_gpu_hour is None:
            return None
        return self.training_seconds / 3600 * self.point.num_gpus * self.price_per_gpu_hour


def cluster_json(data: ClusterData) -> dict[str, Any]:
    """The whole estimate; keys name their unit."""
    return {
        "format": FORMAT,
        "predicted": True,
        "model": data.model,
        "inputs": [str(given) for given in data.inputs],
        "optimizer": data.optimizer,
        "precision": data.precision,
        "machine": asdict(data.machine) | {"usable_nbytes": data.machine.usable_nbytes},
        "networks": {"inside": asdict(data.networks[0]), "between": asdict(data.networks[1])},
        "gpus_per_node": data.gpus_per_node,
        "interleave": data.interleave,
        "recompute": data.recompute,
        "reason": data.reason or None,
        **_point_json(data, data.point),
        "tokens_per_second": None if data.tokens_per_sample is None else data.tokens_per_sample * data.point.samples_per_second,
        "training": {
            "num_samples": data.num_samples,
            "seconds": data.training_seconds,
            "price_per_gpu_hour": data.price_per_gpu_hour,
            "cost": data.training_cost,
        },
        "curve": [_point_json(data, point) for point in data.curve],
    }


def _point_json(data: ClusterData, point: ClusterPoint) -> dict[str, Any]:
    parts = {name: value for name, value in asdict(point.step).items() if name != "spans"}
    return {
        "num_gpus": point.num_gpus,
        "split": asdict(point.split),
        "batch": point.batch,
        "micro_batch": point.micro_batch,
        "num_micro_batches": point.num_micro_batches,
        "step_seconds": point.step.seconds,
        "parts": parts,
        "samples_per_second": point.samples_per_second,
        "efficiency": data.efficiency_of(point),
        "memory": asdict(point.memory) | {"total_nbytes": point.memory.total_nbytes},
        "fits": point.fits,
    }
