"""Files that reach for more than a model needs, one of each format that has no file of tests of its own."""

import io
import json
import warnings
import zipfile
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
from hostile import Touch
from models import save_graph, tensor
from onnx import TensorProto, helper
from running import RunningServer
from tritonclient.utils import InferenceServerException

from tensorferry.errors import BadModel
from tensorferry.serve.core.config import parse_config, read_config
from tensorferry.serve.core.loading import load_model
from tensorferry.serve.core.workshop import Workshop
from tensorferry.serve.runtimes.runtime import LoadOptions
from tensorferry.serve.runtimes.table import load_runtime

X = np.ones((1, 4), np.float32)


def save_torchscript(path: Path, mark: Path) -> Path:
    """A script that makes a file when it runs."""
    import torch

    class Script(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.name: str = str(mark)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.from_file(self.name, shared=True, size=4, dtype=torch.float32)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript deprecated
        torch.jit.script(Script()).save(path)
    return path


def test_torchscript_runs_only_with_trust(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = save_torchscript(tmp_path / "model.pt", mark)
    names = {"input_names": ("x",), "output_names": ("y",)}
    with pytest.raises(BadModel, match=r"TorchScript.*--trust"):
        load_runtime("pytorch", LoadOptions(path, **names))
    assert not mark.exists()
    (given,) = load_runtime("pytorch", LoadOptions(path, trust=True, **names)).new_runner().run({"x": X}, ["y"])
    assert given.tolist() == X.tolist()
    assert mark.exists()


def save_external(path: Path, location: str) -> Path:
    """An ONNX file whose weights are elsewhere."""
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": "0", "length": "16"}.items():
        weights.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [tensor("x", "FP32", ["n", 4])],
        [tensor("y", "FP32", ["n", 4])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("kind", ["above", "absolute", "link", "folder"])
def test_weights_of_onnx_are_read_only_from_beside_the_file(kind: str, trust: bool, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(X.tobytes())
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "model" / "folder").symlink_to(tmp_path)
    location = {"above": "../secret", "absolute": str(tmp_path / "secret"), "link": "link", "folder": "folder/secret"}[kind]
    path = save_external(tmp_path / "model" / "model.onnx", location)
    with pytest.raises(BadModel, match=r"External data path|external data"):
        load_runtime("onnxruntime", LoadOptions(path, trust=trust))


def test_weights_of_onnx_beside_the_file_are_read(tmp_path: Path) -> None:
    path = save_external(tmp_path / "model" / "model.onnx", "weights")
    (path.parent / "weights").write_bytes(X.tobytes())
    (given,) = load_runtime("onnxruntime", LoadOptions(path)).new_runner().run({"x": X}, ["y"])
    assert given.tolist() == (X + X).tolist()


@pytest.mark.parametrize("domain", ["ai.onnx.contrib", "com.microsoft", "custom"])
def test_an_op_of_onnx_that_would_need_a_library_is_not_loaded(domain: str, tmp_path: Path) -> None:
    node = helper.make_node("PyOp", ["x"], ["y"], domain=domain, module="os", code="1")
    graph = helper.make_graph([node], "g", [tensor("x", "FP32", ["n", 4])], [tensor("y", "FP32", ["n", 4])])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), tmp_path / "model.onnx")
    with pytest.raises(BadModel, match="cannot load"):
        load_runtime("onnxruntime", LoadOptions(tmp_path / "model.onnx"))


def save_openvino(folder: Path) -> Path:
    """An IR file of one layer."""
    import openvino as ov

    layers = [helper.make_node("Relu", ["x"], ["y"])]
    file = save_graph(folder / "model.onnx", layers, [tensor("x", "FP32", ["n", 4])], [tensor("y", "FP32", ["n", 4])])
    ov.save_model(ov.Core().read_model(file), folder / "model.xml", compress_to_fp16=False)
    file.unlink()
    return folder / "model.xml"


@pytest.mark.parametrize("name", ["CACHE_DIR", "WEIGHTS_PATH", "CPU_EXTENSION", "CONFIG_FILE"])
def test_a_property_of_openvino_that_reaches_files_needs_trust(name: str, tmp_path: Path) -> None:
    path = save_openvino(tmp_path / "model" / "1")
    mark = tmp_path / "cache"
    (tmp_path / "model" / "config.pbtxt").write_text(
        f'parameters {{ key: "{name}" value {{ string_value: {json.dumps(str(mark))} }} }}'
    )
    config = read_config(tmp_path / "model")
    with pytest.raises(BadModel, match=rf"{name}.*--trust"):
        load_model(Workshop(), tmp_path / "model", 1, config)
    assert not mark.exists()
    if name == "CACHE_DIR":
        load_runtime("openvino", LoadOptions(path, trust=True, parameters={name: str(mark)}))
        assert mark.exists()


def test_a_file_of_another_kind_is_not_given_to_openvino(tmp_path: Path) -> None:
    path = save_external(tmp_path / "model" / "model.xml", "weights")
    (path.parent / "weights").write_bytes(X.tobytes())
    with pytest.raises(BadModel, match=r"not XML.*--trust"):
        load_runtime("openvino", LoadOptions(path))
    assert load_runtime("openvino", LoadOptions(path, trust=True)).signature is not None


def test_a_file_of_openvino_with_a_layer_of_its_own_is_not_loaded(tmp_path: Path) -> None:
    path = save_openvino(tmp_path)
    text = path.read_text()
    assert 'type="ReLU" version="opset1"' in text
    path.write_text(text.replace('type="ReLU" version="opset1"', 'type="Python" version="extension"'))
    with pytest.raises(BadModel, match="cannot load"):
        load_runtime("openvino", LoadOptions(path))


@pytest.mark.parametrize("name", ["CACHE_DIR", "anything"])
def test_a_request_to_load_may_set_only_parameters_that_reach_no_file(name: str) -> None:
    def write(key: str) -> str:
        return json.dumps({"parameters": {key: {"string_value": "x"}}})

    with pytest.raises(BadModel, match=f"may not set the parameter '{name}'"):
        parse_config(write(name), "model")
    for known in ("INFERENCE_PRECISION_HINT", "intra_op_thread_count", "signature"):
        assert parse_config(write(known), "model").parameters[known].string_value == "x"


def test_a_request_to_load_may_not_move_a_model_into_the_server_itself() -> None:
    """A process of its own is what a client's file can crash."""

    def parse(value: str) -> str:
        parsed = parse_config(json.dumps({"parameters": {"isolation": {"string_value": value}}}), "model")
        return str(parsed.parameters["isolation"].string_value)

    assert parse("process") == "process"
    with pytest.raises(BadModel, match="'isolation' of model 'model' to 'process' alone"):
        parse("thread")


@pytest.mark.parametrize("value", ["1000000000", "99999999999999999999", "5e9", "-5"])
@pytest.mark.parametrize("name", ["INFERENCE_NUM_THREADS", "NUM_STREAMS", "PERFORMANCE_HINT_NUM_REQUESTS"])
def test_threads_and_streams_of_openvino_are_bounded(name: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=f"'{name}' is '{value}'; expected a number of at most"):
        load_runtime("openvino", LoadOptions(tmp_path / "model.xml", parameters={name: value}))


@pytest.mark.parametrize(
    "field",
    [
        'default_model_filename: "../../secret"',
        'output { name: "y" data_type: TYPE_FP32 dims: [-1, 4] label_filename: "../secret" }',
    ],
)
def test_a_configuration_names_no_file_outside_of_the_model(field: str, tmp_path: Path) -> None:
    identity = [helper.make_node("Identity", ["x"], ["y"])]
    save_graph(tmp_path / "model/1/model.onnx", identity, [tensor("x", "FP32", ["n", 4])], [tensor("y", "FP32", ["n", 4])])
    (tmp_path / "secret").write_text("secret\n" * 4)
    (tmp_path / "model" / "config.pbtxt").write_text(field)
    with pytest.raises(BadModel, match="not in"):
        load_model(Workshop(), tmp_path / "model", 1, read_config(tmp_path / "model"))


def test_a_tokenizer_reads_no_file(tmp_path: Path) -> None:
    (tmp_path / "vocabulary.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("")
    model = {"type": "BPE", "vocab": str(tmp_path / "vocabulary.json"), "merges": str(tmp_path / "merges.txt")}
    tokenizer = json.dumps({"version": "1.0", "model": model})
    description = {"kind": "text", "tokenizer": tokenizer, "max_length": 4, "ids": "ids", "mask": "mask"}
    (tmp_path / "transform.json").write_text(json.dumps(description))
    with pytest.raises(BadModel, match="cannot read the tokenizer"):
        load_runtime("transform", LoadOptions(tmp_path / "transform.json"))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_request_to_load_sets_no_property_that_reaches_files(server: RunningServer, protocol: str, tmp_path: Path) -> None:
    client = import_module(f"tritonclient.{protocol}").InferenceServerClient(getattr(server, protocol))
    config = json.dumps({"parameters": {"CACHE_DIR": {"string_value": str(tmp_path / "mark")}}})
    with client, pytest.raises(InferenceServerException, match="may not set the parameter 'CACHE_DIR'"):
        client.load_model("double", config=config)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_nothing_of_a_file_that_comes_with_a_request_runs(server: RunningServer, protocol: str, tmp_path: Path) -> None:
    import torch

    torch.export.save(torch.export.export(torch.nn.Identity(), (torch.ones(1, 4),)), tmp_path / "model.pt2")
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    hostile = io.BytesIO()
    torch.save(((Touch(tmp_path / "mark"),), {}), hostile)
    sent = io.BytesIO()
    with zipfile.ZipFile(sent, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, hostile.getvalue() if "sample_inputs" in name else data)
    client = import_module(f"tritonclient.{protocol}").InferenceServerClient(getattr(server, protocol))
    with client, pytest.raises(InferenceServerException, match=r"a pickle of more than tensors.*--trust"):
        client.load_model("sent", config="{}", files={"file:1/model.pt2": sent.getvalue()})
    assert not (tmp_path / "mark").exists()
