"""The figures of the prediction server: CPU a request, throughput against in-process, added latency, a soak.

    python benchmarks/serve.py --quick
    python benchmarks/serve.py --mlserver VENV/bin/python --triton VENV/bin/python

Peers run from environments of their own, made with `pip install mlserver onnxruntime "uvloop<0.22"` and
`pip install nvidia-pytriton onnxruntime`; a peer that is not there is skipped with a message.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, save

from serve_graphs import save_minilm, save_mlp, save_resnet50
from serve_servers import NotInstalled, Running, run_ferry, run_mlserver, run_triton
from serve_soak import soak
from tensorferry.serve.bench import Target, measure
from tensorferry.units import format_bytes, format_seconds

PARTS = ("cpu", "throughput", "latency", "soak")
CONCURRENCIES = (1, 8, 32)


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement (default %(default)g)")
    parser.add_argument("--soak-seconds", type=float, default=120.0, help="default %(default)g")
    parser.add_argument("--mlserver", type=Path, help="the Python of an environment with MLServer")
    parser.add_argument("--triton", type=Path, help="the Python of an environment with nvidia-pytriton")
    parser.add_argument("--quick", action="store_true", help="a second each, to try the benchmark itself")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.soak_seconds = 1.0, 5.0
    with tempfile.TemporaryDirectory(prefix="ferry-serve-") as name:
        work = Path(name)
        for part in options.parts.split(","):
            print(f"\n== {part} (load average {os.getloadavg()[0]:.1f})", flush=True)
            {"cpu": _show_cpu, "throughput": _show_throughput, "latency": _show_latency, "soak": _show_soak}[part](work, options)


# ---- CPU a request, beside peers -------------------------------------------------------------------------------------------


def _show_cpu(work: Path, options: argparse.Namespace) -> None:
    repository = work / "cpu"
    model = save_mlp(repository / "mlp" / "1" / "model.onnx")
    (repository / "mlp" / "config.pbtxt").write_text(
        'max_batch_size: 32 parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
    )
    starters: list[tuple[str, Callable[[], AbstractContextManager[Running]]]] = [("ferry", lambda: run_ferry(repository))]
    if options.triton is not None:
        starters.append(("Triton", lambda: run_triton(options.triton, model, work / "triton")))
    else:
        print("Triton: skipped, --triton names no environment")
    if options.mlserver is not None:
        starters.append(("MLServer", lambda: run_mlserver(options.mlserver, model, work / "mlserver")))
    else:
        print("MLServer: skipped, --mlserver names no environment")
    print(
        f"{'server':10}{'protocol':>9}{'concurrency':>12}{'CPU us/request':>15}{'requests/s':>12}"
        f"{'p50':>10}{'p99':>10}{'errors':>8}"
    )
    for name, start in starters:
        try:
            with start() as server:
                for url in (server.http, server.grpc):
                    _show_server(server, url, options.seconds)
        except NotInstalled as reason:
            print(f"{name}: skipped, {reason}")


def _show_server(server: Running, url: str, seconds: float) -> None:
    is_http = url.startswith("http")
    if not is_http and server.name == "MLServer":
        return  # it answers no ModelConfig over gRPC; its REST is what it is compared by
    for concurrency in CONCURRENCIES:
        target = Target(url, "mlp", seconds=seconds, as_json=is_http and not server.speaks_binary)
        measure(Target(url, "mlp", seconds=0.5, as_json=target.as_json), [concurrency])
        before = server.cpu_seconds()
        (result,) = measure(target, [concurrency])
        # the measurement warms up for a moment of its own, which costs as much a request
        spent = (server.cpu_seconds() - before) * result.seconds / (result.seconds + 0.3)
        form = ("binary" if server.speaks_binary else "JSON") if is_http else "gRPC"
        print(
            f"{server.name:10}{form:>9}{concurrency:>12}{1e6 * spent / result.num_requests:>15.0f}{result.throughput:>12.0f}"
            f"{format_seconds(result.p50_seconds):>10}{format_seconds(result.p99_seconds):>10}{result.num_errors:>8}",
            flush=True,
        )


# ---- throughput and latency against the same session in this process -------------------------------------------------------


def _show_throughput(work: Path, options: argparse.Namespace) -> None:
    print(f"{'model':10}{'batch':>6}{'instances':>10}{'in process/s':>14}{'served/s':>10}{'share':>7}")
    for name, make in (("minilm", save_minilm), ("resnet50", save_resnet50)):
        for num_instances in (1, 2):
            repository = work / f"{name}{num_instances}"
            path = make(repository / name / "1" / "model.onnx")
            (repository / name / "config.pbtxt").write_text(
                f"max_batch_size: 8 instance_group {{ count: {num_instances} kind: KIND_CPU }}"
            )
            for batch in (1, 8):
                alone = _run_in_process(path, batch, num_instances, options.seconds)
                with run_ferry(repository) as server:
                    target = Target(server.http, name, num_rows=batch, seconds=options.seconds)
                    # one request more than instances, so that none waits for the client
                    (result,) = measure(target, [num_instances + 1])
                served = result.throughput * batch
                print(f"{name:10}{batch:>6}{num_instances:>10}{alone:>14.1f}{served:>10.1f}{served / alone:>7.2f}", flush=True)


def _run_in_process(path: Path, batch: int, num_threads: int, seconds: float) -> float:
    """Rows a second of one session, called from so many threads, as the server does it."""
    session, feed = _open(path, batch, num_threads)
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


def _show_latency(work: Path, options: argparse.Namespace) -> None:
    print(f"{'model':10}{'':>12}{'p50':>10}{'p99':>10}   (concurrency 1)")
    for name, make in (("mlp", save_mlp), ("minilm", save_minilm)):
        repository = work / f"latency-{name}"
        path = make(repository / name / "1" / "model.onnx")
        session, feed = _open(path, 1, 1)
        latencies = []
        end = time.perf_counter() + options.seconds
        while (begin := time.perf_counter()) < end:
            session.run(None, feed)
            latencies.append(time.perf_counter() - begin)
        p50, p99 = np.percentile(latencies, (50, 99))
        with run_ferry(repository) as server:
            (result,) = measure(Target(server.http, name, seconds=options.seconds), [1])
        rows = (("in process", p50, p99), ("served", result.p50_seconds, result.p99_seconds))
        for words, median, high in (*rows, ("added", result.p50_seconds - p50, result.p99_seconds - p99)):
            print(f"{name:10}{words:>12}{format_seconds(median):>10}{format_seconds(high):>10}", flush=True)


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


def _show_soak(work: Path, options: argparse.Namespace) -> None:
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
    print(
        f"{result.num_good} good answers, {result.num_refused} bad requests refused, {result.num_hung_up} clients hung up, "
        f"{result.num_loads} loads and unloads"
    )
    print(f"{len(result.wrong)} wrong answers" + "".join(f"\n  {line}" for line in result.wrong[:10]))
    print(f"memory {format_bytes(early)} then {format_bytes(late)}: {late / early - 1:+.1%}")


if __name__ == "__main__":
    main()
