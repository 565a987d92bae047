"""Model files of people whom nobody has said to trust."""

from pathlib import Path

from tensorferry.errors import BadModel


class Untrusted(Exception):
    """What was found in a file that may run, write or read more than a model does; the text names it."""


def refuse(path: Path, found: object) -> BadModel:
    """The error for a file that needs trust."""
    return BadModel(
        f"{path.name} holds {found}, and a file with that can run code or reach other files; if you trust it, use --trust"
    )
