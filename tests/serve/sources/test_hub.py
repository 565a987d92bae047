"""Models from Hugging Face's hub: its own client, against a hub on loopback."""

import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from tensorferry.errors import MissingExtra
from tensorferry.serve.sources import open_mirror
from tensorferry.serve.sources.mirror import Mirror
from tensorferry.serve.sources.source import SourceFailed, SourceUnreachable

LARGE = 2**30


class LoopbackHub:
    """One repository, `org/models`, as the hub's HTTP interface shows it; `late` has files that changed after the listing."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.late: dict[str, bytes] = {}
        self.status = 200
        outer = self

        class HubHandler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, body = outer.answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Be silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """End it."""
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path: str) -> tuple[int, bytes]:
        """What a request gets."""
        if self.status != 200:
            return self.status, b""
        if re.fullmatch("/api/models/org/models(/revision/main)?", path):
            return 200, json.dumps({"id": "org/models", "sha": "0" * 40, "siblings": []}).encode()
        if found := re.fullmatch("/api/models/org/models/tree/main(?:/(.*))?", path):
            folder = f"{found[1]}/" if found[1] else ""
            return 200, json.dumps([self.describe(name) for name in self.files if name.startswith(folder)]).encode()
        if found := re.fullmatch("/org/models/resolve/main/(.*)", path):
            data = (self.files | self.late).get(found[1])
            return (404, b"") if data is None else (200, data)
        return 404, b""

    def describe(self, name: str) -> dict[str, Any]:
        """A file of the tree, kept by git, or by Git LFS where it is an .onnx."""
        data = self.files[name]
        entry = {
            "type": "file",
            "path": name,
            "size": len(data),
            "oid": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
        }
        if name.endswith(".onnx"):
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            entry["oid"] = "1" * 40
        return entry


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    made = LoopbackHub()
    # what HF_ENDPOINT sets, once, when the client is imported
    monkeypatch.setattr(constants, "ENDPOINT", made.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", made.url + "/{repo_id}/resolve/{revision}/{filename}")
    yield made
    made.close()


def open_hub(cache: Path, name: str = "org/models") -> Mirror:
    return open_mirror(f"hf://{name}", cache, LARGE)


def read_tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["org/models", "org/models@main", "org/models/zoo"])
def test_models_come_from_the_hub_and_follow_its_changes(hub: LoopbackHub, tmp_path: Path, name: str) -> None:
    prefix = "zoo/" if name.endswith("zoo") else ""
    hub.files = {f"{prefix}net/1/model.onnx": b"one", f"{prefix}net/config.pbtxt": b"", "README.md": b"no model"}
    mirror = open_hub(tmp_path, name)
    assert read_tree(mirror.update()) == {"net/1/model.onnx": b"one", "net/config.pbtxt": b""}
    hub.files[f"{prefix}net/1/model.onnx"] = b"two"
    assert read_tree(mirror.update())["net/1/model.onnx"] == b"two"
    mirror.close()


@pytest.mark.parametrize("file", ["model.onnx", "model.bin"])
def test_a_file_that_is_not_the_listed_one_is_not_taken(hub: LoopbackHub, tmp_path: Path, file: str) -> None:
    hub.files = {f"net/1/{file}": b"old"}
    hub.late = {f"net/1/{file}": b"new"}
    mirror = open_hub(tmp_path)
    assert read_tree(mirror.update()) == {}
    hub.late = {}
    assert read_tree(mirror.update()) == {f"net/1/{file}": b"old"}
    mirror.close()


def test_a_hub_that_cannot_be_read_is_one_line_and_an_earlier_run_is_served(hub: LoopbackHub, tmp_path: Path) -> None:
    with pytest.raises(SourceFailed, match="no such place") as caught:
        open_hub(tmp_path, "org/missing")
    assert "\n" not in str(caught.value)
    hub.files = {"net/1/model.onnx": b"one"}
    mirror = open_hub(tmp_path)
    mirror.update()
    mirror.close()
    hub.status = 400
    with pytest.raises(SourceFailed, match="400"):
        open_hub(tmp_path)
    hub.status = 501
    again = open_hub(tmp_path)
    assert read_tree(again.folder) == {"net/1/model.onnx": b"one"}
    with pytest.raises(SourceUnreachable, match="does not answer"):
        again.update()
    again.close()


def test_without_the_client_its_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module, url, extra in (("huggingface_hub", "hf://org/models", "hub"), ("obstore", "gs://bucket/models", "sources")):
        monkeypatch.setitem(sys.modules, module, None)
        expected = f'{url} needs {module}, which is not installed: pip install "tensorferry[{extra}]"'
        with pytest.raises(MissingExtra, match=f"^{re.escape(expected)}$"):
            open_mirror(url, tmp_path, LARGE)
