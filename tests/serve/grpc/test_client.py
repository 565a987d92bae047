"""Triton's own gRPC client, sync, async and streaming, against the server."""

import asyncio
import queue
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client_grpc
import tritonclient.grpc.aio as client_aio
from models import ONNX_TYPES, sample
from running import RunningServer
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, shared_memory

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def client(server: RunningServer) -> Any:
    with client_grpc.InferenceServerClient(server.grpc) as made:
        yield made


def make_input(name: str, array: np.ndarray, datatype: str = "") -> client_grpc.InferInput:
    made = client_grpc.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array)
    return made


def test_the_server_and_its_models_tell_of_themselves(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("double")
    assert not client.is_model_ready("broken")
    assert client.get_server_metadata().name == "tensorferry"
    metadata = client.get_model_metadata("versions", "3")
    assert metadata.versions == ["1", "3"]
    assert list(metadata.inputs[0].shape) == [-1, 4]
    config = client.get_model_config("versions").config
    assert config.name == "versions"
    assert config.max_batch_size == 8
    assert client.get_inference_statistics("double").model_stats[0].name == "double"
    index = {model.name: model for model in client.get_model_repository_index().models}
    assert index["broken"].state == "UNAVAILABLE"
    assert index["double"].state == "READY"


@pytest.mark.parametrize("datatype", ONNX_TYPES)
def test_every_datatype_comes_back_as_it_went(client: Any, datatype: str) -> None:
    array = sample(datatype)
    result = client.infer(f"identity_{datatype.lower()}", [make_input("x", array, datatype)], request_id="nine")
    np.testing.assert_array_equal(result.as_numpy("y"), array)
    assert result.get_response().id == "nine"


@pytest.mark.parametrize(
    ("datatype", "field"),
    [
        ("BOOL", "bool_contents"),
        ("INT8", "int_contents"),
        ("INT64", "int64_contents"),
        ("UINT16", "uint_contents"),
        ("UINT64", "uint64_contents"),
        ("FP32", "fp32_contents"),
        ("FP64", "fp64_contents"),
        ("BYTES", "bytes_contents"),
    ],
)
def test_typed_contents_are_read_as_well(server: RunningServer, datatype: str, field: str) -> None:
    array = sample(datatype)
    request = pb.ModelInferRequest(model_name=f"identity_{datatype.lower()}")
    tensor = request.inputs.add(name="x", datatype=datatype, shape=array.shape)
    getattr(tensor.contents, field).extend(array.reshape(-1).tolist())
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        result = client_grpc.InferResult(call(request, timeout=30))
    np.testing.assert_array_equal(result.as_numpy("y"), array)


def test_async_calls_all_come_back(client: Any) -> None:
    answers: queue.Queue = queue.Queue()
    for i in range(40):
        client.async_infer(
            "double", [make_input("x", X + i)], lambda result, error: answers.put((result, error)), request_id=str(i)
        )
    for _ in range(40):
        result, error = answers.get(timeout=30)
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("y"), 2 * (X + int(result.get_response().id)))


def test_a_stream_answers_in_order_and_goes_on_after_an_error(client: Any) -> None:
    answers: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for i in range(20):
        model = "no_such_model" if i == 7 else "double"
        client.async_stream_infer(model, [make_input("x", X + i)], request_id=str(i))
    for i in range(20):
        result, error = answers.get(timeout=30)
        if i == 7:
            assert "unknown model" in str(error)
            continue
        assert error is None
        assert result.get_response().id == str(i)
        assert result.get_response().parameters["triton_final_response"].bool_param is True
        np.testing.assert_array_equal(result.as_numpy("y"), 2 * (X + i))
    client.stop_stream()


