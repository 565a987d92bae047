"""Text files, a row a line; several files with as many lines each are columns beside one another."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensorferry.datasets.rows import Columns, Rows
from tensorferry.errors import BadData

_BLOCK_LINES = 4096
_READ_NBYTES = 2**20


@dataclass(frozen=True)
class LineRows:
    """Lines that are read when they are asked for; only where every block of them begins is kept."""

    paths: Mapping[str, Path]  # by column

    @cached_property
    def _starts(self) -> dict[str, NDArray[np.int64]]:
        """Where each line of a file begins, and where the last one ends; every `_BLOCK_LINES`th of them."""
        found = {name: _find_lines(path) for name, path in self.paths.items()}
        (first, num_lines), *others = ((name, count) for name, (_, count) in found.items())
        for name, count in others:
            if count != num_lines:
                raise BadData(
                    f"{self.paths[first]} has {num_lines:,} lines and {self.paths[name]} {count:,}; line n of one must belong to "
                    "line n of the other"
                )
        return {name: starts for name, (starts, _) in found.items()} | {"": np.array([num_lines])}

    @property
    def block_sizes(self) -> Sequence[int]:
        """Blocks of equal size; the last one may be shorter."""
        num_lines = int(self._starts[""][0])
        return [min(_BLOCK_LINES, num_lines - start) for start in range(0, num_lines, _BLOCK_LINES)]

    def read_block(self, number: int) -> Columns:
        """Some lines, without their ends."""
        return {name: self._read(name, number) for name in self.paths}

    def only(self, names: Collection[str]) -> Rows:
        """The lines of these files; all where none is named."""
        return (
            LineRows({name: path for name, path in self.paths.items() if name in names}) if set(names) & set(self.paths) else self
        )

    def _read(self, name: str, number: int) -> NDArray:
        start, stop = self._starts[name][number : number + 2]
        with self.paths[name].open("rb") as file:
            file.seek(start)
            text = file.read(stop - start).decode("utf-8", "replace")
        lines = text.split("\n")
        return np.array([line.removesuffix("\r") for line in (lines[:-1] if text.endswith("\n") else lines)], object)


def _find_lines(path: Path) -> tuple[NDArray[np.int64], int]:
    """Where blocks of lines begin, the file's end behind them, and how many lines there are."""
    starts, num_lines, place, last = [0], 0, 0, b"\n"
    with path.open("rb") as file:
        while part := file.read(_READ_NBYTES):
            ends = np.flatnonzero(np.frombuffer(part, np.uint8) == 10)
            first = _BLOCK_LINES - num_lines % _BLOCK_LINES - 1
            starts += (ends[first::_BLOCK_LINES] + place + 1).tolist()
            num_lines += len(ends)
            place += len(part)
            last = part[-1:]
    if last != b"\n":
        num_lines += 1
    return np.array(starts if starts[-1] == place else [*starts, place], np.int64), num_lines
