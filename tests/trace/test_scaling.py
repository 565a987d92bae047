"""Sizes that were not captured, from two that were."""

from dataclasses import replace

import pytest

from tensorferry import BadTrace
from tensorferry.trace import make_chain_trace
from tensorferry.trace.scaling import interpolate, keep_small, same_ops


def _chain(nbytes: int):
    return make_chain_trace(4, activation_nbytes=nbytes, varied=False)


def test_sizes_grow_along_a_straight_line() -> None:
    small, large, larger = _chain(1_000_000), _chain(2_000_000), _chain(5_000_000)
    found = interpolate(small, large, 4.0)
    assert [storage.nbytes for storage in found.storages] == [storage.nbytes for storage in larger.storages]
    assert [op.workspace_nbytes for op in found.ops] == [op.workspace_nbytes for op in larger.ops]
    assert found.plain_peak_nbytes == larger.plain_peak_nbytes


def test_a_workspace_below_zero_grows_as_well() -> None:
    """An op that writes into its input's buffer holds less than its storages."""
    small, large, larger = (
        replace(trace, ops=tuple(replace(op, workspace_nbytes=-nbytes) for op in trace.ops))
        for nbytes, trace in ((n, _chain(n)) for n in (1_000_000, 2_000_000, 5_000_000))
    )
    assert interpolate(small, large, 4.0).plain_peak_nbytes == larger.plain_peak_nbytes


def test_between_zero_and_one_lies_the_way_from_the_first_to_the_second() -> None:
    small, large = _chain(1_000_000), _chain(2_000_000)
    assert interpolate(small, large, 0.0).storages == small.storages
    assert interpolate(small, large, 1.0).storages == large.storages


def test_steps_with_other_ops_cannot_be_interpolated() -> None:
    assert not same_ops(make_chain_trace(3), make_chain_trace(4))
    with pytest.raises(BadTrace, match="other ops"):
        interpolate(make_chain_trace(3), make_chain_trace(4), 0.5)


def test_small_storages_stay() -> None:
    trace = make_chain_trace(6)
    sizes = sorted(trace.storages[s].nbytes for s in trace.movable)
    kept = keep_small(trace, sizes[3])
    assert sorted(kept.storages[s].nbytes for s in kept.movable) == sizes[3:]
    assert kept.plain_peak_nbytes == trace.plain_peak_nbytes
