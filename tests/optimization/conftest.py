"""A real server of a folder, and engines that several tests look at."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tritonclient.http as triton
from nets import make_images, make_picture, make_sentence, make_texts

import tensorferry as ferry


@pytest.fixture(scope="session")
def picture_engine() -> Iterator[ferry.Engine]:
    engine = ferry.optimize(make_picture(), make_images(), labels=("cat", "dog", "ferry"))
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def sentence_engine() -> Iterator[ferry.Engine]:
    engine = ferry.optimize(make_sentence(), make_texts(), seconds=5)
    yield engine
    engine.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Path], triton.InferenceServerClient]]:
    """Starts `ferry serve` on a folder and gives a client when it is ready."""
    started: list[tuple[subprocess.Popen, triton.InferenceServerClient]] = []

    def start(repository: Path) -> triton.InferenceServerClient:
        command = [
            sys.executable,
            "-m",
            "tensorferry.cli",
            "serve",
            str(repository),
            "--http-port",
            "0",
            "--no-grpc",
            "--log-json",
        ]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        address, lines = "", []
        assert process.stderr is not None
        for line in process.stderr:
            message = json.loads(line)["message"]
            lines.append(message)
            if "HTTP on" in message:
                address = message.rpartition("//")[2]
            if message.startswith("ready:"):
                break
        assert address, lines
        client = triton.InferenceServerClient(address)
        started.append((process, client))
        return client

    yield start
    for process, client in started:
        client.close()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
