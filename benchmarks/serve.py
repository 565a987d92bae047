"""The figures of the prediction server: CPU a request, throughput against in-process, added latency, a soak.

    python benchmarks/serve.py --quick
    python benchmarks/serve.py --mlserver VENV/bin/python --triton VENV/bin/python --save
    python benchmarks/serve.py --parts cpu --earlier VENV/bin/python    beside another version of ferry

Peers run from environments of their own, made with `pip install mlserver onnxruntime "uvloop<0.22"` and
`pip install nvidia-pytriton onnxruntime`; a peer that is not there is skipped with a message. Everything that is compared runs at
the same time and is measured in turns, three times; medians are shown. "Ferry over it" is ferry's CPU time over that of the
server, "served over alone" the server's rate over that of the same session in process: medians of the turns, with the lowest and
the highest. "grpcio aio" and "grpcio sync" are ferry's data plane behind grpcio's two servers, in place of its own HTTP/2.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, save
from rich.console import Console

from results import FigureTable, format_ratios, parse_options, save_result
from serve_graphs import save_minilm, save_mlp, save_resnet50
from serve_servers import NotInstalled, Running, run_ferry, run_grpcio, run_mlserver, run_triton
from serve_soak import soak
from tensorferry.serve.bench import LoadResult, Target, measure
from tensorferry.units import format_bytes, format_seconds

PARTS = ("cpu", "throughput", "latency", "soak")
CONCURRENCIES = (1, 8, 32)
ROUNDS = 3  # each measured so often, in turns; medians are shown
_PACKAGES = ("onnxruntime", "tritonclient", "grpcio", "uvloop")


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of the benchmark found: a table, or a few sentences."""

    figures: list[dict[str, Any]]
    table: FigureTable | None = None
    notes: tuple[str, ...] = ()


def main(argv: list[str] | None = None) -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement (default %(default)g)")
    parser.add_argument("--soak-seconds", type=float, default=120.0, help="default %(default)g")
    parser.add_argument("--earlier", type=Path, help="the Python of an environment with another version of ferry")
    parser.add_argument("--mlserver", type=Path, help="the Python of an environment with MLServer")
    parser.add_argument("--triton", type=Path, help="the Python of an environment with nvidia-pytriton")
    parser.add_argument("--quick", action="store_true", help="a second each, to try the benchmark itself")
    options = parse_options(parser, __file__, argv)
    if options.quick:
        options.seconds, options.soak_seconds = 1.0, 5.0
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    parts: dict[str, Part] = {}
    run = {"cpu": _compare_costs, "throughput": _compare_throughput, "latency": _compare_latency, "soak": _soak}
    with tempfile.TemporaryDirectory(prefix="ferry-serve-") as name:
        for part in options.parts.split(","):
            console.print(f"{part} (load average {os.getloadavg()[0]:.1f}) ...", style="dim")
            parts[part] = run[part](Path(name), options)
            if (table := parts[part].table) is not None:
                console.print(table)
            for note in parts[part].notes:
                print(note, flush=True)
    tables = [part.table for part in parts.values() if part.table is not None]
    notes = [note for part in parts.values() for note in part.notes]
    save_result(options, "serve", tables, {name: part.figures for name, part in parts.items()}, _PACKAGES, notes)
    return 0


# ---- CPU a request, beside peers -------------------------------------------------------------------------------------------


def _compare_costs(work: Path, options: argparse.Namespace) -> Part:
    repository = work / "cpu"
    model = save_mlp(repository / "mlp" / "1" / "model.onnx")
    (repository / "mlp" / "config.pbtxt").write_text(
        'max_batch_size: 32 parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
    )
    starters: list[tuple[str, Callable[[], AbstractContextManager[Running]]]] = [
        ("ferry", lambda: run_ferry(repository)),
        ("grpcio aio", lambda: run_grpcio("aio", repository)),
        ("grpcio sync", lambda: run_grpcio("sync", repository)),
    ]
    if options.earlier is not None:
        starters.insert(1, ("ferry, earlier", lambda: run_ferry(repository, python=options.earlier)))
    if options.triton is not None:
        starters.append(("Triton", lambda: run_triton(options.triton, model, work / "triton")))
    else:
        print("Triton: skipped, --triton names no environment")
    if options.mlserver is not None:
        starters.append(("MLServer", lambda: run_mlserver(options.mlserver, model, work / "mlserver")))
    else:
        print("MLServer: skipped, --mlserver names no environment")
    with ExitStack() as stack:
        servers = []
        for name, start in starters:
            try:
                servers.append(stack.enter_context(start()))
            except NotInstalled as reason:
                print(f"{name}: skipped, {reason}")
        figures = list(_measure_costs(servers, options))
    columns = ("concurrency", "protocol", "server", "CPU µs a request", "ferry over it", "requests/s", "p50", "p99", "errors")
    return Part(figures, FigureTable("CPU time a request of a tiny network", columns, [_cost_cells(row) for row in figures]))


