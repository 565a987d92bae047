"""Models on disk: which are there, whether they changed, and files that clients send."""

import ctypes
import gc
import shutil
import tempfile
from pathlib import Path

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest

Fingerprint = tuple[object, ...]
CARD_NAME = "card.json"  # in a version's folder: what it came from, and its checksums
_MAX_KEY_LENGTH = 512  # of a file that a client sends


def list_models(root: Path) -> set[str]:
    """The names of the models below a repository's folder."""
    try:
        return {path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")}
    except OSError as error:
        raise BadModel(f"cannot read {root}: {error.strerror}") from None


def list_versions(folder: Path) -> list[int]:
    """The versions in a model's folder, lowest first."""
    return sorted(int(path.name) for path in folder.iterdir() if path.is_dir() and path.name.isascii() and path.name.isdecimal())


def fingerprint(folder: Path) -> Fingerprint:
    """What changes when a file below `folder` does."""
    marks: list[tuple[str, int, int]] = []
    for path in sorted(folder.rglob("*")):
        try:
            stat = path.stat()
        except OSError:  # gone while we looked; the next look sees the rest
            continue
        # a folder's own time says nothing that its files do not
        times = (0, 0) if path.is_dir() else (stat.st_mtime_ns, stat.st_size)
        marks.append((str(path.relative_to(folder)), *times))
    return tuple(marks)


def store_upload(name: str, files: dict[str, bytes]) -> Path:
    """A new folder that holds the files a client sent for a model; its last part is the model's name."""
    folder = Path(tempfile.mkdtemp(prefix="ferry-model-")) / name
    try:
        for key, data in files.items():
            path = folder / key.removeprefix("file:")
            if len(key) > _MAX_KEY_LENGTH:  # before its parts become folders within folders
                raise InvalidRequest(f"the name of the file {key[:40]!r}... is longer than {_MAX_KEY_LENGTH} characters")
            if "\0" in key or not path.resolve().is_relative_to(folder.resolve()) or path.resolve() == folder.resolve():
                raise InvalidRequest(f"the file {key!r} would be outside of the model's folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    except OSError as error:
        drop_upload(folder)
        raise InvalidRequest(f"cannot keep the file {key!r}: {error.strerror}") from None
    except BaseException:
        drop_upload(folder)
        raise
    return folder


def drop_upload(folder: Path) -> None:
    """Remove what `store_upload` made."""
    shutil.rmtree(folder.parent, ignore_errors=True)


def give_memory_back() -> None:
    """Return freed memory to the system: glibc keeps what it freed unless asked."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # another C library
        return
