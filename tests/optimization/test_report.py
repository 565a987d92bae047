"""What a search found, for a terminal and as a page."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tensorferry.errors import BadOption
from tensorferry.optimization.agreement import Comparison
from tensorferry.optimization.candidates import CandidateResult, SearchResult, TriedFile, make_candidate
from tensorferry.optimization.command import show_progress
from tensorferry.optimization.gate import AnswerGate
from tensorferry.optimization.intervals import Interval, wilson_interval
from tensorferry.optimization.measure import Speed
from tensorferry.optimization.metric import MetricDrop
from tensorferry.optimization.report import OptimizationReport

FAST = make_candidate("openvino", "fp32", Path("model.xml"), 2)
CHOSEN = CandidateResult(
    FAST.title, "fp32", "ONNX", "chosen: the fastest", Comparison(1.0, 2e-7), Speed(0.001, 2500.0, 4), 2**20, FAST
)
LOST = CandidateResult(
    "ONNX Runtime int8 (static), 2 threads", "int8", "static", "agrees on 80 % <of> the samples", Comparison(0.8, 0.3)
)
ORIGINAL = CandidateResult("net & co, as it is (torch)", "fp32", "", "the original", Comparison(1.0, 0.0), Speed(0.004, 250.0, 1))
TRIED = (
    TriedFile(FAST.title, "fp32", 0.001, Comparison(1.0, 2e-7), passed=True),
    TriedFile(LOST.title, "int8", 0.0005, Comparison(0.8, 0.3), passed=False),
)
REPORT = OptimizationReport(
    SearchResult("net & co", "torch", CHOSEN, (CHOSEN, LOST), ORIGINAL, "top1", 24, AnswerGate(), ("a <note>",), TRIED)
)


def test_the_table_has_every_candidate_and_the_reason() -> None:
    text = str(REPORT)
    assert "net & co runs in OpenVINO fp32, 2 threads, 4.00x as fast as the original." in text
    for part in ("1 ms", "2,500", "100 %", "2.0e-07", "1 MiB", "agrees on 80 % <of> the samples", "a <note>", "24 samples"):
        assert part in text


def test_the_page_needs_nothing_from_outside_and_escapes_what_it_shows(tmp_path: Path) -> None:
    page = REPORT.save(tmp_path / "engine.html").read_text()
    assert "http" not in page.replace("http-equiv", "")
    assert "80 % &lt;of&gt; the samples" in page
    assert "a &lt;note&gt;" in page


def test_the_picture_has_every_candidate(tmp_path: Path) -> None:
    page = REPORT.save(tmp_path / "engine.html").read_text()
    picture = page[page.index('<ul class="candidates') : page.index("</ul>")]
    assert picture.count('class="bar"') == 4  # latency and throughput, of what was measured
    for part in (CHOSEN.title, LOST.title, "net &amp; co, as it is (torch)", "1 ms", "2,500 at batch 4"):
        assert part in picture
    assert "not measured" in picture
    assert "agrees on 80 % &lt;of&gt; the samples" in picture  # why it lost
    for part in ("80 %", "1 MiB", "3.0e-01"):
        assert part in page[page.index("<table") :]


def test_a_narrow_terminal_has_every_figure_the_reason_and_the_way() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(REPORT)
    text = " ".join(out.getvalue().split())
    assert max(map(len, out.getvalue().splitlines())) <= 80
    for part in ("2,500", "2.0e-07", "1 MiB", "agrees on 80 % <of> the samples (static)", "chosen: the fastest (ONNX)"):
        assert part in text


def test_the_search_is_drawn_with_what_did_not_pass(tmp_path: Path) -> None:
    page = REPORT.save(tmp_path / "engine.html").read_text()
    picture = page[page.index('<figure class="search') : page.index("</figure>")]
    assert (picture.count('class="passed"'), picture.count('class="failed"')) == (1, 1)
    assert "asked for</text>" in picture
    assert "ONNX Runtime int8 (static), 2 threads: 500 µs, agrees on 80 %, does not pass" in picture
    alone = OptimizationReport(replace(REPORT.result, tried=TRIED[:1])).save(tmp_path / "alone.html").read_text()
    assert "<figure" not in alone


def test_the_report_says_the_interval_and_what_is_lost() -> None:
    interval = wilson_interval(1.0, 24)
    counted = replace(CHOSEN, comparison=Comparison(1.0, 2e-7, interval=interval, num_answers=24))
    text = " ".join(str(OptimizationReport(replace(REPORT.result, chosen=counted))).split())
    assert "99 % asked for; the chosen one's true agreement is 86.2 to 100 % at 95 %" in text
    lost = MetricDrop("accuracy", 0.9, 0.895, Interval(-0.002, 0.012))
    judged = replace(CHOSEN, comparison=Comparison(0.97, 2e-7, metric_drop=lost))
    text = " ".join(str(OptimizationReport(replace(REPORT.result, chosen=judged, gate=AnswerGate(max_drop=0.005)))).split())
    assert "Accuracy goes from 90 % to 89.5 %, a drop of -0.2 to 1.2 points at 95 %; at most 0.5 points were asked for." in text


def test_one_sample_is_not_called_samples() -> None:
    assert "on 1 sample, 99 %" in " ".join(str(OptimizationReport(replace(REPORT.result, num_samples=1))).split())


def test_a_page_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=r"end it with \.html"):
        REPORT.save(tmp_path / "engine.png")


def test_json_has_the_same_figures() -> None:
    found = REPORT.to_json()
    assert found["speedup"] == 4
    assert [each["agreement"] for each in found["candidates"]] == [1.0, 0.8]


def test_progress_is_plain_lines_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    with show_progress(Console(file=out)) as tell:
        tell("exporting [x]")
        tell("measuring")
    assert [line.split("s  ")[1] for line in out.getvalue().splitlines()] == ["exporting [x]", "measuring"]
