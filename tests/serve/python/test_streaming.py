"""Streams and sequences over REST and gRPC, and clients that do not read, hang up, or are told to go."""

import json
import queue
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from asking import wait_until
from python_models import ACCUMULATE, COUNT, DOUBLE, save_python
from running import RunningServer

NUM_PER_MIB = 2**18  # INT32 of a MiB


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a model that counts."""
    root = tmp_path_factory.mktemp("models")
    save_python(root, "count", COUNT)
    save_python(root, "double", DOUBLE)
    config = "sequence_batching { max_sequence_idle_microseconds: 60000000 oldest { max_candidate_sequences: 600 } }"
    save_python(root, "accumulate", ACCUMULATE, config + "instance_group { count: 2 }")
    running = RunningServer(root, "--trust")
    running.wait_for("ready:")
    yield running
    assert running.stop() == 0


@contextmanager
def post(server: RunningServer, path: str, **body: Any) -> Iterator[HTTPResponse]:
    """What is answered below a model; the client hangs up after it."""
    connection = HTTPConnection(server.http, timeout=30)
    connection.request("POST", f"/v2/models/{path}", json.dumps(body), {"content-type": "application/json"})
    with closing(connection), connection.getresponse() as response:
        yield response


def events(response: HTTPResponse) -> list[dict[str, Any]]:
    """The events of a stream."""
    lines = response.read().decode().split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def ask_count(server: RunningServer, what: int) -> int:
    """What the counting model tells of its streams: -1 for answers made, -2 for streams that have ended."""
    with post(server, "count/generate", TO=what, WAIT=0) as response:
        number: int = json.loads(response.read())["NUMBER"]
        return number


def make_inputs(to: int, wait: float = 0.0) -> list[triton.InferInput]:
    """The inputs of the counting model for Triton's client."""
    inputs = [triton.InferInput("TO", [1], "INT32"), triton.InferInput("WAIT", [1], "FP32")]
    inputs[0].set_data_from_numpy(np.array([to], np.int32))
    inputs[1].set_data_from_numpy(np.array([wait], np.float32))
    return inputs


def test_answers_come_as_events(counting: RunningServer) -> None:
    with post(counting, "count/versions/1/generate_stream", TO=3, WAIT=0, id="seven") as response:
        assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
        answer = {"model_name": "count", "model_version": "1", "id": "seven"}
        assert events(response) == [{**answer, "NUMBER": number} for number in range(3)]