def test_the_asyncio_client_infers_and_streams(server: RunningServer) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for i in range(5):
            yield {"model_name": "double", "inputs": [make_input("x", X + i)], "request_id": str(i)}

    async def ask() -> None:
        async with client_aio.InferenceServerClient(server.grpc) as client:
            assert await client.is_server_ready()
            results = await asyncio.gather(*(client.infer("double", [make_input("x", X + i)]) for i in range(20)))
            for i, result in enumerate(results):
                np.testing.assert_array_equal(result.as_numpy("y"), 2 * (X + i))
            streamed = [answer async for answer in client.stream_infer(requests())]
            assert [result.get_response().id for result, _ in streamed] == ["0", "1", "2", "3", "4"]
            assert all(error is None for _, error in streamed)

    asyncio.run(ask())


def test_tensors_travel_through_shared_memory(client: Any) -> None:
    source = shared_memory.create_shared_memory_region("in", "/ferry_rpc_in", X.nbytes)
    target = shared_memory.create_shared_memory_region("out", "/ferry_rpc_out", X.nbytes)
    try:
        shared_memory.set_shared_memory_region(source, [X])
        client.register_system_shared_memory("rpc_in", "/ferry_rpc_in", X.nbytes)
        client.register_system_shared_memory("rpc_out", "/ferry_rpc_out", X.nbytes)
        assert set(client.get_system_shared_memory_status().regions) == {"rpc_in", "rpc_out"}
        given = client_grpc.InferInput("x", [2, 4], "FP32")
        given.set_shared_memory("rpc_in", X.nbytes)
        wanted = client_grpc.InferRequestedOutput("y")
        wanted.set_shared_memory("rpc_out", X.nbytes)
        result = client.infer("double", [given], outputs=[wanted])
        assert result.get_output("y").parameters["shared_memory_region"].string_param == "rpc_out"
        np.testing.assert_array_equal(shared_memory.get_contents_as_numpy(target, np.float32, [2, 4]), 2 * X)
    finally:
        client.unregister_system_shared_memory()
        shared_memory.destroy_shared_memory_region(source)
        shared_memory.destroy_shared_memory_region(target)


def test_classification_settings_control_and_statistics_work(client: Any) -> None:
    wanted = [client_grpc.InferRequestedOutput("y", class_count=1)]
    answer = client.infer("labelled", [make_input("x", np.array([[1, 5, 2, 3]], np.float32))], outputs=wanted)
    assert answer.as_numpy("y").tolist() == [[b"5.000000:1:dog"]]
    assert client.get_log_settings().settings["log_info"].bool_param
    assert client.update_log_settings({"log_verbose_level": 0}).settings["log_verbose_level"].uint32_param == 0
    assert list(client.get_trace_settings().settings["trace_level"].value) == ["OFF"]
    assert list(client.update_trace_settings("sum", {"trace_rate": "5"}).settings["trace_rate"].value) == ["5"]
    client.unload_model("mixing")
    assert not client.is_model_ready("mixing")
    client.load_model("mixing")
    assert client.is_model_ready("mixing")
    assert len(client.get_cuda_shared_memory_status().regions) == 0


@pytest.mark.parametrize(
    ("model", "inputs", "status", "says"),
    [
        ("nothing", {"x": X}, "NOT_FOUND", "unknown model"),
        ("double", {"z": X}, "INVALID_ARGUMENT", "no input 'z'"),
        ("double", {"x": X.astype(np.int32)}, "INVALID_ARGUMENT", "received INT32"),
        ("double", {"x": np.zeros((9, 4), np.float32)}, "INVALID_ARGUMENT", "received 9"),
        ("lookup", {"x": np.array([77])}, "INVALID_ARGUMENT", "cannot run these inputs"),
    ],
)
def test_a_wrong_request_has_the_code_that_the_protocol_wants(
    client: Any, model: str, inputs: dict, status: str, says: str
) -> None:
    with pytest.raises(InferenceServerException, match=says) as error:
        client.infer(model, [make_input(name, array) for name, array in inputs.items()])
    assert error.value.status() == f"StatusCode.{status}"


def test_bytes_that_are_no_message_are_an_invalid_argument(server: RunningServer) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        for method in ("ModelInfer", "ModelReady", "RepositoryModelLoad"):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            with pytest.raises(grpc.RpcError) as error:
                call(b"\xff\xff\xff rubbish", timeout=30)
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
