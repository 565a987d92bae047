"""Models on one of fsspec's file systems, as far as these tell when a file changes."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tensorferry.serve.sources.file_system import FileSystem
from tensorferry.serve.sources.mirror import Mirror
from tensorferry.serve.sources.source import SourceFailed


class Hub(MemoryFileSystem):
    """Files in memory that have a `blob_id` each, as those of a hub do."""

    protocol = "hub"

    def find(self, path: str, *args: Any, **options: Any) -> dict[str, dict[str, Any]]:
        """Files with their marks."""
        found = super().find(path, *args, **options)
        if not options.get("detail"):
            return found
        return {name: info | {"blob_id": hashlib.sha1(self.cat_file(name)).hexdigest()} for name, info in found.items()}


@pytest.fixture
def hub() -> Iterator[Hub]:
    fsspec.register_implementation("hub", Hub, clobber=True)
    files = Hub()
    yield files
    files.rm("/org", recursive=True)


def test_models_come_from_a_file_system_and_follow_its_changes(hub: Hub, tmp_path: Path) -> None:
    hub.pipe_file("/org/models/net/1/model.onnx", b"one")
    mirror = Mirror(FileSystem("hub://org/models"), tmp_path, 2**30)
    assert (mirror.update() / "net" / "1" / "model.onnx").read_bytes() == b"one"
    hub.pipe_file("/org/models/net/1/model.onnx", b"two")
    assert (mirror.update() / "net" / "1" / "model.onnx").read_bytes() == b"two"
    mirror.close()


def test_a_file_system_without_etags_is_refused(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file("/org/models/net/1/model.onnx", b"one")
    with pytest.raises(SourceFailed, match="tells no etag"):
        Mirror(FileSystem("memory://org/models"), tmp_path, 2**30).check()
    files.rm("/org", recursive=True)
