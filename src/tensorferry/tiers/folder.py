"""Which folder suits a disk tier: one on a real disk, because a file system in memory saves no memory."""

import os
import re
import tempfile
from pathlib import Path

from tensorferry.errors import BadTier

MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs", "rootfs"})
_OCTAL = re.compile(r"\\([0-7]{3})")


def file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The type of the file system that `folder` is on, such as "ext4"; "" where the system does not say."""
    try:
        rows = [line.split(" ") for line in mounts.read_text(errors="surrogateescape").splitlines()]
    except OSError:
        return ""
    real = folder.resolve()
    depth, found = -1, ""
    for _, mounted_at, kind, *_ in rows:
        point = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), mounted_at))
        # of two mounts at one point, the later one hides the earlier
        if real.is_relative_to(point) and len(point.parts) >= depth:
            depth, found = len(point.parts), kind
    return found


def best_folder() -> Path:
    """The temporary folder, or where that is memory, the first of /var/tmp and the working folder that is on a disk."""
    try:
        usual = Path(tempfile.gettempdir())
    except FileNotFoundError:  # nowhere to write: opening a tier will say so
        return Path.cwd()
    for folder in (usual, Path("/var/tmp"), Path.cwd()):
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) and file_system(folder) not in MEMORY_FILE_SYSTEMS:
            return folder
    return usual


def check_folder(folder: Path, tier: str) -> None:
    """Raise `BadTier` unless `folder` is one."""
    if not folder.exists():
        raise BadTier(f"the {tier} tier needs {str(folder)!r}, which does not exist; create it, or name a folder: 'disk:/path'")
    if not folder.is_dir():
        raise BadTier(f"the {tier} tier needs a folder, but {str(folder)!r} is not one; name a folder: 'disk:/path'")
