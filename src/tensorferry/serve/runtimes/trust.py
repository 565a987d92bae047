"""Model files of people whom nobody has said to trust."""

from pathlib import Path

from tensorferry.errors import BadModel


class Untrusted(Exception):
    """What was found in a file that may run, write or read more than a model does; the text names it."""


def refuse(path: Path, found: object) -> BadModel:
    """The error for a file that needs trust."""
    return BadModel(
        f"{path.name} holds {found}: it could run code, or read or write other files; add --trust to load it all the same"
    )
