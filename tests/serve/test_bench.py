"""`ferry bench-serve` on a real server, over both protocols."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from running import RunningServer

from tensorferry.cli import main
from tensorferry.errors import BadOption
from tensorferry.serve.bench import Target, make_inputs, measure


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_every_request_is_counted_on_both_sides(server: RunningServer, protocol: str) -> None:
    address = server.http if protocol == "http" else server.grpc
    results = measure(Target(f"{protocol}://{address}", "double", num_rows=3, seconds=0.3), [1, 4])
    assert [result.concurrency for result in results] == [1, 4]
    for result in results:
        assert result.num_requests > 10
        assert result.num_errors == 0
        assert 0 < result.p50_seconds <= result.p95_seconds <= result.p99_seconds < result.seconds
        assert result.throughput == result.num_requests / result.seconds


def test_it_prints_a_line_for_every_concurrency(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--concurrency", "1,2", "--seconds", "0.2", "--json", "--model-version", "3"]
    assert main(["bench-serve", f"http://{server.http}", "versions", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].split()[0] == "1"


@pytest.mark.parametrize(
    ("url", "model", "says"),
    [
        ("http://{http}", "nothing", "unknown model"),
        ("grpc://{grpc}", "nothing", "unknown model"),
        ("http://127.0.0.1:1", "x", "cannot reach"),
        ("http://a..b:80", "x", "cannot reach"),
        ("http://localhost:99999", "x", "cannot use the address"),
        ("http://[::1", "x", "cannot use the address"),
        ("ftp://localhost:8000", "x", "cannot use the address"),
        ("http://", "x", "cannot use the address"),
        ("http://{grpc}", "double", "no HTTP"),
        ("grpc://{http}", "double", "does not tell of the model 'double': "),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    server: RunningServer, url: str, model: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench-serve", url.format(http=server.http, grpc=server.grpc), model, "--seconds", "0.1"]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_an_error_page_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    page = b"<html>\n<body>\n  Bad Gateway\n</body>\n</html>\n" + b"." * 2000

    class Gateway(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(502)
            self.send_header("content-length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Gateway) as gateway:
        threading.Thread(target=gateway.serve_forever, daemon=True).start()
        assert main(["bench-serve", f"http://127.0.0.1:{gateway.server_port}", "double"]) == 2
        gateway.shutdown()
    error = capsys.readouterr().err
    assert "<html> <body> Bad Gateway </body>" in error
    assert error.count("\n") == 1
    assert len(error) < 500


def test_requests_that_fail_are_errors_not_answers(server: RunningServer) -> None:
    with pytest.raises(BadOption, match="answered none"):
        measure(Target(f"http://{server.http}", "double", num_rows=99, seconds=0.1), [1])


def test_open_sizes_must_be_said() -> None:
    metadata = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [-1, -1]}]}
    with pytest.raises(BadOption, match="--shape x:SIZE"):
        make_inputs(metadata, 8, Target("", "m"))
    inputs = make_inputs(metadata, 8, Target("", "m", num_rows=2, shapes={"x": (7,)}))
    assert inputs["x"].shape == (2, 7)
    assert inputs["x"].dtype == np.int64
