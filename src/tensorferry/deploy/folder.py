"""A folder of new files, there whole or not at all, and never over an old one."""

import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from tensorferry.errors import BadOption
from tensorferry.files import force


def check_target(folder: Path) -> None:
    """Raise BadOption where something is already there, before any work is done for it."""
    if folder.exists() or folder.is_symlink():
        raise BadOption(f"{str(folder)!r} is already there, and nothing is written over; name a new folder, or remove it")


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write files by their names in a new folder."""
    check_target(folder)
    part = folder.with_name(f".{secrets.token_hex(8)}.part")
    try:
        for name, text in files.items():
            path = part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            force(path)
        part.rename(folder)
    except OSError as error:
        raise BadOption(f"cannot write {str(folder)!r}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
