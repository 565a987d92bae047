"""Plans as data."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from small import plan_of, small_trace, swap

from tensorferry.errors import BadPlan
from tensorferry.plan import Action, Decision, Plan


@pytest.fixture
def plan() -> Plan:
    redo = Decision(7, Action.RECOMPUTE, 3 * 2**20, replay=(4, 5), sources=(2,))
    plan = plan_of(small_trace(), swap(1, swap_in_at=3, nbytes=2**20), redo, Decision(9, Action.KEEP, 2**21))
    return replace(
        plan, budget_nbytes=2**30, peak_nbytes=2**29, step_seconds=7.5, stall_seconds=0.5, floor_nbytes=2**28, floor_op=4
    )


def test_a_saved_plan_is_loaded_equal(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_bytes_are_added_up_by_action(plan: Plan) -> None:
    assert [plan.nbytes(action) for action in Action] == [2**21, 2**20, 3 * 2**20]


def test_a_printed_plan_tells_what_it_does_and_costs(plan: Plan) -> None:
    assert str(plan).splitlines() == [
        "plan for 1 GiB on small, tier tier",
        "  peak 512 MiB (plain 125 B), step 7.5 s (plain 6 s), stall 500 ms",
        "  keep            1 storages      2 MiB",
        "  swap            1 storages      1 MiB",
        "  recompute       1 storages      3 MiB",
        "  smallest budget 256 MiB, set by op 4",
    ]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        '{"format": "tensorferry-plan-0"}',
        '{"format": "tensorferry-plan-1"}',
        '{"format": "tensorferry-plan-2"}',
    ],
)
def test_a_file_that_is_no_plan_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(BadPlan):
        Plan.load(path)


def test_a_missing_or_binary_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(BadPlan, match="nowhere"):
        Plan.load(tmp_path / "nowhere.json")
    (tmp_path / "noise.json").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(BadPlan, match="noise"):
        Plan.load(tmp_path / "noise.json")


@pytest.mark.parametrize("field", ["action", "replay", "storage"])
def test_a_plan_with_a_damaged_decision_is_refused(plan: Plan, field: str) -> None:
    data = json.loads(json.dumps(plan.to_json()))
    data["decisions"][0].pop(field)
    with pytest.raises(BadPlan, match="damaged"):
        Plan.from_json(data)
    data["decisions"][0][field] = "burn"
    data["decisions"][0]["more"] = 1
    with pytest.raises(BadPlan, match="damaged"):
        Plan.from_json(data)
