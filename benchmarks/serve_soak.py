"""Mixed load: good and bad requests, loads and unloads, clients that hang up; answers are checked, memory is watched.

    python benchmarks/serve_soak.py --requests 10000

stops servers by SIGTERM under load, one after another, until so many requests have been sent over both protocols, small and large
ones, and says how many were lost.
"""

import argparse
import http.client
import json
import os
import random
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import tritonclient.grpc as client_grpc
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, save
from tritonclient.utils import InferenceServerException

from serve_servers import Running, run_ferry
from tensorferry.serve.proto import inference as pb

_LOST = (200, 404, 503)  # what a request may see while its model is being unloaded and loaded


@dataclass(slots=True)
class Soak:
    """What happened."""

    num_good: int = 0
    num_refused: int = 0
    num_hung_up: int = 0
    num_loads: int = 0
    wrong: list[str] = field(default_factory=list)
    resident_nbytes: list[int] = field(default_factory=list)


def soak(repository: Path, seconds: float, num_threads: int = 4) -> Soak:
    """Load a server of `repository`, which has the models `steady` and `moving`, both `y = 2 x` for 4 numbers."""
    result = Soak()
    with run_ferry(repository, "--model-control-mode", "explicit", "--load-model", "steady", "--load-model", "moving") as server:
        end = time.monotonic() + seconds
        threads = [threading.Thread(target=_client, args=(server, result, end, seed)) for seed in range(num_threads)]
        others = (_grpc_client, _bad_client, _mover, _leaver)
        threads += [threading.Thread(target=work, args=(server, result, end)) for work in others]
        for thread in threads:
            thread.start()
        while time.monotonic() < end:
            result.resident_nbytes.append(server.resident_nbytes())
            time.sleep(min(1.0, seconds / 20))
        for thread in threads:
            thread.join()
        with urllib.request.urlopen(f"{server.http}/v2/health/ready") as answer:
            answer.read()
    return result


def _client(server: Running, result: Soak, end: float, seed: int) -> None:
    rows = random.Random(seed)
    while time.monotonic() < end:
        model = rows.choice(("steady", "steady", "moving"))
        values = [[rows.uniform(-9, 9) for _ in range(4)] for _ in range(rows.randint(1, 3))]
        status, body = _post(server, f"/v2/models/{model}/infer", _request(values))
        if status == 200:
            got = np.array(json.loads(body)["outputs"][0]["data"]).reshape(-1, 4)
            if not np.allclose(got, 2 * np.array(values), rtol=1e-5):
                result.wrong.append(f"{model}: {values} gave {got.tolist()}")
            result.num_good += 1
        elif model == "steady" or status not in _LOST:
            result.wrong.append(f"{model}: status {status} {body[:200]!r}")


def _grpc_client(server: Running, result: Soak, end: float) -> None:
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    tensor = client_grpc.InferInput("x", [2, 4], "FP32")
    with client_grpc.InferenceServerClient(server.grpc.removeprefix("grpc://")) as client:
        while time.monotonic() < end:
            values += 1
            tensor.set_data_from_numpy(values)
            try:
                got = client.infer("steady", [tensor]).as_numpy("y")
            except InferenceServerException as error:
                result.wrong.append(f"gRPC: {error}")
                continue
            if not np.array_equal(got, 2 * values):
                result.wrong.append(f"gRPC: {values.tolist()} gave {got.tolist()}")
            result.num_good += 1


def _bad_client(server: Running, result: Soak, end: float) -> None:
    values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    nested = st.recursive(
        values, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    )
    tensor = st.fixed_dictionaries({"name": st.just("x"), "datatype": nested, "shape": nested, "data": nested})

    @settings(max_examples=50, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.one_of(nested, st.fixed_dictionaries({"inputs": st.lists(tensor, max_size=2)})))
    def send(request: object) -> None:
        status, body = _post(server, "/v2/models/steady/infer", json.dumps(request).encode())
        if not 400 <= status < 500:
            result.wrong.append(f"{request!r} gave {status} {body[:200]!r}")
        result.num_refused += 1

    while time.monotonic() < end:
        send()


def _mover(server: Running, result: Soak, end: float) -> None:
    while time.monotonic() < end:
        for verb in ("unload", "load"):
            status, body = _post(server, f"/v2/repository/models/moving/{verb}", b"{}")
            if status != 200:
                result.wrong.append(f"{verb}: status {status} {body[:200]!r}")
        result.num_loads += 1
        time.sleep(0.05)


