"""`ferry serve s3://...`: follows a bucket, and never serves half of a model."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from asking import wait_until
from models import save_scale
from object_server import ObjectServer
from running import RunningServer


def ask(client: triton.InferenceServerClient, name: str = "net") -> float:
    """What a model makes of a one."""
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones([1, 4], np.float32))
    return float(client.infer(name, [tensor]).as_numpy("y")[0, 0])


def test_a_server_follows_a_bucket_and_outlives_it(
    tmp_path: Path, start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = ObjectServer()
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    options = ("--model-control-mode", "poll", "--repository-poll-secs", "0.1", "--source-cache", str(tmp_path / "cache"))
    save_scale(tmp_path / "first", "net", 2.0, version=1)
    save_scale(tmp_path / "second", "net", 3.0, version=2)
    s3.put_folder(tmp_path / "first", "models")
    server = start_server("s3://bucket/models", *options)
    with triton.InferenceServerClient(server.http) as client:
        assert ask(client) == 2.0
        s3.put("models/net/3/model.onnx", b"not a model")
        server.wait_for("is not served")
        assert ask(client) == 2.0
        s3.delete("models/net/3/model.onnx")
        s3.put_folder(tmp_path / "second", "models")
        wait_until(lambda: ask(client) == 3.0)
        s3.delete("models/net/2/model.onnx")
        wait_until(lambda: ask(client) == 2.0)
        s3.close()
        server.wait_for("what is served stays as it was")
        assert ask(client) == 2.0
    assert server.stop() == 0
    again = start_server("s3://bucket/models", *options)
    with triton.InferenceServerClient(again.http) as client:
        assert ask(client) == 2.0


def test_a_model_of_a_bucket_is_downloaded_when_it_is_to_be_loaded(
    tmp_path: Path, s3: ObjectServer, start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    save_scale(tmp_path / "models", "net", 2.0)
    save_scale(tmp_path / "models", "other", 5.0)
    s3.put_folder(tmp_path / "models", "explicit")
    cache = tmp_path / "cache"
    options = ("--model-control-mode", "explicit", "--load-model", "net", "--source-cache", str(cache))
    server = start_server("s3://bucket/explicit/", *options)
    with triton.InferenceServerClient(server.http) as client:
        assert [line["name"] for line in client.get_model_repository_index()] == ["net", "other"]
        assert len(list((cache / "files").iterdir())) == 1
        client.load_model("other")
        assert ask(client, "other") == 5.0
        save_scale(tmp_path / "models", "net", 7.0)
        s3.put_folder(tmp_path / "models", "explicit")
        client.load_model("net")
        assert (ask(client), ask(client, "other")) == (7.0, 5.0)
        s3.fault = lambda _: ("403 Forbidden", b"")
        with pytest.raises(triton.InferenceServerException, match="cannot be read now"):
            client.load_model("net")
        s3.fault = None
        assert ask(client) == 7.0


def test_a_bucket_that_is_missing_ends_the_command_with_one_line(
    tmp_path: Path, s3: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "tensorferry.cli", "serve", "s3://missing/models", "--source-cache", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["ferry: cannot list s3://missing/models: there is no such bucket"]
