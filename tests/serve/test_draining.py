"""SIGTERM under load: whatever a client sent before it could know is answered, small and large, over both protocols."""

import http.client
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import orjson
import pytest
from models import save_identity, save_scale
from running import RunningServer
from tritonclient.grpc import service_pb2 as pb

SMALL, LARGE = 4, 2**19  # numbers of a request
Start = Callable[..., RunningServer]


class AskingThread(threading.Thread):
    """A client that asks one request after another until it is told to stop."""

    def __init__(self, server: RunningServer, stopping: threading.Event, num_numbers: int) -> None:
        super().__init__()
        self.server = server
        self.stopping = stopping
        self.values = np.arange(num_numbers, dtype=np.float32).reshape(1, -1)
        self.num_answers = 0
        self.losses: list[str] = []

    def run(self) -> None:
        """Ask."""
        try:
            self.ask_all()
        except Exception as error:
            self.losses.append(f"{type(self).__name__}: {error!r} after {self.num_answers}")

    def ask_all(self) -> None:
        """Until told to stop."""
        raise NotImplementedError

    def check(self, outputs: bytes) -> None:
        """The answer is whole and right."""
        assert outputs == self.values.tobytes()
        self.num_answers += 1


class RestWorker(AskingThread):
    """Keeps one connection, for as long as the server keeps it."""

    def ask_all(self) -> None:
        body = self.values.tobytes()
        parameters = {"binary_data_size": len(body)}
        tensor = {"name": "x", "datatype": "FP32", "shape": list(self.values.shape), "parameters": parameters}
        head = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
        line = http.client.HTTPConnection(self.server.http, timeout=30)
        while not self.stopping.is_set():
            line.request("POST", "/v2/models/numbers/infer", head + body, {"Inference-Header-Content-Length": str(len(head))})
            answer = line.getresponse()
            found = answer.read()
            assert answer.status == 200, (answer.status, found[:200])
            self.check(found[int(answer.headers["inference-header-content-length"]) :])
            if answer.headers.get("connection") == "close":
                break
        line.close()


class RpcWorker(AskingThread):
    """Keeps one channel of grpc's own client."""

    def ask_all(self) -> None:
        request = pb.ModelInferRequest(model_name="numbers")
        request.inputs.add(name="x", datatype="FP32", shape=list(self.values.shape))
        request.raw_input_contents.append(self.values.tobytes())
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self.server.grpc, options) as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            while not self.stopping.is_set():
                answer = pb.ModelInferResponse.FromString(infer(request.SerializeToString(), timeout=30))
                self.check(answer.raw_output_contents[0])


def test_sigterm_under_load_loses_nothing(start_server: Start, tmp_path: Path) -> None:
    save_identity(tmp_path, "numbers", "FP32", ("batch", "length"))
    server = start_server(tmp_path)
    stopping = threading.Event()
    workers = [
        kind(server, stopping, size)
        for kind in (RestWorker, RpcWorker)
        for size in (SMALL, SMALL, SMALL, LARGE, LARGE)
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    while any(worker.num_answers < 3 and not worker.losses for worker in workers):
        time.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    stopping.set()  # each is in the middle of a call, or begins one more
    for worker in workers:
        worker.join()
    assert server.process.wait(timeout=60) == 0
    assert [loss for worker in workers for loss in worker.losses] == []


@pytest.mark.parametrize("seconds", [0.1, 1.5], ids=["soon", "after the listener has closed"])
def test_a_body_that_is_half_sent_is_waited_for(start_server: Start, tmp_path: Path, seconds: float) -> None:
    save_scale(tmp_path, "double", 2.0)
    server = start_server(tmp_path)
    body = orjson.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})
    host, _, port = server.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(
            b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body[:20])
        )
        time.sleep(0.1)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(seconds)
        line.sendall(body[20:])
        answer = b""
        while more := line.recv(65_536):
            answer += more
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"connection: close" in answer
    assert answer.endswith(b'"data":[2.0,4.0,6.0,8.0]}]}')
    assert server.process.wait(timeout=60) == 0


def test_an_idle_client_does_not_hold_up_the_end(start_server: Start, tmp_path: Path) -> None:
    save_scale(tmp_path, "double", 2.0)
    server = start_server(tmp_path)
    host, _, port = server.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert line.recv(1000).endswith(b'{"live":true}')
        server.process.send_signal(signal.SIGTERM)
        assert line.recv(1000) == b""
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert server.process.wait(timeout=60) == 0