def _leaver(server: Running, result: Soak, end: float) -> None:
    host, _, port = server.http.removeprefix("http://").partition(":")
    body = _request([[1.0, 2.0, 3.0, 4.0]])
    whole = b"POST /v2/models/steady/infer HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    cuts = random.Random(9)
    while time.monotonic() < end:
        with socket.create_connection((host, int(port))) as line:
            line.sendall(whole[: cuts.randint(1, len(whole))])
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        result.num_hung_up += 1
        time.sleep(0.01)


def _request(values: list[list[float]]) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(values), 4], "data": values}
    return json.dumps({"inputs": [tensor]}).encode()


def _post(server: Running, path: str, body: bytes) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(server.http + path, body), timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


# ---- SIGTERM under load ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Restarts:
    """Servers that were stopped while clients went on asking."""

    num_servers: int = 0
    num_answers: int = 0
    losses: list[str] = field(default_factory=list)


def restart_under_load(repository: Path, num_requests: int) -> Restarts:
    """Start servers of `repository`, whose model `numbers` answers what it is asked, and stop each under load."""
    result = Restarts()
    moments = random.Random(0)
    while result.num_answers + len(result.losses) < num_requests:
        with run_ferry(repository) as server:
            stopping = threading.Event()
            clients = [
                threading.Thread(target=_count_answers, args=(ask, server, size, stopping, result))
                for ask in (_open_rest, _open_grpc)
                for size in (4, 4, 4, 4, 2**18)
            ]
            for client in clients:
                client.start()
            time.sleep(moments.uniform(0.2, 1.0))
            os.kill(server.pid, signal.SIGTERM)
            time.sleep(moments.uniform(0.0, 0.3))  # while the server still takes what clients send before they hear of it
            stopping.set()
            for client in clients:
                client.join()
        result.num_servers += 1
    return result


Ask = Callable[[], bytes | None]


def _count_answers(
    open_client: Callable[[Running, np.ndarray], Ask], server: Running, size: int, stopping: threading.Event, result: Restarts
) -> None:
    values = np.arange(size, dtype=np.float32).reshape(1, -1)
    ask = open_client(server, values)
    while not stopping.is_set():
        try:
            answer = ask()
        except Exception as error:
            result.losses.append(f"{open_client.__name__}, {size} numbers: {error!r}")
            return
        if answer is None:  # the server has asked the client to leave
            ask = open_client(server, values)
        elif answer != values.tobytes():
            result.losses.append(f"{open_client.__name__}, {size} numbers: a wrong answer of {len(answer)} bytes")
        result.num_answers += answer is not None


def _open_rest(server: Running, values: np.ndarray) -> Ask:
    body = values.tobytes()
    tensor = {"name": "x", "datatype": "FP32", "shape": list(values.shape), "parameters": {"binary_data_size": len(body)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    line = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=60)
    is_closed = False

    def ask() -> bytes | None:
        nonlocal is_closed
        if is_closed:
            line.close()
            return None
        line.request("POST", "/v2/models/numbers/infer", head + body, {"Inference-Header-Content-Length": str(len(head))})
        answer = line.getresponse()
        found = answer.read()
        if answer.status != 200:
            raise ConnectionError(f"status {answer.status}: {found[:100]!r}")
        is_closed = answer.headers.get("connection") == "close"
        return found[int(answer.headers["inference-header-content-length"]) :]

    return ask


def _open_grpc(server: Running, values: np.ndarray) -> Ask:
    request = pb.ModelInferRequest(model_name="numbers", raw_input_contents=[values.tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=values.shape)
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    channel = grpc.insecure_channel(server.grpc.removeprefix("grpc://"), options)
    infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    message = request.SerializeToString()
    return lambda: bytes(pb.ModelInferResponse.FromString(infer(message, timeout=60)).raw_output_contents[0])


def _save_identity(path: Path) -> None:
    path.parent.mkdir(parents=True)
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, ["n", "length"]) for end in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", ends[:1], ends[1:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def main(argv: list[str] | None = None) -> int:
    """Say how many requests were lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000, help="default %(default)d")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="ferry-drain-") as name:
        _save_identity(Path(name) / "numbers" / "1" / "model.onnx")
        result = restart_under_load(Path(name), options.requests)
    print(f"{result.num_answers:,} answers of {result.num_servers} servers stopped under load, {len(result.losses)} lost")
    for loss in result.losses[:10]:
        print(loss)
    return 1 if result.losses else 0


if __name__ == "__main__":
    sys.exit(main())
