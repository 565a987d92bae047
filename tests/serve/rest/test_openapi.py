"""The document at /openapi.json, and a server that does what it says: schemathesis makes requests of it and judges answers."""

import http.client
import json
import random

import schemathesis
from hypothesis import HealthCheck, settings
from running import RunningServer
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tensorferry.serve.rest.openapi import make_document
from tensorferry.serve.rest.routes import ROUTES

SCHEMA = schemathesis.openapi.from_dict(json.loads(make_document(has_keys=False)))
CHECKS = [
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]
MODELS = ["double", "sum", "versions", "broken"]


# what unloads the models of other tests, and what says 501, are left out
@SCHEMA.exclude(path_regex="cudasharedmemory/region/.*/register$|/unload$").parametrize()
@settings(max_examples=3, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_server_does_what_the_document_says(server: RunningServer, case: Case) -> None:
    if "model" in (case.path_parameters or {}) and case.meta is not None and random.Random(repr(case.body)).random() < 0.7:
        case.path_parameters["model"] = random.Random(repr(case.body)).choice(MODELS)  # most names that are made up are none
    case.call_and_validate(base_url=f"http://{server.http}", checks=CHECKS)


def ask(server: RunningServer, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(server.http)
    connection.request(method, path)
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


def test_the_document_names_every_route_once(server: RunningServer) -> None:
    status, _, body = ask(server, "GET", "/openapi.json")
    assert status == 200
    document = json.loads(body)
    assert document["openapi"] == "3.1.0"
    operations = [(method.upper(), path) for path, each in document["paths"].items() for method in each]
    assert set(operations) == {(route.method, route.path) for route in ROUTES}
    assert len(operations) == len(ROUTES)
    ids = [operation["operationId"] for each in document["paths"].values() for operation in each.values()]
    assert len(set(ids)) == len(ids)


def test_a_wrong_method_is_told_the_right_ones(server: RunningServer) -> None:
    assert [ask(server, "DELETE", path)[0] for path in ("/v2", "/metrics", "/v2/models/double/infer")] == [405] * 3
    assert ask(server, "DELETE", "/v2/logging")[1]["allow"] == "GET, HEAD, POST"
    assert ask(server, "GET", "/v2/models/double/infer")[1]["allow"] == "POST"
    assert ask(server, "HEAD", "/v2/models/double")[0] == 200
    assert ask(server, "GET", "/v2/nothing")[0] == 404
