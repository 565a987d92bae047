"""The Containerfile: what it installs is what runs here, and no more than the models need."""

import base64
import hashlib
import json
import re
import shutil
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tensorferry import __version__
from tensorferry.cli import main
from tensorferry.deploy.bill import read_licence
from tensorferry.deploy.packages import Package, add_digests, choose_extras, list_packages
from tensorferry.deploy.repository import read_models


@pytest.fixture
def in_context(small_models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder above the models, as the working folder."""
    monkeypatch.chdir(small_models.parent)
    return small_models.parent


def _requirements(text: str) -> list[str]:
    return re.findall(r"^      '(.*)' \\$", text, re.MULTILINE)


def test_it_installs_what_runs_here_and_no_framework(in_context: Path, tmp_path: Path) -> None:
    assert main(["deploy", "image", "--models", "models", "--to", str(tmp_path / "Containerfile")]) == 0
    text = (tmp_path / "Containerfile").read_text()
    pinned = dict(line.split("==") for line in _requirements(text))
    assert pinned.pop("tensorferry") == __version__
    assert pinned == {name: metadata.version(name) for name in pinned}
    assert {"numpy", "httptools", "onnxruntime", "protobuf"} <= set(pinned)
    assert not {"torch", "tensorflow", "keras", "openvino", "pytest"} & set(pinned)


def test_the_image_has_the_models_and_no_root(in_context: Path, tmp_path: Path) -> None:
    assert main(["deploy", "image", "--models", "models", "--to", str(tmp_path / "Containerfile"), "--trust"]) == 0
    text = (tmp_path / "Containerfile").read_text()
    build, final = text.split("\nFROM ")[1:]
    assert 'COPY ["models", "/models"]' in final
    assert "USER 10001:10001" in final
    assert 'CMD ["ferry", "serve", "/models", "--host=0.0.0.0", "--trust"]' in final
    assert "pip" in build
    assert "pip" not in final


@pytest.mark.parametrize(
    ("formats", "has", "has_not"),
    [
        ((), {"onnxruntime", "openvino"}, {"torch"}),
        (("openvino",), {"openvino"}, {"onnxruntime", "torch"}),
        (("pytorch",), {"torch"}, {"onnxruntime", "openvino", "tensorflow"}),
    ],
)
def test_formats_decide_what_is_installed(formats: tuple[str, ...], has: set[str], has_not: set[str]) -> None:
    names = {package.name for package in list_packages(formats, ())}
    assert has <= names
    assert not has_not & names


@pytest.mark.parametrize(
    ("kind", "extras"),
    [("text", {"pipelines"}), ("image", {"pipelines"}), ("labels", set()), ("volume", {"volumes"}), ("other", set())],
)
def test_steps_decide_which_extras_are_needed(kind: str, extras: set[str], small_models: Path, tmp_path: Path) -> None:
    shutil.copytree(small_models, tmp_path / "models")
    (tmp_path / "models" / "step" / "1").mkdir(parents=True)
    (tmp_path / "models" / "step" / "1" / "transform.json").write_text(json.dumps({"kind": kind}))
    found = read_models(tmp_path / "models")
    assert found.steps == {kind}
    assert choose_extras(found.steps) == extras


_SHOUT = """
class Model:
    inputs = {"TEXT": ("BYTES", [1])}
    outputs = {"TEXT": ("BYTES", [1])}
    max_batch_size = 8

    def infer(self, requests):
        return [{"TEXT": request["TEXT"]} for request in requests]
"""


def test_what_a_model_in_python_asks_for_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models" / "shout" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(_SHOUT)
    lines = ("# what it reads with", "Pillow>=9", "scikit_learn  # trees", "missing; python_version < '3'")
    (folder / "requirements.txt").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    assert main(["deploy", "image", "--models", "models", "--to", "Containerfile", "--trust"]) == 0
    pinned = dict(line.split("==") for line in _requirements(Path("Containerfile").read_text()))
    assert {name: pinned[name] for name in ("pillow", "scikit-learn", "joblib")} == {
        name: metadata.version(name) for name in ("pillow", "scikit-learn", "joblib")
    }
    assert "missing" not in pinned


@pytest.mark.parametrize(("line", "says"), [("no-such-package>=1", "is not installed here"), ("a b c", "is no package")])
def test_what_a_model_in_python_asks_for_in_vain_is_one_line(
    line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "models" / "shout" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(_SHOUT)
    (folder / "requirements.txt").write_text(f"{line}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["deploy", "image", "--models", "models", "--to", "Containerfile"]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not Path("Containerfile").exists()


def test_an_extra_is_installed_too() -> None:
    assert "obstore" in {package.name for package in list_packages((), ("sources",))}


def test_a_builders_own_label_is_left_out() -> None:
    assert Package("torch", "2.13.0+cpu").line == "torch==2.13.0"


def _make_wheel(folder: Path, name: str, version: str) -> Path:
    """A wheel with nothing in it."""
    info = f"{name}-{version}.dist-info"
    files = {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}"
        for path, text in files.items()
    ]
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for each, text in files.items():
            wheel.writestr(each, text)
        wheel.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    return path


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pip finds wheels in this folder, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def test_checksums_are_those_of_the_wheels(local_index: Path) -> None:
    wheel = _make_wheel(local_index, "tiny_thing", "1.2")
    (found,) = add_digests([Package("tiny-thing", "1.2")])
    assert found.line == f"tiny-thing==1.2 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"


def test_a_wheel_of_ones_own_is_copied_and_pinned(in_context: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wheel = _make_wheel(tmp_path, "tensorferry", __version__)
    assert main(["deploy", "image", "--wheel", wheel.name, "--to", "Containerfile"]) == 0
    text = Path("Containerfile").read_text()
    assert f'COPY ["{wheel.name}", "/wheels/"]' in text
    assert f"/wheels/{wheel.name}" in _requirements(text)
    (ours,) = [each for each in _read_bill(Path("Containerfile")) if each["name"] == "tensorferry"]
    assert ours["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]


def _read_bill(containerfile: Path) -> list[dict[str, Any]]:
    bill = json.loads(containerfile.with_name(f"{containerfile.name}.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    return bill["components"]


def test_a_bill_of_materials_lists_what_is_installed_and_goes_into_the_image(in_context: Path) -> None:
    try:
        assert main(["deploy", "image", "--models", "models", "--to", "Containerfile"]) == 0
        text = Path("Containerfile").read_text()
        components = _read_bill(Path("Containerfile"))
        bills = [Path("Containerfile.cdx.json").read_bytes()]
        Path("Containerfile").unlink()
        Path("Containerfile.cdx.json").unlink()
        assert main(["deploy", "image", "--models", "models", "--to", "Containerfile"]) == 0
        assert Path("Containerfile.cdx.json").read_bytes() == bills[0]  # the same again
    finally:
        for name in ("Containerfile", "Containerfile.cdx.json"):
            Path(name).unlink(missing_ok=True)
    assert 'COPY ["Containerfile.cdx.json", "/opt/ferry/bill.cdx.json"]' in text
    assert 'org.opencontainers.image.description="A TensorFerry server for double, sum"' in text
    libraries = {each["name"]: each for each in components if each["type"] == "library"}
    assert {f"{each['name']}=={each['version']}" for each in libraries.values()} == set(_requirements(text))
    assert all(each["purl"] == f"pkg:pypi/{each['name']}@{each['version']}" for each in libraries.values())
    assert libraries["onnxruntime"]["licenses"] == [{"license": {"name": "MIT License"}}]
    assert [each["name"] for each in components if each["type"] == "machine-learning-model"] == ["double", "sum"]
    without = [name for name, each in libraries.items() if "licenses" not in each]
    assert not without


def test_a_package_that_is_not_here_has_no_licence_in_the_bill() -> None:
    assert read_licence("no-such-package") is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--models", "."], "cannot be served"),
        (["--models", "missing"], "no folder missing"),
        (["--base", "Python"], "is no name of an image"),
        (["--extra", "wings"], "there is no extra 'wings'"),
        (["--wheel", "missing.whl"], "is no wheel"),
        (["--hashes"], "pip cannot tell the checksums"),
        (["--to", "models"], "is already there"),
        (["--to", "models/sum/1/model.onnx/Containerfile"], "cannot write"),
    ],
)
def test_a_bad_option_is_one_line(
    arguments: list[str], says: str, in_context: Path, local_index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(in_context.iterdir())
    assert main(["deploy", "image", "--to", "Containerfile", *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert sorted(in_context.iterdir()) == before


_BUILDER = """#!/bin/sh
echo "$@" > built
exit {code}
"""


@pytest.mark.parametrize(("builder", "code"), [("buildah", 0), ("docker", 0), ("buildah", 3)])
def test_an_image_is_built_by_what_is_there(
    builder: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / builder).write_text(_BUILDER.format(code=code))
    (tmp_path / "bin" / builder).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    found = main(["deploy", "image", "--to", "Containerfile", "--build", "registry.example.com/ml:1"])
    assert Path("built").read_text().split()[-5:] == ["--tag", "registry.example.com/ml:1", "--file", "Containerfile", "."]
    said = capsys.readouterr()
    assert found == (1 if code else 0)
    assert ("ended with code 3" in said.err) is bool(code)
    assert Path("Containerfile").exists()


def test_without_a_builder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["deploy", "image", "--to", "Containerfile", "--build", "ml:1"]) == 2
    said = capsys.readouterr().err
    assert "install buildah, podman, docker, or leave out --build" in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_models_from_outside_of_the_working_folder_are_refused(
    small_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["deploy", "image", "--to", "Containerfile", "--models", str(small_models)]) == 2
    assert "is not below the working folder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_image_for_trainings_has_torch_and_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["deploy", "image", "--train", "--to", "Containerfile"]) == 0
    text = Path("Containerfile").read_text()
    assert 'CMD ["ferry", "train", "--help"]' in text
    assert "EXPOSE" not in text
    names = {each.name for each in list_packages((), (), is_for_training=True)}
    assert names >= {"torch", "tokenizers", "nilearn"}
    assert not names & {"onnxruntime", "openvino", "httptools"}
    capsys.readouterr()
    assert main(["deploy", "image", "--train", "--models", "models", "--to", "Other"]) == 2
    assert "leave out --train or --models" in capsys.readouterr().err
