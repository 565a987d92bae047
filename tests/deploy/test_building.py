"""The image: built by buildah without a daemon, pushed to a registry on loopback, and the server that starts from it.

It needs root, buildah, docker-registry (Debian's), a base with this Python in a folder that FERRY_ROOTFS names, and pip's index:

    debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,python-is-python3,ca-certificates bookworm rootfs
    rm -r rootfs/var/cache/apt rootfs/var/lib/apt/lists
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from models import save_scale

from tensorferry.cli import main

ROOT = Path(__file__).parents[2]
_ROOTFS = os.environ.get("FERRY_ROOTFS", "")
_NEEDED = ("buildah", "docker-registry")
_MAX_NBYTES = 400 * 10**6  # of an image that serves ONNX files, as its makers count
_BASE = "localhost/ferry-base:1"
_USER = "10001:10001"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, _NEEDED)) or not Path(_ROOTFS or "/missing").is_dir(),
        reason="needs root, buildah, docker-registry, and a base that FERRY_ROOTFS names",
    ),
]


class Builder:
    """Buildah with a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.policy = folder / "policy.json"
        self.policy.write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
        )
        self.environment = os.environ | {"CONTAINERS_STORAGE_CONF": str(folder / "storage.conf")}

    def run(self, *words: str | Path, cwd: Path | None = None) -> str:
        """What a command says."""
        command = ["buildah", *map(str, words)]
        done = subprocess.run(command, cwd=cwd, env=self.environment, capture_output=True, text=True, timeout=1500)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout.strip()

    def trusting(self, verb: str, *words: str | Path, cwd: Path | None = None) -> str:
        """A command that looks at signatures."""
        return self.run(verb, "--signature-policy", self.policy, *words, cwd=cwd)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    made = Builder(tmp_path_factory.mktemp("buildah"))
    container = made.trusting("from", "scratch")
    made.run("copy", "--quiet", container, _ROOTFS, "/")
    made.run("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
    made.trusting("commit", "--rm", container, _BASE)
    yield made
    made.run("rm", "--all")
    made.run("rmi", "--all", "--force")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("registry"), _free_port()
    settings = {"version": "0.1", "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}}}
    (folder / "registry.yml").write_text(json.dumps(settings | {"http": {"addr": f"127.0.0.1:{port}"}}))
    # a variable of other tools, which this one would take for a setting
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REGISTRY_")}
    command = ["docker-registry", "serve", str(folder / "registry.yml")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield f"127.0.0.1:{port}"
    process.terminate()
    process.wait()


@pytest.fixture(scope="module")
def context(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder to build in: models, a wheel of these sources, and the Containerfile."""
    folder = tmp_path_factory.mktemp("context")
    save_scale(folder / "models", "double", 2.0)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert (
            main(["deploy", "image", "--models", "models", "--wheel", wheel.name, "--base", _BASE, "--to", "Containerfile"]) == 0
        )
    finally:
        os.chdir(before)
    return folder


def _build(builder: Builder, context: Path, name: str, *options: str) -> None:
    mounts = [f"--volume={path}:{path}:ro" for path in ("/etc/pip.conf", "/etc/ssl/certs") if Path(path).exists()]
    options = ("--isolation", "chroot", "--timestamp", "0", *options, *mounts, "--tag", name, "--file", "Containerfile", ".")
    builder.trusting("build-using-dockerfile", *options, cwd=context)


@pytest.fixture(scope="module")
def image(builder: Builder, registry: str, context: Path) -> str:
    """The image as the registry has it."""
    name = f"{registry}/ml/reviews:1"
    _build(builder, context, name)
    builder.trusting("push", "--tls-verify=false", name)
    builder.run("rmi", name)
    builder.trusting("pull", "--tls-verify=false", name)
    return name


def test_the_same_image_comes_out_again(builder: Builder, context: Path) -> None:
    found = []
    for name in ("localhost/first:1", "localhost/second:1"):
        _build(builder, context, name, "--no-cache")
        told: dict[str, Any] = json.loads(builder.run("inspect", "--type", "image", name))
        found.append((told["FromImageID"], told["OCIv1"]["rootfs"]["diff_ids"]))
    assert found[0] == found[1]


def test_the_image_is_small_and_says_what_it_is(builder: Builder, image: str) -> None:
    found = json.loads(builder.run("images", "--json", image))[0]
    told: dict[str, Any] = json.loads(builder.run("inspect", "--type", "image", image))["OCIv1"]["config"]
    assert told["User"] == _USER
    assert told["Cmd"] == ["ferry", "serve", "/models", "--host=0.0.0.0"]
    assert told["Labels"]["org.opencontainers.image.base.name"] == _BASE
    assert _read_size(found["size"]) <= _MAX_NBYTES, found["size"]


def _read_size(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"KB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


def test_a_server_starts_from_the_image_and_answers(builder: Builder, image: str) -> None:
    container, port = builder.trusting("from", image), _free_port()
    serve = ["ferry", "serve", "/models", "--host=127.0.0.1", f"--http-port={port}", "--no-grpc"]
    run = ["buildah", "run", "--isolation", "chroot", "--user", _USER, container, "--"]
    process = subprocess.Popen([*run, *serve], env=builder.environment, stderr=subprocess.PIPE, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}/v2"
        _wait_until_ready(process, f"{url}/health/ready")
        asked = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
        with urllib.request.urlopen(f"{url}/models/double/infer", json.dumps(asked).encode(), timeout=30) as answer:
            (output,) = json.load(answer)["outputs"]
        assert output["data"] == [2.0, 4.0, 6.0, 8.0]
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # what it started is in its session
        process.communicate(timeout=60)
    bill = json.loads(builder.run("run", "--isolation", "chroot", container, "--", "cat", "/opt/ferry/bill.cdx.json"))
    assert "onnxruntime" in {each["name"] for each in bill["components"]}


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the server was not ready")
