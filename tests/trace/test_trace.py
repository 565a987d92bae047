"""Traces as data."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorferry.errors import BadTrace
from tensorferry.trace import Kind, Op, Phase, Storage, Trace, make_chain_trace


def storage(**fields: Any) -> Storage:
    return Storage(**{"nbytes": 8, "kind": Kind.ACTIVATION, "writers": (0,), "uses": (1,), "freed_after": 5} | fields)


def test_a_saved_trace_is_loaded_equal(tmp_path: Path) -> None:
    trace = make_chain_trace(3)
    trace.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == trace


def test_a_storage_is_movable_when_at_least_one_op_runs_in_its_gap() -> None:
    assert not storage().movable
    assert not storage(idle_after=2, wanted_at=3).movable
    assert storage(idle_after=2, wanted_at=4).movable


def test_a_storage_that_is_read_before_it_is_written_was_there() -> None:
    assert storage(writers=()).was_there
    assert storage(writers=(3,), uses=(1, 3)).was_there
    assert storage(writers=(1,), uses=(1, 3)).was_there  # written in place
    assert not storage(writers=(1, 3), uses=(2, 3)).was_there
    assert not storage(writers=(1,), uses=()).was_there
    assert storage(writers=(3,), uses=(1, 3)).born_at == 0
    assert storage(writers=(3,), uses=(4,)).born_at == 3


def test_resident_bytes_count_what_lives_workspace_and_overhead() -> None:
    ops = tuple(Op(f"op {i}", Phase.FORWARD, 0.5, (), (), workspace_nbytes=100 * (i == 1)) for i in range(3))
    storages = (
        storage(nbytes=1, writers=(), uses=(), freed_after=None),
        storage(nbytes=2, writers=(0,), uses=(1,), freed_after=1),
        storage(nbytes=4, writers=(2,), uses=(), freed_after=None),
    )
    trace = Trace(ops, storages, overhead_nbytes=1000)
    assert trace.plain_resident.tolist() == [1003, 1103, 1005]
    assert trace.plain_peak_nbytes == 1103
    assert trace.seconds == 1.5


def test_a_printed_trace_tells_its_size_its_peak_and_where_that_is() -> None:
    lines = str(make_chain_trace(4, varied=False)).splitlines()
    assert lines[0] == "trace of 28 ops, 32 storages, 7 of them movable (none on none, not run)"
    assert lines[1] == "  plain peak 324 MiB, step 43.5 ms, movable 224 MiB"
    assert "  parameter       4 storages      4 MiB" in lines
    assert lines[-1] == "  the peak is at op 11, relu 3 (forward)"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "3", "null", '{"format": "tensorferry-trace-0"}', '{"format": "tensorferry-trace-1"}']
)
def test_a_file_that_is_no_trace_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(BadTrace):
        Trace.load(path)


def test_a_missing_or_binary_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="nowhere"):
        Trace.load(tmp_path / "nowhere.json")
    (tmp_path / "noise.json").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(BadTrace, match="noise"):
        Trace.load(tmp_path / "noise.json")


def test_another_format_is_named_and_what_to_do() -> None:
    with pytest.raises(BadTrace, match="expected a trace of format 'tensorferry-trace-1', received 'x'; capture it again"):
        Trace.from_json({"format": "x"})


def _drop_seconds(data: dict[str, Any]) -> None:
    del data["ops"][0]["seconds"]


def _add_a_field(data: dict[str, Any]) -> None:
    data["storages"][0]["colour"] = "red"


def _spoil_a_kind(data: dict[str, Any]) -> None:
    data["storages"][0]["kind"] = "sandwich"


def _make_ops_a_number(data: dict[str, Any]) -> None:
    data["ops"] = 7


def _read_an_unknown_storage(data: dict[str, Any]) -> None:
    data["ops"][0]["inputs"] = [10**6]


def _free_before_birth(data: dict[str, Any]) -> None:
    data["storages"][-1]["freed_after"] = 0


def _use_after_the_end(data: dict[str, Any]) -> None:
    data["storages"][-1]["uses"] = [10**6]


@pytest.mark.parametrize(
    "damage",
    [
        _drop_seconds,
        _add_a_field,
        _spoil_a_kind,
        _make_ops_a_number,
        _read_an_unknown_storage,
        _free_before_birth,
        _use_after_the_end,
    ],
)
def test_a_damaged_trace_is_refused(damage: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(json.dumps(make_chain_trace(3).to_json()))
    assert Trace.from_json(data) == make_chain_trace(3)
    damage(data)
    with pytest.raises(BadTrace):
        Trace.from_json(data)


def test_moments_out_of_order_are_named() -> None:
    trace = make_chain_trace(2)
    wrong = replace(trace.storages[-1], freed_after=1, label="late")
    with pytest.raises(BadTrace, match=r"\(late\) has moments out of order"):
        replace(trace, storages=(*trace.storages[:-1], wrong)).check()
