"""`ferry optimize` as a user meets it: a run becomes a folder that serves, and errors are one line."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import tritonclient.http as triton
from nets import Picture, answer, make_images, make_picture, save_program
from onnx import helper
from safetensors.torch import save_file

from tensorferry.cli import main
from tensorferry.files import digest
from tensorferry.train.trained import load_trained

TINY = f"{Path(__file__).parents[1] / 'train' / 'tiny.py'}:Tiny"
NETS = Path(__file__).with_name("nets.py")


def _run(*arguments: object) -> int:
    return main(["optimize", *map(str, arguments)])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What a .pt2 holds."""
    return save_program(tmp_path_factory.mktemp("program") / "net.pt2").read_bytes()


def test_a_run_becomes_an_engine_that_serves(tmp_path: Path, capsys: pytest.CaptureFixture[str], serve: Callable) -> None:
    run = tmp_path / "runs" / "points"
    assert main(["train", TINY, "--out", str(run), "--set", "steps=4"]) == 0
    capsys.readouterr()
    assert _run(run, "--to", tmp_path / "models", "--html", tmp_path / "report.html", "--seconds", 1, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["saved"] == str(tmp_path / "models" / "points" / "1")
    assert found["num_samples"] == 16
    assert "points, step" in (tmp_path / "report.html").read_text()
    origin = json.loads((tmp_path / "models" / "points" / "1" / "card.json").read_text())["from"]
    assert (origin["run"], origin["recipe"]) == ("points", "tiny.py:Tiny")
    weights = run / "checkpoints" / f"step-{origin['step']:08d}" / "model.pt"
    assert origin["checksums"] == {"model.pt": f"sha256:{digest(weights)}"}

    rows = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    tensor = triton.InferInput("x", [5, 4], "FP32")
    tensor.set_data_from_numpy(rows)
    best = triton.InferRequestedOutput("output", class_count=1)
    classes = serve(tmp_path / "models").infer("points", [tensor], outputs=[best]).as_numpy("output")
    expected = answer(load_trained(run).model.eval(), rows).argmax(1)
    assert [text.decode().split(":")[2] for text in classes[:, 0]] == [("below", "above")[at] for at in expected]


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_a_function_takes_the_weights_of_a_file(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(5)
    model = Picture().eval()
    weights = tmp_path / f"weights.{kind}"
    (torch.save if kind == "pt" else save_file)(model.state_dict(), weights)
    np.save(tmp_path / "images.npy", make_images())
    options = ("--weights", weights, "--samples", tmp_path / "images.npy", "--seconds", 0.01)  # one engine: the first, in ONNX
    assert _run(f"{NETS}:make_picture", *options, "--to", tmp_path, "--name", "net") == 0
    assert "agreement" in capsys.readouterr().out
    card = json.loads((tmp_path / "net" / "1" / "card.json").read_text())
    assert card["from"]["framework"] == "torch"
    assert card["from"]["function"] == "nets.py:make_picture"
    assert card["from"]["checksums"] == {weights.name: f"sha256:{digest(weights)}"}
    session = onnxruntime.InferenceSession(tmp_path / "net" / "1" / "model.onnx")
    np.testing.assert_allclose(session.run(None, {"image": make_images()})[0], answer(model, make_images()), atol=1e-4)


def test_a_name_may_be_a_number(program: bytes, tmp_path: Path) -> None:
    (tmp_path / "net.pt2").write_bytes(program)
    for version in ("1", "2"):
        assert _run(tmp_path / "net.pt2", "--seconds", 0.01, "--to", tmp_path / "models", "--name", "3") == 0
        card = json.loads((tmp_path / "models" / "3" / version / "card.json").read_text())
        assert card["from"]["checksums"] == {"net.pt2": f"sha256:{digest(tmp_path / 'net.pt2')}"}
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["3"]


def test_int8_is_only_taken_if_it_passes_the_gate(program: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.pt2"
    path.write_bytes(program)
    np.savez(tmp_path / "images.npz", image=make_images(64))
    assert _run(path, "--samples", tmp_path / "images.npz", "--int8", "--json", "--judge", "close", "--min-agreement", 1) == 0
    found = json.loads(capsys.readouterr().out)
    int8 = [each for each in found["candidates"] if each["precision"] == "int8"]
    assert {each["route"] for each in int8} >= {"NNCF", "NNCF, weights alone", "onnxruntime, static"}
    for each in int8:
        passed = each["agreement"] is not None and each["agreement"] >= 1
        assert passed == (each["latency_seconds"] is not None or "not measured" in each["verdict"])
    assert found["num_samples"] == 32


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["absent.onnx"], "there is no 'absent.onnx'; give .onnx"),
        (["notes.txt"], "is no model that can be read here"),
        (["empty/"], "neither a run nor a SavedModel"),
        (["torn.pt2"], "cannot load torn.pt2"),
        (["text.onnx"], "onnxruntime cannot load text.onnx"),
        (["script.pt"], "may carry code"),
        (["alone.xml"], "alone.xml has no weights beside it; put alone.bin into the same folder"),
        (["text.xml"], "OpenVINO cannot load text.xml: it is not XML"),
        (["torn.xml"], "OpenVINO cannot load torn.xml"),
        (["weights.safetensors"], "holds weights and no model; name the function that builds it"),
        ([f"{NETS}:make_picture", "--weights", "weights.safetensors", "--samples", "wrong.npy"], "cannot take weights from"),
        ([f"{NETS}:make_picture", "--weights", "less.safetensors", "--samples", "wrong.npy"], 'state_dict: "head.bias"'),
        ([f"{NETS}:make_picture", "--weights", "code.pt", "--samples", "wrong.npy"], "holds more than tensors, or is damaged"),
        (["nets.py:absent"], "there is no file 'nets.py'"),
        (["whole.pt2", "--samples", "wrong.npy"], "has the shape [-1, 3, 8, 8] (-1: any), the example [2, 5]"),
        (["whole.pt2", "--samples", "notes.txt"], "cannot read samples from 'notes.txt'"),
        (["whole.pt2", "--samples", "absent.npz"], "cannot read samples from 'absent.npz'"),
        (["whole.pt2", "--samples", "torn.npz"], "cannot read samples from 'torn.npz'"),
        (["whole.pt2", "--samples", "hurt.npz"], "cannot read samples from 'hurt.npz'"),
        (["whole.pt2", "--samples", "whole.pt2"], "in it is no array; give a .npz or .npy file"),
        (["whole.pt2", "--precision", "int5"], "unknown precision 'int5' (did you mean 'int8'"),
        (["whole.pt2", "--min-agreement", "1.5"], "an agreement above 0 and at most 1"),
        (["whole.pt2", "--judge", "nearby"], "unknown judge 'nearby'"),
        (["whole.pt2", "--name", "../up"], "cannot be the name of a model"),
        (["whole.pt2", "--weights", "w.pt"], "weights go into a model that a function builds"),
        (["whole.pt2", "--html", "report.pdf"], "end it with .html"),
        (["whole.pt2", "--labels", "notes.txt"], "the model gives OUTPUT__0 [-1, 3], the number of labels is 1"),
        (["whole.pt2", "--int8", "--precision", "fp32"], "--int8 tries int8 beside the others, --precision fp32"),
        (["whole.pt2", "--precision", "auto,int8"], "auto chooses precisions by itself"),
        (["whole.pt2", "--max-drop", "0.01"], "measured against the right answers; give them with --targets"),
        (["whole.pt2", "--max-drop", "0.01", "--min-agreement", "0.9"], "give one of them"),
        (["whole.pt2", "--max-drop", "7"], "expected a drop from 0 up and below 1"),
        (["whole.pt2", "--calibrate", "whole.npz"], "are for int8, which is not asked for; add --int8"),
        (["columns.onnx"], "the inputs were invented, with sizes that may be wrong: x [16, 32]. Give --samples"),
        ([f"{NETS}:make_picture"], "give a batch of real ones with --samples"),
        ([f"{NETS}:make_picture", "--samples", "words.npy"], "expected rows of numbers for the input 'image', received <U4"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_nothing_written(
    arguments: list[str],
    says: str,
    program: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("whole.pt2").write_bytes(program)
    Path("torn.pt2").write_bytes(program[:2000])
    Path("notes.txt").write_text("hello")
    Path("text.onnx").write_text("hello")
    Path("script.pt").write_bytes(b"PK\x03\x04")
    for name in ("alone.xml", "text.xml", "text.bin", "torn.bin", "weights.safetensors"):
        Path(name).write_text("hello")
    Path("torn.xml").write_text('<?xml version="1.0"?><net name="net" version="11"><layers><layer id="0" name="x" ty')
    Path("empty").mkdir()
    np.save("wrong.npy", np.zeros((2, 5), np.float32))
    np.savez_compressed("whole.npz", image=make_images())
    packed = Path("whole.npz").read_bytes()
    Path("torn.npz").write_bytes(packed[: len(packed) // 2])
    Path("hurt.npz").write_bytes(packed[:1000] + b"damage" + packed[1006:])
    weights = make_picture().state_dict()
    del weights["head.bias"]
    save_file(weights, "less.safetensors")
    torch.save({"weights": Path("x")}, "code.pt")
    _save_columns(Path("columns.onnx"))
    np.save("words.npy", np.array(["some", "text"]))
    assert _run(*arguments, "--to", "models", "--seconds", 1) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if not line.lstrip()[:1].isdigit()]
    assert len(lines) == 1, lines
    assert lines[0].startswith("ferry: ")
    assert says in lines[0]
    assert not Path("models").exists()


_FAILING = """
import torch

class Branching(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

def make():
    return Branching()
"""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["torn.pt2"], ["PyTorch cannot load torn.pt2"]),
        (["large.onnx"], ["Failed to allocate memory"]),
        (
            ["failing.py:make", "--samples", "rows.npy"],
            [
                "torch.export, then ONNX and torch.export, ONNX, then OpenVINO and ",
                " and torch.export, then OpenVINO: cannot be exported: ",
                "OpenVINO from TorchScript's tracer: other answers",
                "its own format (torch.export): cannot be saved",
            ],
        ),
    ],
)
def test_what_libraries_log_and_print_does_not_stand_before_the_error(
    arguments: list[str], says: list[str], program: bytes, tmp_path: Path
) -> None:
    (tmp_path / "torn.pt2").write_bytes(program[: len(program) // 2])
    (tmp_path / "failing.py").write_text(_FAILING)
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32))
    _save_large(tmp_path / "large.onnx")
    command = [sys.executable, "-m", "tensorferry.cli", "optimize", *arguments, "--seconds", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    lines = [line for line in done.stderr.splitlines() if not re.match(r" +[0-9.]+ s  ", line)]
    assert len(lines) == 1, lines
    for part in says:
        assert part in lines[0]


def _save_columns(path: Path) -> None:
    """A model that does not tell that it takes four columns."""
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", "columns"]) for name in ("x", "y")]
    weights = onnx.numpy_helper.from_array(np.ones((4, 2), np.float32), "weights")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "weights"], ["y"])], "columns", ends[:1], ends[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def _save_large(path: Path) -> None:
    """A model that asks for 64 GiB."""
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", 4]) for name in ("x", "y")]
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["large"]),
        helper.make_node("ReduceSum", ["large"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    shape = onnx.numpy_helper.from_array(np.array([2**20, 2**14], np.int64), "shape")
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], [shape])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def test_help_loads_no_framework() -> None:
    code = (
        "import sys; from tensorferry.cli import make_parser; make_parser().parse_args(['optimize', 'x']); "
        "assert not {'torch', 'onnxruntime', 'openvino', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_model_that_no_engine_can_take_stays_as_it_is(tmp_path: Path) -> None:
    import tensorferry as ferry

    engine = ferry.optimize(_Sorting().eval(), make_images(), seconds=1)
    folder = engine.save(tmp_path / "sorting")
    assert engine.candidate.backend == "pytorch"
    assert "no engine can take it" in engine.result.chosen.verdict
    assert any("bessel" in candidate.verdict for candidate in engine.result.candidates)  # the op that is missing is named
    assert (folder / "card.json").is_file()
    engine.close()


class _Sorting(torch.nn.Module):
    """Calls an op that exists in torch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_picture()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.net(image) + torch.special.bessel_j0(image).mean((1, 2, 3), keepdim=True)[:, :, 0, 0]


def test_a_missing_extra_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['ml_dtypes'] = None; from tensorferry.cli import main; sys.exit(main(['optimize', 'net.onnx']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert 'pip install "tensorferry[optimize]"' in done.stderr
