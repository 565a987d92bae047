"""Starting the processes of a training on this node, and starting all of them again when one dies."""

import io
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO
from uuid import uuid4

from tensorferry.errors import BadOption, RunFailed
from tensorferry.machine import count_cores
from tensorferry.messages import first_line
from tensorferry.scaling.team import WAIT_SECONDS
from tensorferry.scaling.world import STARTED_BY, Cluster

_JOIN_SECONDS = 300  # for all nodes to come
_SHUTDOWN_SECONDS = 60  # to finish a step and save
_LOOK_SECONDS = 0.2  # between two looks at the processes
_NAME_SECONDS = 1.0  # between two looks for a host whose pod is still to come
STOPPED_BY = "TENSORFERRY_STOPPED_BY"  # the signal, in the environment of a worker that is to leave at once
VERDICT = "TENSORFERRY_VERDICT"  # where a worker writes what every other try would end with as well
# one store over all rounds gives a new rank the address of a dead one: with it 6 of 15 restarts came back, without it all
_ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def launch(
    work: Callable[..., Any],
    args: tuple[Any, ...],
    cluster: Cluster,
    num_restarts: int,
    verdict: Path,
    wait_seconds: float = WAIT_SECONDS,
    advice: str = "What was saved is whole: go on with --resume",
) -> dict[int, Any]:
    """What `work(*args)` returned on each rank of this node; it runs in processes of its own, again after any of them died.

    Where the others wait for a rank only its death ends that. So one that meets an error which another try would meet again
    writes it to `verdict`, whose path is in the environment, and dies; once started again, all find it and return. One that hangs
    for `wait_seconds` when all are to end is killed.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if cluster.rendezvous is not None:
        _check_endpoint(cluster.rendezvous, 0 if cluster.node is None else _JOIN_SECONDS)
    threads = str(max(1, count_cores() // cluster.num_workers))
    config = LaunchConfig(
        min_nodes=cluster.min_nodes,
        max_nodes=cluster.max_nodes,
        nproc_per_node=cluster.num_workers,
        run_id="ferry" if cluster.rendezvous else uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint=cluster.rendezvous or "localhost:0",
        rdzv_configs={"join_timeout": _JOIN_SECONDS} | ({} if cluster.node is None else {"is_host": cluster.node == 0}),
        max_restarts=num_restarts,
        monitor_interval=_LOOK_SECONDS,
        start_method="spawn",
        shutdown_timeout=max(1, int(min(_SHUTDOWN_SECONDS, wait_seconds))),
        local_addr=None if cluster.rendezvous else "localhost",
        # where nobody says, torch leaves a folder in the system's own for every launch
        logs_specs=DefaultLogsSpecs(str(verdict.parent / "logs"), tee=dict.fromkeys(range(1, cluster.num_workers), Std.ALL)),
        log_line_prefix_template="[rank ${rank}] ",
        signals_to_handle="SIGHUP,SIGQUIT",  # the others are passed on
    )
    variables = {
        VERDICT: str(verdict),
        STARTED_BY: uuid4().hex,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
    }
    with _pass_signals_on(), _quiet(), _variables(_ENVIRONMENT | variables):
        try:
            found: dict[int, Any] = elastic_launch(config, _start)(work, *args)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            raise RunFailed(
                f"rank {rank} died{' again' * (num_restarts > 0)}, after {num_restarts} restarts: {_describe(failure)}. {advice}"
            ) from error
        except SignalException as error:
            raise SystemExit(128 + error.sigval) from error
        except RendezvousError as error:
            raise RunFailed(_explain(error, cluster)) from error
        except AttributeError as error:
            if error.name != "is_failed":
                raise
            found = {}  # torch looks at a result that it does not have where a node was one too many
    if not found:
        raise RunFailed(f"the training at {cluster.rendezvous} took place without this machine: it had all that it was to have")
    return found


def _start(work: Callable[..., Any], *args: Any) -> Any:
    """What runs in a process of its own."""
    from tensorferry.scaling.torch_compat import end_with_parent  # torch is loaded then

    # torch has Ctrl-C sent to it when its agent dies, which asks all ranks on all machines to save and leave
    end_with_parent(signal.SIGKILL)
    # what others print is named by who started them; of the first on each machine one alone leads, and has the terminal
    if os.environ["LOCAL_RANK"] == "0" and (rank := os.environ["RANK"]) != "0":
        sys.stdout, sys.stderr = _Named(sys.stdout, f"[rank {rank}] "), _Named(sys.stderr, f"[rank {rank}] ")
    return work(*args)


class _Named(io.TextIOBase):
    """Text whose every line says whose it is."""

    def __init__(self, out: TextIO, name: str) -> None:
        self._out, self._name, self._is_new = out, name, True

    def write(self, text: str) -> int:
        for line in text.splitlines(keepends=True):
            self._out.write(self._name + line if self._is_new else line)
            self._is_new = line.endswith("\n")
        return len(text)

    def flush(self) -> None:
        self._out.flush()


def _explain(error: Exception, cluster: Cluster) -> str:
    from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousConnectionError

    if isinstance(error, RendezvousClosedError):
        return f"the training at {cluster.rendezvous} has ended; start it again on every machine"
    if isinstance(error, RendezvousConnectionError):
        return f"no training answers at {cluster.rendezvous}: start it on that machine too, at a port that nobody else uses"
    missing = f"{cluster.min_nodes} machines were to meet at {cluster.rendezvous}"
    return f"{missing}, and did not within {_JOIN_SECONDS} s: {first_line(error)}"


def _describe(failure: Any) -> str:
    if (name := failure.signal_name()) != "<N/A>":
        return str(name)
    told = failure.message  # a text, or what a rank has written of its error
    return str(told["message"] if isinstance(told, dict) else told).strip().splitlines()[-1]


def _check_endpoint(endpoint: str, seconds: float) -> None:
    """Raise BadOption where nothing can be there; a name that is not known yet has that long to be."""
    host, colon, port = endpoint.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise BadOption(f"expected --rendezvous to be host:port, as in node0:29500, received {endpoint!r}")
    end = time.monotonic() + seconds
    while True:
        try:
            socket.getaddrinfo(host, int(port))
            return
        except OSError as error:
            if time.monotonic() >= end:
                raise BadOption(f"--rendezvous {endpoint}: there is no host {host!r} ({error.strerror})") from error
        time.sleep(_NAME_SECONDS)


@contextmanager
def _quiet() -> Iterator[None]:
    """While inside, torch does not tell of every process that it starts again: the run does."""
    logs = [logging.getLogger(name) for name in ("torch.distributed.elastic", "torch.multiprocessing")]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)


@contextmanager
def _pass_signals_on() -> Iterator[None]:
    """While inside, the first SIGTERM or Ctrl-C goes to the workers, which save and return; a second one ends them.

    Where there are none, as other machines are waited for, the first one ends this.
    """
    from torch.distributed.elastic.multiprocessing import SignalException

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    num_received = 0

    def pass_on(number: int, _: FrameType | None) -> None:
        nonlocal num_received
        num_received += 1
        if num_received > 1:
            raise SystemExit(128 + number)
        if not multiprocessing.active_children():
            raise SignalException("no worker", signal.Signals(number))
        os.environ[STOPPED_BY] = str(number)  # for those that are not started yet, or again because this came too early for them
        for worker in multiprocessing.active_children():
            assert worker.pid is not None
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(worker.pid, number)

    before = {one: signal.signal(one, pass_on) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        os.environ.pop(STOPPED_BY, None)


@contextmanager
def _variables(wanted: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
