"""From the word a user writes to a model, and what it is fed."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from tensorferry import BadModel
from tensorferry.estimation.models import BUILTIN_NAMES, Input, find_model, parse_input
from tensorferry.estimation.step import StepCapture, TrainingStep

NETS = Path(__file__).with_name("nets.py")
SMALL = ("resnet50", "googlenet", "unet3d", "bert-base", "gpt2")


def test_the_models_people_ask_for_are_built_in() -> None:
    assert {"resnet50", "resnet152", "googlenet", "unet3d", "bert-base", "bert-large", "gpt2", "gpt2-xl"} <= set(BUILTIN_NAMES)


@pytest.mark.parametrize("name", SMALL)
def test_built_in_models_train_on_what_they_are_fed_by_default(name: str) -> None:
    model = find_model(name)
    inputs = model.derive(tuple(given.with_batch(1) for given in model.inputs))
    step = TrainingStep(inputs, model.loss, model.optimizer, "fp32", "gpu")
    trace = StepCapture(lambda: model.make_model(inputs)).capture(step)
    assert trace.movable
    assert any(op.flops for op in trace.ops)


def test_without_torch_it_says_what_to_install() -> None:
    code = """
import sys
sys.modules["torch"] = None
import tensorferry as ferry
try:
    ferry.estimate("bert-base", "t4-16gb")
except ferry.MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 'pip install "tensorferry[torch]"' in done.stdout


def test_a_models_arguments_follow_from_its_inputs() -> None:
    assert find_model("unet3d").make_model((Input((1, 4, 16, 16, 16)),)).down[0][0].in_channels == 4
    assert find_model("bert-base").derive((Input((2, 100), "int64"),))[1] == Input((2, 15), "int64")


@pytest.mark.parametrize("text", [f"{NETS}:build", "nets_for_estimates:build"])
def test_a_factory_is_found_in_a_file_and_in_a_module_of_the_working_folder(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets_for_estimates.py").write_text(NETS.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    model = find_model(text)
    assert model.name == text
    assert isinstance(model.make_model(()), nn.Sequential)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("resnet51", r"did you mean 'resnet50'"),
        ("", "unknown model ''"),
        (f"{NETS}:biuld", r"did you mean 'build'"),
        (f"{NETS}:NUMBER", "has no function 'NUMBER'"),
        ("gone.py:build", "there is no file 'gone.py'"),
        ("no_such_package.net:build", "No module named 'no_such_package'"),
        (":build", "write package.module:function"),
        (f"{NETS}:", "write package.module:function"),
    ],
)
def test_what_cannot_be_found_is_said_with_the_nearest_name(text: str, says: str) -> None:
    with pytest.raises(BadModel, match=says):
        find_model(text)


def test_a_file_that_does_not_import_says_why(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import torch\n1 / 0\n")
    with pytest.raises(BadModel, match="ZeroDivisionError: division by zero"):
        find_model(f"{path}:build")


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [("8x3x512x512", (8, 3, 512, 512), "fp32"), ("8x128:int64", (8, 128), "int64"), (" 4 ", (4,), "fp32")],
)
def test_shapes_are_read_and_written_as_people_write_them(text: str, shape: tuple[int, ...], dtype: str) -> None:
    found = parse_input(text)
    assert found == Input(shape, dtype)
    assert parse_input(str(found)) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot read ''"),
        ("8,3", "write its dimensions as"),
        ("8x", "cannot read"),
        ("0x3", "above zero"),
        ("-8x3", "above zero"),
        ("8x3:fp4", "unknown type 'fp4'"),
    ],
)
def test_anything_else_is_refused_with_an_example(text: str, says: str) -> None:
    with pytest.raises(BadModel, match=says):
        parse_input(text)


def test_the_resolution_is_what_follows_the_channels_or_the_length_of_a_text() -> None:
    assert Input((8, 3, 100, 200)).with_edge(400) == Input((8, 3, 200, 400))
    assert Input((1, 1, 64, 64, 64)).with_edge(96) == Input((1, 1, 96, 96, 96))
    assert Input((8, 100, 200, 3)).with_edge(400) == Input((8, 200, 400, 3))  # channels last
    assert Input((8, 128), "int64").with_edge(512) == Input((8, 512), "int64")
    assert Input((8, 3, 64, 64)).with_batch(2) == Input((2, 3, 64, 64))
