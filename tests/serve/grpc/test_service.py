"""gRPC as its clients know it: statuses, deadlines, cancellation, compression, health, draining."""

import asyncio
import contextlib
import gzip
import queue
import ssl
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client_grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from hyperframe.frame import GoAwayFrame
from models import save_graph, save_scale, tensor
from onnx import TensorProto, helper
from running import RunningServer
from tritonclient.grpc import service_pb2 as pb
from wire import SERVICE, Wire, make_request, pack

from tensorferry.serve.core.limits import MAX_WATCHES
from tensorferry.serve.grpc.frames import DEFAULT_WINDOW, RST_STREAM, Code, Setting, write_window_update
from tensorferry.serve.grpc.messages import Status
from tensorferry.serve.grpc.standard_services import HEALTH, NOT_SERVING, REFLECTIONS, SERVICE_UNKNOWN, SERVING
from tensorferry.serve.proto import health, reflection

Start = Callable[..., RunningServer]


@pytest.fixture
def wire(server: RunningServer) -> Iterator[Wire]:
    with Wire(server.grpc) as made:
        yield made


def save_slow(root: Path, name: str, num_steps: int) -> None:
    """Matrix products one after another, for one row of 4 numbers."""
    edge = 512
    weights = np.eye(edge, dtype=np.float32)
    nodes = [helper.make_node("Expand", ["x", "wide"], ["e"]), helper.make_node("Tile", ["e", "times"], ["h0"])]
    nodes += [helper.make_node("MatMul", [f"h{step}", "w"], [f"h{step + 1}"]) for step in range(num_steps)]
    nodes += [helper.make_node("ReduceSum", [f"h{num_steps}"], ["y"], keepdims=1)]
    save_graph(
        root / name / "1" / "model.onnx",
        nodes,
        [tensor("x", "FP32", [1, 4])],
        [tensor("y", "FP32", [1, 1])],
        [
            helper.make_tensor("w", TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True),
            helper.make_tensor("wide", TensorProto.INT64, [2], [edge, 4]),
            helper.make_tensor("times", TensorProto.INT64, [2], [1, edge // 4]),
        ],
    )


# ---- what is no call, or no good one ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ([(":method", "GET")], "405"),
        ([("content-type", "text/html")], "415"),
        ([("content-type", "application/grpc-web")], "415"),
        ([("content-type", "")], "415"),
    ],
)
def test_what_is_no_grpc_gets_a_status_of_http(wire: Wire, changes: list[tuple[str, str]], status: str) -> None:
    assert wire.answer(wire.begin(wire.head("ModelInfer", *changes))).head[":status"] == status
    assert wire.call().status == Status.OK


@pytest.mark.parametrize("content_type", ["application/grpc", "application/grpc+proto", "Application/gRPC; charset=utf-8"])
def test_every_way_of_saying_grpc_is_understood(wire: Wire, content_type: str) -> None:
    assert wire.call(None, "ModelInfer", ("content-type", content_type)).status == Status.OK


@pytest.mark.parametrize("path", ["/", "/x", f"{SERVICE}/Nothing", "/inference.Other/ModelInfer", f"{SERVICE}/modelinfer"])
def test_methods_that_are_not_there_are_unimplemented(wire: Wire, path: str) -> None:
    answer = wire.call(b"", path)
    assert answer.status == Status.UNIMPLEMENTED
    assert path in answer.text


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", Status.UNIMPLEMENTED, "none came"),
        (pack(make_request()) * 2, Status.UNIMPLEMENTED, "two came"),
        (pack(make_request())[:-1], Status.INVALID_ARGUMENT, "ends too early"),
        (b"\0\0", Status.INVALID_ARGUMENT, "ends too early"),
        (pack(make_request(), flag=1), Status.INVALID_ARGUMENT, "without a grpc-encoding"),
        (pack(make_request(), flag=2), Status.INVALID_ARGUMENT, "compression flag 2"),
        (struct.pack(">BI", 0, 2**32 - 1), Status.RESOURCE_EXHAUSTED, "4294967295"),
        (struct.pack(">BI", 0, 64 * 2**20 + 1), Status.RESOURCE_EXHAUSTED, "the most this server takes"),
    ],
)
def test_messages_that_are_not_one_good_one_are_refused(wire: Wire, body: bytes, status: Status, says: str) -> None:
    stream = wire.begin()
    wire.data(stream, body)
    answer = wire.answer(stream)
    assert answer.status == status
    assert says in answer.text


