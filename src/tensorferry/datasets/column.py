"""What a dataset is to those that bring its rows into other libraries: columns, and batches of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, TypeAlias

from numpy.typing import NDArray

Kind: TypeAlias = Literal[
    "number", "integer", "boolean", "category", "text", "time", "label", "image", "volume", "audio", "other"
]


@dataclass(frozen=True, slots=True)
class Column:
    """What one column holds."""

    name: str
    kind: Kind
    dtype: str  # NumPy's name; "object" for texts, and for what can be missing and has no number that says so
    shape: tuple[int | None, ...] = ()  # of one value; None where it differs from row to row
    labels: tuple[str, ...] = ()  # of kind label: what 0, 1, 2, ... stand for
    is_large: bool = False  # holds whole numbers that no float64 does, such as ids; those with missing ones are objects

    @property
    def is_ragged(self) -> bool:
        """Whether values differ in shape; a batch of them is an array of arrays."""
        return None in self.shape


class BatchSource(Protocol):
    """What `Dataset` is made for other libraries from."""

    @property
    def name(self) -> str: ...

    @property
    def columns(self) -> tuple[Column, ...]: ...

    def __len__(self) -> int: ...

    def select(self, places: NDArray) -> Self: ...

    def batches(self, size: int, *, seed: int | None = None, epoch: int = 0, drop_last: bool = False) -> Iterator[Any]: ...

    def present(self, columns: Mapping[str, Any]) -> Any: ...
