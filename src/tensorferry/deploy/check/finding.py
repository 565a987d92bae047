"""One thing that is wrong."""

from dataclasses import dataclass

from tensorferry.text import printable


@dataclass(frozen=True, slots=True)
class Finding:
    """Where something is wrong, and what."""

    where: str
    what: str

    def __str__(self) -> str:
        return printable(f"{self.where}: {self.what}")
