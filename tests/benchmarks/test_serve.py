"""The serving benchmark itself: its models are what they say, its soak finds nothing, its parts run."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from serve_graphs import save_minilm, save_mlp, save_resnet50

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("save", "feed", "shape"),
    [
        (save_mlp, {"x": np.ones((2, 16), np.float32)}, (2, 4)),
        (save_minilm, {"input_ids": np.ones((2, 128), np.int64)}, (2, 384)),
        (save_resnet50, {"x": np.ones((2, 3, 224, 224), np.float32)}, (2, 1000)),
    ],
)
def test_the_models_have_the_sizes_that_they_are_named_after(save, feed: dict, shape: tuple, tmp_path: Path) -> None:
    (output,) = ort.InferenceSession(str(save(tmp_path / "model.onnx"))).run(None, feed)
    assert output.shape == shape
    assert np.isfinite(output).all()
    if save is save_resnet50:
        assert 23e6 * 4 < (tmp_path / "model.onnx").stat().st_size < 27e6 * 4


def test_the_soak_finds_no_wrong_answer_and_absent_peers_are_skipped(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "serve.py"), "--parts", "soak,cpu", "--seconds", "0.2"]
    command += ["--soak-seconds", "3", "--mlserver", str(tmp_path / "python"), "--save", str(tmp_path / "serve.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=800)
    assert "0 wrong answers" in done.stdout, done.stdout
    assert "MLServer: skipped, no Python at" in done.stdout
    assert "Triton: skipped" in done.stdout
    result = json.loads((tmp_path / "serve.json").read_text())
    (costs,) = result["tables"]
    servers = {"REST, binary": ["ferry"], "gRPC": ["ferry", "ferry, grpcio aio", "ferry, grpcio sync"]}
    assert [row[:3] for row in costs["rows"]] == [
        [concurrency, protocol, name] for protocol, names in servers.items() for concurrency in ("1", "8", "32") for name in names
    ]
    assert [len(row["cpu_seconds"]) for row in result["figures"]["cpu"]] == [3] * len(costs["rows"])
    assert str(tmp_path) not in json.dumps(result)
