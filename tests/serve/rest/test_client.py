"""Triton's own HTTP client, sync and async, against the server."""

import asyncio
from typing import Any

import numpy as np
import pytest
import tritonclient.http as client_http
import tritonclient.http.aio as client_aio
from models import ONNX_TYPES, sample
from running import RunningServer
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, shared_memory

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def client(server: RunningServer) -> Any:
    with client_http.InferenceServerClient(server.http, concurrency=4) as made:
        yield made


def make_input(name: str, array: np.ndarray, *, binary: bool = True, datatype: str = "") -> client_http.InferInput:
    made = client_http.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def test_the_server_tells_who_it_is_and_how_it_is(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("double")
    assert client.is_model_ready("versions", "3")
    assert not client.is_model_ready("versions", "2")
    assert not client.is_model_ready("broken")
    metadata = client.get_server_metadata()
    assert metadata["name"] == "tensorferry"
    assert "binary_tensor_data" in metadata["extensions"]


def test_a_model_tells_what_it_takes_and_gives(client: Any) -> None:
    assert client.get_model_metadata("versions") == {
        "name": "versions",
        "versions": ["1", "3"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
    }
    config = client.get_model_config("double")
    assert config["max_batch_size"] == 8
    assert config["backend"] == "onnxruntime"
    assert config["input"][0]["dims"] == [4]
    assert "dynamic_batching" in config


# the client itself refuses 16-bit floats as JSON
@pytest.mark.parametrize(
    ("datatype", "binary"),
    [(datatype, binary) for datatype in ONNX_TYPES for binary in (True, False) if binary or datatype not in ("FP16", "BF16")],
)
def test_every_datatype_comes_back_as_it_went(client: Any, datatype: str, binary: bool) -> None:
    array = sample(datatype)
    name = f"identity_{datatype.lower()}"
    wanted = [client_http.InferRequestedOutput("y", binary_data=binary)]
    result = client.infer(name, [make_input("x", array, binary=binary, datatype=datatype)], outputs=wanted)
    answer = result.as_numpy("y")
    if not binary and datatype == "BYTES":
        answer = np.array([[text.encode() for text in row] for row in answer], dtype=np.object_)
    np.testing.assert_array_equal(answer, array)
    assert result.get_output("y")["datatype"] == datatype


def test_the_id_comes_back_and_versions_differ(client: Any) -> None:
    first = client.infer("versions", [make_input("x", X)], model_version="1", request_id="seven")
    newest = client.infer("versions", [make_input("x", X)])
    assert first.get_response()["id"] == "seven"
    assert first.get_response()["model_version"] == "1"
    assert newest.get_response()["model_version"] == "3"
    np.testing.assert_array_equal(first.as_numpy("y"), X)
    np.testing.assert_array_equal(newest.as_numpy("y"), 3 * X)


def test_only_the_outputs_that_were_asked_for_come(client: Any) -> None:
    a, b = np.array([[1, 2, 3]], np.int32), np.array([[4, 4, 4]], np.int32)
    inputs = [make_input("a", a), make_input("b", b, binary=False)]
    both = client.infer("sum", inputs)
    one = client.infer("sum", inputs, outputs=[client_http.InferRequestedOutput("difference", binary_data=False)])
    np.testing.assert_array_equal(both.as_numpy("total"), a + b)
    assert one.as_numpy("total") is None
    np.testing.assert_array_equal(one.as_numpy("difference"), a - b)


def test_classification_gives_the_best_classes_with_their_labels(client: Any) -> None:
    scores = np.array([[0.5, 4, 1, 2], [9, 8, 7, 6]], np.float32)
    wanted = [client_http.InferRequestedOutput("y", class_count=2)]
    answer = client.infer("labelled", [make_input("x", scores)], outputs=wanted).as_numpy("y")
    assert answer.tolist() == [[b"4.000000:1:dog", b"2.000000:3:ship"], [b"9.000000:0:cat", b"8.000000:1:dog"]]
    plain = client.infer("double", [make_input("x", scores[:1])], outputs=[client_http.InferRequestedOutput("y", class_count=1)])
    assert plain.as_numpy("y").tolist() == [[b"8.000000:1"]]
    numbers = np.array([[2**53, 2**53 + 1, -7, 3]])
    wanted = [client_http.InferRequestedOutput("y", class_count=4)]
    whole = client.infer("identity_int64", [make_input("x", numbers)], outputs=wanted)
    assert whole.as_numpy("y").tolist() == [[b"9007199254740993:1", b"9007199254740992:0", b"3:3", b"-7:2"]]


@pytest.mark.parametrize("request_coding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_coding", [None, "gzip", "deflate"])
def test_compressed_bodies_travel_both_ways(client: Any, request_coding: str | None, response_coding: str | None) -> None:
    result = client.infer(
        "double",
        [make_input("x", X)],
        request_compression_algorithm=request_coding,
        response_compression_algorithm=response_coding,
    )
    np.testing.assert_array_equal(result.as_numpy("y"), 2 * X)


def test_async_requests_of_the_gevent_client_all_come_back(client: Any) -> None:
    calls = [client.async_infer("double", [make_input("x", X + i)], request_id=str(i)) for i in range(40)]
    for i, call in enumerate(calls):
        result = call.get_result()
        assert result.get_response()["id"] == str(i)
        np.testing.assert_array_equal(result.as_numpy("y"), 2 * (X + i))


def test_the_asyncio_client_works_too(server: RunningServer) -> None:
    async def ask() -> list[Any]:
        async with client_aio.InferenceServerClient(server.http) as client:
            assert await client.is_server_ready()
            return await asyncio.gather(*(client.infer("double", [make_input("x", X + i)]) for i in range(40)))

    for i, result in enumerate(asyncio.run(ask())):
        np.testing.assert_array_equal(result.as_numpy("y"), 2 * (X + i))


def test_tensors_travel_through_shared_memory(client: Any) -> None:
    source = shared_memory.create_shared_memory_region("in", "/ferry_test_in", X.nbytes)
    target = shared_memory.create_shared_memory_region("out", "/ferry_test_out", X.nbytes + 16)
    try:
        shared_memory.set_shared_memory_region(source, [X])
        client.register_system_shared_memory("in", "/ferry_test_in", X.nbytes)
        client.register_system_shared_memory("out", "/ferry_test_out", X.nbytes + 16)
        assert {region["name"] for region in client.get_system_shared_memory_status()} == {"in", "out"}
        with pytest.raises(InferenceServerException, match="already registered"):
            client.register_system_shared_memory("in", "/ferry_test_in", X.nbytes)
        given = client_http.InferInput("x", [2, 4], "FP32")
        given.set_shared_memory("in", X.nbytes)
        wanted = client_http.InferRequestedOutput("y")
        wanted.set_shared_memory("out", X.nbytes, offset=16)
        result = client.infer("double", [given], outputs=[wanted])
        assert result.get_output("y") == {"name": "y", "datatype": "FP32", "shape": [2, 4]}
        np.testing.assert_array_equal(shared_memory.get_contents_as_numpy(target, np.float32, [2, 4], 16), 2 * X)
        given.set_shared_memory("in", X.nbytes, offset=8)
        with pytest.raises(InferenceServerException, match="beyond region 'in'"):
            client.infer("double", [given])
    finally:
        client.unregister_system_shared_memory()
        shared_memory.destroy_shared_memory_region(source)
        shared_memory.destroy_shared_memory_region(target)
    assert client.get_system_shared_memory_status() == []
    with pytest.raises(InferenceServerException, match="Unable to find"):
        client.get_system_shared_memory_status("in")


def test_statistics_count_what_happened(client: Any) -> None:
    before = client.get_inference_statistics("sum")["model_stats"][0]
    a = np.ones((2, 3), np.int32)
    client.infer("sum", [make_input("a", a), make_input("b", a)])
    after = client.get_inference_statistics("sum", "1")["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 2
    assert after["execution_count"] == before["execution_count"] + 1
    assert after["inference_stats"]["success"]["count"] == before["inference_stats"]["success"]["count"] + 1
    assert {batch["batch_size"] for batch in after["batch_stats"]} >= {2}
    names = {stats["name"] for stats in client.get_inference_statistics()["model_stats"]}
    assert {"sum", "double", "versions"} <= names


def test_log_and_trace_settings_are_read_and_changed(client: Any) -> None:
    assert client.get_log_settings()["log_verbose_level"] == 0
    assert client.update_log_settings({"log_verbose_level": 1})["log_verbose_level"] == 1
    client.update_log_settings({"log_verbose_level": 0})
    with pytest.raises(InferenceServerException, match="unknown log setting"):
        client.update_log_settings({"loudness": 3})
    for changes in ({"trace_rate": "-5"}, {"log_frequency": "-1"}, {"trace_count": "-2"}):
        with pytest.raises(InferenceServerException, match="whole number from zero up"):
            client.update_trace_settings(settings=changes)
    assert client.update_trace_settings(settings={"trace_count": "-1"})["trace_count"] == "-1"
    assert client.get_trace_settings()["trace_level"] == ["OFF"]
    assert client.update_trace_settings("double", {"trace_level": ["TIMESTAMPS"]})["trace_level"] == ["TIMESTAMPS"]
    assert client.get_trace_settings("sum")["trace_level"] == ["OFF"]
    assert client.update_trace_settings("double", {"trace_level": None})["trace_level"] == ["OFF"]
    for key, default in (("trace_level", ["OFF"]), ("trace_rate", "1000"), ("trace_file", "")):
        client.update_trace_settings("double", {key: ["TIMESTAMPS"] if key == "trace_level" else ["7"]})
        assert client.update_trace_settings("double", {key: []})[key] == default  # as Triton has it: nothing is the default


def test_cuda_shared_memory_is_refused_politely(client: Any) -> None:
    assert client.get_cuda_shared_memory_status() == []
    with pytest.raises(InferenceServerException, match="no CUDA shared memory"):
        client.register_cuda_shared_memory("gpu", b"handle", 0, 64)


def test_the_index_tells_what_is_wrong_with_a_broken_model(client: Any) -> None:
    index = {line["name"]: line for line in client.get_model_repository_index()}
    assert index["double"]["state"] == "READY"
    assert index["broken"]["state"] == "UNAVAILABLE"
    assert "onnxruntime cannot load" in index["broken"]["reason"]


@pytest.mark.parametrize(
    ("model", "inputs", "status", "says"),
    [
        ("nothing", {"x": X}, "404", "unknown model: 'nothing'"),
        ("broken", {"x": X}, "404", "onnxruntime cannot load"),
        ("double", {"z": X}, "400", "no input 'z'; it has 'x'"),
        ("double", {"x": X.astype(np.int32)}, "400", "is FP32, received INT32"),
        ("double", {"x": X[:, :3]}, "400", r"shape \[-1, 4\], received \[2, 3\]"),
        ("double", {"x": np.zeros((9, 4), np.float32)}, "400", "batches of 1 to 8, received 9"),
        ("sum", {"a": np.zeros((1, 3), np.int32)}, "400", "also needs the input 'b'"),
        ("lookup", {"x": np.array([77])}, "400", "cannot run these inputs"),
    ],
)
def test_a_wrong_request_says_what_is_wrong(client: Any, model: str, inputs: dict, status: str, says: str) -> None:
    with pytest.raises(InferenceServerException, match=says) as error:
        client.infer(model, [make_input(name, array) for name, array in inputs.items()])
    assert error.value.status() == status


def test_an_unknown_output_is_refused(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="no output 'z'; it has 'y'"):
        client.infer("double", [make_input("x", X)], outputs=[client_http.InferRequestedOutput("z")])


def test_models_are_loaded_and_unloaded_on_request(client: Any) -> None:
    client.unload_model("lookup")
    with pytest.raises(InferenceServerException, match="'lookup' is not ready"):
        client.infer("lookup", [make_input("x", np.array([1]))])
    client.load_model("lookup")
    np.testing.assert_array_equal(client.infer("lookup", [make_input("x", np.array([1]))]).as_numpy("y"), [[2, 3]])
    with pytest.raises(InferenceServerException, match="no such folder"):
        client.load_model("no_such_model")
    with pytest.raises(InferenceServerException, match="onnxruntime cannot load"):
        client.load_model("broken")


def test_a_model_may_be_sent_with_the_request_to_load_it(client: Any, repository: Any) -> None:
    data = (repository / "double" / "1" / "model.onnx").read_bytes()
    client.load_model("sent", config='{"backend": "onnxruntime", "max_batch_size": 2}', files={"file:1/model.onnx": data})
    np.testing.assert_array_equal(client.infer("sent", [make_input("x", X)]).as_numpy("y"), 2 * X)
    assert client.get_model_config("sent")["max_batch_size"] == 2
    client.unload_model("sent")
    with pytest.raises(InferenceServerException, match="outside of the model's folder"):
        client.load_model("sent", config="{}", files={"file:../../../evil": data})
