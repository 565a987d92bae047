"""What strangers can do to an open server: it holds no more than it may, and keeps nobody waiting."""

import base64
import contextlib
import gc
import gzip
import itertools
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import hpack
import numpy as np
import orjson
import pytest
from hyperframe.frame import GoAwayFrame, PingFrame
from models import save_identity, save_scale
from tritonclient.grpc import service_pb2 as pb
from watched import connect, post, read_all, serve, wait_until, wait_until_still
from wire import Wire, make_request, pack

from tensorferry.serve.core.faults import InvalidRequest, MemoryFull, TooLarge
from tensorferry.serve.core.limits import MAX_HEADER_NBYTES, MAX_JSON_VALUES
from tensorferry.serve.core.memory import Charge, MemoryBudget
from tensorferry.serve.core.shared_memory import Regions
from tensorferry.serve.grpc.frames import DATA, END_HEADERS, END_STREAM, HEADERS, PING, write_frame
from tensorferry.serve.grpc.messages import Status
from tensorferry.serve.rest.infer import arrive
from tensorferry.serve.rest.json_body import check_json, read_load
from tensorferry.serve.rest.protocol import HttpConnection
from tensorferry.serve.server import Server

MIB = 2**20
INFER = "/v2/models/double/infer"
GOOD = orjson.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    save_scale(tmp_path, "double", 2.0)
    save_identity(tmp_path, "texts", "BYTES", ("batch", "length"))
    save_identity(tmp_path, "numbers", "FP32", ("batch", "length"))
    return tmp_path


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def begin(server: Server, num_promised: int, *lines: str, path: str = INFER) -> socket.socket:
    """A POST whose body is still to come."""
    line = connect(server.http_port)
    more = "".join(f"{each}\r\n" for each in lines)
    line.sendall(f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {num_promised}\r\n{more}\r\n".encode())
    return line


def write_head(size: int, *, binary: bool) -> bytes:
    """The JSON of a request for `numbers`, whose elements follow it."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, size], "parameters": {"binary_data_size": 4 * size}}
    return orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": binary}})


def assert_sane(server: Server) -> None:
    assert b'"data":[2.0,4.0,6.0,8.0]' in post(server.http_port, INFER, GOOD)
    with Wire(f"127.0.0.1:{server.grpc_port}") as wire:
        assert wire.call().status == Status.OK


# ---- memory ----------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_collector")
def test_uploads_that_are_hung_up_on_leave_nothing(root: Path) -> None:
    def client(server: Server) -> None:
        for _ in range(4):
            with begin(server, 40 * MIB) as line:
                line.sendall(bytes(20 * MIB))
        assert server.http is not None
        wait_until(lambda: not server.http.connections)
        # by type: asking some objects of other packages what they are an instance of makes them warn
        assert not [found for found in gc.get_objects() if type(found) is HttpConnection]

    serve(root, client)


def test_requests_sent_ahead_wait_until_the_answers_before_them_are_read(root: Path) -> None:
    def client(server: Server) -> int:
        with connect(server.http_port) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.settimeout(1)
            with contextlib.suppress(TimeoutError):
                line.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * 40_000)
            assert server.http is not None
            wait_until(lambda: bool(server.http.connections))
            (connection,) = server.http.connections
            return wait_until_still(connection.transport.get_write_buffer_size)

    num_unread = serve(root, client)
    assert num_unread < MIB


def ask_for_much(size: int) -> bytes:
    """A request whose answer is as large as itself."""
    head = write_head(size, binary=True)
    names = f"inference-header-content-length: {len(head)}\r\ncontent-length: {len(head) + 4 * size}\r\n"
    start = f"POST /v2/models/numbers/infer HTTP/1.1\r\nhost: localhost\r\n{names}\r\n"
    return start.encode() + head + np.arange(size, dtype=np.float32).tobytes()


def test_a_large_answer_goes_as_it_is_read_and_what_was_asked_behind_it_afterwards(root: Path) -> None:
    size = 8 * MIB

    def client(server: Server) -> tuple[int, bytes]:
        assert server.http is not None
        with connect(server.http_port) as line:
            line.sendall(ask_for_much(size) + b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            wait_until(lambda: any(connection.unsent for connection in server.http.connections))
            (connection,) = server.http.connections
            return wait_until_still(connection.transport.get_write_buffer_size), read_all(line)

    num_unread, answers = serve(root, client)
    assert num_unread < MIB
    assert np.arange(size, dtype=np.float32).tobytes() in answers
    assert answers.count(b"HTTP/1.1 200 ") == 2


def test_a_large_answer_that_is_read_too_slowly_is_given_up(root: Path) -> None:
    def client(server: Server) -> None:
        assert server.http is not None
        with connect(server.http_port) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.sendall(ask_for_much(8 * MIB))
            wait_until(lambda: any(connection.unsent for connection in server.http.connections))
            end = time.monotonic() + 30
            while server.http.connections:  # every read lets the server write some more
                assert time.monotonic() < end
                with contextlib.suppress(ConnectionResetError):
                    line.recv(4096)
                time.sleep(0.02)
        assert server.budget.num_held == 0

    serve(root, client, read_seconds=2.0)


@pytest.mark.parametrize(
    "data",
    [
        b"GET /" + b"a" * MIB,
        b"GET / HTTP/1.1\r\nhost: " + b"a" * MIB,
        b"\r\n" * MIB,
        b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\nend: " + b"a" * MIB,
    ],
    ids=["address", "header", "empty lines", "trailer"],
)
def test_what_never_ends_is_refused_as_soon_as_it_is_too_long(root: Path, data: bytes) -> None:
    def client(server: Server) -> bytes:
        with connect(server.http_port) as line:
            line.sendall(data[: MAX_HEADER_NBYTES + 8192])
            return read_all(line)

    answer = serve(root, client)
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_a_body_without_a_key_is_not_taken_in(root: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("secret\n")

    def client(server: Server) -> None:
        with begin(server, 40 * MIB) as line:
            answer = read_all(line)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"www-authenticate: Bearer" in answer
        with begin(server, len(GOOD), "authorization: Bearer secret", "connection: close") as line:
            line.sendall(GOOD)
            assert read_all(line).startswith(b"HTTP/1.1 200 ")

    serve(root, client, api_keys=keys)


def test_only_requests_with_tensors_or_files_may_be_large(root: Path) -> None:
    def client(server: Server) -> None:
        with begin(server, 40 * MIB, path="/v2/logging") as line:
            assert read_all(line).startswith(b"HTTP/1.1 413 ")
        with Wire(f"127.0.0.1:{server.grpc_port}") as wire:
            assert wire.call(bytes(100_000), "LogSettings").status == Status.RESOURCE_EXHAUSTED

    serve(root, client)


def test_what_all_clients_hold_together_is_bounded_over_both_protocols(root: Path) -> None:
    def client(server: Server) -> None:
        with contextlib.ExitStack() as stack:
            lines = [stack.enter_context(begin(server, 3 * MIB)) for _ in range(3)]
            for line in lines:
                line.sendall(bytes(2 * MIB))
            wait_until(lambda: server.budget.num_held >= 6 * MIB)
            wire = stack.enter_context(Wire(f"127.0.0.1:{server.grpc_port}"))
            stream = wire.begin()
            body = pack(bytes(3 * MIB))
            wire.data(stream, body[:50_000], ends=False)
            wire.until(lambda frame: frame.type == 8 and frame.stream_id == stream)  # it may send the rest
            wire.data(stream, body[50_000:])
            assert wire.answer(stream).status == Status.RESOURCE_EXHAUSTED
            refused = stack.enter_context(begin(server, 3 * MIB))
            with contextlib.suppress(OSError):
                refused.sendall(bytes(3 * MIB))
            answer = read_all(refused)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after" in answer
            assert_sane(server)
        wait_until(lambda: server.budget.num_held == 0)
        assert_sane(server)

    serve(root, client, max_memory_nbytes=8 * MIB)


def test_what_bodies_unpack_to_counts_too(root: Path) -> None:
    packed = gzip.compress(bytes(16 * MIB))
    text = gzip.compress(b'{"inputs": [' + b"[]," * (MIB // 10) + b"[]]}")  # less than 1 MiB, and many times that when it is read

    def client(server: Server) -> None:
        for body in (packed, text):
            assert post(server.http_port, INFER, body, content_encoding="gzip").startswith(b"HTTP/1.1 503 ")
        with Wire(f"127.0.0.1:{server.grpc_port}") as wire:
            stream = wire.begin(wire.head("ModelInfer", ("grpc-encoding", "gzip")))
            wire.data(stream, pack(packed, 1))
            assert wire.answer(stream).status == Status.RESOURCE_EXHAUSTED
        assert_sane(server)
        wait_until(lambda: server.budget.num_held == 0)

    serve(root, client, max_memory_nbytes=8 * MIB)


def test_what_is_read_in_a_thread_for_a_client_who_hangs_up_is_not_held_for_ever(root: Path) -> None:
    text = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [%d], "data": [%s1]}]}'
    packed = gzip.compress(text % (MIB // 4, b"1," * (MIB // 4 - 1)))

    def client(server: Server) -> None:
        for _ in range(8):
            with begin(server, len(packed), "content-encoding: gzip", path="/v2/models/numbers/infer") as line:
                line.sendall(packed)
            with Wire(f"127.0.0.1:{server.grpc_port}") as wire:
                wire.data(wire.begin(wire.head("ModelInfer", ("grpc-encoding", "gzip"))), pack(packed, 1))
                wire.ping()
        wait_until(lambda: server.budget.num_held == 0)

    serve(root, client)


def test_what_is_charged_after_its_client_has_gone_is_refused_and_not_counted() -> None:
    budget = MemoryBudget(100)
    charge = Charge(budget)
    charge.add(60)
    with pytest.raises(MemoryFull, match="beyond"):
        charge.add(41)
    charge.close()
    with pytest.raises(MemoryFull, match="gone"):
        charge.add(1)
    charge.add(-60)
    assert (budget.num_held, charge.nbytes) == (0, 0)


@pytest.fixture
def region() -> Iterator[str]:
    """An object in shared memory of 6 MiB, all zeros."""
    name = f"ferry_strangers_{os.getpid()}"
    path = Path("/dev/shm") / name
    with path.open("wb") as file:
        file.truncate(6 * MIB)
    yield name
    path.unlink()


def register(server: Server, region: str) -> None:
    body = orjson.dumps({"key": region, "byte_size": 6 * MIB})
    answer = post(server.http_port, "/v2/systemsharedmemory/region/all/register", body, content_type="application/json")
    assert answer.startswith(b"HTTP/1.1 200 ")


def write_places(names: list[str], datatype: str, size: int, nbytes: int) -> bytes:
    place = {"shared_memory_region": "all", "shared_memory_byte_size": nbytes}
    inputs = [{"name": name, "datatype": datatype, "shape": [1, size], "parameters": place} for name in names]
    return orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})


def call_with_places(server: Server, model: str, names: list[str], datatype: str, size: int, nbytes: int) -> int:
    message = pb.ModelInferRequest(model_name=model)
    for name in names:
        tensor = message.inputs.add(name=name, datatype=datatype, shape=[1, size])
        tensor.parameters["shared_memory_region"].string_param = "all"
        tensor.parameters["shared_memory_byte_size"].int64_param = nbytes
    with Wire(f"127.0.0.1:{server.grpc_port}") as wire:
        return wire.call(message.SerializeToString()).status


def test_what_is_read_from_shared_memory_counts_before_it_is_read(
    root: Path, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Regions, "read", lambda *_: pytest.fail("it was read"))
    read = {"model": "numbers", "names": ["x"], "datatype": "FP32", "size": 6 * MIB // 4, "nbytes": 6 * MIB}
    unknown = read | {"names": [f"x{at}" for at in range(100)]}

    def client(server: Server) -> None:
        register(server, region)
        for arguments, status, code in (
            (read, b"503", Status.RESOURCE_EXHAUSTED),
            (unknown, b"400", Status.INVALID_ARGUMENT),
            (read | {"size": 4}, b"400", Status.INVALID_ARGUMENT),
            (read | {"model": "nothing"}, b"404", Status.NOT_FOUND),
        ):
            body = write_places(*(arguments[key] for key in ("names", "datatype", "size", "nbytes")))
            assert post(server.http_port, f"/v2/models/{arguments['model']}/infer", body).startswith(b"HTTP/1.1 " + status)
            assert call_with_places(server, **arguments) == code
        assert_sane(server)
        wait_until(lambda: server.budget.num_held == 0)

    serve(root, client, max_memory_nbytes=8 * MIB, shared_memory="ferry_")


@pytest.mark.parametrize(("model", "datatype", "size"), [("texts", "BYTES", MIB // 8), ("numbers", "FP32", 3 * MIB // 2)])
def test_reading_shared_memory_keeps_nobody_waiting(root: Path, region: str, model: str, datatype: str, size: int) -> None:
    nbytes = 4 * size  # texts of no bytes are four bytes each

    def client(server: Server) -> None:
        register(server, region)
        answer = post(server.http_port, f"/v2/models/{model}/infer", write_places(["x"], datatype, size, nbytes))
        assert answer.startswith(b"HTTP/1.1 200 ")
        with Wire(f"127.0.0.1:{server.grpc_port}") as wire:
            message = pb.ModelInferRequest(model_name=model)
            tensor = message.inputs.add(name="x", datatype=datatype, shape=[1, size])
            tensor.parameters["shared_memory_region"].string_param = "all"
            tensor.parameters["shared_memory_byte_size"].int64_param = nbytes
            stream = wire.begin()
            wire.data(stream, pack(message.SerializeToString()))
            wire.until(lambda frame: frame.type == 1)

    serve(root, client, max_memory_nbytes=2**30, shared_memory="ferry_")


def test_arrays_of_small_requests_count_too(root: Path) -> None:
    """A request of 64 KiB can hold texts for 600 KiB, and ask for answers of any size."""
    texts = write_texts(0, 12_000)
    tensor = {"name": "x", "datatype": "BYTES", "shape": [1, 12_000], "parameters": {"binary_data_size": len(texts)}}
    head = orjson.dumps({"inputs": [tensor]})
    lines = {"inference_header_content_length": str(len(head))}

    def client(server: Server) -> None:
        assert post(server.http_port, "/v2/models/texts/infer", head + texts, **lines).startswith(b"HTTP/1.1 503 ")
        message = pb.ModelInferRequest(model_name="texts", raw_input_contents=[texts])
        message.inputs.add(name="x", datatype="BYTES", shape=[1, 12_000])
        with Wire(f"127.0.0.1:{server.grpc_port}") as wire:
            assert wire.call(message.SerializeToString()).status == Status.RESOURCE_EXHAUSTED

    serve(root, client, max_memory_nbytes=600_000)


def test_texts_count_before_they_are_read() -> None:
    texts = write_texts(0, 100_000)
    tensor = {"name": "x", "datatype": "BYTES", "shape": [100_000], "parameters": {"binary_data_size": len(texts)}}
    head = orjson.dumps({"inputs": [tensor]})
    arrived = arrive(head + texts, str(len(head)), charge := Charge(MemoryBudget(MIB)))
    with pytest.raises(MemoryFull, match="beyond"):
        arrived.read("texts", "", Regions(), charge)
    assert charge.nbytes == 0


def test_answers_that_nobody_reads_count_too(root: Path) -> None:
    body = np.zeros((1, 4 * MIB), np.float32).tobytes()  # far more than sockets hold
    head = write_head(4 * MIB, binary=True)
    lines = (f"inference-header-content-length: {len(head)}",)

    def client(server: Server) -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                line = stack.enter_context(begin(server, len(head) + len(body), *lines, path="/v2/models/numbers/infer"))
                line.sendall(head + body)
                line.recv(1)  # the answer has begun
            assert server.budget.num_held >= 2 * len(body)
            assert_sane(server)
        wait_until(lambda: server.budget.num_held == 0)

    serve(root, client, max_memory_nbytes=256 * MIB)


def test_a_message_of_very_many_fields_is_not_parsed(root: Path) -> None:
    def client(server: Server) -> None:
        with Wire(f"127.0.0.1:{server.grpc_port}") as wire:
            stream = wire.begin(wire.head("ModelInfer", ("grpc-encoding", "gzip")))
            message = pb.ModelInferRequest(model_name="double").SerializeToString() + b"\x2a\x00" * (4 * MIB)
            wire.data(stream, pack(gzip.compress(message), 1))
            answer = wire.answer(stream)
            assert answer.status == Status.INVALID_ARGUMENT
            assert "fields" in answer.text

    serve(root, client)


# ---- time ------------------------------------------------------------------------------------------------------------------


def write_texts(nbytes: int, num_elements: int) -> bytes:
    return (struct.pack("<I", nbytes) + b"x" * nbytes) * num_elements


@pytest.mark.parametrize("model", ["numbers", "texts", "nothing"])
def test_few_bytes_that_unpack_to_many_keep_nobody_waiting(root: Path, model: str) -> None:
    number = b'"x"' if model == "texts" else b"1"
    size = MIB // 8 if model == "texts" else MIB // 4
    datatype = b"BYTES" if model == "texts" else b"FP32"
    text = b'{"inputs": [{"name": "x", "datatype": "%s", "shape": [1, %d], "data": [%s]}]}'
    packed = gzip.compress(text % (datatype, size, b",".join([number] * size)))
    message = pb.ModelInferRequest(model_name=model)
    size *= 2  # which are read at once
    tensor = message.inputs.add(name="x", datatype=datatype.decode(), shape=[1, size])
    if model == "texts":
        message.raw_input_contents.append(write_texts(1, size))
    else:
        tensor.contents.fp32_contents.extend([1.0] * size)
    called = gzip.compress(message.SerializeToString())

    def client(server: Server) -> tuple[bytes, int]:
        answer = post(server.http_port, f"/v2/models/{model}/infer", packed, content_encoding="gzip", accept_encoding="gzip")
        with Wire(f"127.0.0.1:{server.grpc_port}") as wire:
            stream = wire.begin(wire.head("ModelInfer", ("grpc-encoding", "gzip")))
            wire.data(stream, pack(called, 1))
            wire.until(lambda frame: frame.type == 1)  # HEADERS: the rest of a large answer waits for windows
            return answer, wire.answers[stream].status if model == "nothing" else 0

    answer, status = serve(root, client, max_memory_nbytes=2**31)
    assert answer.startswith(b"HTTP/1.1 404 " if model == "nothing" else b"HTTP/1.1 200 ")
    assert status == (Status.NOT_FOUND if model == "nothing" else 0)


@pytest.mark.parametrize("element", [b"0.12345678901234567,", b"1,", b"0." + b"123456789" * 30 + b","])
def test_the_most_numbers_that_are_read_keep_nobody_waiting(root: Path, element: bytes) -> None:
    size = MAX_JSON_VALUES * 64 // (64 + len(element)) - 100
    text = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, %d], "data": [%s1]}]}'

    def client(server: Server) -> bytes:
        return post(server.http_port, "/v2/models/numbers/infer", text % (size, element * (size - 1)))[:13]

    assert serve(root, client, max_memory_nbytes=2**31) == b"HTTP/1.1 200 "


@pytest.mark.parametrize("part", [b"a", b"\\n", b"\\u0041", "é".encode()], ids=["plain", "short", "escaped", "wide"])
def test_text_of_any_kind_keeps_nobody_waiting(root: Path, part: bytes) -> None:
    text = b'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1, 1], "data": ["%s"]}]}'

    def client(server: Server) -> bytes:
        refused = post(server.http_port, "/v2/models/texts/infer", text % (part * (40 * MIB // len(part))))
        assert refused.startswith(b"HTTP/1.1 413 ")
        return post(server.http_port, "/v2/models/texts/infer", text % (part * (31 * MIB // len(part))))[:13]

    assert serve(root, client, max_memory_nbytes=2**31) == b"HTTP/1.1 200 "


def test_files_of_a_load_keep_nobody_waiting(root: Path) -> None:
    data = base64.b64encode(bytes(40 * MIB))

    def client(server: Server) -> bytes:
        body = b'{"parameters": {"config": "{}", "file:1/model.onnx": "%s"}}' % data
        return post(server.http_port, "/v2/repository/models/sent/load", body, content_type="application/json")

    answer = serve(root, client, max_memory_nbytes=2**31, control_mode="explicit")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"model.onnx" in answer


@pytest.mark.parametrize(
    ("body", "files"),
    [
        (b'{"parameters": {"config": "{}", "file:a": "QQ==", "file:b" : "Qg=="}}', {"file:a": b"A", "file:b": b"B"}),
        (b'{"parameters": {"config": "{\\"file:a\\": \\"QQ==\\"}", "file:b": ""}}', {"file:b": b""}),
        (b'{"parameters": {"file:\\u0061": "QQ==", "file:b": "\\u0051Q=="}}', {"file:a": b"A", "file:b": b"A"}),
        (b'{"parameters": {"x": "file:a", "file:a":"QQ==", "file:a":"Qg=="}}', {"file:a": b"B"}),
    ],
)
def test_files_are_the_same_as_if_all_were_parsed(body: bytes, files: dict[str, bytes]) -> None:
    assert read_load(body, Charge(MemoryBudget(MIB)))[1] == files


@pytest.mark.parametrize("text", [b"Q", b"QQ==QQ==", b"Q\\u00e9==", b"A" * (MIB - 1) + b"=" + b"A" * 4])
def test_a_file_that_is_not_base64_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="base64"):
        read_load(b'{"parameters": {"file:a": "%s"}}' % text, Charge(MemoryBudget(8 * MIB)))


@pytest.mark.parametrize(
    ("model", "datatype", "element", "size"),
    [("numbers", "FP32", b"1", MIB), ("numbers", "FP32", b"[1]", MIB // 4), ("texts", "BYTES", b'""', MIB // 2)],
)
def test_json_of_very_many_values_is_not_parsed(root: Path, model: str, datatype: str, element: bytes, size: int) -> None:
    """The parser keeps the interpreter for itself, in a thread too."""
    text = b'{"inputs": [{"name": "x", "datatype": "%s", "shape": [1, %d], "data": [%s]}]}'
    packed = gzip.compress(text % (datatype.encode(), size, b",".join([element] * size)))

    def client(server: Server) -> bytes:
        return post(server.http_port, f"/v2/models/{model}/infer", packed, content_encoding="gzip")

    answer = serve(root, client)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"binary" in answer


@pytest.mark.parametrize(
    "text",
    [
        b"{" + b",".join(b'"%d":1' % key for key in range(300_000)) + b"}",
        b'{"inputs":[' + b'{"name":"x","datatype":"FP32","shape":[1],"data":[1]},' * 50_000 + b"{}]}",
    ],
    ids=["keys", "tensors"],
)
def test_json_of_very_many_keys_is_not_parsed(text: bytes) -> None:
    """A key takes the parser several times as long as a number."""
    with pytest.raises(TooLarge, match="values"):
        check_json(text)


def test_messages_of_very_many_values_are_not_parsed(root: Path) -> None:
    def client(server: Server) -> None:
        with Wire(f"127.0.0.1:{server.grpc_port}") as wire:
            for model in ("numbers", "texts"):
                message = pb.ModelInferRequest(model_name=model)
                if model == "texts":
                    message.inputs.add(name="x", datatype="BYTES", shape=[1, 2 * MIB])
                    message.raw_input_contents.append(write_texts(1, 2 * MIB))
                else:
                    tensor = message.inputs.add(name="x", datatype="FP32", shape=[1, 3 * MIB])
                    tensor.contents.fp32_contents.extend([1.0] * (3 * MIB))
                stream = wire.begin(wire.head("ModelInfer", ("grpc-encoding", "gzip")))
                wire.data(stream, pack(gzip.compress(message.SerializeToString()), 1))
                assert wire.answer(stream).status == Status.RESOURCE_EXHAUSTED

    serve(root, client)


@pytest.mark.parametrize("compressible", [True, False])
def test_a_large_answer_keeps_nobody_waiting(root: Path, compressible: bool) -> None:
    size = 2 * MIB
    values = np.ones(size, np.float32) if compressible else np.random.default_rng(0).random(size, np.float32)
    body = values.tobytes()
    for binary, packing in ((True, "gzip"), (False, "gzip"), (False, "identity")):
        head = write_head(size, binary=binary)

        def client(server: Server, head: bytes = head, packing: str = packing) -> bytes:
            headers = {"inference_header_content_length": str(len(head)), "accept_encoding": packing}
            return post(server.http_port, "/v2/models/numbers/infer", head + body, **headers)[:20]

        answer = serve(root, client)
        assert answer.startswith(b"HTTP/1.1 200 ")


def write_attack(wire: Wire, kind: str) -> bytes:
    """Some hundred KiB that are cheap to send."""
    unknown = wire.head("/nothing/Here")
    behind: list[bytes] = []
    match kind:
        case "many calls":
            fields = (wire.head("ModelInfer", ("x-noise", "n" * 100 + str(at))) for at in range(2000))
            message = pack(make_request())
            blocks = [wire.encoder.encode(each) for each in fields]
            behind = [write_frame(DATA, END_STREAM, 2 * at + 1, message) for at in range(len(blocks))]
        case "data behind the end":
            blocks = [wire.encoder.encode(wire.head())]
            behind = [write_frame(DATA, END_STREAM, 1, pack(make_request())) + write_frame(DATA, 0, 1, b"x") * 40_000]
        case "unknown methods":
            blocks = [hpack.Encoder().encode(unknown, huffman=False)] * 4000
        case "size updates":
            blocks = [b"\x20" * 16_000] * 20
        case "table churn":
            churn = b"".join(b"\x40\x01a\x02%02d" % (at % 100) for at in range(300))
            blocks = [wire.encoder.encode(unknown) + churn] * 200
        case "huffman":
            text = hpack.Encoder().encode([("x", "e" * 9000)])
            blocks = [hpack.Encoder().encode(unknown, huffman=False) + text] * 100
        case _:
            raise AssertionError(kind)
    heads = [write_frame(HEADERS, END_HEADERS, 2 * at + 1, block) for at, block in enumerate(blocks)]
    return b"".join(head + data for head, data in itertools.zip_longest(heads, behind, fillvalue=b""))


@pytest.mark.parametrize(
    "kind", ["many calls", "data behind the end", "unknown methods", "size updates", "table churn", "huffman"]
)
def test_one_connection_keeps_no_other_waiting(root: Path, kind: str) -> None:
    def client(server: Server) -> None:
        with Wire(f"127.0.0.1:{server.grpc_port}") as wire:
            with contextlib.suppress(OSError):
                wire.send(write_attack(wire, kind))
                wire.frame(PING, 0, 0, b"are you?")
            if kind == "many calls":  # a server that is quick enough serves all of them
                while not isinstance(wire.read(), GoAwayFrame | PingFrame | None):
                    pass
            else:
                wire.goaway()
        assert_sane(server)

    serve(root, client)
