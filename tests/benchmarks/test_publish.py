"""The pages are what the committed result files give, and the writer puts a new one where it belongs."""

import argparse
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import publish
from measure import Measurement, combine
from results import BenchmarkResult, FigureTable, save_result
from tables import make_table
from trainings import Request, parse_model

PAGE = f"# Page\n\n{publish._BEGIN}\n{publish._END}\n\n## By hand\n"
README = f"# Name\n\n{publish._BEGIN}\n\nby hand\n\n{publish._END}\n\nrest\n"
TABLE = FigureTable("Planning time", ("ops", "budget"), [("1,000", "floor")])


def test_the_committed_pages_are_what_the_committed_result_files_give() -> None:
    assert publish.main(["--check"]) == 0


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "benchmarks.md").write_text(PAGE)
    (tmp_path / "README.md").write_text(README)
    return tmp_path


def _save(clone: Path, benchmark: str, tables: Iterable[FigureTable], figures: dict[str, Any], name: str = "") -> Path:
    path = clone / "benchmarks" / "results" / f"{name or benchmark}.json"
    options = argparse.Namespace(save=path, command=f"python benchmarks/{benchmark}.py --save")
    save_result(options, benchmark, tables, figures, ["numpy"], ["A note."])
    return path


def _memory_rows(model: str) -> tuple[FigureTable, dict[str, Any]]:
    """A plain and a half row of three turns, as the memory benchmark has them."""
    case = parse_model(model)
    plain = Measurement(Request(case, "plain"), "trained", peak_nbytes=2000 * 2**20, cpu_seconds=1.0, digests={"losses": "a"})
    half = replace(plain, request=Request(case, "ferry", 1000 * 2**20), peak_nbytes=990 * 2**20)
    seconds = ((1.0, 1.1), (2.0, 2.0), (1.0, 0.9))  # the machine was half as fast in the second turn
    rows = {
        "plain": combine([replace(plain, cpu_seconds=one) for one, _ in seconds]),
        "half": combine([replace(half, cpu_seconds=other) for _, other in seconds]),
    }
    listed = [
        {"model": case.name, "mode": mode, **asdict(row), "cpu_ratios": row.cpu_ratios(rows["plain"])}
        for mode, row in rows.items()
    ]
    return make_table({case: rows}), {"rows": listed}


def test_a_result_file_becomes_a_section_with_its_machine_its_command_and_its_tables(clone: Path) -> None:
    result = BenchmarkResult.read(_save(clone, "planner", [TABLE], {}))
    assert publish.main([], clone) == 0
    text = (clone / "docs" / "benchmarks.md").read_text()
    begin, middle, end = (text.index(part) for part in (publish._BEGIN, "## Planning", publish._END))
    assert begin < middle < end
    assert text.endswith("\n\n## By hand\n")
    section = text[middle:end]
    assert "How long planning takes as traces grow" in section
    assert "python benchmarks/planner.py  " not in section
    assert "```console\n$ python benchmarks/planner.py --save\n```" in section
    assert result.machine["processor"] in section
    assert f"{result.date} (`benchmarks/results/planner.json`)" in section
    assert TABLE.to_markdown() in section
    assert "A note." in section
    assert (clone / "README.md").read_text() == README


def test_check_writes_nothing_and_says_what_is_stale(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _save(clone, "planner", [TABLE], {})
    assert publish.main(["--check"], clone) == 1
    assert "docs/benchmarks.md is not what the result files give" in capsys.readouterr().out
    assert (clone / "docs" / "benchmarks.md").read_text() == PAGE
    publish.main([], clone)
    assert publish.main(["--check"], clone) == 0


def test_a_figure_that_was_changed_by_hand_is_found(clone: Path) -> None:
    _save(clone, "planner", [TABLE], {})
    publish.main([], clone)
    page = clone / "docs" / "benchmarks.md"
    page.write_text(page.read_text().replace("1,000", "9,000"))
    assert publish.main(["--check"], clone) == 1


def test_a_result_file_that_is_gone_takes_its_section_along(clone: Path) -> None:
    path = _save(clone, "planner", [TABLE], {})
    publish.main([], clone)
    path.unlink()
    publish.main([], clone)
    assert "Planning" not in (clone / "docs" / "benchmarks.md").read_text()


def test_the_table_of_the_readme_has_the_median_of_the_ratios_within_a_turn(clone: Path) -> None:
    table, figures = _memory_rows("unet128")
    _save(clone, "memory-torch", [table], figures)
    assert publish.main([], clone) == 0
    text = (clone / "README.md").read_text()
    assert "by hand" not in text
    assert "| 3D U-Net, 128³ voxels | 2,000 MiB | 990 MiB | 1.00x (0.90-1.10) |  |" in text.splitlines()
    assert text.endswith(f"{publish._END}\n\nrest\n")
    assert "1.00x (0.90-1.10)" in (clone / "docs" / "benchmarks.md").read_text()


def test_several_files_of_a_benchmark_share_its_section_and_memory_comes_first(clone: Path) -> None:
    _save(clone, "planner", [TABLE], {})
    table, figures = _memory_rows("unet96")
    _save(clone, "memory-torch", [table], figures)
    _save(clone, "memory-torch", [table], figures, name="memory-torch-bf16")
    publish.main([], clone)
    text = (clone / "docs" / "benchmarks.md").read_text()
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == ["## Memory, PyTorch", "## Planning", "## By hand"]
    assert text.count("**One training step**") == 2


@pytest.mark.parametrize(
    ("benchmark", "page", "message"),
    [("roofline", PAGE, "unknown benchmark, 'roofline'"), ("planner", "# Page\n", "has no place for results")],
)
def test_what_cannot_be_published_is_refused_in_one_line(
    benchmark: str, page: str, message: str, clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _save(clone, benchmark, [TABLE], {})
    (clone / "docs" / "benchmarks.md").write_text(page)
    with pytest.raises(SystemExit):
        publish.main([], clone)
    assert message in capsys.readouterr().err


def test_every_benchmark_that_can_be_published_has_a_script_that_says_what_it_measures() -> None:
    for benchmark in publish.HEADINGS:
        text = publish._describe(benchmark)
        assert len(text) > 80
        assert "python benchmarks/" not in text
