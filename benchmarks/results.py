"""The one form of all result files: what was measured, by which command, on which machine, when.

A benchmark builds `FigureTable`s, prints them, and with `--save` writes them with the raw figures to a file. `publish.py` makes
the pages from the files in `results/`, so that the terminal, the file and the page show the same cells.
"""

import argparse
import json
import platform
import re
import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

import tensorferry as ferry
from tensorferry.files import write_whole
from tensorferry.machine import count_cores, find_processor, memory_nbytes
from tensorferry.train.config import find_versions

RESULTS = Path(__file__).parent / "results"
_DEFAULT_FILE = Path()  # --save without a file
# a number with its unit and its spread: such columns are set to the right
_NUMBER = re.compile(r"[+-]?\d[\d,.]*(e[+-]?\d+)?( ?(x|%|B|[KMGT]iB|s|ms|µs))?( \([\d.]+-[\d.]+\))?")
# what decides which kernels run, by the processor's flags; any of them will do
_INSTRUCTIONS = {
    "AVX2": {"avx2"},
    "AVX-512": {"avx512f"},
    "VNNI": {"avx512_vnni", "avx_vnni"},
    "bf16": {"avx512_bf16", "amx_bf16"},
}


@dataclass(frozen=True, slots=True)
class FigureTable:
    """Figures as people read them, cell for cell."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        if odd := next((row for row in self.rows if len(row) != len(self.columns)), None):
            raise ValueError(f"{self.title!r}: expected rows of {len(self.columns)} cells, received {odd}")

    @property
    def is_number(self) -> list[bool]:
        """Of each column: whether all its cells are numbers; empty ones do not count."""
        columns = [[row[index] for row in self.rows if row[index]] for index in range(len(self.columns))]
        return [bool(cells) and all(map(_NUMBER.fullmatch, cells)) for cells in columns]

    def __rich__(self) -> Table:
        table = Table(title=self.title, title_justify="left")
        for name, is_number in zip(self.columns, self.is_number, strict=True):
            table.add_column(name, justify="right" if is_number else "left")
        subjects = [row[0] for row in self.rows]
        is_grouped = len(set(subjects)) < len(subjects)  # a line between two subjects that have several rows
        for row, after in zip(self.rows, [*subjects[1:], None], strict=True):
            table.add_row(*row, end_section=is_grouped and row[0] != after)
        return table

    def to_markdown(self) -> str:
        """The table on a page, its title above it."""
        lines = [self.columns, ["---:" if is_number else "---" for is_number in self.is_number], *self.rows]
        return "\n".join([f"**{self.title}**", "", *("| " + " | ".join(map(_escape, line)) + " |" for line in lines)])


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """All that a result file holds."""

    benchmark: str
    command: str
    date: str
    machine: dict[str, Any]
    versions: dict[str, str]
    tables: Sequence[FigureTable]
    figures: dict[str, Any]  # raw: what the cells were made from, and more
    notes: Sequence[str] = field(default=())  # sentences that stand below the tables

    @classmethod
    def read(cls, path: Path) -> "BenchmarkResult":
        """The result that `save_result` wrote."""
        try:
            data = json.loads(path.read_text())
            return cls(**data | {"tables": [FigureTable(**table) for table in data["tables"]]})
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path.name} is not a result file ({error}); run its benchmark again with --save") from None


def parse_options(parser: argparse.ArgumentParser, script: str, argv: list[str] | None) -> argparse.Namespace:
    """A benchmark's own options, `--save`, and as `command` what was typed; `script` is its file."""
    parser.add_argument(
        "--save",
        nargs="?",
        type=Path,
        const=_DEFAULT_FILE,
        metavar="FILE",
        help="also write a result file (default: in results/)",
    )
    options = parser.parse_args(argv)
    if options.save == _DEFAULT_FILE and getattr(options, "quick", False):
        parser.error("figures of toys are not for results/: name a file, such as --save quick.json")
    words = [_hide_folders(word) for word in (sys.argv[1:] if argv is None else argv)]
    options.command = shlex.join(["python", f"benchmarks/{Path(script).name}", *words])
    return options


def save_result(
    options: argparse.Namespace,
    benchmark: str,
    tables: Iterable[FigureTable],
    figures: dict[str, Any],
    packages: Iterable[str],
    notes: Iterable[str] = (),
) -> Path | None:
    """Write the result file, whole or not at all, if `options` of `parse_options` ask for one; where it is."""
    if options.save is None:
        return None
    path = result_path(options, benchmark)
    result = BenchmarkResult(
        benchmark=benchmark,
        command=options.command,
        date=datetime.now(UTC).date().isoformat(),
        machine=describe_machine(),
        versions=_find_versions(packages),
        tables=list(tables),
        figures=figures,
        notes=list(notes),
    )
    write_whole(path, json.dumps(asdict(result), indent=1, ensure_ascii=False) + "\n")
    return path


def result_path(options: argparse.Namespace, benchmark: str) -> Path:
    """Where `save_result` writes."""
    return RESULTS / f"{benchmark}.json" if options.save == _DEFAULT_FILE else Path(options.save)


def describe_machine() -> dict[str, Any]:
    """What of this machine decides its figures."""
    try:
        flags = set(re.findall(r"^(?:flags|Features)\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[0].split())
    except (OSError, IndexError):  # not Linux
        flags = set()
    return {
        "processor": find_processor(),
        "num_cores": count_cores(),
        "instructions": [name for name, either in _INSTRUCTIONS.items() if either & flags],
        "memory_nbytes": memory_nbytes(),
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",  # a vendor's suffix says nothing
    }


def format_ratios(ratios: Sequence[float]) -> str:
    """The median of what several turns gave, and the lowest and the highest of them.

    >>> format_ratios([1.08, 0.99, 1.04])
    '1.04x (0.99-1.08)'
    >>> format_ratios([1.04])
    '1.04x'
    """
    middle = f"{statistics.median(ratios):.2f}x"
    return middle if len(ratios) == 1 else f"{middle} ({min(ratios):.2f}-{max(ratios):.2f})"


def _find_versions(packages: Iterable[str]) -> dict[str, str]:
    return {"python": platform.python_version(), "tensorferry": ferry.__version__} | find_versions(packages)


def _hide_folders(word: str) -> str:
    """A command's word without the folders of an absolute path, which say nothing on another machine."""
    return re.sub(r"(?<![\w.])/\S*/", ".../", word)


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|")