def test_a_message_that_is_too_large_is_refused_before_it_is_here(wire: Wire) -> None:
    stream = wire.begin()
    wire.data(stream, struct.pack(">BI", 0, 2**30), ends=False)
    assert wire.answer(stream).status == Status.RESOURCE_EXHAUSTED
    reset = wire.until(lambda frame: frame.type == RST_STREAM)
    assert reset.error_code == Code.NO_ERROR  # stop sending; the answer stands
    wire.data(stream, bytes(30_000), ends=False)  # what was on its way is not held against the client
    assert wire.call().status == Status.OK


def test_a_text_that_is_no_ascii_comes_back_whole(server: RunningServer) -> None:
    name = "größer % als\nnichts\t" + "ß" * 20
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary(f"{SERVICE}/ModelInfer")
        with pytest.raises(grpc.RpcError) as error:
            call(make_request(name), timeout=30)
        assert name in error.value.details()
        with pytest.raises(grpc.RpcError) as error:
            call(make_request("ä" * 100_000), timeout=30)  # it would be more than clients take of headers
        assert error.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("timeout", ["", "1", "S", "123456789S", "-1S", "1s", "1.5S", "0x1S"])
def test_a_timeout_that_is_none_is_refused(wire: Wire, timeout: str) -> None:
    answer = wire.call(None, "ModelInfer", ("grpc-timeout", timeout))
    assert answer.status == (Status.OK if not timeout else Status.INVALID_ARGUMENT)


# ---- compression -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_compressed_requests_are_read(server: RunningServer, compression: str) -> None:
    given = client_grpc.InferInput("x", [1, 4], "FP32")
    given.set_data_from_numpy(np.ones((1, 4), np.float32))
    with client_grpc.InferenceServerClient(server.grpc) as client:
        answer = client.infer("double", [given], compression_algorithm=compression, request_id="r" * 500)
    np.testing.assert_array_equal(answer.as_numpy("y"), np.full((1, 4), 2, np.float32))


@pytest.mark.parametrize(
    ("encoding", "data", "status"),
    [
        ("gzip", gzip.compress(make_request()), Status.OK),
        ("deflate", zlib.compress(make_request()), Status.OK),
        ("gzip", b"rubbish", Status.INVALID_ARGUMENT),
        ("gzip", gzip.compress(make_request())[:-9], Status.INVALID_ARGUMENT),
        ("br", b"x", Status.UNIMPLEMENTED),
        ("gzip", gzip.compress(bytes(65 * 2**20)), Status.RESOURCE_EXHAUSTED),
    ],
    ids=["gzip", "deflate", "rubbish", "torn", "unknown", "too large"],  # packed bytes hold the time: a name would change
)
def test_what_does_not_unpack_is_refused(wire: Wire, encoding: str, data: bytes, status: Status) -> None:
    stream = wire.begin(wire.head("ModelInfer", ("grpc-encoding", encoding)))
    wire.data(stream, pack(data, flag=1))
    answer = wire.answer(stream)
    assert answer.status == status
    assert "gzip" in answer.head["grpc-accept-encoding"]


# ---- large, slow, gone -----------------------------------------------------------------------------------------------------