def test_a_model_with_one_answer_generates_as_well(counting: RunningServer) -> None:
    for path in ("double/generate", "double/generate_stream"):
        with post(counting, path, x=[1, 2, 3, 4]) as response:
            body = response.read().decode()
            answer = json.loads(body.removeprefix("data: "))
            assert answer["y"] == [2, 4, 6, 8]
            assert answer["rows"] == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("count/generate", {"TO": 2, "WAIT": 0}, 400, "more than one answer; use generate_stream"),
        ("count/generate_stream", {"TO": -3, "WAIT": 0}, 500, "cannot count to that"),
        ("count/generate_stream", {"TO": "many", "WAIT": 0}, 400, "not INT32"),
        ("count/generate_stream", {"TO": 1}, 400, "also needs the input 'WAIT'"),
        ("count/generate_stream", {"TO": 1, "WAIT": 0, "WHO": {}}, 400, "'WHO' is no input of model 'count'"),
        ("count/generate_stream", {"TO": 1, "parameters": {"TO": 1}}, 400, "'TO' came twice"),
        ("count/infer", {"inputs": [{"name": "TO", "shape": [1], "datatype": "INT32", "data": [1]}]}, 400, "many times"),
        ("nobody/generate_stream", {}, 404, "'nobody' is not found"),
        ("count/nothing/generate", {}, 404, "no such address"),
    ],
)
def test_what_cannot_be_generated_is_told(
    counting: RunningServer, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    with post(counting, path, **body) as response:
        assert (response.status, message in response.read().decode()) == (status, True)


def test_grpc_tells_the_last_answer_and_streams_run_beside_each_other(counting: RunningServer) -> None:
    told: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    with triton.InferenceServerClient(counting.grpc) as client:
        client.start_stream(lambda result, error: told.put((result, error)))
        client.async_stream_infer("count", make_inputs(0, wait=0.01), request_id="endless")
        client.async_stream_infer("count", make_inputs(2), request_id="two", enable_empty_final_response=True)
        client.async_stream_infer("count", make_inputs(-3), request_id="bad")
        answers: dict[str, list[Any]] = {"endless": [], "two": []}
        errors = []
        while len(answers["endless"]) < 4 or len(answers["two"]) < 3 or not errors:
            result, error = told.get(timeout=30)
            if error is not None:
                errors.append(str(error))
            else:
                response = result.get_response()
                answers[response.id].append(response)
        client.stop_stream(cancel_requests=True)
    finals = [response.parameters["triton_final_response"].bool_param for response in answers["two"]]
    assert finals == [False, False, True]
    assert not answers["two"][-1].outputs
    assert "cannot count to that" in errors[0]


def test_streams_end_when_their_client_goes(counting: RunningServer) -> None:
    num_closed = ask_count(counting, -2)
    with post(counting, "count/generate_stream", TO=0, WAIT=0.01) as response:
        assert response.readline().startswith(b"data: ")
    wait_until(lambda: ask_count(counting, -2) == num_closed + 1)
    with triton.InferenceServerClient(counting.grpc) as client:
        told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client.start_stream(lambda result, error: told.put((result, error)))
        client.async_stream_infer("count", make_inputs(0, wait=0.01))
        told.get(timeout=30)
        client.stop_stream(cancel_requests=True)
    wait_until(lambda: ask_count(counting, -2) == num_closed + 2)
    counting.assert_no_fault()


def test_a_client_that_does_not_read_is_not_worked_for(counting: RunningServer) -> None:
    host, _, port = counting.http.partition(":")
    body = json.dumps({"TO": 0, "WAIT": 0, "size": NUM_PER_MIB // 2}).encode()
    head = b"POST /v2/models/count/generate_stream HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    num_made, num_closed = ask_count(counting, -1), ask_count(counting, -2)
    with socket.create_connection((host, int(port))) as line:
        line.sendall(head + body)
        seen = [num_made]

        def has_stopped() -> bool:
            seen.append(ask_count(counting, -1))
            return len(seen) > 20 and seen[-1] == seen[-20] > num_made

        wait_until(has_stopped)
    assert seen[-1] - num_made <= 40  # what is under way, and what the sockets of the system hold
    wait_until(lambda: ask_count(counting, -2) == num_closed + 1)


def test_a_thousand_sequences_are_each_added_up(counting: RunningServer) -> None:
    told: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    value = triton.InferInput("x", [1, 1], "INT32")
    ids = range(1, 1001)
    with triton.InferenceServerClient(counting.grpc) as client:
        client.start_stream(lambda result, error: told.put((result, error)))
        for step in range(3):
            for each in ids:
                value.set_data_from_numpy(np.array([[each + step]], np.int32))
                flags = {"sequence_start": step == 0, "sequence_end": step == 2}
                client.async_stream_infer("accumulate", [value], sequence_id=each, request_id=f"{each}.{step}", **flags)
        sums = {}
        for _ in range(3 * len(ids)):
            result, error = told.get(timeout=60)
            assert error is None
            sums[result.get_response().id] = int(result.as_numpy("sum")[0, 0])
    assert [sums[f"{each}.2"] for each in ids] == [3 * each + 3 for each in ids]


def test_rest_carries_sequences_as_well(counting: RunningServer) -> None:
    value = triton_http.InferInput("x", [1, 1], "INT32")
    value.set_data_from_numpy(np.array([[4]], np.int32))
    with triton_http.InferenceServerClient(counting.http) as client:
        for each, flags in ((1, {"sequence_start": True}), (2, {}), (3, {"sequence_end": True})):
            answer = client.infer("accumulate", [value], sequence_id="by name", **flags)
            assert answer.as_numpy("sum").tolist() == [[4 * each]]
        with pytest.raises(Exception, match="sequence 'by name' of model 'accumulate' is not known"):
            client.infer("accumulate", [value], sequence_id="by name")


def test_a_server_that_is_told_to_stop_finishes_its_streams(start_server: Callable[..., RunningServer], tmp_path: Any) -> None:
    save_python(tmp_path, "count", COUNT)
    running = start_server(tmp_path, "--trust")
    with post(running, "count/generate_stream", TO=30, WAIT=0.05) as response:
        assert response.readline().startswith(b"data: ")
        response.readline()
        running.process.send_signal(signal.SIGTERM)
        assert events(response)[-1]["NUMBER"] == 29
    assert running.stop() == 0
