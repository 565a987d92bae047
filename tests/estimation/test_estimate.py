"""Whole estimates of a small model: what fits, what it costs, how far it goes, and how that is shown."""

import json
from dataclasses import replace
from pathlib import Path

import headless
import pytest
from notebook import look_in_a_notebook
from parsed_page import Page

import tensorferry as ferry
from tensorferry.estimation import Estimate
from tensorferry.plan import Lane

NETS = f"{Path(__file__).with_name('nets.py')}:build"
INPUT = "16x3x64x64"


def _card(memory: str, link: str = "12GB/s") -> ferry.Machine:
    machine = ferry.find_machine("v100-16gb-pcie3", memory=memory, reserved="1MiB", link_out=link, link_in=link)
    return replace(machine, name=f"card with {memory}")


@pytest.fixture(scope="module")
def found() -> Estimate:
    """A card that holds the step, one that holds it with a plan, and one that does not."""
    return ferry.estimate(NETS, [_card("1GiB"), _card("40MiB"), _card("8MiB")], inputs=INPUT, loss="cross_entropy")


def test_a_large_card_holds_it_plain(found: Estimate) -> None:
    step = found.rows[0].step
    assert step.fits_plain
    assert step.plan is None
    assert step.overhead == 0
    assert step.step_seconds == step.trace.seconds > 0
    assert step.samples_per_second == pytest.approx(16 / step.trace.seconds)
    assert step.bottleneck == "compute"


def test_a_smaller_card_holds_it_with_a_plan(found: Estimate) -> None:
    step, machine = found.rows[1].step, found.rows[1].machine
    assert step.fits
    assert not step.fits_plain
    assert step.plan is not None
    assert step.timeline is not None
    assert step.plan.peak_nbytes <= machine.usable_nbytes < step.plain_peak_nbytes
    assert step.timeline.step_seconds == pytest.approx(step.plan.step_seconds)
    assert step.overhead > 0
    assert 0 < step.busy(Lane.COMPUTE) <= 1


DEEP = NETS.replace(":build", ":deep")


def test_a_card_too_small_for_weights_holds_it_where_they_move() -> None:
    card = _card("12MiB", link="1GB/s")
    stays, moves = (
        ferry.estimate(DEEP, card, inputs="4x512", loss="mean", optimizer="adamw", weights=weights) for weights in (False, True)
    )
    assert not stays.rows[0].step.fits
    step = moves.rows[0].step
    assert step.fits
    assert step.weights is not None
    assert step.plan is not None
    assert step.timeline is not None
    assert step.weights.window_nbytes <= step.plan.peak_nbytes <= card.usable_nbytes < step.weights.nbytes
    # weights come in for forward, backward and the update, gradients and two tensors of state for that; three of them go out
    num_weights = 8 * 512 * 512
    assert 4 * 3 * num_weights < step.weights.in_nbytes <= 4 * 6 * num_weights
    assert 4 * 2 * num_weights < step.weights.out_nbytes <= 4 * 4 * num_weights
    assert step.step_seconds >= step.weights.in_nbytes / 1e9 > step.timeline.step_seconds
    assert step.bottleneck == "link"
    assert step.busy(Lane.IN) == pytest.approx(1.0)
    assert "with pinned, weights in " in str(moves)
    assert moves.to_json()["rows"][0]["weights"]["in_nbytes"] == step.weights.in_nbytes


def test_a_card_too_small_for_the_widest_update_is_told_what_would_do_where_weights_move() -> None:
    stays, moves = (
        ferry.estimate(DEEP, _card("2MiB"), inputs="4x512", loss="mean", optimizer="adamw", weights=weights).rows[0].step
        for weights in (False, True)
    )
    assert not moves.fits
    assert moves.smallest_nbytes is not None
    assert stays.smallest_nbytes is not None
    assert 3 * 4 * 512 * 512 < moves.smallest_nbytes < stays.smallest_nbytes


