"""The memory benchmark: its search, its verdicts, and a small real run."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capped import CappedResult, largest
from measure import Measurement, combine, measure
from tables import make_capped_table, make_table
from targets import judge, judge_below, judge_capped, target_budget
from trainings import Case, Request, parse_model

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "memory.py"
BITS = {"losses": "a", "gradients": "b", "parameters": "c", "buffers": "d"}
CASE = Case("resnet50", 32)
PLAIN = Measurement(Request(CASE, "plain"), "trained", peak_nbytes=1000, cpu_seconds=10.0, wall_seconds=5.0, digests=BITS)
FIGURES = {"predicted_peak_nbytes": 490, "predicted_step_seconds": 5.5}
HALF = replace(PLAIN, request=Request(CASE, "ferry", 500), peak_nbytes=495, cpu_seconds=10.9, wall_seconds=5.6, ferry=FIGURES)
CAPPED = ((("unet", 64), (64, 88)), (("gpt", 4), (4, 28)))


@given(limit=st.integers(1, 120), start=st.integers(1, 40))
def test_the_largest_size_that_fits_is_found(limit: int, start: int) -> None:
    assert largest(lambda size: size <= limit, start, step=1) == min(limit, start * 16)


@given(limit=st.integers(8, 400), start=st.integers(1, 12))
def test_sizes_come_in_steps(limit: int, start: int) -> None:
    assert largest(lambda size: size % 8 == 0 and size <= limit, start * 8, step=8) == min(limit // 8 * 8, start * 8 * 16)


def test_where_nothing_fits_the_largest_size_is_zero() -> None:
    assert largest(lambda size: False, start=8, step=1) == 0


def test_a_run_that_reaches_every_target_passes() -> None:
    verdicts = list(judge({"plain": PLAIN, "checkpoint": replace(PLAIN, cpu_seconds=13.0), "half": HALF}))
    assert len(verdicts) == 6
    assert all(verdict.passed for verdict in verdicts)


@pytest.mark.parametrize(
    ("change", "figure"),
    [
        ({"peak_nbytes": 501}, "half: peak over budget"),
        ({"digests": BITS | {"buffers": "e"}}, "half: bits"),
        ({"cpu_seconds": 11.1}, "half: CPU seconds over plain"),
        ({"ferry": FIGURES | {"predicted_peak_nbytes": 400}}, "half: simulated peak off by"),
        ({"ferry": FIGURES | {"predicted_step_seconds": 9.0}}, "half: simulated seconds off by"),
        ({"outcome": "refused"}, "half: trains"),
    ],
)
def test_a_missed_target_is_named(change: dict, figure: str) -> None:
    missed = [verdict.figure for verdict in judge({"plain": PLAIN, "half": replace(HALF, **change)}) if not verdict.passed]
    assert missed == [figure]


def _in_turns(row: Measurement, *cpu_seconds: float) -> Measurement:
    return combine([replace(row, cpu_seconds=seconds) for seconds in cpu_seconds])


def test_costs_are_compared_within_a_turn() -> None:
    # the machine was half as fast in the second turn: the ratio of the medians would be 1.5
    assert _in_turns(HALF, 11, 21, 15).cpu_ratios(_in_turns(PLAIN, 10, 20, 10)) == [1.1, 1.05, 1.5]
    assert HALF.cpu_ratios(PLAIN) == [pytest.approx(1.09)]
    assert _in_turns(HALF, 11).cpu_ratios(_in_turns(PLAIN, 10, 20)) == [1.1]


def test_the_median_of_the_turns_is_judged() -> None:
    rows = {"plain": _in_turns(PLAIN, 10, 20, 10), "half": _in_turns(HALF, 10.5, 21, 15)}
    verdicts = {v.figure: v for v in judge(rows)}
    cost = verdicts["half: CPU seconds over plain"]
    assert (cost.measured, cost.passed) == ("1.05x (1.05-1.50)", True)


def test_a_table_shows_the_spread_of_the_turns_and_why_a_training_failed() -> None:
    refused = replace(HALF, outcome="refused")
    rows = {"plain": _in_turns(PLAIN, 10, 20, 10), "half": _in_turns(HALF, 10.5, 21, 15), "third": refused}
    plain, half, third = make_table({CASE: rows}).rows
    assert "1.05x (1.05-1.50)" in half
    assert not any("x" in cell for cell in plain[2:])
    assert third[-1] == "refused"


def test_a_table_stands_where_plain_training_failed_in_a_later_turn() -> None:
    plain = combine([PLAIN, replace(PLAIN, outcome="out of memory", peak_nbytes=0, cpu_seconds=0.0)])
    table = make_table({CASE: {"plain": plain, "half": HALF}})
    assert [row[-1] for row in table.rows] == ["out of memory", "nothing to compare with"]


def test_a_table_of_caps_counts_in_the_models_own_units() -> None:
    caps = [CappedResult("torch", Case(*case), "process", 2**30, *sizes, ()) for case, sizes in CAPPED]
    assert [row[3:] for row in make_capped_table(caps).rows] == [("voxels", "64³", "88³", "2.6x"), ("texts", "4", "28", "7.0x")]


def test_a_unet_in_channels_last_is_held_against_the_default_layout() -> None:
    case = Case("unet", 96, channels_last=True)
    plain = replace(PLAIN, request=Request(case, "plain"), peak_nbytes=800)
    smallest = replace(HALF, request=Request(case, "ferry", 390), peak_nbytes=390, ferry={})
    verdicts = {v.figure: v for v in judge({"plain": plain, "smallest": smallest}, default_layout_plain=PLAIN)}
    assert verdicts["smallest budget over plain in the default layout"].measured == "0.39"


KERAS_PLAIN = replace(PLAIN, request=replace(PLAIN.request, engine="tensorflow"), allocator_nbytes=800)
KERAS_HALF = replace(HALF, request=replace(HALF.request, engine="tensorflow"), allocator_nbytes=480, cpu_seconds=11.4)


def test_the_engines_have_targets_of_their_own() -> None:
    verdicts = {v.figure: v for v in judge({"plain": KERAS_PLAIN, "half": KERAS_HALF})}
    assert all(verdict.passed for verdict in verdicts.values())
    assert verdicts["half: CPU seconds over plain"].target == "<= 1.15"
    assert "half: simulated seconds off by" not in verdicts


@pytest.mark.parametrize(
    ("change", "figure"),
    [
        ({"allocator_nbytes": 501}, "half: allocator's peak over budget"),
        ({"peak_nbytes": 501}, "half: peak over budget"),
    ],
)
def test_neither_the_allocator_nor_the_process_may_pass_the_budget(change: dict, figure: str) -> None:
    missed = [v.figure for v in judge({"plain": KERAS_PLAIN, "half": replace(KERAS_HALF, ferry={}, **change)}) if not v.passed]
    assert missed == [figure]


def test_the_smallest_peak_is_the_allocators_where_it_counts() -> None:
    smallest = replace(KERAS_HALF, allocator_nbytes=240, ferry={})
    verdicts = {v.figure: v for v in judge({"plain": KERAS_PLAIN, "smallest": smallest})}
    assert verdicts["smallest peak of the allocator over plain"].measured == "0.30"


def test_more_under_the_cap_counts_voxels_not_edges() -> None:
    result = CappedResult("torch", Case("unet", 64), "process", 1, plain_size=64, ferry_size=88, attempts=())
    assert [verdict.measured for verdict in judge_capped(result)] == ["2.6x (64 -> 88)"]


def test_a_model_without_a_target_gets_no_verdict() -> None:
    result = CappedResult("tensorflow", Case("googlenet", 8), "allocator", 1, plain_size=8, ferry_size=9, attempts=())
    assert list(judge_capped(result)) == []


def test_a_name_may_give_the_size() -> None:
    assert parse_model("resnet50-16") == Case("resnet50", 16)
    assert [parse_model(name).name for name in ("unet96", "resnet50", "resnet50-16")] == ["unet96", "resnet50", "resnet50-16"]


@pytest.mark.parametrize("name", ["unet50", "unet", "unet0", "vgg", "", "resnet50-", "resnet50-0", "resnet50-x", "resnet50-1-2"])
def test_an_unknown_model_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown model|multiple of 8"):
        parse_model(name)


def test_a_small_run_compares_bits_and_writes_its_figures(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = [
        "--quick",
        "--models",
        "gpt",
        "--precision",
        "fp32",
        "--modes",
        "plain,checkpoint",
        "--steps",
        "2",
        "--turns",
        "2",
        "--save",
        str(figures),
    ]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    plain, checkpoint = json.loads(figures.read_text())["figures"]["rows"]
    assert (plain["mode"], checkpoint["mode"]) == ("plain", "checkpoint")
    assert plain["outcome"] == checkpoint["outcome"] == "trained"
    assert plain["digests"] == checkpoint["digests"]
    assert plain["cpu_seconds"] > 0
    assert len(plain["turn_cpu_seconds"]) == len(checkpoint["turn_cpu_seconds"]) == len(checkpoint["cpu_ratios"]) == 2
    assert 2**20 < plain["peak_nbytes"] < 2**30
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]


def test_a_keras_model_is_measured_with_and_without_ferry() -> None:
    request = Request(parse_model("unet48", quick=True), "plain", num_steps=3, engine="tensorflow")
    plain, ferried = measure(request), measure(replace(request, mode="ferry", budget_nbytes=2**28))
    assert plain.trained, plain.message
    assert ferried.trained, ferried.message
    assert ferried.differing_parts(plain) == []
    assert set(plain.digests) == {"losses", "parameters", "buffers", "optimizer"}
    assert plain.allocator_nbytes is not None
    assert 2**20 < plain.allocator_nbytes < plain.peak_nbytes
    assert "predicted_peak_nbytes" in ferried.ferry


@pytest.mark.parametrize(
    "options",
    [
        ["--models", "vgg"],
        ["--precision", "fp8"],
        ["--modes", "swap"],
        ["--cap-sizes", "unet=big"],
        ["--steps", "1"],
        ["--engine", "tensorflow", "--modes", "checkpoint"],
        ["--engine", "tensorflow", "--channels-last"],
        ["--engine", "tensorflow", "--models", "gpt"],
        ["--models", "googlenet"],
        ["--cap", "allocator"],
    ],
)
def test_a_wrong_option_ends_with_code_2(options: list[str]) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def _below(case: Case, budget: int, cpu_seconds: float, **fields: Any) -> dict[str, bool]:
    """The verdicts on a training below the smallest exact budget, by what they are about."""
    plain = replace(PLAIN, request=Request(case, "plain"), peak_nbytes=1000)
    request = Request(case, "ferry", budget, weights=fields.pop("weights", False))
    row = replace(plain, request=request, peak_nbytes=budget, cpu_seconds=cpu_seconds, **fields)
    return {verdict.figure.split(": ")[1]: verdict.passed for verdict in judge_below({"plain": plain, "target": row})}


def test_a_streamed_training_is_judged_by_its_budget_and_its_cost() -> None:
    unet = parse_model("unet96")
    assert _below(unet, 150, 14.9) == {"peak over budget": True, "budget over plain": True, "CPU seconds over plain": True}
    assert not _below(unet, 160, 14.9)["budget over plain"]
    assert not _below(unet, 150, 15.1)["CPU seconds over plain"]


def test_moving_weights_are_judged_by_bits_cost_and_disk() -> None:
    gpt = parse_model("gpt350m")
    good = _below(gpt, 2**30, 15.9, weights=True, num_parameters=100, disk_nbytes=2900)
    assert good == dict.fromkeys(("peak over budget", "CPU seconds over plain", "bits", "disk bytes a parameter and step"), True)
    bad = _below(gpt, 2**30, 16.1, weights=True, num_parameters=100, disk_nbytes=3100, digests={"losses": "other"})
    assert [name for name, passed in bad.items() if passed] == ["peak over budget"]


def test_the_budget_that_is_promised_is_a_share_of_plain_or_a_number_of_bytes() -> None:
    assert target_budget(parse_model("unet96"), 1000) == 150
    assert target_budget(parse_model("gpt50k"), 1000) == 100
    assert target_budget(parse_model("gpt350m"), 1000) == 2**30


def test_weights_move_from_a_file_in_the_toy_of_the_benchmark() -> None:
    request = Request(parse_model("gpt350m", quick=True), "plain", num_steps=3, weights=True)
    plain, moved = measure(request), measure(replace(request, mode="ferry", budget_nbytes=96 * 2**20))
    assert moved.trained, moved.message
    assert not moved.differing_parts(plain)
    assert moved.num_parameters == plain.num_parameters > 0
