"""Steps on a cluster, from profiles made up of numbers: what must hold whatever the model."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorferry.estimation.cluster_step import ClusterSettings, cost_step, hold
from tensorferry.estimation.collectives import ClusterLinks
from tensorferry.estimation.profile import Piece, StepProfile
from tensorferry.estimation.split import ClusterSplit

LINKS = ClusterLinks(8, 200e9, 4e-6, 180e9, 14e-6)
LAYER = Piece(0.01, 0.02, 0.001, 400e6, 800e6, 1e9)
EMBEDDING = Piece(optimizer_seconds=0.001, weight_nbytes=200e6, state_nbytes=400e6)
HEAD = Piece(0.005, 0.01, activation_nbytes=0.5e9)
PROFILE = StepProfile((EMBEDDING, *[LAYER] * 8, HEAD), micro_batch=4, num_layers=8, boundary_nbytes=50e6)

powers = st.sampled_from([1, 2, 4, 8])
splits = st.builds(ClusterSplit, st.sampled_from([1, 2, 8, 64]), st.sampled_from([1, 2, 8, 32]), powers, powers)
links = st.builds(ClusterLinks, st.just(8), st.floats(1e9, 1e12), st.floats(0, 1e-4), st.floats(1e9, 1e12), st.floats(0, 1e-4))
settings = st.builds(
    ClusterSettings,
    splits,
    links,
    st.integers(1, 64),
    reduced_share=st.sampled_from([0.5, 1.0]),
    recompute=st.booleans(),
    overlap=st.booleans(),
)


@given(settings, st.floats(1, 50))
def test_faster_links_never_make_a_step_slower(given_settings: ClusterSettings, factor: float) -> None:
    slow = given_settings.links
    fast = replace(
        slow,
        inside_nbytes_per_second=factor * slow.inside_nbytes_per_second,
        node_nbytes_per_second=factor * slow.node_nbytes_per_second,
    )
    before, after = (cost_step(PROFILE, replace(given_settings, links=each)).seconds for each in (slow, fast))
    assert after <= before * (1 + 1e-9)


@given(st.integers(1, 64), st.booleans(), links)
def test_one_gpu_computes_and_waits_for_nothing(num_micro_batches: int, recompute: bool, given_links: ClusterLinks) -> None:
    step = cost_step(PROFILE, ClusterSettings(ClusterSplit(), given_links, num_micro_batches, recompute=recompute))
    waits = (step.tensor_seconds, step.weights_seconds, step.pipeline_seconds, step.gradient_seconds, step.straggler_seconds)
    assert waits == (0, 0, 0, 0, 0)
    total = PROFILE.total
    again = 8 * LAYER.forward_seconds if recompute else 0
    assert step.compute_seconds == pytest.approx(num_micro_batches * (total.forward_seconds + total.backward_seconds + again))


@given(settings, st.sampled_from([2, 4, 16]))
def test_no_cluster_is_more_than_its_gpus(given_settings: ClusterSettings, growth: int) -> None:
    """More replicas with the same micro-batches each: throughput a GPU does not rise."""
    # sharded optimizers do less each on more GPUs, and a pipeline's neighbours may come to sit behind other links
    split = replace(given_settings.split, fsdp=1, pipeline=1)
    few, many = (replace(given_settings, split=replace(split, data=num * split.data)) for num in (1, growth))
    assert cost_step(PROFILE, many).seconds >= cost_step(PROFILE, few).seconds * (1 - 1e-9)


@given(settings, st.sampled_from([2, 4, 8]))
def test_memory_falls_with_fsdp(given_settings: ClusterSettings, growth: int) -> None:
    split = replace(given_settings.split, pipeline=1)
    few, many = (replace(given_settings, split=replace(split, fsdp=2 * num * split.fsdp)) for num in (1, growth))
    before, after = (hold(PROFILE, each, is_mixed=False) for each in (few, many))
    assert after.state_nbytes < before.state_nbytes
    assert after.total_nbytes < before.total_nbytes


def test_fsdp_holds_less_than_copies() -> None:
    copies = hold(PROFILE, ClusterSettings(ClusterSplit(data=8), LINKS), is_mixed=False)
    shards = hold(PROFILE, ClusterSettings(ClusterSplit(fsdp=8), LINKS), is_mixed=False)
    assert shards.state_nbytes == pytest.approx(copies.state_nbytes / 8)
    assert shards.total_nbytes < copies.total_nbytes
    assert shards.activation_nbytes == copies.activation_nbytes


def test_gradients_hide_behind_backward_but_for_the_last_bucket() -> None:
    hidden = cost_step(PROFILE, ClusterSettings(ClusterSplit(data=64), LINKS))
    exposed = cost_step(PROFILE, ClusterSettings(ClusterSplit(data=64), LINKS, overlap=False))
    assert 0 < hidden.gradient_seconds < exposed.gradient_seconds / 4


def test_accumulation_spreads_what_a_step_pays_once() -> None:
    once, often = (cost_step(PROFILE, ClusterSettings(ClusterSplit(data=64), LINKS, num)) for num in (1, 16))
    assert often.gradient_seconds == pytest.approx(once.gradient_seconds)
    assert often.seconds < 16 * once.seconds


def test_the_bubble_shrinks_with_micro_batches_and_interleave() -> None:
    def share(num: int, interleave: int) -> float:
        step = cost_step(PROFILE, ClusterSettings(ClusterSplit(pipeline=4), LINKS, num, interleave))
        return step.pipeline_seconds / step.seconds

    assert share(4, 1) > share(16, 1) > share(64, 1)
    assert share(16, 2) < share(16, 1)


def test_a_bubble_without_traffic_is_the_textbooks() -> None:
    free = ClusterLinks(8, 1e18, 0, 1e18, 0)
    alike = StepProfile((Piece(), *[LAYER] * 8, Piece()), 4, 8, 50e6)
    step = cost_step(alike, ClusterSettings(ClusterSplit(pipeline=4), free, 16))
    assert step.pipeline_seconds == pytest.approx(step.compute_seconds * 3 / 16, rel=1e-6)


def test_recomputing_holds_less_and_takes_longer() -> None:
    plain, again = (ClusterSettings(ClusterSplit(), LINKS, recompute=recompute) for recompute in (False, True))
    assert hold(PROFILE, again, is_mixed=False).activation_nbytes < hold(PROFILE, plain, is_mixed=False).activation_nbytes / 2
    assert cost_step(PROFILE, again).seconds > cost_step(PROFILE, plain).seconds


@given(settings)
def test_parts_and_spans_are_never_negative(given_settings: ClusterSettings) -> None:
    step = cost_step(PROFILE, given_settings)
    parts = [getattr(step, name) for name in step.__dataclass_fields__ if name.endswith("seconds")]
    assert min(parts) >= 0
    assert all(span.start >= 0 and span.seconds >= 0 for span in step.spans)
