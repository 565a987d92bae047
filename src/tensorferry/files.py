"""Files that outlive a crash: there whole or not at all, forced to the disk, known again by a digest; and where caches are."""

import hashlib
import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def force(path: Path) -> None:
    """Return once the bytes of a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def find_cache_folder() -> Path | None:
    """Where this user's programs keep what they can make again; None where there is no home, as in some containers."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tensorferry"
    except RuntimeError:
        return None


def digest(path: Path) -> str:
    """The SHA-256 of what a file holds, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def list_checksums(path: Path) -> dict[str, str]:
    """The SHA-256 of a file, or of every file below a folder, by its name there."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    root = path.parent if path.is_file() else path
    return {str(each.relative_to(root)): f"sha256:{digest(each)}" for each in files}
