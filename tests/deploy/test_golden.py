"""What is written, to read: a change of it shows as a change of a small file here.

FERRY_WRITE_GOLDEN=1 in the environment writes the files anew; read what changed before you commit it.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from pipeline_files import write_pipeline
from rendering import render

from tensorferry import __version__
from tensorferry.cli import main
from tensorferry.deploy.check.manifests import Manifest, read_manifests

_GOLDEN = Path(__file__).with_name("golden")
_PLACE = ["--image", "registry.example.com/ml/reviews:1", "--no-measure"]


def _write_chart(models: Path, folder: Path) -> list[Manifest]:
    assert main(["deploy", str(models), "--to", str(folder / "reviews"), *_PLACE]) == 0
    return render(folder / "reviews", {}, folder)


def _write_kserve(models: Path, folder: Path) -> list[Manifest]:
    assert (
        main(["deploy", "kserve", str(models), "--to", str(folder / "reviews"), "--storage", "s3://bucket/models", *_PLACE]) == 0
    )
    return read_manifests(folder / "reviews")[0]


def _write_training(_: Path, folder: Path) -> list[Manifest]:
    where = ["--to", str(folder / "pretrain"), "--image", "registry.example.com/train:1"]
    assert main(["deploy", "train", "gpt", "--nodes", "4", "--gpus", "8", "--set", "batch=64", *where]) == 0
    return read_manifests(folder / "pretrain")[0]


@pytest.mark.parametrize(
    ("name", "write"),
    [("chart", _write_chart), ("kserve", _write_kserve), ("training", _write_training)],
    ids=["chart", "kserve", "training"],
)
def test_what_is_written_is_what_was_read(name: str, write: Any, small_models: Path, tmp_path: Path) -> None:
    bodies = [_shorten(each.body) for each in sorted(write(small_models, tmp_path), key=lambda each: each.where)]
    _compare(name, yaml.safe_dump_all(bodies, sort_keys=False, width=120, default_flow_style=None))


def test_the_values_of_a_pipeline_are_what_was_read(tmp_path: Path) -> None:
    command = ["deploy", str(write_pipeline(tmp_path)), "--to", str(tmp_path / "chart"), "--no-measure"]
    assert main([*command, "--image", "registry.example.com/ml:1"]) == 0
    text = (tmp_path / "chart" / "values.yaml").read_text()
    _compare("pipeline_values", text)
    schema = json.loads((tmp_path / "chart" / "values.schema.json").read_text())
    assert yaml.safe_load(text).keys() == {*schema["properties"]} - {"global"} == {*schema["required"]}


def _compare(name: str, text: str) -> None:
    text = text.replace(__version__, "VERSION")
    path = _GOLDEN / f"{name}.yaml"
    if os.environ.get("FERRY_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def _shorten(body: dict[str, Any]) -> dict[str, Any]:
    """Without the labels that all objects of a chart have."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "labels"}
    return body | {"metadata": metadata}