def test_a_cpu_below_the_floor_is_told_what_would_do_slab_by_slab() -> None:
    machine = replace(_card("60MiB"), kind="cpu")
    found = ferry.estimate(NETS, machine, inputs="64x3x128x128", loss="cross_entropy", stream=True)
    step = found.rows[0].step
    assert step.smallest_nbytes is not None
    assert step.streamed_nbytes is not None
    assert step.streamed_nbytes < step.smallest_nbytes
    assert " streamed" in str(found)
    assert found.to_json()["rows"][0]["streamed_nbytes"] == step.streamed_nbytes


def test_a_card_below_the_floor_is_told_what_would_do(found: Estimate) -> None:
    step = found.rows[2].step
    assert not step.fits
    assert step.smallest_nbytes is not None
    assert 8 * 2**20 < step.smallest_nbytes < step.plain_peak_nbytes
    assert step.bottleneck == "memory"


def test_the_table_has_a_row_a_machine(found: Estimate) -> None:
    lines = str(found).splitlines()
    assert INPUT in lines[0]
    rows = {name: next(line for line in lines if name in line) for name in ("1GiB", "40MiB", "8MiB")}
    assert "plain" in rows["1GiB"]
    assert "with pinned" in rows["40MiB"]
    assert "no, needs" in rows["8MiB"]


def test_as_json_it_has_numbers_with_units_in_their_names(found: Estimate) -> None:
    data = json.loads(json.dumps(found.to_json()))
    plain, planned, none = data["rows"]
    assert plain["fits_plain"]
    assert plain["plan"] is None
    assert planned["plan"]["swap_nbytes"] + planned["plan"]["recompute_nbytes"] > 0
    assert planned["step_seconds"] > planned["plain_seconds"]
    assert none["step_seconds"] is None
    assert none["smallest_nbytes"] > none["machine"]["usable_nbytes"]


def test_the_page_shows_a_timeline_for_every_machine_that_trains_it(found: Estimate, tmp_path: Path) -> None:
    text = found.save(tmp_path / "page.html").read_text()
    assert text.count('<section class="panel"') == 2
    assert "card with 8MiB" in text
    assert "http-equiv" in text
    with pytest.raises(ferry.BadOption, match=r"end it with \.html"):
        found.save(tmp_path / "page.pdf")


def test_a_notebook_shows_the_table_of_machines(found: Estimate) -> None:
    page = Page(found._repr_html_())
    assert page.tags["table"] == 1
    assert page.tags["tr"] == 1 + len(found.rows)
    assert not {"script", "h1", "h2", "html"} & page.tags.keys()
    for row in found.rows:
        assert row.machine.name in page.text


@pytest.mark.browser
@headless.MARKS[1]
def test_the_table_in_a_notebook_keeps_its_own_style(found: Estimate, tmp_path: Path) -> None:
    seen = look_in_a_notebook(found._repr_html_(), tmp_path)
    assert seen["errors"] == []
    assert seen["unchanged"]
    assert seen["row"] == "rgba(0, 0, 0, 0)"
    assert seen["first"] == "left"
    assert seen["wide"]


def test_a_notebook_shows_how_far_it_can_go() -> None:
    page = Page(ferry.estimate(NETS, _card("40MiB"), inputs=INPUT, largest="batch")._repr_html_())
    assert page.tags["table"] == 2
    assert "largest batch plain" in page.text


def test_the_largest_batch_is_found_plain_and_with_a_plan() -> None:
    card = _card("40MiB")
    row = ferry.estimate(NETS, card, inputs=INPUT, largest="batch").rows[0]
    assert row.largest_plain is not None
    assert row.largest is not None
    plain, planned = row.largest_plain, row.largest
    assert 0 < plain.size < 16 < planned.size
    assert plain.step is not None
    assert planned.step is not None
    assert plain.step.plain_peak_nbytes <= card.usable_nbytes
    assert planned.step.fits
    one_more = ferry.estimate(NETS, card, batch=plain.size + 1, inputs=INPUT).rows[0].step
    assert not one_more.fits_plain


def test_the_largest_resolution_is_found_in_steps() -> None:
    found = ferry.estimate(NETS, [_card("40MiB"), _card("2MiB")], inputs="4x3x64x64", largest="resolution")
    first, second = found.rows
    assert first.largest_plain is not None
    assert first.largest is not None
    assert first.largest_plain.size % 32 == first.largest.size % 32 == 0
    assert first.largest.size > first.largest_plain.size > 64
    assert second.largest is not None
    assert second.largest.size == 0
    assert "none" in str(found)


