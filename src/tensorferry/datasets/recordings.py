"""Recordings in WAV files, as rows."""

import wave
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tensorferry.datasets.folders import one_value
from tensorferry.datasets.rows import ArrayRows, Columns, Rows
from tensorferry.errors import BadData
from tensorferry.messages import first_line


@dataclass(frozen=True)
class NoteRows:
    """Recordings of single notes, read one by one."""

    paths: Sequence[Path]
    others: Columns

    @property
    def block_sizes(self) -> Sequence[int]:
        """A block a file."""
        return [1] * len(self.paths)

    def read_block(self, number: int) -> Columns:
        """One recording, as samples between -1 and 1."""
        path = self.paths[number]
        try:
            with wave.open(str(path)) as file:
                frames = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        except (wave.Error, EOFError, OSError) as error:
            raise BadData(f"cannot read {str(path)!r} as a WAV file: {first_line(error)}") from error
        audio = one_value((frames / np.float32(2**15)).astype(np.float32))
        return {"audio": audio, **{name: values[number : number + 1] for name, values in self.others.items()}}

    def only(self, names: Collection[str]) -> Rows:
        """What else is known, without opening a recording."""
        return self if "audio" in names else ArrayRows(self.others)
