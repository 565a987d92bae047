"""Who may ask what: names, keys for inference and for control, a port for control, certificates that change."""

import http.client
import json
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
import tritonclient.grpc as triton
from asking import wait_until
from models import save_scale
from running import RunningServer
from tritonclient.grpc import service_pb2, service_pb2_grpc

INFER = "/v2/models/double/infer"
INPUTS = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})
CONTROL = ["/v2/repository/models/double/load", "/v2/logging", "/v2/systemsharedmemory/region/r/register"]
PAGES = ["/metrics", "/status", "/v2/logging", "/v2/systemsharedmemory/status"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[RunningServer]:
    """A server with everything: TLS, two sets of keys, an admin port, names."""
    folder = tmp_path_factory.mktemp("guarded")
    save_scale(folder / "models", "double", 2.0)
    (folder / "keys").write_text("client\n")
    (folder / "admin").write_text("boss\n")
    for name, path in zip(("cert.pem", "key.pem"), certificate, strict=True):
        (folder / name).write_bytes(path.read_bytes())
    options = ["--api-keys", str(folder / "keys"), "--admin-keys", str(folder / "admin"), "--admin-port", "0"]
    options += ["--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem")]
    options += ["--allowed-hosts", "ml.example.com", "--model-control-mode", "explicit", "--load-model", "double"]
    server = RunningServer(folder / "models", *options)
    server.wait_for("ready:")
    server.folder = folder
    yield server
    assert server.stop() == 0


