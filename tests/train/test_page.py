"""A run's page from its folder, as `ferry report` draws it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from listening import Told

from tensorferry.cli import main

Train = Callable[..., Path]


def test_training_ends_with_a_page_and_report_draws_it_again(
    train: Train, told: Told, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(budget="400MiB", settings={"steps": "5"}, command=("ferry", "train", "tiny"))
    page = (folder / "report.html").read_text()
    assert told.summary["page"] == str(folder / "report.html")
    for word in ("tiny.py:Tiny: 5 steps done", "ferry train tiny", "Memory against budget", "accuracy, held-out data"):
        assert word in page
    (folder / "report.html").unlink()
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert (folder / "report.html").read_text() == page
    assert main(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text() == page


def test_a_run_that_was_killed_in_the_middle_of_a_line_is_drawn_as_far_as_it_came(train: Train) -> None:
    folder = train(settings={"steps": "5"})
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(rows[:3]) + "\n" + rows[3][:20])
    assert main(["report", str(folder)]) == 0
    assert "3 of 5 steps done" in (folder / "report.html").read_text()


def test_what_cannot_be_drawn_is_one_line_and_code_2(train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(settings={"steps": "2"})
    for arguments, says in (
        ([str(tmp_path / "none")], "is not a run"),
        ([str(folder), "--out", str(tmp_path / "page.pdf")], "end it with .html"),
    ):
        assert main(["report", *arguments]) == 2
        shown = capsys.readouterr().err
        assert says in shown
        assert shown.count("\n") == 1
