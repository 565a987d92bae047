"""Whatever is sent, the answer is a 4xx or INVALID_ARGUMENT, and the server goes on."""

import asyncio
import contextlib
import gzip
import json
import socket
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import save_scale
from running import RunningServer
from tritonclient.grpc import service_pb2 as pb

from tensorferry.serve.core.memory import Charge, MemoryBudget
from tensorferry.serve.core.spec import ModelSpec, TensorSpec
from tensorferry.serve.rest.infer import read_raw_request

GOOD = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
bounded = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


class RawClient:
    """Sends bytes as they are and reads one answer."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))

    def send(self, data: bytes, *, ends: bool = True) -> tuple[int, bytes]:
        """The status and body of the first answer; 0 where the server closed without one."""
        with socket.create_connection(self.address, timeout=30) as line:
            with contextlib.suppress(OSError):
                line.sendall(data)
            if ends:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_WR)
            return read_answer(line)

    def post(self, path: str, body: bytes, headers: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """A whole request."""
        lines = {"host": "localhost", "content-length": len(body), "connection": "close", **(headers or {})}
        head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{key}: {value}\r\n" for key, value in lines.items()) + "\r\n"
        return self.send(head.encode("latin-1") + body, ends=False)

    def infer(self, request: object, tail: bytes = b"", model: str = "double", **headers: Any) -> tuple[int, bytes]:
        """An inference of a JSON value, and bytes behind it."""
        head = orjson.dumps(request, option=orjson.OPT_NON_STR_KEYS)
        lengths = {"inference-header-content-length": len(head)} if tail else {}
        return self.post(f"/v2/models/{model}/infer", head + tail, {**lengths, **headers})


def read_answer(line: socket.socket) -> tuple[int, bytes]:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while b"\r\n\r\n" not in data:
            more = line.recv(65536)
            if not more:
                return 0, data
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(int(row.split(b":")[1]) for row in head.lower().split(b"\r\n") if row.startswith(b"content-length"))
        while len(body) < length:
            body += line.recv(65536)
        return int(head.split(b" ")[1]), body
    return 0, data


@pytest.fixture
def client(server: RunningServer) -> RawClient:
    return RawClient(server.http)


def assert_refused(answer: tuple[int, bytes]) -> None:
    status, body = answer
    assert 400 <= status < 500, answer
    assert isinstance(json.loads(body)["error"], str)


def assert_sane(client: RawClient) -> None:
    status, body = client.infer(GOOD)
    assert status == 200, body
    assert json.loads(body)["outputs"][0]["data"] == [2, 4, 6, 8]


@bounded
@given(request=json_values)
def test_any_json_is_answered(client: RawClient, request: object) -> None:
    assert_refused(client.infer(request))


@bounded
@given(
    changes=st.dictionaries(st.sampled_from(["name", "datatype", "shape", "data", "parameters"]), json_values, min_size=1),
    tail=st.binary(max_size=24),
)
def test_any_change_to_an_input_is_answered(client: RawClient, changes: dict[str, object], tail: bytes) -> None:
    status, body = client.infer({"inputs": [GOOD["inputs"][0] | changes]}, tail)
    assert status == 200 or 400 <= status < 500, body
    if status == 200:
        assert len(json.loads(body)["outputs"][0]["data"]) % 4 == 0


@bounded
@given(
    size=st.integers(-(2**70), 2**70) | st.integers(0, 40),
    shape=st.lists(st.integers(-2, 2**62), max_size=4),
    tail=st.binary(max_size=40),
    length=st.integers(-5, 10**6) | st.just("x"),
    datatype=st.sampled_from(["FP32", "BYTES", "BOOL", "FP16", "BF16", "UINT64"]),
)
def test_lying_lengths_and_huge_shapes_are_refused(
    client: RawClient, size: int, shape: list[int], tail: bytes, length: object, datatype: str
) -> None:
    text = json.dumps({"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}]})
    body = text.encode() + tail
    path = f"/v2/models/identity_{datatype.lower()}/infer"
    assert_refused(client.post(path, body, {"inference-header-content-length": length}))
    if not (len(shape) == 2 and shape[1] == 4):
        assert_refused(client.post(path, body, {"inference-header-content-length": len(text)}))


@bounded
@given(data=st.binary(max_size=200))
def test_any_bytes_are_answered_or_hung_up_on(client: RawClient, data: bytes) -> None:
    status, _ = client.send(data)
    assert status == 0 or 400 <= status < 500


@bounded
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]),
    path=st.lists(
        st.sampled_from(
            ["v2", "models", "double", "versions", "1", "..", "%2e%2e", "%2F", "%00", "%ff", "infer", "config", "ready", "stats",
             "repository", "index", "load", "unload", "health", "live", "logging", "trace", "setting", "systemsharedmemory",
             "region", "register", "status", "metrics", "", "99999999999999999999", "-1", "ä"]
        ),
        max_size=6,
    ),
    body=st.sampled_from([b"", b"{}", b"[]", b"null", b'{"parameters": 3}', b'{"log_verbose_level": "x"}', b"\xff"]),
)  # fmt: skip
def test_any_address_is_answered(client: RawClient, method: str, path: list[str], body: bytes) -> None:
    if "unload" in path and "double" in path:
        return
    target = "/" + "/".join(path)
    head = f"{method} {target} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    status, answer = client.send(head.encode("latin-1", "replace") + body, ends=False) if method != "HEAD" else (400, b"")
    assert status == 200 or 400 <= status < 500 or (status == 501 and b"CUDA" in answer), (target, answer)


def test_deep_json_is_refused(client: RawClient) -> None:
    deep = b"[" * 50_000 + b"]" * 50_000
    assert_refused(client.post("/v2/models/double/infer", deep))
    data = b"[" * 900 + b"1" + b"]" * 900
    text = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ' + data + b"}]}"
    assert_refused(client.post("/v2/models/double/infer", text))
    text = b'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1, 4], "data": ' + data + b"}]}"
    assert_refused(client.post("/v2/models/identity_bytes/infer", text))
    assert_sane(client)


def test_compressed_rubbish_and_bombs_are_refused(client: RawClient) -> None:
    good = gzip.compress(orjson.dumps(GOOD))
    for body in (b"rubbish", good[:-9], b"\x1f\x8b"):
        assert_refused(client.post("/v2/models/double/infer", body, {"content-encoding": "gzip"}))
    assert_refused(client.post("/v2/models/double/infer", good, {"content-encoding": "zstd"}))
    packer = zlib.compressobj(9)
    bomb = b"".join(packer.compress(bytes(2**20)) for _ in range(200)) + packer.flush()
    status, body = client.post("/v2/models/double/infer", bomb, {"content-encoding": "deflate"})
    assert status == 413, body
    assert_sane(client)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000000\r\n\r\n" + bytes(2**20), 413),
        (b"POST /v2 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello", 400),
        (b"POST /v2 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\nhello", 400),
        (b"POST /v2 HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\nhello", 400),
        (b"POST /v2 HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 40_000, 431),
        (b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n" + b"".join(b"a%d: b\r\n" % i for i in range(200)) + b"\r\n", 431),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\x00 a TLS hello", 400),
        (b"GET /v2 HTTP/9.9\r\n\r\n", 400),
    ],
)
def test_broken_http_is_refused(client: RawClient, data: bytes, status: int) -> None:
    assert client.send(data)[0] == status
    assert_sane(client)


def test_a_wish_for_another_protocol_is_ignored(client: RawClient) -> None:
    assert client.send(b"GET /v2 HTTP/1.1\r\nhost: localhost\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n")[0] == 200


def test_a_chunked_body_of_any_size_is_limited(client: RawClient) -> None:
    chunk = b"%x\r\n" % 2**20 + bytes(2**20) + b"\r\n"
    assert (
        client.send(
            b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n" + chunk * 70
        )[0]
        == 413
    )
    assert_sane(client)


def test_a_good_chunked_request_and_pipelined_requests_are_answered(client: RawClient) -> None:
    body = orjson.dumps(GOOD)
    head = (
        b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection(client.address, timeout=30) as line:
        line.sendall(head)
        assert line.recv(100).startswith(b"HTTP/1.1 100 Continue")
        line.sendall(b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (7, body[:7], len(body) - 7, body[7:]))
        assert read_answer(line)[0] == 200
        one = b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        line.sendall(one * 20)
        data = b""
        while data.count(b"HTTP/1.1 200 OK") < 20:
            data += line.recv(65536)


def test_a_slow_client_is_cut_off_and_a_gone_one_harms_none(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    save_scale(tmp_path, "double", 2.0)
    server = start_server(tmp_path, "--read-timeout", "1", "--max-connections", "4")
    client = RawClient(server.http)
    with socket.create_connection(client.address, timeout=30) as line:  # half of the time that is given without the option
        line.sendall(b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\ncontent-le")
        assert read_answer(line)[0] == 408
    lines = [socket.create_connection(client.address, timeout=30) for _ in range(4)]
    time.sleep(0.2)
    assert client.send(b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n", ends=False)[0] == 503
    for line in lines:
        line.close()
    for _ in range(50):
        body = orjson.dumps(GOOD)
        with socket.create_connection(client.address) as line:
            line.sendall(
                b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
            )
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(0.02)
    assert_sane(client)


@bounded
@given(data=st.data())
def test_any_grpc_request_is_answered_with_a_code_of_the_client(
    server: RunningServer, grpc_infer: Any, data: st.DataObject
) -> None:
    request = pb.ModelInferRequest(model_name=data.draw(st.sampled_from(["double", "identity_bytes", "", "..", "sum"])))
    for _ in range(data.draw(st.integers(0, 2))):
        tensor = request.inputs.add(
            name=data.draw(st.sampled_from(["x", "a", ""])),
            datatype=data.draw(st.sampled_from(["FP32", "BYTES", "BF16", "INT32", "bad", ""])),
            shape=data.draw(st.lists(st.integers(-2, 2**62), max_size=3)),
        )
        tensor.contents.fp32_contents.extend(data.draw(st.lists(st.floats(width=32), max_size=3)))
        tensor.parameters["shared_memory_region"].string_param = data.draw(st.sampled_from(["", "r"]))
        if data.draw(st.booleans()):
            del tensor.parameters["shared_memory_region"]
    request.raw_input_contents.extend(data.draw(st.lists(st.binary(max_size=20), max_size=2)))
    request.parameters["priority"].string_param = "high"
    with pytest.raises(grpc.RpcError) as error:
        grpc_infer(request.SerializeToString())
    assert error.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), error.value


@bounded
@given(data=st.binary(max_size=100))
def test_any_grpc_bytes_are_answered_with_a_code_of_the_client(grpc_infer: Any, data: bytes) -> None:
    with pytest.raises(grpc.RpcError) as error:
        grpc_infer(data)
    assert error.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)


@pytest.fixture(scope="session")
def grpc_infer(server: RunningServer) -> Any:
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        yield lambda data: call(data, timeout=30)


@pytest.mark.parametrize("length", ["9" * 5000, "9" * 19, "-1", "1e3", "\xb2"])
def test_a_length_of_the_json_that_is_none_is_refused(client: RawClient, length: str) -> None:
    assert_refused(client.post("/v2/models/double/infer", b"{}", {"inference-header-content-length": length}))


RAW = {"inference-header-content-length": 0}


def test_a_body_may_be_the_only_input_and_nothing_else(client: RawClient) -> None:
    row = np.arange(4, dtype=np.float32)
    status, body = client.post("/v2/models/double/infer", row.tobytes(), RAW)
    assert status == 200
    assert body.endswith((2 * row).tobytes())
    assert b'"shape":[1,4]' in body
    rows = np.array([[1, 2], [3, 4], [5, 6]], np.float32)  # without a batch dimension, with one open size
    status, body = client.post("/v2/models/mixing/infer", rows.tobytes(), RAW)
    assert status == 200
    assert body.endswith((rows - rows.sum(axis=0)).tobytes())
    for model, size, says in (
        ("double", 15, b"15"),
        ("mixing", 12, b"12"),
        ("sum", 12, b"has 2"),
        ("identity_bytes", 4, b"say it in JSON"),
        ("nothing", 4, b"unknown model"),
    ):
        answer = client.post(f"/v2/models/{model}/infer", bytes(size), RAW)
        assert_refused(answer)
        assert says in answer[1]


def test_a_body_may_be_one_text_and_nothing_else() -> None:
    spec = ModelSpec("read", 8, (TensorSpec("text", "BYTES", (-1, 1)),), ())
    request, _ = read_raw_request("read", "", b"a picture", spec, Charge(MemoryBudget(100)))
    assert request.inputs["text"].tolist() == [[b"a picture"]]


def test_codings_are_named_in_any_case(client: RawClient) -> None:
    body = gzip.compress(orjson.dumps(GOOD))
    assert client.post("/v2/models/double/infer", body, {"content-encoding": "GZip"})[0] == 200


def test_files_of_a_load_that_are_no_base64_are_refused(client: RawClient) -> None:
    for data in ("\xe9", "a"):
        body = orjson.dumps({"parameters": {"config": "{}", "file:1/model.onnx": data}})
        assert_refused(client.post("/v2/repository/models/sent/load", body))


def test_shared_memory_tricks_are_refused(client: RawClient) -> None:
    path = Path("/dev/shm/ferry_fuzz")
    path.write_bytes(bytes(64))
    register = "/v2/systemsharedmemory/region/fuzz/register"
    try:
        for key in ("../etc/passwd", "/../etc/passwd", "..", "/", "", "nothing_here", "a/b", "x\0y", 3, None):
            assert_refused(client.post(register, orjson.dumps({"key": key, "byte_size": 64})))
        for size, offset in ((65, 0), (64, 1), (-1, 0), (0, 0), (2**62, 2**62), ("64", 0), (64, -1)):
            assert_refused(client.post(register, orjson.dumps({"key": "/ferry_fuzz", "byte_size": size, "offset": offset})))
        assert client.post(register, orjson.dumps({"key": "/ferry_fuzz", "byte_size": 64}))[0] == 200
        place = {"shared_memory_region": "fuzz", "shared_memory_byte_size": 16}
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": place}
        assert client.infer({"inputs": [tensor]})[0] == 200
        for change in ({"shared_memory_byte_size": 2**40}, {"shared_memory_offset": 60}, {"shared_memory_region": "x"}):
            assert_refused(client.infer({"inputs": [tensor | {"parameters": place | change}]}))
        path.write_bytes(b"")  # the region shrinks under the server
        assert_refused(client.infer({"inputs": [tensor]}))
        target = {"outputs": [{"name": "y", "parameters": place}]}
        assert_refused(client.infer(GOOD | target))
        assert path.stat().st_size == 0
    finally:
        path.unlink()
        client.post("/v2/systemsharedmemory/unregister", b"")
    assert_sane(client)


def test_a_stream_that_the_client_drops_leaves_nothing_behind(server: RunningServer) -> None:
    async def drop() -> None:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            for _ in range(20):
                call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
                request = pb.ModelInferRequest(model_name="double")
                request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
                request.raw_input_contents.append(np.zeros(4, np.float32).tobytes())
                for _ in range(5):
                    await call.write(request.SerializeToString())
                await call.read()
                call.cancel()

    asyncio.run(drop())
    client = RawClient(server.http)
    assert_sane(client)
    for _ in range(100):
        _, body = client.send(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", ends=False)
        if b"ferry_requests_under_way 0.0" in body:
            return
        time.sleep(0.05)
    pytest.fail("requests are still counted as under way")