def send(
    server: RunningServer,
    path: str,
    key: str = "",
    body: str | None = None,
    *,
    port: str = "",
    host: str = "localhost",
    **more: str,
) -> int:
    """The status of a request."""
    connection = http.client.HTTPSConnection(port or server.http, context=ssl._create_unverified_context())
    headers = {"host": host, "content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {}), **more}
    connection.request("GET" if body is None else "POST", path, body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_each_set_of_keys_opens_what_it_is_for(guarded: RunningServer) -> None:
    admin = guarded.admin
    assert [send(guarded, INFER, key, INPUTS) for key in ("", "wrong", "client", "boss")] == [401, 401, 200, 200]
    for path in CONTROL:
        statuses = [send(guarded, path, key, "{}", port=admin) for key in ("", "wrong", "client", "boss")]
        assert statuses[:3] == [401, 401, 403], path
        assert statuses[3] < 401 or path.endswith("register"), path
    for path in PAGES:
        assert [send(guarded, path, key, port=admin) for key in ("", "client", "boss")] == [401, 403, 200], path
    assert send(guarded, "/", port=admin) == 200
    assert send(guarded, "/v2/health/ready", port=admin) == send(guarded, "/v2/health/ready") == 200


def test_control_and_metrics_are_on_the_admin_port_alone(guarded: RunningServer) -> None:
    assert {send(guarded, path, "boss", "{}") for path in CONTROL} == {403}
    assert {send(guarded, path, "boss") for path in (*PAGES, "/")} == {403}
    assert send(guarded, "/v2/models/double", "client") == 200


@pytest.mark.parametrize(("host", "status"), [("ml.example.com", 200), ("10.1.2.3:8000", 200), ("evil.example", 403)])
def test_a_name_that_is_not_the_servers_is_refused(guarded: RunningServer, host: str, status: int) -> None:
    assert send(guarded, INFER, "client", INPUTS, host=host) == status
    assert send(guarded, "/v2/health/live", host=host) == status


def test_a_page_behind_a_proxy_may_use_the_server_by_the_name_that_is_listed(guarded: RunningServer) -> None:
    assert send(guarded, INFER, "client", INPUTS, origin="https://ml.example.com") == 200
    assert send(guarded, INFER, "client", INPUTS, origin="https://evil.example") == 403


def test_grpc_knows_the_same_names_keys_and_ports(guarded: RunningServer, certificate: tuple[Path, Path]) -> None:
    credentials = grpc.ssl_channel_credentials(certificate[0].read_bytes())

    def call(method: str, request: object, key: str = "client", authority: str = "localhost", **metadata: str) -> str:
        options = [("grpc.default_authority", authority), ("grpc.ssl_target_name_override", "localhost")]
        with grpc.secure_channel(guarded.grpc, credentials, options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            try:
                getattr(stub, method)(request, metadata=[("authorization", f"Bearer {key}"), *metadata.items()])
            except grpc.RpcError as error:
                return error.code().name
        return "OK"

    metadata = service_pb2.ModelMetadataRequest(name="double")
    assert call("ModelMetadata", metadata) == call("ModelMetadata", metadata, "boss") == "OK"
    assert call("ModelMetadata", metadata, "wrong") == "UNAUTHENTICATED"
    assert call("ModelMetadata", metadata, authority="ml.example.com") == "OK"
    assert call("ModelMetadata", metadata, authority="evil.example") == "PERMISSION_DENIED"
    assert call("ModelMetadata", metadata, origin="https://evil.example") == "PERMISSION_DENIED"
    assert call("ServerLive", service_pb2.ServerLiveRequest(), "wrong") == "OK"
    assert call("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name="double"), "boss") == "PERMISSION_DENIED"


def test_control_over_grpc_needs_an_admin_key_where_it_has_no_port_of_its_own(
    tmp_path: Path, start_server: Callable[..., RunningServer]
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "admin").write_text("boss\n")
    server = start_server(tmp_path / "models", "--admin-keys", str(tmp_path / "admin"))
    with triton.InferenceServerClient(server.grpc) as client:
        assert client.is_server_ready()
        assert client.get_server_metadata().name  # inference needs no key here
        with pytest.raises(triton.InferenceServerException, match="valid API key"):
            client.get_log_settings()
        assert client.get_log_settings(headers={"authorization": "Bearer boss"})


def fingerprint(server: RunningServer) -> bytes | None:
    host, _, port = server.http.rpartition(":")
    return ssl.get_server_certificate((host, int(port))).encode()


def test_a_certificate_is_read_again_and_open_connections_stay(guarded: RunningServer) -> None:
    folder: Path = guarded.folder
    old = folder.joinpath("cert.pem").read_bytes()
    assert fingerprint(guarded) == old
    with_line = http.client.HTTPSConnection(guarded.http, context=ssl._create_unverified_context())
    with_line.request("GET", "/v2/health/live", headers={"host": "localhost"})
    with_line.getresponse().read()
    line = with_line.sock
    (folder / "cert.pem").write_text("broken")
    wait_until(lambda: fingerprint(guarded) == old and any("stays as it was" in each["message"] for each in guarded.peek()))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=new"]
    subprocess.run([*command, "-keyout", folder / "new.key", "-out", folder / "new.pem"], check=True, capture_output=True)
    (folder / "new.key").replace(folder / "key.pem")
    new = (folder / "new.pem").read_bytes()
    (folder / "new.pem").replace(folder / "cert.pem")
    wait_until(lambda: fingerprint(guarded) == new)
    with_line.request("GET", "/v2/health/live", headers={"host": "localhost"})
    assert with_line.getresponse().status == 200
    assert with_line.sock is line
    with_line.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--admin-keys", "missing"], "cannot read the API keys in missing: "),
        (["--admin-keys", "."], "cannot read the API keys in .: "),
        (["--admin-host", "127.0.0.1"], "--admin-host needs --admin-port"),
        (["--admin-port", "70000"], "expected a port up to 65535"),
        (["--allowed-hosts", "http://x"], "--allowed-hosts takes names"),
        (["--allowed-hosts", "a,,b"], "expected names with commas"),
        (["--tls-cert", "missing", "--tls-key", "missing"], "cannot use the certificate missing: No such file"),
    ],
    ids=" ".join,
)
def test_a_wrong_option_is_one_line(tmp_path: Path, options: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    from tensorferry.cli import main

    try:
        code = main(["serve", str(tmp_path), "--http-port", "0", "--no-grpc", *options])
    except SystemExit as error:
        code = error.code
    assert code == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ferry")]
    assert len(said) == 1
    assert reason in said[0]
