"""A real server in a process of its own, and the models that most tests of the protocol need."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from certificates import make_certificate
from models import ONNX_TYPES, save_identity, save_lookup, save_mixing, save_scale, save_sum, write_config
from running import RunningServer


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that most tests of the protocol need."""
    root = tmp_path_factory.mktemp("models")
    for datatype in ONNX_TYPES:
        save_identity(root, f"identity_{datatype.lower()}", datatype)
    save_scale(root, "double", 2.0)
    save_sum(root, "sum")
    save_lookup(root, "lookup")
    save_mixing(root, "mixing")
    save_scale(root, "versions", 1.0, version=1)
    save_scale(root, "versions", 3.0, version=3)
    write_config(root, "versions", "version_policy { all {} }")
    save_scale(root, "labelled", 1.0)
    (root / "labelled" / "labels.txt").write_text("cat\ndog\nferry\nship\n")
    write_config(
        root,
        "labelled",
        'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: 4 } '
        'output { name: "y" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt" }',
    )
    (root / "broken" / "1").mkdir(parents=True)
    (root / "broken" / "1" / "model.onnx").write_bytes(b"not a model")
    return root


@pytest.fixture(scope="session")
def server(repository: Path) -> Iterator[RunningServer]:
    """A server of `repository` that allows control; tests leave it as they found it."""
    running = RunningServer(repository, "--model-control-mode", "explicit", "--shared-memory", "ferry_", *load_all(repository))
    running.wait_for("ready:")
    yield running
    assert running.stop() == 0


@pytest.fixture
def start_server() -> Iterator[Callable[..., RunningServer]]:
    """Starts servers of a test's own; they are stopped after it."""
    started: list[RunningServer] = []

    def start(repository: Path, *options: str, wait: bool = True) -> RunningServer:
        running = RunningServer(repository, *options)
        started.append(running)
        if wait:
            running.wait_for("ready:")
        return running

    yield start
    for running in started:
        running.stop()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for the loopback address that vouches for itself, and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def load_all(repository: Path) -> list[str]:
    """The options that load everything in explicit mode."""
    return [part for path in sorted(repository.iterdir()) for part in ("--load-model", path.name)]
