"""Running it for real: health, metrics, logs, limits, keys, TLS, traces, draining."""

import contextlib
import hashlib
import json
import logging
import queue
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client_grpc
import tritonclient.http as client_http
from models import save_graph, save_scale, tensor, write_config
from onnx import TensorProto, helper
from prometheus_client.parser import text_string_to_metric_families
from running import RunningServer
from tritonclient.utils import InferenceServerException

from tensorferry.cli import main
from tensorferry.errors import BadOption
from tensorferry.serve.core.faults import Denied, InvalidRequest, TooLarge
from tensorferry.serve.core.keys import ApiKeys
from tensorferry.serve.core.limits import MAX_REGIONS
from tensorferry.serve.core.logs import TextFormatter
from tensorferry.serve.core.shared_memory import Regions

X = np.ones((1, 4), np.float32)
GOOD = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}]}).encode()
Start = Callable[..., RunningServer]


def fetch(url: str, body: bytes | None = None, context: ssl.SSLContext | None = None, **headers: str) -> tuple[int, bytes, dict]:
    request = urllib.request.Request(url, body, {key.replace("_", "-"): value for key, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), dict(error.headers)


def save_slow(root: Path, name: str, num_steps: int) -> None:
    """Matrix products one after another: slow enough to be seen under way."""
    edge = 512
    weights = np.eye(edge, dtype=np.float32)
    nodes = [helper.make_node("MatMul", [f"h{step}", "w"], [f"h{step + 1}"]) for step in range(num_steps)]
    save_graph(
        root / name / "1" / "model.onnx",
        nodes,
        [tensor("h0", "FP32", [edge, edge])],
        [tensor(f"h{num_steps}", "FP32", [edge, edge])],
        [helper.make_tensor("w", TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True)],
    )


def children_of(pid: int) -> list[int]:
    """The processes that a process has started, from any of its threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def slow_body() -> bytes:
    head = json.dumps(
        {"inputs": [{"name": "h0", "datatype": "FP32", "shape": [512, 512], "parameters": {"binary_data_size": 512 * 512 * 4}}]}
    ).encode()
    return head + np.ones((512, 512), np.float32).tobytes()


def slow_headers() -> dict[str, str]:
    return {"inference_header_content_length": str(len(slow_body()) - 512 * 512 * 4)}


def test_metrics_have_tritons_names_and_tell_the_truth(start_server: Start, tmp_path: Path) -> None:
    save_scale(tmp_path, "double", 2.0)
    server = start_server(tmp_path)
    for _ in range(3):
        assert fetch(f"http://{server.http}/v2/models/double/infer", GOOD)[0] == 200
    assert fetch(f"http://{server.http}/v2/models/double/infer", b"{}")[0] == 400
    assert fetch(f"http://{server.http}/v2/models/double/infer", GOOD.replace(b"FP32", b"INT8"))[0] == 400
    _, text, headers = fetch(f"http://{server.http}/metrics")
    assert headers["content-type"].startswith("text/plain")
    samples = {
        (
            sample.name.removesuffix("_total"),
            sample.labels.get("model"),
            sample.labels.get("reason") or sample.labels.get("le"),
        ): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
    assert b"nv_inference_request_success{" in text
    assert samples["nv_inference_count", "double", None] == 3
    assert samples["nv_inference_exec_count", "double", None] == 3
    assert samples["nv_inference_request_failure", "double", "OTHER"] == 1
    spent = samples["nv_inference_request_duration_us", "double", None]
    assert spent >= samples["nv_inference_compute_infer_duration_us", "double", None] > 0
    assert samples["nv_inference_pending_request_count", "double", None] == 0
    assert samples["ferry_request_duration_seconds_bucket", "double", "+Inf"] == 3
    assert samples["ferry_batch_size_bucket", "double", "1.0"] == 3
    assert samples["ferry_requests_under_way", None, None] == 0
    assert samples["ferry_process_resident_bytes", None, None] > 10**7


def test_the_log_is_structured_and_carries_the_trace(start_server: Start, tmp_path: Path) -> None:
    save_scale(tmp_path, "double", 2.0)
    server = start_server(tmp_path, "--log-verbose", "1")
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    body = GOOD.replace(b'{"inputs"', b'{"id": "mine\\n", "inputs"')
    _, _, headers = fetch(f"http://{server.http}/v2/models/double/infer", body, traceparent=parent)
    trace_id, span_id = headers["traceparent"].split("-")[1:3]
    assert trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert span_id != "00f067aa0ba902b7"
    line = server.wait_for("inference")
    assert line["level"] == "info"
    assert (line["model"], line["version"]) == ("double", "1")
    assert (line["protocol"], line["status"], line["request_id"]) == ("http", 200, "mine\n")
    assert (line["trace_id"], line["span_id"], line["parent_id"]) == (trace_id, span_id, "00f067aa0ba902b7")
    with client_grpc.InferenceServerClient(server.grpc) as client:
        given = client_grpc.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(X)
        client.infer("double", [given], headers={"traceparent": parent})
    line = server.wait_for("inference")
    assert (line["protocol"], line["status"], line["trace_id"], line["version"]) == ("grpc", "OK", trace_id, "1")


def test_health_is_answered_while_models_load(start_server: Start, tmp_path: Path) -> None:
    save_slow(tmp_path, "slow", 50)
    data = "data_type: TYPE_FP32 dims: [512, 512] zero_data: true"
    write_config(tmp_path, "slow", f'model_warmup {{ name: "w" count: 40 inputs {{ key: "h0" value {{ {data} }} }} }}')
    server = start_server(tmp_path, wait=False)
    assert fetch(f"http://{server.http}/v2/health/live")[0] == 200
    assert fetch(f"http://{server.http}/v2/health/ready")[0] == 503
    status, body, _ = fetch(f"http://{server.http}/v2/models/slow/infer", slow_body(), **slow_headers())
    assert status == 503
    assert b"still loading" in body
    server.wait_for("ready:")
    assert fetch(f"http://{server.http}/v2/health/ready")[0] == 200


def test_sigterm_lets_requests_under_way_finish(start_server: Start, tmp_path: Path) -> None:
    save_slow(tmp_path, "slow", 300)
    server = start_server(tmp_path)
    answers: list[int] = []

    def ask() -> None:
        answers.append(fetch(f"http://{server.http}/v2/models/slow/infer", slow_body(), **slow_headers())[0])

    asker = threading.Thread(target=ask)
    asker.start()
    while b"ferry_requests_under_way 1.0" not in fetch(f"http://{server.http}/metrics")[1]:
        assert not answers
        time.sleep(0.005)
    assert server.stop() == 0
    asker.join()
    assert answers == [200]
    assert [line["message"] for line in server.lines][-1] == "stopped"


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_batch_that_takes_longer_does_not_hold_the_exit(start_server: Start, tmp_path: Path, isolation: str) -> None:
    save_slow(tmp_path, "slow", 8000)
    write_config(tmp_path, "slow", f'parameters {{ key: "isolation" value {{ string_value: "{isolation}" }} }}')
    server = start_server(tmp_path, "--exit-timeout-secs", "0.5")
    family = [server.process.pid, *children_of(server.process.pid)]

    answers = []

    def ask() -> None:
        with contextlib.suppress(OSError):
            answers.append(fetch(f"http://{server.http}/v2/models/slow/infer", slow_body(), **slow_headers())[0])

    asker = threading.Thread(target=ask)
    asker.start()
    while b"ferry_requests_under_way 1.0" not in fetch(f"http://{server.http}/metrics")[1]:
        time.sleep(0.005)
    time.sleep(0.2)
    assert server.stop() == 0
    asker.join()
    assert 200 not in answers  # the model would have answered, had it been waited for
    assert "time to drain is over" in server.lines[-1]["message"]
    end = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in family):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_client_that_hangs_up_has_its_request_dropped_from_the_queue(start_server: Start, tmp_path: Path) -> None:
    save_slow(tmp_path, "slow", 100)
    server = start_server(tmp_path)
    for _ in range(6):
        with pytest.raises(OSError, match="timed out"):
            urllib.request.urlopen(
                urllib.request.Request(
                    f"http://{server.http}/v2/models/slow/infer",
                    slow_body(),
                    {key.replace("_", "-"): value for key, value in slow_headers().items()},
                ),
                timeout=0.02,
            )
    end = time.monotonic() + 60
    while b"ferry_requests_under_way 0.0" not in fetch(f"http://{server.http}/metrics")[1]:
        assert time.monotonic() < end
        time.sleep(0.05)
    stats = json.loads(fetch(f"http://{server.http}/v2/models/slow/stats")[1])["model_stats"][0]
    assert stats["inference_count"] < 6
    assert stats["inference_stats"]["fail"]["count"] >= 1


def test_limits_on_requests_and_queues_answer_503(start_server: Start, tmp_path: Path) -> None:
    save_slow(tmp_path, "slow", 150)
    server = start_server(tmp_path, "--max-requests", "2", "--max-body", "2MiB")
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(fetch(f"http://{server.http}/v2/models/slow/infer", slow_body(), **slow_headers())[0])

    askers = [threading.Thread(target=ask) for _ in range(6)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert statuses.count(200) >= 2
    assert set(statuses) == {200, 503}
    assert fetch(f"http://{server.http}/v2/models/slow/infer", bytes(3 * 2**20))[0] == 413
    with client_grpc.InferenceServerClient(server.grpc) as client:
        given = client_grpc.InferInput("h0", [3 * 2**18], "FP32")
        given.set_data_from_numpy(np.zeros(3 * 2**18, np.float32))
        with pytest.raises(InferenceServerException) as error:
            client.infer("slow", [given])
        assert error.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


def test_api_keys_guard_everything_but_health_and_rotate(start_server: Start, tmp_path: Path) -> None:
    save_scale(tmp_path / "models", "double", 2.0)
    keys = tmp_path / "keys.txt"
    keys.write_text("first  # of today\n")
    server = start_server(tmp_path / "models", "--api-keys", str(keys))
    url = f"http://{server.http}"
    assert fetch(f"{url}/v2/health/ready")[0] == 200
    for path in ("/v2", "/metrics", "/status", "/v2/models/double"):
        status, body, headers = fetch(url + path)
        assert status == 401, path
        assert headers["www-authenticate"] == "Bearer"
        assert b"API key" in body
    assert fetch(f"{url}/v2/models/double/infer", GOOD)[0] == 401
    assert fetch(f"{url}/v2/models/double/infer", GOOD, authorization="Bearer first")[0] == 200
    assert fetch(f"{url}/v2/models/double/infer", GOOD, x_api_key="first")[0] == 200
    assert fetch(f"{url}/v2/models/double/infer", GOOD, authorization="Bearer wrong")[0] == 401
    with client_grpc.InferenceServerClient(server.grpc) as client:
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match="API key"):
            client.get_server_metadata()
        assert client.get_server_metadata(headers={"authorization": "Bearer first"}).name == "tensorferry"
        errors: queue.Queue = queue.Queue()
        client.start_stream(lambda result, error: errors.put(error))
        assert "API key" in str(errors.get(timeout=30))
    keys.write_text("sha256:" + hashlib.sha256(b"second").hexdigest() + "\n")
    time.sleep(1.1)
    assert fetch(f"{url}/v2", authorization="Bearer first")[0] == 401
    assert fetch(f"{url}/v2", authorization="Bearer second")[0] == 200
    assert fetch(f"{url}/v2", authorization="bearer second")[0] == 200


@pytest.mark.parametrize(
    ("text", "says"),
    [("new\nsha256:xyz\n", "line 2 is not a SHA-256"), ("new\nsha256:ab\n", "line 2"), ("# none\n", "no API key")],
)
def test_old_keys_stay_until_the_file_is_right_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    monkeypatch.setattr("tensorferry.serve.core.keys._LOOK_SECONDS", -1.0)
    path = tmp_path / "keys.txt"
    path.write_text("old\n")
    keys = ApiKeys(path)
    path.write_text(text)
    for _ in range(3):
        keys.check("Bearer old")
    assert [says in record.getMessage() for record in caplog.records] == [True]
    with pytest.raises(Denied):
        keys.check("Bearer new")
    path.write_text("newest\n")
    keys.check("Bearer newest")
    with pytest.raises(Denied):
        keys.check("Bearer old")
    with pytest.raises(BadOption, match=says):
        path.write_text(text)
        ApiKeys(path)


def test_tls_encrypts_both_protocols(start_server: Start, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    save_scale(tmp_path, "double", 2.0)
    server = start_server(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key))
    context = ssl.create_default_context(cafile=str(cert))
    assert fetch(f"https://{server.http}/v2/models/double/infer", GOOD, context)[0] == 200
    options = {"ca_certs": str(cert)}
    with client_http.InferenceServerClient(
        server.http, ssl=True, ssl_options=options, ssl_context_factory=lambda: context
    ) as client:
        assert client.is_model_ready("double")
    with client_grpc.InferenceServerClient(server.grpc, ssl=True, root_certificates=str(cert)) as client:
        assert client.is_model_ready("double")
    with pytest.raises(OSError, match=r"reset|closed|EOF|Remote end|SSL"):
        fetch(f"http://{server.http}/v2")


def test_clients_without_a_certificate_are_refused_where_one_is_asked_for(
    start_server: Start, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    save_scale(tmp_path, "double", 2.0)
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", str(cert))
    server = start_server(tmp_path, *options)
    context = ssl.create_default_context(cafile=str(cert))
    with pytest.raises(OSError, match=r"(?i)certificate|reset|closed"):
        fetch(f"https://{server.http}/v2", None, context)
    context.load_cert_chain(cert, key)
    assert fetch(f"https://{server.http}/v2", None, context)[0] == 200
    credentials = grpc.ssl_channel_credentials(cert.read_bytes(), key.read_bytes(), cert.read_bytes())
    with grpc.secure_channel(server.grpc, credentials) as channel:
        assert channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=30) == b"\x08\x01"


def test_polling_serves_what_is_dropped_into_the_folder(start_server: Start, tmp_path: Path) -> None:
    save_scale(tmp_path, "double", 2.0)
    server = start_server(tmp_path, "--model-control-mode", "poll", "--repository-poll-secs", "0.1")
    save_scale(tmp_path, "triple", 3.0)
    server.wait_for("model 'triple' version 1 is served")
    assert json.loads(fetch(f"http://{server.http}/v2/models/triple/infer", GOOD)[1])["outputs"][0]["data"] == [3, 3, 3, 3]
    status, body, _ = fetch(f"http://{server.http}/v2/repository/models/triple/unload", b"")
    assert status == 503
    assert b"not allowed" in body


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "no folder nowhere"),
        ([".", "--tls-cert", "cert.pem"], "needs both"),
        ([".", "--tls-cert", "none.pem", "--tls-key", "none.pem"], "cannot use the certificate"),
        ([".", "--api-keys", "none.txt"], "cannot read the API keys"),
        ([".", "--no-http", "--no-grpc"], "nothing would be served"),
        ([".", "--load-model", "double"], "--load-model needs --model-control-mode explicit"),
        ([".", "--cache-size", "much"], "cannot read 'much' as bytes"),
        ([".", "--host", "192.0.2.1", "--http-port", "0"], "cannot listen on 192.0.2.1"),
    ],
)
def test_an_option_that_cannot_be_used_is_one_line_and_code_2(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert says in lines[-1]
    assert lines[-1].startswith("ferry: ")


def test_tls_handshakes_count_as_connections(start_server: Start, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    save_scale(tmp_path, "double", 2.0)
    server = start_server(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key), "--max-connections", "8")
    for address in (server.http, server.grpc):
        host, _, port = address.rpartition(":")
        with contextlib.ExitStack() as stack:
            lines = [stack.enter_context(socket.create_connection((host, int(port)), timeout=30)) for _ in range(40)]
            for line in lines[8:]:  # nobody says anything, and those who are too many are hung up on
                assert line.recv(1) == b""
            lines[0].settimeout(0.1)
            with pytest.raises(TimeoutError):
                lines[0].recv(1)
    context = ssl.create_default_context(cafile=str(cert))
    for _ in range(100):  # the server sees the others leave when it gets to it
        with contextlib.suppress(OSError):
            assert fetch(f"https://{server.http}/v2/models/double/infer", GOOD, context)[0] == 200
            return
    pytest.fail("nobody is let in any more")


def test_a_log_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    save_scale(tmp_path, "double", 2.0)
    command = [sys.executable, "-m", "tensorferry.cli", "serve", str(tmp_path), "--http-port", "0", "--no-grpc"]
    process = subprocess.Popen([*command, "--log-verbose", "1"], stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        address = process.stderr.readline().split(b"http://")[1].strip().decode()
        body = GOOD.replace(b'{"inputs"', b'{"id": "%s", "inputs"' % (b"i" * 4000))
        while fetch(f"http://{address}/v2/health/ready")[0] != 200:
            time.sleep(0.05)
        for _ in range(200):  # far more than a pipe holds
            assert fetch(f"http://{address}/v2/models/double/infer", body)[0] == 200
        process.terminate()
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_control_characters_of_clients_do_not_reach_the_terminal() -> None:
    record = logging.LogRecord("ferry", logging.INFO, "", 0, "model '%s'", ("\x1b[2J\r\n\x9b1A\u2028ä",), None)
    line = TextFormatter().format(record)
    assert line.endswith("model '\\x1b[2J\\r\\n\\x9b1A\\u2028ä'")


def test_shared_memory_is_off_unless_it_is_asked_for(start_server: Start, tmp_path: Path) -> None:
    save_scale(tmp_path, "double", 2.0)
    server = start_server(tmp_path)
    url = f"http://{server.http}/v2/systemsharedmemory/region/r/register"
    status, body, _ = fetch(url, json.dumps({"key": "/ferry_off", "byte_size": 16}).encode())
    assert (status, b"--shared-memory" in body) == (501, True)
    assert "system_shared_memory" not in json.loads(fetch(f"http://{server.http}/v2")[1])["extensions"]


def test_shared_memory_is_bounded_in_names_regions_and_bytes() -> None:
    path = Path("/dev/shm/ferry_bounds")
    path.write_bytes(bytes(4096))
    regions = Regions("ferry_", 4096 + MAX_REGIONS)
    try:
        for key in ("other", "/other", "/Ferry_bounds"):
            with pytest.raises(InvalidRequest, match="does not begin with 'ferry_'"):
                regions.register("r", key, 0, 1)
        regions.register("large", "/ferry_bounds", 0, 4096)
        with pytest.raises(TooLarge, match="bytes together"):
            regions.register("more", "/ferry_bounds", 0, MAX_REGIONS + 1)
        for number in range(MAX_REGIONS - 1):
            regions.register(str(number), "/ferry_bounds", 0, 1)
        with pytest.raises(TooLarge, match=f"{MAX_REGIONS} regions"):
            regions.register("last", "/ferry_bounds", 0, 1)
    finally:
        regions.close()
        path.unlink()
