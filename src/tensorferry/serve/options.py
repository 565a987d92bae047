"""What `ferry serve` can be told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CONTROL_MODES = ("none", "poll", "explicit")


def is_pipeline(text: str) -> bool:
    """Whether what a user named is a pipeline, and no folder of models."""
    return text.endswith((".yaml", ".yml"))


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """One server. A port of 0 takes a free one, a port of None does not listen."""

    repository: Path | str  # a folder, or the address of one such as s3://bucket/models
    source_cache: Path | None = None  # where the models of an address are kept; None: in the user's cache folder
    source_nbytes: int = 64 * 2**30  # how much of them
    host: str = "127.0.0.1"
    http_port: int | None = 8000
    grpc_port: int | None = 8001
    control_mode: str = "none"
    load_models: tuple[str, ...] | None = None  # at the start, in explicit mode
    poll_seconds: float = 5.0
    trust: bool = False
    default_max_batch_size: int = 8
    num_load_threads: int = 2
    cache_nbytes: int = 0
    rate_limits: Mapping[str, int] = field(default_factory=dict)
    max_body_nbytes: int = 64 * 2**20
    max_memory_nbytes: int = 2**30  # for everything that clients make the server hold
    shared_memory: str | None = None  # with which the names of objects begin that clients may register; None: none
    max_connections: int = 1024
    max_under_way: int = 0
    max_queue: int = 0
    read_seconds: float = 60.0
    drain_seconds: float = 30.0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    allowed_hosts: tuple[str, ...] | None = None  # that clients may call it by; None: loopback names where it listens there
    api_keys: Path | None = None
    admin_keys: Path | None = None  # for control calls and metrics; None: the same as for inference
    admin_host: str | None = None  # None: `host`
    admin_port: int | None = None  # for control calls and metrics; None: the port of REST
    otlp: str | None = None  # the address of a collector that traces are sent to
    log_json: bool = False
    log_verbose: int = 0


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """One measurement of one server."""

    url: str
    model: str
    version: str = ""
    concurrencies: tuple[int, ...] = (1, 8, 32)
    seconds: float = 5.0
    num_rows: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    api_key: str = ""
    as_json: bool = False


@dataclass(frozen=True, kw_only=True)
class InventoryOptions:
    """One look at a repository."""

    repository: Path
    check: bool = False
    trust: bool = False
    num_kept: int | None = None  # versions of each model; None: all
    asks: bool = True  # before anything is removed
    as_json: bool = False
