"""What `ferry deploy` can be told."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ChartOptions:
    """One chart for one folder of models."""

    repository: Path
    to: Path
    name: str | None = None  # None: that of the folder `to`
    image: str | None = None  # None: one on this machine, called as the chart
    models: str = "image"  # where the cluster reads them: image, pvc:CLAIM, oci:IMAGE or an address
    replicas: int = 2
    gpus: int = 0
    trust: bool = False
    measures: bool = True


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """One chart for all services of a pipeline."""

    file: Path
    to: Path
    name: str | None = None  # None: that of the folder `to`
    image: str | None = None  # whose repositories begin so, as registry.example.com/team/assistant:1
    trust: bool = False
    measures: bool = True


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """One file to build an image from."""

    to: Path
    models: Path | None = None  # to put into it
    wheel: Path | None = None  # of ourselves; None: the release that the package index has
    base: str | None = None  # None: Python's own image, of the version that runs here
    extras: tuple[str, ...] = ()
    is_for_training: bool = False  # with torch and the recipes in place of the server
    has_digests: bool = False  # checksums of all wheels, which pip asks the package index for
    build: str | None = None  # a name to build the image by at once
    trust: bool = False


@dataclass(frozen=True, kw_only=True)
class KserveOptions:
    """A runtime and an inference service for KServe."""

    repository: Path
    to: Path
    storage: str | None = None  # where KServe gets the models from: s3://..., pvc://...; None: a claim called as the service
    image: str | None = None  # None: one on this machine, called as the service
    name: str | None = None
    replicas: int = 2
    gpus: int = 0
    trust: bool = False
    measures: bool = True


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """One training in a cluster."""

    recipe: str
    to: Path
    image: str | None = None  # None: one on this machine, called as the training
    kind: str = "trainjob"  # or jobset, job
    name: str | None = None  # None: that of the folder `to`
    nodes: int = 1
    gpus: int = 0  # of a node; each gets a process
    workers: int = 1  # processes of a node without GPUs
    cpus: str | None = None  # of a node; None: one for each process
    memory: str | None = None  # of a node; None: a guess
    checkpoints: str | None = None  # pvc:CLAIM, or an address in a bucket; None: a claim is written as well
    size: str = "50Gi"  # of that claim, or of the room for what is in the bucket
    credentials: str | None = None  # a secret whose keys are variables for the bucket
    service_account: str | None = None  # of the pods, as one with a cloud's role
    queue: str | None = None  # of Kueue
    grace_seconds: int = 300  # to finish a step and to save
    is_cluster_wide: bool = False  # the runtime of a TrainJob, for all namespaces
    runtime: str | None = None  # a ClusterTrainingRuntime that is there; None: one is written
    start: str | None = None
    data: str | None = None  # a path in the pod
    settings: tuple[tuple[str, str], ...] = ()
    every: int | None = None
    seed: int | None = None
    precision: str | None = None
    budget: str | None = None
    parallel: str | None = None


@dataclass(frozen=True, kw_only=True)
class ExampleOptions:
    """One complete pipeline to begin with, in a new folder."""

    name: str
    to: Path
    steps: int | None = None  # None: as many as it takes to be of use
    seconds: float = 60.0  # for the search of the fastest engine


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """One look at a chart or a folder of manifests."""

    folder: Path
    values: tuple[Path, ...] = ()
    kubernetes: str = ""  # a version such as 1.36; empty: the newest that is known
    definitions: Path | None = None  # a folder with definitions of custom resources
    as_json: bool = False
