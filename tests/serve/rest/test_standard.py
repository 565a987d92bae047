"""HTTP/1.1 as RFC 9112 has it, where clients and proxies differ in what they send."""

import json
import socket

import orjson
import pytest
from running import RunningServer

BODY = orjson.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})
ANSWER = b'"data":[2.0,4.0,6.0,8.0]'


def ask(server: RunningServer, data: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    host, _, port = server.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(data)
        found = b""
        while more := line.recv(65_536):
            found += more
        return found


def write_infer(*lines: bytes, target: bytes = b"/v2/models/double/infer") -> bytes:
    head = b"".join(line + b"\r\n" for line in (b"connection: close", b"content-length: %d" % len(BODY), *lines))
    return b"POST %s HTTP/1.1\r\n%s\r\n%s" % (target, head, BODY)


@pytest.mark.parametrize("hosts", [[], [b"host: localhost", b"host: b"]], ids=["none", "two"])
def test_a_request_names_one_host(server: RunningServer, hosts: list[bytes]) -> None:
    assert ask(server, write_infer(*hosts)).startswith(b"HTTP/1.1 400 ")
    assert ANSWER in ask(server, write_infer(b"host: localhost"))
    assert ANSWER in ask(server, write_infer().replace(b"HTTP/1.1", b"HTTP/1.0"))


def test_a_client_of_the_older_version_is_told_that_its_connection_stays(server: RunningServer) -> None:
    """It would take an answer that does not say so to end with the connection, and wait."""
    kept = write_infer().replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"connection: close", b"connection: keep-alive")
    _, first, second = ask(server, kept + write_infer(b"host: localhost")).split(b"HTTP/1.1 200 OK")
    assert b"connection: keep-alive\r\n" in first
    assert b"connection: close\r\n" in second


@pytest.mark.parametrize("target", [b"http://ferry:8000/v2/models/double/infer", b"HTTP://ferry/v2/models/double/infer?a=b"])
def test_a_target_may_name_the_server(server: RunningServer, target: bytes) -> None:
    assert ANSWER in ask(server, write_infer(b"host: localhost", target=target))


@pytest.mark.parametrize("is_chunked", [False, True])
def test_the_body_of_a_request_that_wishes_for_another_protocol_is_read(server: RunningServer, is_chunked: bool) -> None:
    wish = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\nhost: localhost\r\n"
    form = b"transfer-encoding: chunked\r\n" if is_chunked else b"content-length: %d\r\n" % len(BODY)
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY) if is_chunked else BODY
    last = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    found = ask(server, b"POST /v2/models/double/infer HTTP/1.1\r\n" + wish + form + b"\r\n" + body + last)
    assert ANSWER in found
    assert found.endswith(b'{"live":true}')


def test_what_stands_behind_a_body_is_no_header(server: RunningServer) -> None:
    head = b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    tail = b"0\r\ncontent-encoding: gzip\r\ninference-header-content-length: 3\r\n\r\n"
    assert ANSWER in ask(server, head + b"%x\r\n%s\r\n" % (len(BODY), BODY) + tail)


def test_a_body_in_chunks_of_a_byte_or_two_is_the_same_body(server: RunningServer) -> None:
    head = b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(BODY[at : at + 2]), BODY[at : at + 2]) for at in range(0, len(BODY), 2))
    assert ANSWER in ask(server, head + chunks + b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/double/ready", {"name": "double", "ready": True}),
    ],
)
def test_probes_are_answered_with_a_body(server: RunningServer, path: str, says: dict[str, object]) -> None:
    found = ask(server, f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    assert found.startswith(b"HTTP/1.1 200 ")
    assert json.loads(found.partition(b"\r\n\r\n")[2]) == says


def test_a_bad_request_behind_good_ones_is_answered_after_them(server: RunningServer) -> None:
    good = write_infer(b"host: localhost").replace(b"connection: close\r\n", b"")
    found = ask(server, good * 3 + b"rubbish\r\n\r\n")
    assert found.count(b"HTTP/1.1 200 ") == 3
    assert found.rindex(b"HTTP/1.1 400 ") > found.rindex(b"HTTP/1.1 200 ")


def test_a_client_that_sent_ahead_may_do_so_again(server: RunningServer) -> None:
    good = write_infer(b"host: localhost").replace(b"connection: close\r\n", b"")
    num_ahead = 8 * 4096 // len(good)  # more than is parsed at a time
    host, _, port = server.http.partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as line:
        for _ in range(3):
            line.sendall(good * num_ahead)
            found = b""
            while found.count(ANSWER) < num_ahead:
                found += line.recv(65_536)


def test_nothing_is_connected_to(server: RunningServer) -> None:
    assert ask(server, b"CONNECT ferry:22 HTTP/1.1\r\nhost: ferry:22\r\n\r\n").startswith(b"HTTP/1.1 405 ")
