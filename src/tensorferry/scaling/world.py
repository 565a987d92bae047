"""Which of how many processes this one is, as whoever started it says: us, torchrun, or an operator in a cluster."""

import hashlib
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tensorferry.errors import BadOption

_OF_A_WORKER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
STARTED_BY = "TENSORFERRY_STARTED_BY"  # in the environment of a worker of ours: `find_starter`'s answer


@dataclass(frozen=True)
class World:
    """One process among those of a training."""

    rank: int
    size: int
    local_rank: int  # on this node
    local_size: int
    num_restarts: int = 0  # of all of them, so far


def find_world(environment: Mapping[str, str] = os.environ) -> World | None:
    """Where this process stands; None: nobody started it as one of several."""
    if any(name not in environment for name in _OF_A_WORKER):
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, size, local_rank, local_size = (_read_count(environment, name) for name in names)
    if rank >= size or local_rank >= local_size or local_size > size:
        raise BadOption(
            f"RANK {rank} of WORLD_SIZE {size} and LOCAL_RANK {local_rank} of LOCAL_WORLD_SIZE {local_size} contradict each other"
        )
    num_restarts = _read_count(environment, "TORCHELASTIC_RESTART_COUNT") if "TORCHELASTIC_RESTART_COUNT" in environment else 0
    return World(rank, size, local_rank, local_size, num_restarts)


def find_starter(environment: Mapping[str, str] = os.environ) -> str:
    """A name of who started this process: the same whenever it starts all again, and that of no other training."""
    if STARTED_BY in environment:
        return environment[STARTED_BY]
    parent, began = os.getppid(), ""
    with suppress(OSError, IndexError):  # numbers of processes are used again; only Linux tells when one began
        began = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    return hashlib.sha256(f"{socket.gethostname()} {parent} {began}".encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Cluster:
    """What is to be started: so many processes on this node, and as many on every other."""

    num_workers: int
    min_nodes: int = 1
    max_nodes: int = 1
    rendezvous: str | None = None  # host:port where the nodes meet; None: there is only this one
    node: int | None = None  # which of them this is, where an operator tells; the first one is where they meet

    @property
    def is_alone(self) -> bool:
        """Whether that is one process."""
        return self.num_workers == 1 and self.max_nodes == 1


def read_operator(environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """What an operator asks for by torchrun's variables (PET_*), as Kubeflow's does; None: there is none."""
    if "PET_NNODES" not in environment and "PET_NPROC_PER_NODE" not in environment:
        return None
    fewest, most = parse_nodes(environment.get("PET_NNODES", "1"))
    workers = environment.get("PET_NPROC_PER_NODE", "1")
    if not workers.isdecimal() or int(workers) < 1:
        raise BadOption(f"expected PET_NPROC_PER_NODE to be a number above zero, received {workers!r}")
    endpoint = environment.get("PET_RDZV_ENDPOINT")
    if endpoint is None and "PET_MASTER_ADDR" in environment:
        endpoint = f"{environment['PET_MASTER_ADDR']}:{environment.get('PET_MASTER_PORT', '29500')}"
    if most > 1 and endpoint is None:
        raise BadOption(f"PET_NNODES is {environment['PET_NNODES']}, but neither PET_MASTER_ADDR nor PET_RDZV_ENDPOINT is set")
    if most == 1:
        return Cluster(int(workers))
    node = _read_count(environment, "PET_NODE_RANK") if "PET_NODE_RANK" in environment else None
    return Cluster(int(workers), fewest, most, endpoint, node)


def parse_nodes(text: str) -> tuple[int, int]:
    """How many nodes there are at least and at most.

    >>> parse_nodes("4"), parse_nodes("1:4")
    ((4, 4), (1, 4))
    """
    fewest, colon, most = text.partition(":")
    numbers = [int(part) if part.isdecimal() else 0 for part in (fewest, most if colon else fewest)]
    if min(numbers) < 1 or numbers[0] > numbers[1]:
        raise BadOption(f"expected a number of nodes, as in 4, or the fewest and the most, as in 1:4, received {text!r}")
    return numbers[0], numbers[1]


def _read_count(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not text.isdecimal():
        raise BadOption(f"expected {name} to be a number from zero up, received {text!r}")
    return int(text)
