"""The sentences of a report."""

from collections.abc import Callable
from dataclasses import replace

from tensorferry.report import Report
from tensorferry.report.chrome import chrome_trace
from tensorferry.report.page import html_page
from tensorferry.report.report import report_to_json
from tensorferry.report.summary import circumstances, extra_time, floor_sentence, process_sentence, verdict
from tensorferry.units import format_bytes


def test_a_run_within_the_budget_fits(report_of: Callable[..., Report]) -> None:
    assert verdict(report_of(measured_peak_nbytes=800 * 2**20)).startswith("Fits: 800 MiB of 1.65 GiB plain, at +")


def test_a_peak_over_the_budget_is_said_with_how_much(report_of: Callable[..., Report]) -> None:
    report = report_of(budget_nbytes=500 * 2**20, measured_peak_nbytes=512 * 2**20)
    assert verdict(report) == "Over budget: 512 MiB measured, 12 MiB over 500 MiB."


def test_a_peak_of_exactly_the_budget_fits(report_of: Callable[..., Report]) -> None:
    assert verdict(report_of(budget_nbytes=500, measured_peak_nbytes=500)).startswith("Fits: 500 B")


def test_a_plan_that_did_not_run_yet_is_called_planned(report_of: Callable[..., Report]) -> None:
    assert verdict(report_of(measured=None, measured_peak_nbytes=0)).startswith(
        "Planned, not measured yet: 826 MiB of 1.65 GiB plain"
    )


def test_extra_time_has_a_sign(report_of: Callable[..., Report]) -> None:
    report = report_of()
    assert report.plan is not None
    plain = report.plan.plain_seconds
    assert [extra_time(report, factor * plain) for factor in (1.04, 1.0, 0.97, 0.999)] == ["+4 %", "+0 %", "−3 %", "+0 %"]


def test_the_floor_is_told_without_a_trace_too(report_of: Callable[..., Report]) -> None:
    report = report_of(trace=None)
    assert floor_sentence(report) == f"Smallest budget 341 MiB, set by op {report.plan.floor_op}."  # type: ignore[union-attr]


def test_what_an_op_writes_in_place_is_not_counted_twice_in_the_floor(report_of: Callable[..., Report]) -> None:
    report = report_of()
    assert report.plan is not None
    assert report.trace is not None
    i = report.plan.floor_op
    op = report.trace.ops[i]
    held = sum(report.trace.storages[s].nbytes for s in {*op.inputs, *op.outputs})
    ops = (*report.trace.ops[:i], replace(op, workspace_nbytes=-(2**20)), *report.trace.ops[i + 1 :])
    sentence = floor_sentence(replace(report, trace=replace(report.trace, ops=ops)))
    assert sentence.endswith(f": {format_bytes(held - 2**20)} of inputs and outputs.")


def test_one_is_counted_in_the_singular(report_of: Callable[..., Report]) -> None:
    assert circumstances(report_of(num_steps=1, num_plans=1)).startswith("1 step · 1 plan · ")


def test_what_the_whole_process_held_is_told_wherever_a_report_is(report_of: Callable[..., Report]) -> None:
    assert process_sentence(report_of(process_peak_nbytes=0)) == ""
    report = report_of(process_peak_nbytes=900 * 2**20, tier="shm /dev/shm")
    assert process_sentence(report).endswith("a container needs more than that, and what waits in shared memory on top.")
    for shown in (" ".join(str(report).split()), html_page(report)):
        assert "The whole process held 900" in shown
    assert (
        report_to_json(report)["process_peak_nbytes"] == chrome_trace(report)["otherData"]["process_peak_nbytes"] == 900 * 2**20
    )