def test_the_page_of_a_machine_without_a_tier_shows_the_largest_plain_step(tmp_path: Path) -> None:
    card = replace(_card("40MiB"), tiers=())
    found = ferry.estimate(NETS, card, inputs=INPUT, largest="batch")
    assert found.rows[0].largest is not None
    assert found.rows[0].largest.step is not None
    text = found.save(tmp_path / "page.html").read_text()
    assert "How far it can go" in text
    assert text.count('<section class="panel"') == 1


def test_a_shared_link_costs_more_and_swap_all_never_less_than_a_plan() -> None:
    alone = _card("40MiB", link="2GB/s")
    cards = [alone, replace(alone, name="shared", link_shared_by=2)]
    swap_all = ferry.estimate(NETS, cards, inputs=INPUT, policy="swap-all")
    ours = ferry.estimate(NETS, cards, inputs=INPUT)
    assert swap_all.rows[1].step.overhead > swap_all.rows[0].step.overhead > 0
    assert swap_all.rows[0].step.bottleneck == "link"
    for theirs, mine in zip(swap_all.rows, ours.rows, strict=True):
        assert mine.step.step_seconds <= theirs.step.step_seconds


def test_lower_precision_is_faster_and_smaller_on_a_card_made_for_it() -> None:
    full, half = (ferry.estimate(NETS, "a100-40gb", inputs="64x3x224x224", precision=p).rows[0].step for p in ("fp32", "bf16"))
    assert half.trace.seconds < full.trace.seconds
    assert half.plain_peak_nbytes < full.plain_peak_nbytes
    faster = ferry.estimate(NETS, "a100-40gb", inputs="64x3x224x224", precision="tf32").rows[0].step
    assert faster.plain_peak_nbytes == full.plain_peak_nbytes
    assert faster.trace.seconds < full.trace.seconds


def test_a_cpu_counts_the_copies_its_kernels_reorder() -> None:
    cpu, gpu = (row.step for row in ferry.estimate(NETS, ["cpu-64core-nvme", "a100-40gb"], inputs=INPUT).rows)
    assert cpu.plain_peak_nbytes > gpu.plain_peak_nbytes


def test_a_tier_that_is_too_small_is_no_place_to_swap_to() -> None:
    card = ferry.find_machine("v100-16gb-pcie3", memory="40MiB", reserved="1MiB", tier_capacity="1KiB")
    limited = ferry.estimate(NETS, card, inputs=INPUT, largest="batch").rows[0]
    free = ferry.estimate(NETS, _card("40MiB"), inputs=INPUT, largest="batch").rows[0]
    assert limited.largest is not None
    assert free.largest is not None
    assert limited.largest.size <= free.largest.size


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"batch": 0}, "above zero, received 0"),
        ({"loss": "mae"}, "unknown loss 'mae'"),
        ({"optimizer": "adm"}, r"did you mean 'adam'"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"largest": "depth"}, "unknown axis 'depth'"),
        ({"policy": "swap"}, "unknown policy 'swap'"),
        ({"inputs": ()}, "what .* is fed is not known"),
        ({"on": []}, "at least one machine"),
    ],
)
def test_what_cannot_be_estimated_is_said(how: dict, says: str) -> None:
    with pytest.raises(ferry.BadModel, match=says):
        ferry.estimate(NETS, **{"on": "a100-40gb", "inputs": INPUT} | how)


def test_a_factory_can_be_given_as_it_is() -> None:
    from torch import nn

    found = ferry.estimate(lambda: nn.Linear(8, 8), "t4-16gb", inputs="4x8", optimizer="adam")
    assert found.rows[0].step.fits_plain


def test_one_model_does_for_all_batches() -> None:
    from torch import nn

    made: list[nn.Module] = []

    def build() -> nn.Module:
        made.append(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)))
        return made[-1]

    row = ferry.estimate(build, _card("40MiB"), inputs="2x3x32x32", largest="batch").rows[0]
    assert row.largest is not None
    assert row.largest.size > 2
    assert len(made) == 1