def _measure_costs(servers: list[Running], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All servers in turns, several times over, so that a busy moment of the machine hits each of them."""
    for is_http in (True, False):
        # MLServer answers no ModelConfig over gRPC; its REST is what it is compared by
        # and ferry behind grpcio's server differs in gRPC alone
        other = "ferry, grpcio" if is_http else "MLServer"
        asked = [server for server in servers if not server.name.startswith(other)]
        for concurrency in CONCURRENCIES:
            rounds = [[_measure_cost(server, is_http, concurrency, options.seconds) for server in asked] for _ in range(ROUNDS)]
            for index, server in enumerate(asked):
                yield {
                    "server": server.name,
                    "protocol": ("REST, binary" if server.speaks_binary else "REST, JSON") if is_http else "gRPC",
                    "concurrency": concurrency,
                    "cpu_seconds": [turn[index][0] for turn in rounds],
                    "ferry_ratios": [turn[0][0] / turn[index][0] for turn in rounds],
                    "measurements": [asdict(turn[index][1]) for turn in rounds],
                }


def _cost_cells(row: dict[str, Any]) -> tuple[str, ...]:
    seen = row["measurements"]
    return (
        str(row["concurrency"]),
        row["protocol"],
        row["server"],
        f"{1e6 * np.median(row['cpu_seconds']):.0f}",
        format_ratios(row["ferry_ratios"]) if row["server"] != "ferry" else "",
        f"{np.median([each['num_requests'] / each['seconds'] for each in seen]):.0f}",
        format_seconds(float(np.median([each["p50_seconds"] for each in seen]))),
        format_seconds(float(np.median([each["p99_seconds"] for each in seen]))),
        str(sum(each["num_errors"] for each in seen)),
    )


def _measure_cost(server: Running, is_http: bool, concurrency: int, seconds: float) -> tuple[float, LoadResult]:
    """CPU seconds a request, and what the client saw."""
    target = Target(server.http if is_http else server.grpc, "mlp", seconds=seconds, as_json=is_http and not server.speaks_binary)
    measure(replace(target, seconds=0.5), [concurrency])
    before = server.cpu_seconds()
    (result,) = measure(target, [concurrency])
    # the measurement warms up for a moment of its own, which costs as much a request
    spent = (server.cpu_seconds() - before) * result.seconds / (result.seconds + 0.3)
    return spent / result.num_requests, result


# ---- throughput and latency against the same session in this process -------------------------------------------------------


def _compare_throughput(work: Path, options: argparse.Namespace) -> Part:
    figures, cells = [], []
    for name, make in (("minilm", save_minilm), ("resnet50", save_resnet50)):
        for num_instances in (1, 2):
            repository = work / f"{name}{num_instances}"
            path = make(repository / name / "1" / "model.onnx")
            (repository / name / "config.pbtxt").write_text(
                f"max_batch_size: 8 instance_group {{ count: {num_instances} kind: KIND_CPU }}"
            )
            with run_ferry(repository) as server:
                for batch in (1, 8):
                    target = Target(server.http, name, num_rows=batch, seconds=options.seconds)
                    pairs = []
                    for _ in range(ROUNDS):
                        alone = _run_in_process(path, batch, num_instances, options.seconds)
                        # for each instance one request that waits while one runs: two instances may be done at the same time
                        (result,) = measure(target, [2 * num_instances])
                        pairs.append((alone, result.throughput * batch))
                    figures.append({"model": name, "batch": batch, "num_instances": num_instances, "rows_per_second": pairs})
                    rates = [f"{np.median(column):.1f}" for column in zip(*pairs, strict=True)]
                    shares = format_ratios([served / alone for alone, served in pairs])
                    cells.append((name, str(batch), str(num_instances), *rates, shares))
    columns = ("model", "batch", "instances", "alone, rows/s", "served, rows/s", "served over alone")
    return Part(figures, FigureTable("Throughput beside the same session in process", columns, cells))


def _run_in_process(path: Path, batch: int, num_threads: int, seconds: float) -> float:
    """Rows a second of one session, called from so many threads, as the server does it."""
    session, feed = _open(path, batch, num_threads)
    session.run(None, feed)  # the server has warmed up as well
    counts = [0] * num_threads
    end = time.perf_counter() + seconds

    def work(index: int) -> None:
        while time.perf_counter() < end:
            session.run(None, feed)
            counts[index] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(num_threads)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) * batch / (time.perf_counter() - started)


def _compare_latency(work: Path, options: argparse.Namespace) -> Part:
    figures, cells = [], []
    for name, make in (("mlp", save_mlp), ("minilm", save_minilm)):
        repository = work / f"latency-{name}"
        path = make(repository / name / "1" / "model.onnx")
        session, feed = _open(path, 1, 1)
        rounds = []
        with run_ferry(repository) as server:
            for _ in range(ROUNDS):
                alone = _time_in_process(session, feed, options.seconds)
                (result,) = measure(Target(server.http, name, seconds=options.seconds), [1])
                served = np.array((result.p50_seconds, result.p99_seconds))
                rounds.append((alone, served, served - alone))
        for words, column in zip(("in process", "served", "added"), zip(*rounds, strict=True), strict=True):
            p50, p99 = (float(seconds) for seconds in np.median(column, axis=0))
            figures.append({"model": name, "where": words, "p50_seconds": p50, "p99_seconds": p99})
            cells.append((name, words, format_seconds(p50), format_seconds(p99)))
    return Part(figures, FigureTable("Latency at concurrency 1", ("model", "where", "p50", "p99"), cells))


def _time_in_process(session: ort.InferenceSession, feed: dict[str, np.ndarray], seconds: float) -> np.ndarray:
    """The 50th and the 99th percentile of the seconds that a call takes."""
    latencies = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        session.run(None, feed)
        latencies.append(time.perf_counter() - begin)
    return np.percentile(latencies, (50, 99))


def _open(path: Path, batch: int, num_instances: int) -> tuple[ort.InferenceSession, dict[str, np.ndarray]]:
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = max(1, len(os.sched_getaffinity(0)) // num_instances)
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(str(path), settings)
    feed = {}
    for tensor in session.get_inputs():
        shape = (batch, *tensor.shape[1:])
        random = np.random.default_rng(0)
        feed[tensor.name] = random.random(shape, np.float32) if "float" in tensor.type else random.integers(0, 2, shape)
    return session, feed


# ---- mixed load ------------------------------------------------------------------------------------------------------------


def _soak(work: Path, options: argparse.Namespace) -> Part:
    repository = work / "soak"
    for name in ("steady", "moving"):
        path = repository / name / "1" / "model.onnx"
        path.parent.mkdir(parents=True)
        ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, ["n", 4]) for end in "xy"]
        two = helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])
        graph = helper.make_graph([helper.make_node("Mul", ["x", "two"], ["y"])], "double", ends[:1], ends[1:], [two])
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    result = soak(repository, options.soak_seconds)
    settled = result.resident_nbytes[len(result.resident_nbytes) // 3 :]
    half = len(settled) // 2
    early, late = float(np.median(settled[:half])), float(np.median(settled[half:]))
    note = (
        f"Mixed load for {options.soak_seconds:g} s: {result.num_good:,} good answers, {result.num_refused:,} bad requests "
        f"refused, {result.num_hung_up:,} clients hung up, {result.num_loads:,} loads and unloads, "
        f"{len(result.wrong)} wrong answers; memory {format_bytes(early)}, then {format_bytes(late)}: {late / early - 1:+.1%}."
    )
    return Part([asdict(result)], notes=(note, *result.wrong[:10]))


if __name__ == "__main__":
    sys.exit(main())
