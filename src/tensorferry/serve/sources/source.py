"""What a source of models is: files by name, each with a mark that changes with its content."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from tensorferry.errors import BadOption, FerryError

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_MAX_PART_NBYTES = 255  # of a name on common file systems
_MAX_NUM_PARTS = 16


class SourceFailed(FerryError):
    """A source that cannot be read now: gone, refused, or holding what cannot be taken."""


class SourceUnreachable(SourceFailed):
    """A source that does not answer, or only with an error of its own."""


class SourceChanged(SourceFailed):
    """A file that is not what the listing said any more."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: its name below the source, its size, and its etag."""

    path: str
    nbytes: int
    etag: str


class ModelSource(Protocol):
    """Files that can be listed and read. Both raise SourceFailed."""

    url: str

    def list_files(self) -> Iterator[SourceFile]:
        """Every file below the source."""

    def read(self, file: SourceFile) -> Iterator[bytes]:
        """The bytes of a file; raises SourceChanged where it is another by now."""


def is_url(text: str) -> bool:
    """Whether a repository is named by its address, and not as a folder.

    >>> is_url("s3://bucket/models"), is_url("models/"), is_url("/data/s3:/models")
    (True, False, False)
    """
    return _URL.match(text) is not None


def check_url(url: str) -> str:
    """The scheme of a source's address; raises BadOption where it names no place, or holds a password."""
    try:
        parts = urlsplit(url)
        has_password = parts.username is not None
    except ValueError as error:
        raise BadOption(f"cannot read the address of the models: {error}") from None
    if has_password:
        raise BadOption("the address of the models holds a user or a password; put credentials into the environment instead")
    if not parts.netloc or parts.query or parts.fragment:
        raise BadOption(f"{url!r} names no place of models; write it as in {parts.scheme}://bucket/models")
    return parts.scheme.lower()


def find_fault(path: str) -> str:
    """What keeps a name from being a file of a repository; empty where nothing does.

    >>> find_fault("resnet/1/model.onnx"), find_fault("resnet/../../etc/passwd")
    ('', "it has a part '..'")
    """
    parts = path.split("/")
    if len(parts) > _MAX_NUM_PARTS:
        return f"it is more than {_MAX_NUM_PARTS} folders deep"
    for part in parts:
        if part in ("", ".", "..") or "\0" in part or "\\" in part:
            return f"it has a part {part!r}"
        if len(part.encode(errors="surrogatepass")) > _MAX_PART_NBYTES:
            return f"a part of it is longer than {_MAX_PART_NBYTES} bytes"
    return ""


def group_by_model(files: Mapping[str, SourceFile]) -> dict[str, dict[str, SourceFile]]:
    """The files of each model; what lies beside the models' folders, or is hidden, is left out."""
    found: dict[str, dict[str, SourceFile]] = {}
    for path, file in files.items():
        name, _, rest = path.partition("/")
        if rest and not name.startswith("."):
            found.setdefault(name, {})[rest] = file
    return found
