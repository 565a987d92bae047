"""From the word a user writes to a model."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from tensorferry import BadModel
from tensorferry.estimates.frameworks import TrainingStep, capture_step, framework_of
from tensorferry.estimates.inputs import Input
from tensorferry.estimates.subjects import BUILTIN_NAMES, find_subject

NETS = Path(__file__).with_name("nets.py")
SMALL = ("resnet50", "googlenet", "unet3d", "bert-base", "gpt2")


def test_the_models_people_ask_for_are_built_in() -> None:
    assert {"resnet50", "resnet152", "googlenet", "unet3d", "bert-base", "bert-large", "gpt2", "gpt2-xl"} <= set(BUILTIN_NAMES)


@pytest.mark.parametrize("name", SMALL)
def test_built_in_models_train_on_what_they_are_fed_by_default(name: str) -> None:
    subject = find_subject(name)
    inputs = subject.derive(tuple(given.with_batch(1) for given in subject.inputs))
    step = TrainingStep(inputs, subject.loss, subject.optimizer, "fp32", "gpu")
    trace = capture_step(lambda: subject.make_model(inputs), step)
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
    assert find_subject("unet3d").make_model((Input((1, 4, 16, 16, 16)),)).down[0][0].in_channels == 4
    assert find_subject("bert-base").derive((Input((2, 100), "int64"),))[1] == Input((2, 15), "int64")


@pytest.mark.parametrize("text", [f"{NETS}:build", "nets_for_estimates:build"])
def test_a_factory_is_found_in_a_file_and_in_a_module_of_the_working_folder(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets_for_estimates.py").write_text(NETS.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    subject = find_subject(text)
    assert subject.name == text
    assert isinstance(subject.make_model(()), nn.Sequential)


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
        find_subject(text)


def test_a_file_that_does_not_import_says_why(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import torch\n1 / 0\n")
    with pytest.raises(BadModel, match="ZeroDivisionError: division by zero"):
        find_subject(f"{path}:build")


def test_modules_of_torch_are_known_by_their_classes() -> None:
    assert framework_of(nn.Linear(1, 1)) == "torch"
    assert framework_of(3) == ""
