"""The chart of a folder of models: what is in it comes from the models, and bad input is refused with nothing written."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from models import save_scale

from tensorferry.cli import main
from tensorferry.deploy.check.pods import read_quantity
from tensorferry.deploy.readme import list_values


def _leaves(values: Any, path: str = "") -> set[str]:
    if not isinstance(values, dict) or not values:
        return {path}
    return {leaf for key, value in values.items() for leaf in _leaves(value, f"{path}.{key}" if path else key)}


def test_the_values_are_what_was_measured(measured_chart: Path) -> None:
    text = (measured_chart / "values.yaml").read_text()
    values = yaml.safe_load(text)
    measured = re.search(r"Measured: ([\d.]+) MiB with all models loaded", text)
    assert measured
    limit = read_quantity(values["resources"]["limits"]["memory"])
    assert limit is not None
    # the measured memory, a quarter more, and what clients may make the server hold, up to the next 64 MiB
    least = float(measured[1]) * 1.25 + 256
    assert least - 1 <= limit / 2**20 <= least + 65
    assert values["resources"]["requests"]["memory"] == values["resources"]["limits"]["memory"]
    assert values["server"]["maxMemory"] == "256MiB"
    assert values["models"]["names"] == ["double", "sum"]
    assert values["startup"]["seconds"] >= 60
    assert "NOT MEASURED" not in text


def test_what_was_not_measured_says_so(small_models: Path, tmp_path: Path) -> None:
    assert main(["deploy", str(small_models), "--to", str(tmp_path / "chart"), "--no-measure"]) == 0
    text = (tmp_path / "chart" / "values.yaml").read_text()
    assert text.count("NOT MEASURED") == 3


def test_every_value_has_a_comment_a_row_and_a_schema(measured_chart: Path) -> None:
    text = (measured_chart / "values.yaml").read_text()
    values = yaml.safe_load(text)
    commented = {path for path, _, comment in list_values(text) if comment}
    assert _leaves(values) <= commented
    readme = (measured_chart / "README.md").read_text()
    assert all(f"| `{path}` |" in readme for path in _leaves(values))
    schema = json.loads((measured_chart / "values.schema.json").read_text())
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    for path in _leaves(values):
        part = schema
        for key in path.split("."):
            part = part.get("properties", {}).get(key) or part["additionalProperties"]
            assert part, path


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ("image", {"source": "image", "path": "/models"}),
        ("pvc:models", {"source": "pvc", "claim": "models", "path": "/"}),
        ("oci:registry.example.com/models:3", {"source": "oci", "image": "registry.example.com/models:3"}),
        ("s3://bucket/models", {"source": "url", "url": "s3://bucket/models"}),
    ],
)
def test_models_come_from_where_the_user_says(
    models: str, expected: dict[str, str], small_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["deploy", str(small_models), "--to", str(tmp_path / "chart"), "--no-measure", "--models", models, "--gpus", "1"]
    assert main([*command, "--image", "registry.example.com:5000/team/server:2", "--replicas", "3"]) == 0
    values = yaml.safe_load((tmp_path / "chart" / "values.yaml").read_text())
    assert values["models"].items() >= expected.items()
    assert values["image"].items() >= {"repository": "registry.example.com:5000/team/server", "tag": "2"}.items()
    assert (values["replicas"], values["gpus"]) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--to", "{tmp}/Reviews!"], "DNS allows small letters, digits and hyphens"),
        (["--to", "{tmp}/chart", "--name", "9lives"], "say --name lives"),
        (["--to", "{tmp}/taken"], "is already there, and nothing is written over"),
        (["--to", "{tmp}/chart", "--image", "Registry/Name"], "is no name of an image"),
        (["--to", "{tmp}/chart", "--models", "floppy"], "models cannot come from 'floppy'"),
        (["--to", "{tmp}/chart", "--models", "s3://key:secret@bucket/models"], "models cannot come from"),
        (["--to", "{tmp}/taken/file/chart"], "cannot write"),
    ],
)
def test_a_bad_option_is_one_line_and_nothing_is_written(
    arguments: list[str], says: str, small_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    filled = [argument.format(tmp=tmp_path) for argument in arguments]
    assert main(["deploy", str(small_models), "--no-measure", *filled]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", ["empty", "missing", "no model", "unknown format"])
def test_a_folder_without_models_is_refused(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = tmp_path / "models"
    if kind != "missing":
        models.mkdir()
    if kind == "no model":
        (models / "name" / "1").mkdir(parents=True)
    if kind == "unknown format":
        (models / "name" / "1").mkdir(parents=True)
        (models / "name" / "1" / "model.floppy").write_text("no model")
    assert main(["deploy", str(models), "--to", str(tmp_path / "chart")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "chart").exists()


def test_a_model_that_does_not_load_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_scale(tmp_path / "models", "good", 1.0)
    (tmp_path / "models" / "bad" / "1").mkdir(parents=True)
    (tmp_path / "models" / "bad" / "1" / "model.onnx").write_bytes(b"no model")
    assert main(["deploy", str(tmp_path / "models"), "--to", str(tmp_path / "chart")]) == 2
    said = capsys.readouterr().err
    assert "the model 'bad' cannot be served" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "chart").exists()
