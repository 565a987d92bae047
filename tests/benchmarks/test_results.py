"""Result files: what is printed is what is written and read again, and nothing of a machine's folders gets into one."""

import argparse
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import results
from results import BenchmarkResult, FigureTable, format_ratios, parse_options, save_result

TABLE = FigureTable("Sizes", ("model", "peak", "cost"), [("net", "12 MiB", "1.04x (0.99-1.08)"), ("net|2", "", "no figure")])


def _parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tier")
    return parse_options(parser, "/anywhere/benchmarks/planner.py", list(argv))


def test_a_result_is_read_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "new" / "one.json"
    assert (
        save_result(_parse("--save", str(path)), "planner", [TABLE], {"rows": [1.5]}, ["numpy", "no-such-package"], ["Note."])
        == path
    )
    result = BenchmarkResult.read(path)
    assert result.benchmark == "planner"
    assert result.tables[0].to_markdown() == TABLE.to_markdown()
    assert (result.figures, list(result.notes)) == ({"rows": [1.5]}, ["Note."])
    assert {"python", "tensorferry", "numpy"} == set(result.versions)
    assert result.machine["num_cores"] >= 1
    assert result.machine["memory_nbytes"] > 2**28
    assert [file.name for file in path.parent.iterdir()] == ["one.json"]


def test_without_a_file_named_the_result_goes_to_the_folder_of_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    assert save_result(_parse("--save"), "planner", [TABLE], {}, []) == tmp_path / "planner.json"


def test_nothing_is_written_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    assert save_result(_parse(), "planner", [TABLE], {}, []) is None
    assert not list(tmp_path.iterdir())


def test_toys_need_a_file_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parse("--quick", "--save")
    assert "name a file" in capsys.readouterr().err
    assert _parse("--quick", "--save", str(tmp_path / "toy.json")).save == tmp_path / "toy.json"


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (("--save",), "python benchmarks/planner.py --save"),
        (("--save", "/home/someone/x.json"), "python benchmarks/planner.py --save .../x.json"),
        (("--tier", "disk:/mnt/fast/swap"), "python benchmarks/planner.py --tier disk:.../swap"),
        (("--tier", "a/b"), "python benchmarks/planner.py --tier a/b"),
    ],
)
def test_a_command_is_kept_without_the_folders_of_this_machine(argv: tuple[str, ...], command: str) -> None:
    assert _parse(*argv).command == command


def test_a_page_and_a_terminal_show_the_same_cells() -> None:
    assert TABLE.to_markdown().splitlines() == [
        "**Sizes**",
        "",
        "| model | peak | cost |",
        "| --- | ---: | --- |",
        "| net | 12 MiB | 1.04x (0.99-1.08) |",
        r"| net\|2 |  | no figure |",
    ]
    console = Console(file=io.StringIO(), width=100)
    console.print(TABLE)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(cell in shown for row in TABLE.rows for cell in row)


@pytest.mark.parametrize(
    ("cell", "is_number"),
    [
        ("1,000", True),
        ("75%", True),
        ("-3 %", True),
        ("1.2e-05", True),
        ("1.04x (0.99-1.08)", True),
        ("970 MiB", True),
        ("3D U-Net", False),
        ("16³", False),
        ("none", False),
        ("", False),
    ],
)
def test_a_column_of_numbers_is_known_by_its_cells(cell: str, is_number: bool) -> None:
    assert FigureTable("", ("",), [(cell,)]).is_number == [is_number]


def test_a_row_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="expected rows of 2 cells"):
        FigureTable("x", ("a", "b"), [("1",)])


def test_a_file_of_another_form_is_named(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"rows": []}))
    with pytest.raises(ValueError, match=r"old\.json is not a result file"):
        BenchmarkResult.read(path)


def test_ratios_are_a_median_with_its_spread() -> None:
    assert format_ratios([1.27, 0.9, 1.04]) == "1.04x (0.90-1.27)"
    assert format_ratios([1.041]) == "1.04x"
