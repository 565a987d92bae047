"""`ferry optimize` runs nothing of a file that nobody trusts."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import Touch, touching
from nets import answer, make_images, make_picture, make_rows, save_program
from onnx import TensorProto, helper

import tensorferry as ferry

ROWS = np.random.default_rng(0).standard_normal((16, 2)).astype(np.float32)


def optimize(path: Path, samples: np.ndarray, **options: Any) -> np.ndarray:
    """The answers of the engine made of a file."""
    engine = ferry.optimize(path, samples, seconds=1, precision="fp32", **options)
    try:
        return engine(samples)
    finally:
        engine.close()


def rewrite(path: Path, members: dict[str, bytes]) -> None:
    """Put other members into the archive of an exported program."""
    with zipfile.ZipFile(path) as archive:
        kept = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, member in (kept | members).items():
            archive.writestr(f"archive/{name}", member)


def pickled(value: Any) -> bytes:
    """As torch saves it."""
    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()


def test_nothing_of_an_exported_program_runs_without_trust(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = save_program(tmp_path / "net.pt2")
    rewrite(path, {"data/sample_inputs/model.pt": pickled(((torch.from_numpy(make_images(2)),), {"more": Touch(mark)}))})
    with pytest.raises(ferry.BadModel, match=r"a pickle of more than tensors.*--trust"):
        ferry.optimize(path, make_images())
    assert not mark.exists()


def test_a_program_that_needs_trust_is_read_with_it(tmp_path: Path) -> None:
    path, table = save_program(tmp_path / "net.pt2"), "data/weights/model_weights_config.json"
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read(next(name for name in archive.namelist() if name.endswith(table))))
    config["config"]["head.bias"] |= {"use_pickle": True, "path_name": "weight_99"}
    bias = pickled(make_picture().head.bias)
    rewrite(path, {table: json.dumps(config).encode(), "data/weights/weight_99": bias})
    with pytest.raises(ferry.BadModel, match=r"the pickle weight_99.*--trust"):
        ferry.optimize(path, make_images())
    expected = answer(make_picture(), make_images())
    np.testing.assert_allclose(optimize(path, make_images(), trust=True), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_nothing_of_torchscript_runs_without_trust(tmp_path: Path) -> None:
    class Script(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.name: str = str(tmp_path / "mark")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.from_file(self.name, shared=True, size=6, dtype=torch.float32)

    torch.jit.script(Script()).save(tmp_path / "net.pt")
    with pytest.raises(ferry.BadModel, match=r"TorchScript.*--trust"):
        ferry.optimize(tmp_path / "net.pt", make_rows())
    assert not (tmp_path / "mark").exists()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_nothing_of_a_lambda_layer_runs_without_trust(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    mark = tmp_path / "mark"
    code = eval(f"lambda x: [x + 1, {touching(mark)} if not __import__('os').path.exists({str(mark)!r}) else 0][0]")
    inputs = keras.Input((2,))
    keras.Model(inputs, keras.layers.Lambda(code, output_shape=(2,))(inputs)).save(tmp_path / "net.keras")
    mark.unlink(missing_ok=True)
    with pytest.raises(ferry.BadModel, match=r"a Lambda layer.*--trust"):
        ferry.optimize(tmp_path / "net.keras", ROWS)
    assert not mark.exists()
    np.testing.assert_allclose(optimize(tmp_path / "net.keras", ROWS, trust=True), ROWS + 1)
    assert mark.exists()


def test_nothing_of_a_saved_model_writes_a_file_without_trust(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    mark = tmp_path / "mark"

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
        def call(self, x: Any) -> dict[str, Any]:
            with tf.control_dependencies([tf.io.write_file(str(mark), "here")]):
                return {"y": x + 1}

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "net"), signatures=model.call)
    with pytest.raises(ferry.BadModel, match=r"the op WriteFile.*--trust"):
        ferry.optimize(tmp_path / "net", ROWS)
    assert not mark.exists()
    np.testing.assert_allclose(optimize(tmp_path / "net", ROWS, trust=True), ROWS + 1)
    assert mark.exists()


def test_weights_of_onnx_outside_of_its_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(ROWS[0].tobytes())
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value="../secret")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weights])
    (tmp_path / "model").mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "model" / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ferry.BadModel, match="External data path"):
        ferry.optimize(tmp_path / "model" / "net.onnx", ROWS)


def test_weights_to_put_into_a_model_are_not_unpickled(tmp_path: Path) -> None:
    torch.save({"0.weight": Touch(tmp_path / "mark")}, tmp_path / "weights.pt")
    with pytest.raises(ferry.BadModel, match="more than tensors"):
        ferry.optimize("nets:make_rows_model", make_rows(), weights=tmp_path / "weights.pt")
    assert not (tmp_path / "mark").exists()
