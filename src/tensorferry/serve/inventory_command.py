"""What `ferry models` shows and asks."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tensorferry.errors import BadOption
from tensorferry.serve.inventory import StoredVersion, check_repository, choose_old, list_repository, remove_versions
from tensorferry.serve.options import InventoryOptions
from tensorferry.text import printable
from tensorferry.units import format_bytes

_COLUMNS = ("model", "version", "format", "size", "precision", "made", "from", "")


def run(options: InventoryOptions) -> int:
    """Do what was asked, and show it; the exit code."""
    root = options.repository
    lines = list_repository(root)
    if options.check:
        lines = check_repository(root, lines, options.trust)
    if options.as_json:
        print(json.dumps([asdict(line) for line in lines], indent=1))
    else:
        _show(lines, is_checked=options.check)
    if options.num_kept is not None:
        _prune(options, choose_old(root, lines, options.num_kept))
    return 1 if any(line.problem for line in lines) else 0


def _show(lines: Sequence[StoredVersion], is_checked: bool) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in _COLUMNS:
        table.add_column(
            name, justify="right" if name in ("version", "size") else "left", overflow="fold", no_wrap=name == "model"
        )
    for line in lines:
        version = "" if line.version is None else str(line.version)
        words = line.problem or ("sound" if is_checked else "served" if line.is_served else "")
        cells = (line.name, version, line.format, format_bytes(line.nbytes), line.precision, line.made, line.made_from)
        table.add_row(*(Text(printable(cell)) for cell in cells), Text(printable(words), "red" if line.problem else ""))
    console = Console(width=None if sys.stdout.isatty() else 160, soft_wrap=False)
    console.print(table)
    num_models = len({line.name for line in lines})
    num_wrong = sum(bool(line.problem) for line in lines)
    total = format_bytes(sum(line.nbytes for line in lines))
    print(
        f"{_count(num_models, 'model')}, {_count(len(lines), 'version')}, {total}"
        + (f"; {num_wrong} with a problem" if num_wrong else "")
    )


def _prune(options: InventoryOptions, old: Sequence[StoredVersion]) -> None:
    where = sys.stderr if options.as_json else sys.stdout
    if not old:
        print("nothing is old enough to be removed", file=where)
        return
    names = ", ".join(printable(f"{line.name}/{line.version}") for line in old)
    what = f"{_count(len(old), 'old version')} ({format_bytes(sum(line.nbytes for line in old))}): {names}"
    if options.asks:
        if not sys.stdin.isatty():
            raise BadOption(f"--prune would remove {what}; say --yes where nobody can be asked")
        if input(f"remove {what}? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing was removed", file=where)
            return
    remove_versions(options.repository, old)
    print(f"removed {what}", file=where)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
