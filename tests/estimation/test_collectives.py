"""What collectives cost: properties that hold for any network, and sizes that can be worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorferry.estimation.collectives import (
    ClusterLinks,
    RankGroup,
    all_reduce_seconds,
    gather_seconds,
    make_links,
    place_group,
    send_seconds,
)
from tensorferry.machine import find_network

LINKS = ClusterLinks(8, 200e9, 4e-6, 180e9, 14e-6)
rates = st.floats(1e8, 1e13)
latencies = st.floats(0, 1e-3)
links = st.builds(ClusterLinks, st.sampled_from([1, 2, 4, 8, 16]), rates, latencies, rates, latencies)
groups = st.builds(lambda nodes, ranks: RankGroup(nodes * ranks, ranks), st.integers(1, 600), st.sampled_from([1, 2, 4, 8]))
sizes = st.floats(0, 1e12)


@given(sizes, groups, links, st.floats(1, 100))
def test_more_bandwidth_is_never_slower(nbytes: float, group: RankGroup, slow: ClusterLinks, factor: float) -> None:
    for field in ("inside_nbytes_per_second", "node_nbytes_per_second"):
        fast = replace(slow, **{field: factor * getattr(slow, field)})
        for cost in (all_reduce_seconds, gather_seconds):
            assert cost(nbytes, group, fast) <= cost(nbytes, group, slow) * (1 + 1e-12)


@given(sizes, links, groups, st.floats(1, 10))
def test_more_bytes_are_never_faster(nbytes: float, given_links: ClusterLinks, group: RankGroup, factor: float) -> None:
    for cost in (all_reduce_seconds, gather_seconds):
        assert cost(factor * nbytes, group, given_links) >= cost(nbytes, group, given_links) * (1 - 1e-12)


@given(sizes, links)
def test_one_gpu_has_no_communication(nbytes: float, given_links: ClusterLinks) -> None:
    alone = RankGroup(1, 1)
    assert all_reduce_seconds(nbytes, alone, given_links) == gather_seconds(nbytes, alone, given_links) == 0


def test_a_ring_in_a_node_sends_twice_all_but_one_share() -> None:
    seconds = all_reduce_seconds(8e9, RankGroup(8, 8), LINKS)
    assert seconds == pytest.approx(2 * 7 * 4e-6 + 2 * 7e9 / 200e9)


def test_large_messages_take_the_ring_and_small_ones_the_tree() -> None:
    wide = RankGroup(512, 1)
    one_port = replace(LINKS, gpus_per_node=1, node_nbytes_per_second=25e9)
    large = all_reduce_seconds(1e11, wide, one_port)
    assert large == pytest.approx(2 * 511 / 512 * 1e11 / 25e9 + 2 * 511 * 14e-6)
    small = all_reduce_seconds(1e3, wide, one_port)
    assert small == pytest.approx(2 * 1e3 / 25e9 + 2 * 9 * 14e-6)


def test_groups_share_the_ports_of_their_nodes() -> None:
    whole = all_reduce_seconds(1e9, RankGroup(64, 8), LINKS)
    eighth = all_reduce_seconds(1e9, RankGroup(8, 1), LINKS)  # eight such groups at once, one GPU of each on every node
    assert eighth > 7 * whole


def test_groups_are_placed_by_their_stride() -> None:
    assert place_group(8, 1, 8) == RankGroup(8, 8)
    assert place_group(64, 8, 8) == RankGroup(64, 1)
    assert place_group(64, 8, 16) == RankGroup(64, 2)
    assert place_group(4, 2, 8) == RankGroup(4, 4)


def test_a_neighbour_on_another_node_is_reached_over_the_ports() -> None:
    assert send_seconds(1e9, 1, LINKS) == pytest.approx(1e9 / 200e9 + 4e-6)
    assert send_seconds(1e9, 8, LINKS) == pytest.approx(8e9 / 180e9 + 14e-6)


def test_links_are_what_collectives_reach_of_the_table() -> None:
    found = make_links(find_network("nvlink3"), find_network("4xib-hdr"), 8)
    assert found.node_nbytes_per_second == pytest.approx(4 * 25e9 * 0.9)
    assert make_links(find_network("nvlink3"), find_network("ib-hdr"), 8).node_nbytes_per_second == pytest.approx(8 * 25e9 * 0.9)
