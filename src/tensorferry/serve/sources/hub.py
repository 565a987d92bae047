"""Models in a repository of Hugging Face's hub, through the file system of its own client, which is one of fsspec's.

The hub tells of every file the hash that git or Git LFS knows it by. What was read is compared with it: the client reads a branch
as it is at that moment, which may be later than the listing.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from tensorferry.errors import BadOption
from tensorferry.extras import load_extra
from tensorferry.messages import kind_and_first_line
from tensorferry.serve.sources.source import SourceChanged, SourceFailed, SourceFile, SourceUnreachable

SCHEME = "hf"
_GIT, _LFS = "git", "sha256"
_PIECE_NBYTES = 2**20


class HubSource:
    """Files below a folder of a repository: `hf://org/name/folder`, or `hf://org/name@revision`. HF_TOKEN opens private ones."""

    def __init__(self, url: str) -> None:
        self.url = url
        hub = load_extra("huggingface_hub", url, "hub")
        try:
            self.files: Any = hub.HfFileSystem(skip_instance_cache=True)
        except Exception as error:  # the client reads settings and tokens from files of the user's
            raise BadOption(f"cannot use {url}: {kind_and_first_line(error)}") from None
        self.root = url.partition("://")[2]

    def list_files(self) -> Iterator[SourceFile]:
        """Every file below the folder."""
        try:
            self.files.invalidate_cache()
            root = self.files.resolve_path(self.root).unresolve()
            found = self.files.find(self.root, detail=True)
        except Exception as error:  # the client has errors of its own, and passes on those of what it is made of
            raise self._explain(f"cannot list {self.url}", error) from None
        for path, info in found.items():
            mark = _find_mark(info)
            if not path.startswith(f"{root}/") or not mark or not isinstance(info.get("size"), int):
                raise SourceFailed(f"{self.url} tells no hash and size of {path!r}, so changes could not be seen")
            yield SourceFile(path.removeprefix(f"{root}/"), info["size"], mark)

    def read(self, file: SourceFile) -> Iterator[bytes]:
        """The bytes of a file; raises SourceChanged at their end where they are not those of the listing."""
        kind, _, expected = file.etag.partition(":")
        found = hashlib.sha1(b"blob %d\0" % file.nbytes) if kind == _GIT else hashlib.sha256()
        try:
            with self.files.open(f"{self.root}/{file.path}", "rb", block_size=0) as opened:
                while piece := opened.read(_PIECE_NBYTES):
                    found.update(piece)
                    yield piece
        except FileNotFoundError:
            raise SourceChanged(f"{file.path!r} is gone from {self.url}") from None
        except Exception as error:
            raise self._explain(f"cannot read {file.path!r} from {self.url}", error) from None
        if found.hexdigest() != expected:
            raise SourceChanged(f"{file.path!r} of {self.url} is another one by now")

    def _explain(self, what: str, error: Exception) -> SourceFailed:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, FileNotFoundError) or status in (401, 403, 404):
            return SourceFailed(f"{what}: there is no such place in {self.files.endpoint}, or HF_TOKEN may not read it")
        if status is None or status >= 500 or status == 429:
            return SourceUnreachable(f"{what}: {self.files.endpoint} does not answer: {kind_and_first_line(error)}")
        return SourceFailed(f"{what}: {self.files.endpoint} answers {status}")


def _find_mark(info: Mapping[str, Any]) -> str:
    """The hash of a file: of its content where Git LFS keeps it, else the one of git's blob."""
    lfs = info.get("lfs")
    if lfs:
        return f"{_LFS}:{lfs['sha256']}"
    return f"{_GIT}:{info['blob_id']}" if info.get("blob_id") else ""
