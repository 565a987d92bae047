"""Traces of requests, as a collector gets them."""

import http.client
import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from asking import wait_until
from models import save_scale, write_config
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from python_models import DOUBLE, save_python
from running import RunningServer

from tensorferry.cli import main

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ENSEMBLE = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling {
  step { model_name: "double" input_map { key: "x" value: "x" } output_map { key: "y" value: "middle" } }
  step { model_name: "triple" input_map { key: "x" value: "middle" } output_map { key: "y" value: "y" } }
}
"""


class Collector:
    """A receiver of OTLP over HTTP that keeps every span."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                message = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
                for part in message.resource_spans:
                    collector.resources.append({each.key: each.value.string_value for each in part.resource.attributes})
                    collector.spans += [span for scope in part.scope_spans for span in scope.spans]
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def wait_for(self, trace_id: str, num_spans: int) -> dict[str, list[Span]]:
        """The spans of a trace by their names, once there are so many."""
        found: dict[str, list[Span]] = {}

        def look() -> bool:
            found.clear()
            for span in self.spans:
                if span.trace_id.hex() == trace_id:
                    found.setdefault(span.name, []).append(span)
            return sum(map(len, found.values())) >= num_spans

        wait_until(look)
        return found


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.server.shutdown()
    collector.thread.join()
    collector.server.server_close()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[RunningServer]:
    """A server that sends its traces to the collector."""
    root = tmp_path_factory.mktemp("models")
    save_scale(root, "double", 2.0)
    save_scale(root, "triple", 3.0)
    write_config(root, "chain", ENSEMBLE)
    save_python(root, "coded", DOUBLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        server = RunningServer(root, "--trust", "--otlp", collector.url)
    server.wait_for("ready:")
    yield server
    assert server.stop() == 0


def attributes(span: Span) -> dict[str, object]:
    """A span's attributes."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def make_input(triton: object) -> list[object]:
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones([1, 4], np.float32))
    return [tensor]


@pytest.mark.parametrize("name", ["double", "coded"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_request_is_followed_from_its_header_to_the_model(
    traced: RunningServer, collector: Collector, protocol: str, name: str
) -> None:
    triton, address = (triton_http, traced.http) if protocol == "http" else (triton_grpc, traced.grpc)
    trace_id = TRACE_ID[:-2] + protocol[0].replace("h", "a").replace("g", "b") + name[0]
    with triton.InferenceServerClient(address) as client:
        client.infer(name, make_input(triton), headers={"traceparent": f"00-{trace_id}-{PARENT_ID}-01"})
    found = collector.wait_for(trace_id, 4)
    assert sorted(found) == ["batch", f"infer {name}", "model", "queue"]
    [root], [queue], [batch], [model] = (found[name] for name in (f"infer {name}", "queue", "batch", "model"))
    assert root.parent_span_id.hex() == PARENT_ID
    assert root.kind == Span.SPAN_KIND_SERVER
    assert queue.parent_span_id == batch.parent_span_id == root.span_id
    assert model.parent_span_id == batch.span_id
    assert attributes(batch) == {"ferry.model.name": name, "ferry.batch.requests": 1, "ferry.batch.rows": 1}
    starts = [span.start_time_unix_nano for span in (root, queue, batch, model)]
    ends = [span.end_time_unix_nano for span in (queue, model, batch, root)]
    assert starts == sorted(starts)
    assert ends == sorted(ends)
    assert collector.resources[-1]["service.name"] == "tensorferry"


def test_the_answer_names_the_span_that_is_exported(traced: RunningServer, collector: Collector) -> None:
    trace_id = TRACE_ID[:-1] + "a"
    with triton_http.InferenceServerClient(traced.http) as client:
        answer = client._post(
            "v2/models/double/infer",
            json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}),
            {"traceparent": f"00-{trace_id}-{PARENT_ID}-01"},
            None,
        )
    assert answer.status_code == 200
    span_id = answer.get("traceparent").split("-")[2]
    assert collector.wait_for(trace_id, 4)["infer double"][0].span_id.hex() == span_id


def test_every_step_of_an_ensemble_and_every_fault_is_in_the_trace(traced: RunningServer, collector: Collector) -> None:
    header = {"traceparent": f"00-{TRACE_ID[:-1]}b-{PARENT_ID}-01"}
    with triton_grpc.InferenceServerClient(traced.grpc) as client:
        client.infer("chain", make_input(triton_grpc), headers=header)
        found = collector.wait_for(TRACE_ID[:-1] + "b", 7)
        assert [attributes(span)["ferry.model.name"] for span in found["model"]] == ["double", "triple"]
        with pytest.raises(triton_grpc.InferenceServerException):
            client.infer("nothing", make_input(triton_grpc), headers={"traceparent": f"00-{TRACE_ID[:-1]}c-{PARENT_ID}-01"})
    [root] = collector.wait_for(TRACE_ID[:-1] + "c", 1)["infer nothing"]
    assert root.status.code == 2
    assert "unknown model" in root.status.message


def test_generate_is_in_the_trace(traced: RunningServer, collector: Collector) -> None:
    connection = http.client.HTTPConnection(traced.http)
    header = {"traceparent": f"00-{TRACE_ID[:-1]}e-{PARENT_ID}-01"}
    connection.request("POST", "/v2/models/double/generate", json.dumps({"x": [1, 2, 3, 4]}), header)
    assert connection.getresponse().status == 200
    connection.close()
    found = collector.wait_for(TRACE_ID[:-1] + "e", 4)
    assert sorted(found) == ["batch", "infer double", "model", "queue"]
    assert found["infer double"][0].parent_span_id.hex() == PARENT_ID


def test_what_the_client_does_not_sample_is_not_sent(traced: RunningServer, collector: Collector) -> None:
    num_before = len(collector.spans)
    with triton_http.InferenceServerClient(traced.http) as client:
        for _ in range(3):
            client.infer("double", make_input(triton_http), headers={"traceparent": f"00-{TRACE_ID[:-1]}d-{PARENT_ID}-00"})
        client.infer("double", make_input(triton_http))  # without a header a trace begins here
    wait_until(lambda: len(collector.spans) >= num_before + 4)
    assert len(collector.spans) == num_before + 4
    assert not [span for span in collector.spans if span.trace_id.hex() == TRACE_ID[:-1] + "d"]
    roots = [span for span in collector.spans[num_before:] if not span.parent_span_id]
    assert [span.name for span in roots] == ["infer double"]


def test_what_is_no_address_of_a_collector_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path), "--otlp", "here"]) == 2
    assert "--otlp takes the address of a collector" in capsys.readouterr().err


def test_a_missing_sdk_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    monkeypatch.delitem(sys.modules, "tensorferry.serve.otel", raising=False)
    assert main(["serve", str(tmp_path), "--otlp", "http://localhost:4318"]) == 2
    assert 'pip install "tensorferry[otel]"' in capsys.readouterr().err