def test_large_tensors_travel_both_ways_at_once(start_server: Start, tmp_path: Path) -> None:
    save_scale(tmp_path, "wide", 2.0, num_columns="n")
    server = start_server(tmp_path)
    arrays = [np.full((1, 3 * 2**20), index, np.float32) for index in range(6)]  # 12 MiB each
    answers: queue.Queue = queue.Queue()
    with client_grpc.InferenceServerClient(server.grpc) as client:
        for index, array in enumerate(arrays):
            given = client_grpc.InferInput("x", list(array.shape), "FP32")
            given.set_data_from_numpy(array)
            client.async_infer("wide", [given], lambda result, error: answers.put((result, error)), request_id=str(index))
        for _ in arrays:
            result, error = answers.get(timeout=60)
            assert error is None
            index = int(result.get_response().id)
            np.testing.assert_array_equal(result.as_numpy("y"), 2 * arrays[index])


def test_a_client_may_write_many_large_requests_before_it_reads(start_server: Start, tmp_path: Path) -> None:
    save_scale(tmp_path, "wide", 2.0, num_columns="n")
    server = start_server(tmp_path)
    request = pb.ModelInferRequest(model_name="wide")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2**18])
    request.raw_input_contents.append(np.ones(2**18, np.float32).tobytes())

    async def write_then_read() -> list[int]:
        options = [("grpc.max_receive_message_length", -1)]
        async with grpc.aio.insecure_channel(server.grpc, options=options) as channel:
            call = channel.stream_stream(
                f"{SERVICE}/ModelStreamInfer",
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelStreamInferResponse.FromString,
            )(timeout=60)
            for _ in range(20):  # 20 MiB, and as much comes back
                await call.write(request)
            await call.done_writing()
            return [len(answer.infer_response.raw_output_contents[0]) async for answer in call]

    assert asyncio.run(write_then_read()) == [2**20] * 20


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of a model that takes a while."""
    root = tmp_path_factory.mktemp("slow")
    save_slow(root, "slow", 100)
    save_scale(root, "double", 2.0)
    server = RunningServer(root)
    server.wait_for("ready:")
    yield server
    server.assert_no_fault()
    assert server.stop() == 0


def count_inferences(server: RunningServer) -> tuple[int, int]:
    """How many were run, and how many failed or were dropped."""
    with client_grpc.InferenceServerClient(server.grpc) as client:
        stats = client.get_inference_statistics("slow").model_stats[0]
    return stats.inference_count, stats.inference_stats.fail.count


@pytest.mark.parametrize("path", ["ModelInfer", "ModelStreamInfer"])
def test_a_call_that_is_cancelled_leaves_the_queue(slow: RunningServer, path: str) -> None:
    run_before, failed_before = count_inferences(slow)
    with Wire(slow.grpc) as wire:
        streams = [wire.begin(wire.head(path)) for _ in range(10)]
        for stream in streams:
            wire.data(stream, pack(make_request("slow")))
        for stream in streams[1:]:
            wire.frame(RST_STREAM, 0, stream, bytes(4))
        assert wire.answer(streams[0]).status == Status.OK
        run, failed = count_inferences(slow)
        assert run - run_before < 5
        assert failed - failed_before > 5
    with Wire(slow.grpc) as wire:  # and so does one whose client hangs up
        for _ in range(10):
            wire.data(wire.begin(wire.head(path)), pack(make_request("slow")))
        wire.ping()
    with Wire(slow.grpc) as wire:
        assert wire.call(make_request("slow")).status == Status.OK
    run, failed = count_inferences(slow)
    assert run - run_before < 12
    assert failed - failed_before > 12


def test_a_deadline_ends_a_call_and_its_work(slow: RunningServer) -> None:
    _, failed_before = count_inferences(slow)
    with Wire(slow.grpc) as others, Wire(slow.grpc) as wire:
        for _ in range(60):  # keep the model busy for longer than the deadline
            others.data(others.begin(), pack(make_request("slow")))
        others.ping()
        streams = [wire.begin(wire.head("ModelInfer", ("grpc-timeout", "1S"))) for _ in range(6)]
        for stream in streams:
            wire.data(stream, pack(make_request("slow")))
        assert [wire.answer(stream).status for stream in streams] == [Status.DEADLINE_EXCEEDED] * 6
        assert count_inferences(slow)[1] - failed_before == 6
        assert wire.call(None, "ModelInfer", ("grpc-timeout", "99999999H")).status == Status.OK
    with grpc.insecure_channel(slow.grpc) as channel, pytest.raises(grpc.RpcError) as error:
        channel.unary_unary(f"{SERVICE}/ModelInfer")(make_request("slow"), timeout=0.001)
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_stream_takes_no_more_than_it_can_answer(slow: RunningServer) -> None:
    """Requests ahead of their answers, and answers ahead of their reading, hold the client back by its window."""
    with Wire(slow.grpc, {Setting.INITIAL_WINDOW_SIZE: 0}) as wire:
        stream = wire.begin(wire.head("ModelStreamInfer"))
        body = pack(make_request("double", identity="i" * 2000))
        sent = 0
        while sent + len(body) <= 65_535:
            wire.data(stream, body, ends=False)
            sent += len(body)
        wire.ping()
        granted = 0
        for _ in range(2000):  # as much as is allowed, until nothing more is
            grants = [frame for frame in wire.seen if frame.type == 8 and frame.stream_id == stream]
            granted = sum(frame.window_increment for frame in grants)
            if sent + len(body) > 65_535 + granted:
                break
            wire.data(stream, body, ends=False)
            sent += len(body)
            wire.ping()
        else:
            pytest.fail("the server takes requests without end from a client that reads nothing")
        assert sent < 4 * 2**20
        wire.frame(4, 0, 0, struct.pack(">HI", Setting.INITIAL_WINDOW_SIZE, 2**31 - 1))
        wire.frame(8, 0, 0, struct.pack(">I", 2**30))
        wire.data(stream, b"")
        answer = wire.answer(stream)
        assert answer.status == Status.OK
        assert answer.data.count(b"i" * 2000) == sent // len(body)


def test_thousands_of_requests_on_one_stream_are_answered_in_order(server: RunningServer) -> None:
    answers: queue.Queue = queue.Queue()
    given = client_grpc.InferInput("x", [1, 4], "FP32")
    given.set_data_from_numpy(np.ones((1, 4), np.float32))
    with client_grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for index in range(2000):
            client.async_stream_infer("double" if index % 7 else "nothing", [given], request_id=str(index))
        for index in range(2000):
            result, error = answers.get(timeout=60)
            assert (error is None) is bool(index % 7)
            if error is None:
                assert result.get_response().id == str(index)
        client.stop_stream()


def test_reflection_tells_tools_the_services_and_their_messages(server: RunningServer) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert database.get_services() == ["inference.GRPCInferenceService", HEALTH, *REFLECTIONS]
        pool = DescriptorPool(database)
        method = pool.FindServiceByName("inference.GRPCInferenceService").FindMethodByName("ModelReady")
        request = GetMessageClass(method.input_type)(name="double")
        call = channel.unary_unary(f"{SERVICE}/ModelReady", GetMessageClass(method.input_type).SerializeToString)
        assert GetMessageClass(method.output_type).FromString(call(request, timeout=30)).ready
        for symbol in (HEALTH, *REFLECTIONS):
            assert pool.FindServiceByName(symbol)


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({"file_by_filename": "inference.proto"}, 2),  # and the file that it imports
        ({"file_by_filename": "health.proto"}, 1),
        ({"file_by_filename": "../secret"}, Status.NOT_FOUND),
        ({"file_containing_symbol": "no.such.Thing"}, Status.NOT_FOUND),
        ({"file_containing_extension": {"containing_type": "inference.ModelConfig", "extension_number": 1}}, Status.NOT_FOUND),
        ({"all_extension_numbers_of_type": "inference.ModelConfig"}, "inference.ModelConfig"),
        ({}, Status.NOT_FOUND),
    ],
)
@pytest.mark.parametrize("service", REFLECTIONS)
def test_reflection_answers_what_is_asked(server: RunningServer, service: str, question: dict[str, object], says: object) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        ask = channel.stream_stream(
            f"/{service}/ServerReflectionInfo",
            reflection.ServerReflectionRequest.SerializeToString,
            reflection.ServerReflectionResponse.FromString,
        )
        (answer,) = ask(iter([reflection.ServerReflectionRequest(**question)]), timeout=30)
    found = {
        "file_descriptor_response": len(answer.file_descriptor_response.file_descriptor_proto),
        "all_extension_numbers_response": answer.all_extension_numbers_response.base_type_name,
        "error_response": answer.error_response.error_code,
    }
    assert found[answer.WhichOneof("message_response")] == says


def test_reflection_goes_on_when_its_answers_are_read_and_takes_short_questions(wire: Wire) -> None:
    question = reflection.ServerReflectionRequest(file_containing_symbol="inference.ModelConfig").SerializeToString()
    stream = wire.begin(wire.head(f"/{REFLECTIONS[0]}/ServerReflectionInfo"))
    wire.data(stream, pack(question) * 100)
    wire.ping()
    assert len(wire.answers[stream].data) <= DEFAULT_WINDOW
    for number in (0, stream):
        wire.send(write_window_update(number, 2**30))
    answer = wire.answer(stream)
    assert answer.status == Status.OK
    assert answer.data.count(b"model_config.proto") >= 100
    answer = wire.call(bytes(5000), f"/{REFLECTIONS[0]}/ServerReflectionInfo")
    assert (answer.status, "5000 bytes" in answer.text) == (Status.RESOURCE_EXHAUSTED, True)


# ---- health, and the end ---------------------------------------------------------------------------------------------------


def test_the_health_service_answers_without_a_key(start_server: Start, tmp_path: Path) -> None:
    save_scale(tmp_path / "models", "double", 2.0)
    (tmp_path / "keys").write_text("secret\n")
    server = start_server(tmp_path / "models", "--api-keys", str(tmp_path / "keys"))
    with grpc.insecure_channel(server.grpc) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health.HealthCheckRequest.SerializeToString,
            response_deserializer=health.HealthCheckResponse.FromString,
        )
        for service in ("", "inference.GRPCInferenceService"):
            assert check(health.HealthCheckRequest(service=service), timeout=30).status == SERVING
        with pytest.raises(grpc.RpcError) as error:
            check(health.HealthCheckRequest(service="other"), timeout=30)
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
        infer = channel.unary_unary(f"{SERVICE}/ModelInfer")
        with pytest.raises(grpc.RpcError) as error:
            infer(make_request(), timeout=30)
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert infer(make_request(), timeout=30, metadata=(("authorization", "Bearer secret"),))


def test_a_watch_tells_of_changes_until_the_server_ends(start_server: Start, tmp_path: Path) -> None:
    save_slow(tmp_path, "slow", 50)
    data = "data_type: TYPE_FP32 dims: [1, 4] zero_data: true"
    (tmp_path / "slow" / "config.pbtxt").write_text(
        f'model_warmup {{ name: "w" count: 8 inputs {{ key: "x" value {{ {data} }} }} }}'
    )
    server = start_server(tmp_path, wait=False)
    with grpc.insecure_channel(server.grpc) as channel:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health.HealthCheckRequest.SerializeToString,
            response_deserializer=health.HealthCheckResponse.FromString,
        )
        statuses = watch(health.HealthCheckRequest(), timeout=120)
        unknown = watch(health.HealthCheckRequest(service="other"), timeout=120)
        assert next(unknown).status == SERVICE_UNKNOWN
        assert [next(statuses).status, next(statuses).status] == [NOT_SERVING, SERVING]
        assert server.stop() == 0
        assert [answer.status for answer in statuses] == [NOT_SERVING]


def test_sigterm_sends_goaway_and_lets_calls_under_way_finish(start_server: Start, tmp_path: Path) -> None:
    save_slow(tmp_path, "slow", 300)
    server = start_server(tmp_path)
    with Wire(server.grpc) as wire, Wire(server.grpc) as idle:
        stream = wire.begin()
        wire.data(stream, pack(make_request("slow")))
        wire.ping()
        idle.ping()
        stopper = threading.Thread(target=server.stop)
        stopper.start()
        assert idle.goaway() is Code.NO_ERROR
        wire.until(lambda frame: isinstance(frame, GoAwayFrame) and frame.last_stream_id == stream)
        late = wire.begin()  # the client could not know yet; it is told by the GOAWAY to try elsewhere
        wire.data(late, pack(make_request("slow")))
        assert wire.answer(stream).status == Status.OK
        assert wire.read() is None
        assert not wire.answers[late].is_whole
        stopper.join()
    assert server.process.returncode == 0


def test_tls_carries_large_tensors_and_wants_h2(start_server: Start, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    save_scale(tmp_path, "wide", 2.0, num_columns="n")
    server = start_server(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key))
    array = np.arange(2**20, dtype=np.float32).reshape(1, -1)
    given = client_grpc.InferInput("x", list(array.shape), "FP32")
    given.set_data_from_numpy(array)
    with client_grpc.InferenceServerClient(server.grpc, ssl=True, root_certificates=str(cert)) as client:
        np.testing.assert_array_equal(client.infer("wide", [given]).as_numpy("y"), 2 * array)
    context = ssl.create_default_context(cafile=str(cert))
    with Wire(server.grpc, begins=False) as wire:
        wire.socket = context.wrap_socket(wire.socket, server_hostname="localhost")  # type: ignore[assignment]
        assert wire.goaway() is Code.PROTOCOL_ERROR


def test_sigterm_ends_a_stream_on_which_nothing_is_under_way(start_server: Start, tmp_path: Path) -> None:
    save_scale(tmp_path, "double", 2.0)
    server = start_server(tmp_path, "--exit-timeout-secs", "50")  # longer than the test waits for its end
    answers: queue.Queue[tuple[client_grpc.InferResult | None, Exception | None]] = queue.Queue()
    with client_grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        x = client_grpc.InferInput("x", [1, 4], "FP32")
        x.set_data_from_numpy(np.ones((1, 4), np.float32))
        client.async_stream_infer("double", [x])
        assert answers.get(timeout=20)[1] is None
        stopper = threading.Thread(target=server.stop)
        stopper.start()
        _, error = answers.get(timeout=20)
        assert "shutting down" in str(error)
        stopper.join(timeout=20)
        assert not stopper.is_alive()


def test_more_watches_than_the_server_takes_are_refused(server: RunningServer) -> None:
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.grpc)) for _ in range(MAX_WATCHES // 256)]
        for each in wires:
            streams = [each.begin(each.head("/grpc.health.v1.Health/Watch")) for _ in range(256)]
            for stream in streams:
                each.data(stream, pack(b""))
            each.until(lambda _, each=each, stream=streams[-1]: bool(each.answers[stream].data))
        late = stack.enter_context(Wire(server.grpc))
        answer = late.call(b"", "/grpc.health.v1.Health/Watch")
        assert (answer.status, str(MAX_WATCHES) in answer.text) == (Status.RESOURCE_EXHAUSTED, True)
        assert late.call().status == Status.OK
    with Wire(server.grpc) as wire:
        while True:  # the server sees the others leave when it gets to it
            stream = wire.begin(wire.head("/grpc.health.v1.Health/Watch"))
            wire.data(stream, pack(b""))
            wire.until(lambda _, stream=stream: bool(wire.answers[stream].data) or wire.answers[stream].is_whole)
            if wire.answers[stream].data:
                return
