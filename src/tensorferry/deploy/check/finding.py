"""One thing that is wrong."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Where something is wrong, and what."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"
