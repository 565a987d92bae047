"""Pages of other sites cannot use a server through a visitor's browser; tools and the server's own page can."""

import http.client
import shutil
import subprocess

import pytest
import tritonclient.http as triton
from running import RunningServer

LOAD = "/v2/repository/models/double/load"
INFER = "/v2/models/double/infer"
INPUTS = '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}'
CONTROL = [
    LOAD,
    "/v2/repository/models/double/unload",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/double/trace/setting",
    "/v2/systemsharedmemory/region/any/register",
]


def post(server: RunningServer, path: str, body: str = "{}", **headers: str) -> tuple[int, str]:
    """The status and text of an answer."""
    connection = http.client.HTTPConnection(server.http)
    connection.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.mark.parametrize("path", [*CONTROL, INFER])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://elsewhere.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
    ids=lambda headers: ", ".join(headers.values()),
)
def test_a_page_of_another_site_is_refused(server: RunningServer, path: str, headers: dict[str, str]) -> None:
    status, text = post(server, path, content_type="application/json", **headers)
    assert status == 403
    assert "another site" in text


@pytest.mark.parametrize("path", CONTROL)
@pytest.mark.parametrize("content_type", ["text/plain", "text/plain;charset=UTF-8", "multipart/form-data; boundary=x"])
def test_a_call_that_changes_the_server_must_be_json(server: RunningServer, path: str, content_type: str) -> None:
    status, text = post(server, path, content_type=content_type)
    assert status == 400
    assert "application/json" in text


def test_a_form_of_a_page_is_refused(server: RunningServer) -> None:
    form = "application/x-www-form-urlencoded"
    assert post(server, LOAD, content_type=form, referer=f"http://{server.http}/")[0] == 400
    assert post(server, LOAD, content_type=form, origin=f"http://{server.http}")[0] == 400


def test_the_own_page_and_tools_are_served(server: RunningServer) -> None:
    own = {"origin": f"http://{server.http}", "sec_fetch_site": "same-origin"}
    assert post(server, INFER, INPUTS, content_type="application/json", **own)[0] == 200
    assert post(server, LOAD, content_type="application/json", **own)[0] == 200
    assert post(server, LOAD)[0] == 200
    assert post(server, LOAD, "")[0] == 200
    with triton.InferenceServerClient(server.http) as client:
        client.load_model("double")
        client.update_log_settings({"log_verbose_level": 0})
        assert client.get_model_repository_index()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("arguments", [["-X", "POST"], ["-d", "{}"], ["-d", ""], ["--json", "{}"]], ids=" ".join)
def test_curl_can_load(server: RunningServer, arguments: list[str]) -> None:
    done = subprocess.run(
        ["curl", "-s", "-w", "%{http_code}", *arguments, f"http://{server.http}{LOAD}"], capture_output=True, text=True
    )
    assert done.stdout.endswith("200")
