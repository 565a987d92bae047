"""Sources that only fsspec's file systems reach, where their packages are installed: Hugging Face's hub, Oracle's store."""

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from tensorferry.errors import BadOption, MissingExtra
from tensorferry.messages import kind_and_first_line
from tensorferry.serve.sources.source import SourceChanged, SourceFailed, SourceFile

PACKAGES = {"hf": "huggingface_hub", "oci": "ocifs"}  # what brings the file system of each scheme
_MARKS = ("etag", "ETag", "blob_id", "oid")  # under one of these a file system tells what changes with the content
_PIECE_NBYTES = 2**20


class FileSystem:
    """Files below a folder of one of fsspec's file systems, whose own environment has the credentials."""

    def __init__(self, url: str) -> None:
        scheme, _, path = url.partition("://")
        self.url = url
        try:
            self.files: Any = import_module("fsspec").filesystem(scheme)
        except ImportError:
            package = PACKAGES.get(scheme, scheme)
            raise MissingExtra(f"{url} needs {package}, which is not installed: pip install fsspec {package}") from None
        except Exception as error:
            raise BadOption(f"cannot use {url}: {kind_and_first_line(error)}") from None
        self.root = path.rstrip("/")

    def list_files(self) -> Iterator[SourceFile]:
        """Every file below the folder."""
        try:
            self.files.invalidate_cache()
            found = self.files.find(self.root, detail=True)
        except Exception as error:  # each file system has errors of its own
            raise SourceFailed(f"cannot list {self.url}: {kind_and_first_line(error)}") from None
        for path, info in found.items():
            mark = next((str(info[name]) for name in _MARKS if info.get(name)), "")
            if not mark or not isinstance(info.get("size"), int):
                raise SourceFailed(f"{self.url} tells no etag and size of {path!r}, so changes could not be seen")
            yield SourceFile(re.sub(f"^/*{re.escape(self.root.lstrip('/'))}/", "", path), info["size"], mark)

    def read(self, file: SourceFile) -> Iterator[bytes]:
        """The bytes of a file."""
        try:
            with self.files.open(f"{self.root}/{file.path}", "rb") as opened:
                while piece := opened.read(_PIECE_NBYTES):
                    yield piece
        except FileNotFoundError:
            raise SourceChanged(f"{file.path!r} is gone from {self.url}") from None
        except Exception as error:
            raise SourceFailed(f"cannot read {file.path!r} from {self.url}: {kind_and_first_line(error)}") from None
