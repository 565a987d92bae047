"""Write docs/benchmarks.md and the table of the README from the result files.

    python benchmarks/publish.py            after a benchmark has written a new result file with --save
    python benchmarks/publish.py --check    writes nothing; ends with code 1 where a page is not what the files give

Only what stands between two markers is written, the rest of a page is for people to write. What was measured is told by the
benchmark's docstring. The README stays as it is as long as there is no result of the memory benchmark.
"""

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from results import BenchmarkResult, format_ratios
from tensorferry.files import write_whole
from tensorferry.units import format_bytes

ROOT = Path(__file__).parents[1]
_BEGIN, _END = "<!-- results: benchmarks/publish.py writes what stands here -->", "<!-- end of results -->"
HEADINGS = {  # by benchmark, in the order of the page
    "memory-torch": "Memory, PyTorch",
    "memory-torch-capped": "The largest size under a memory cap, PyTorch",
    "memory-torch-stream": "Memory below the smallest exact budget, streamed",
    "memory-torch-capped-stream": "The largest size under a memory cap, streamed",
    "streamed_gradients": "Gradients of streamed steps",
    "memory-torch-weights": "Memory where weights move as well",
    "lora": "Adapters of a model larger than memory",
    "memory-tensorflow": "Memory, Keras on TensorFlow",
    "memory-tensorflow-capped": "The largest size under a memory cap, Keras on TensorFlow",
    "planner": "Planning",
    "overhead": "What an op costs",
    "rewrite": "Rewriting a TensorFlow graph",
    "precision-bf16": "Mixed precision, bf16",
    "precision-fp16": "Mixed precision, fp16",
    "resolution": "What resolution buys",
    "estimate": "Estimates beside measured steps",
    "published": "Estimates beside published figures",
    "published-scale": "Estimates of clusters beside published figures",
    "scale": "Several processes",
    "tabular": "Estimators on tables",
    "streaming": "Estimators on sets larger than memory",
    "served_rows": "Estimators behind the server",
    "optimize": "Inference engines",
    "optimize-repeat": "Inference engines: does the choice repeat?",
    "serve": "The prediction server",
}
README_MODELS = {  # by benchmark and model
    ("memory-torch", "unet128"): "3D U-Net, 128³ voxels",
    ("memory-torch", "resnet50"): "ResNet-50, batch 32",
    ("memory-torch", "gpt"): "GPT, 12 layers, AdamW",
    ("memory-tensorflow", "resnet50-16"): "Keras ResNet-50, batch 16",
}


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A result and the name of its file."""

    name: str
    result: BenchmarkResult


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """Write the pages; with --check the exit code is 1 where one would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, only say which pages are out of date")
    options = parser.parse_args(argv)
    try:
        pages = make_pages(root)
    except ValueError as error:
        parser.error(str(error))
    stale = {path: text for path, text in pages.items() if path.read_text() != text}
    for path, text in stale.items():
        if options.check:
            print(f"{path.relative_to(root)} is not what the result files give; run python benchmarks/publish.py")
        else:
            write_whole(path, text)
            print(f"wrote {path.relative_to(root)}")
    return 1 if stale and options.check else 0


def make_pages(root: Path) -> dict[Path, str]:
    """Both pages as the result files of a clone give them."""
    files = [
        ResultFile(path.name, BenchmarkResult.read(path)) for path in sorted((root / "benchmarks" / "results").glob("*.json"))
    ]
    for file in files:
        if file.result.benchmark not in HEADINGS:
            known = ", ".join(HEADINGS)
            raise ValueError(f"{file.name} is of an unknown benchmark, {file.result.benchmark!r}; known are {known}")
    page, readme = root / "docs" / "benchmarks.md", root / "README.md"
    pages = {page: _fill(page, _make_sections(files))}
    table = list(_make_readme_table(files))
    return pages | {readme: _fill(readme, table)} if table else pages


def _fill(path: Path, lines: list[str]) -> str:
    """The page with these lines between its markers."""
    text = path.read_text()
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{path.name} has no place for results; put it between {_BEGIN} and {_END}")
    return "\n".join([before + begin, "", *lines, "", end + after])


def _make_sections(files: Iterable[ResultFile]) -> list[str]:
    """A section a benchmark: what it measures, then all of its result files."""
    order = list(HEADINGS)
    in_order = sorted(files, key=lambda file: order.index(file.result.benchmark))
    parts = []
    for benchmark, group in groupby(in_order, key=lambda file: file.result.benchmark):
        parts += [f"## {HEADINGS[benchmark]}", _describe(benchmark), *map(_show, group)]
    return ["\n\n".join(parts)] if parts else []


def _describe(benchmark: str) -> str:
    """The docstring of a benchmark's script, without its examples of commands."""
    script = Path(__file__).with_name(f"{benchmark.partition('-')[0]}.py")
    text = ast.get_docstring(ast.parse(script.read_text())) or ""
    return "\n\n".join(paragraph for paragraph in text.split("\n\n") if not paragraph.startswith("    "))


def _show(file: ResultFile) -> str:
    result, machine = file.result, file.result.machine
    versions = ", ".join(f"{package} {number}" for package, number in result.versions.items())
    system = f"{_name_processor(result)}, {format_bytes(machine['memory_nbytes'])}, {machine['kernel']}"
    where = f"{system}; {versions}; {result.date}"
    parts = [f"```console\n$ {result.command}\n```", f"On {where} (`benchmarks/results/{file.name}`):"]
    return "\n\n".join([*parts, *(table.to_markdown() for table in result.tables), *result.notes])


def _make_readme_table(files: Iterable[ResultFile]) -> Iterator[str]:
    """The models that the README shows, of those that were measured in fp32 and the default layout."""
    measured: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    machines: list[str] = []
    for file in files:
        if file.result.benchmark not in ("memory-torch", "memory-tensorflow"):
            continue
        machines.append(_name_processor(file.result))
        for row in file.result.figures["rows"]:
            case = row["request"]["case"]
            if row["outcome"] == "trained" and case["precision"] == "fp32" and not case["channels_last"]:
                measured.setdefault((file.result.benchmark, row["model"]), {})[row["mode"]] = row
    shown = {title: measured[key] for key, title in README_MODELS.items() if "plain" in measured.get(key, {})}
    if not shown:
        return
    yield "Peak memory of a training step in fp32, and CPU time over plain training: median, lowest and highest of the turns."
    yield f"Measured on {'; '.join(dict.fromkeys(machines))}.\n"
    yield "| model | plain | ferry at half of plain | CPU time | smallest budget |"
    yield "|---|---:|---:|---:|---:|"
    for title, rows in shown.items():
        half = rows.get("half")
        peaks = [_mebibytes(rows[mode]["peak_nbytes"]) if mode in rows else "" for mode in ("plain", "half", "smallest")]
        yield f"| {title} | {peaks[0]} | {peaks[1]} | {format_ratios(half['cpu_ratios']) if half else ''} | {peaks[2]} |"


def _name_processor(result: BenchmarkResult) -> str:
    machine = result.machine
    return f"{machine['processor']}, {machine['num_cores']} cores ({', '.join(machine['instructions'])})"


def _mebibytes(nbytes: int) -> str:
    """All in one unit, since the cells of a row are compared."""
    return f"{nbytes / 2**20:,.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
