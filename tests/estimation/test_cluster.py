"""Whole estimates of clusters: profiles beside traces of whole models, the bytes of torch's own collectives, the page, `auto`."""

from pathlib import Path

import headless
import pytest
import torch
from parsed_page import Page
from torch.utils._python_dispatch import TorchDispatchMode

import tensorferry as ferry
from tensorferry.estimation.estimate import Study
from tensorferry.estimation.models import Input, find_model, make_gpt
from tensorferry.estimation.profile import TrainedModel, make_profile
from tensorferry.recipes.models.tensor_shard import keep_shard
from tensorferry.trace import Kind, Phase

CARD = ferry.find_machine("a100-80gb")


@pytest.fixture(scope="module")
def found() -> ferry.ClusterEstimate:
    return ferry.estimate_cluster(
        "bert-base", CARD, gpus=64, parallel="data", batch=4096, precision="fp16", samples=10**6, price=2.0
    )


def test_two_short_models_tell_what_a_whole_one_does() -> None:
    model = find_model("bert-base")
    inputs = model.derive((Input((8, 128), "int64"),))
    profile = make_profile(TrainedModel(model, inputs, model.loss, model.optimizer, "fp16"), CARD, 8).total
    trace = Study(model, inputs, model.loss, model.optimizer, "fp16").estimate_on(CARD).step.trace
    seconds = sum(op.seconds for op in trace.ops if op.phase is not Phase.OPTIMIZER)
    weights = sum(storage.nbytes for storage in trace.storages if storage.kind is Kind.PARAMETER)
    assert profile.forward_seconds + profile.backward_seconds == pytest.approx(seconds, rel=0.02)
    assert profile.weight_nbytes == pytest.approx(weights)
    assert profile.state_nbytes == pytest.approx(2 * weights, rel=0.001)


def test_a_model_without_layers_is_cut_where_its_gradients_are_ready() -> None:
    model = find_model("vgg16")
    pieces = make_profile(TrainedModel(model, model.inputs, model.loss, model.optimizer, "fp32"), CARD, 4).pieces
    assert sum(piece.weight_nbytes for piece in pieces) == pytest.approx(4 * 138_357_544)
    # most weights are in the dense layers, whose gradients backward finishes first
    late = sum(piece.backward_seconds for piece in pieces[len(pieces) // 2 :])
    assert sum(piece.weight_nbytes for piece in pieces[len(pieces) // 2 :]) > 0.8 * 4 * 138_357_544
    assert late < sum(piece.backward_seconds for piece in pieces) / 2


def test_tensor_shards_add_up_to_the_model() -> None:
    model = make_gpt(2, 256, 8, 64, 1024)
    inputs = (Input((2, 64), "int64"),)
    whole, part = (keep_shard(model.make_model(inputs), shards) for shards in (1, 4))
    count = sum(parameter.numel() for parameter in part.parameters())
    shared = sum(
        p.numel()
        for name, p in part.named_parameters()
        if "norm" in name or "positions" in name or name.endswith(("out.bias", "2.bias"))
    )
    assert 4 * (count - shared) + shared == sum(parameter.numel() for parameter in whole.parameters())
    assert part(torch.zeros(2, 64, dtype=torch.int64)).shape == (2, 64, 256)


class _Collectives(TorchDispatchMode):
    """Adds up what torch's own collectives move."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes: dict[str, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func._schema.name
        if name.startswith(("c10d::", "_c10d_functional::")):
            tensor = args[1] if "reduce_scatter_base" in name else args[0]  # the whole, not a rank's share
            if isinstance(tensor, torch.Tensor):
                self.nbytes[name] = self.nbytes.get(name, 0) + tensor.numel() * tensor.element_size()
        return func(*args, **(kwargs or {}))


def test_torch_moves_the_bytes_that_are_costed_for_fsdp_on_256_ranks() -> None:
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    spec = make_gpt(4, 1024, 8, 64, 2048)
    inputs = (Input((2, 64), "int64"),)
    dist.init_process_group("fake", rank=0, world_size=256, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (256,))
        with torch.device("meta"):
            model = spec.make_model(inputs)
        num_weights = sum(parameter.numel() for parameter in model.parameters())
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        seen = _Collectives()
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            tokens = torch.zeros(2, 64, dtype=torch.int64)
            with seen:
                model(tokens).float().mean().backward()
    finally:
        dist.destroy_process_group()
    profile = make_profile(TrainedModel(spec, inputs, "token_cross_entropy", "adamw", "fp32"), CARD, 2)
    gathered = sum(nbytes for name, nbytes in seen.nbytes.items() if "allgather" in name)
    reduced = sum(nbytes for name, nbytes in seen.nbytes.items() if "reduce_scatter" in name)
    assert profile.total.weight_nbytes == pytest.approx(4 * num_weights)
    assert reduced == pytest.approx(profile.total.weight_nbytes, rel=0.02)  # torch pads every parameter to 256 rows
    # each layer twice, forward and backward; what stands outside of the layers is kept after forward
    layers = sum(piece.weight_nbytes for piece in profile.pieces[1:-1])
    assert gathered == pytest.approx(layers + profile.total.weight_nbytes, rel=0.02)


def test_a_larger_cluster_is_faster_and_less_efficient(found: ferry.ClusterEstimate) -> None:
    rates = [point.samples_per_second for point in found.curve]
    shares = [found.efficiency_of(point) for point in found.curve]
    assert [point.num_gpus for point in found.curve] == [8, 16, 32, 64]
    assert rates == sorted(rates)
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1
    assert found.training_seconds == pytest.approx(10**6 / rates[-1])
    assert {point.batch for point in found.curve} == {4096}


def test_the_micro_batch_is_the_largest_that_fits() -> None:
    small = ferry.find_machine("a100-80gb", memory="8GiB")
    found = ferry.estimate_cluster("bert-base", small, gpus=8, batch=8 * 256, precision="fp16")
    assert found.point.fits
    assert 1 < found.point.micro_batch < 256
    larger = ferry.estimate_cluster(
        "bert-base", small, gpus=8, batch=8 * 256, precision="fp16", micro_batch=4 * found.point.micro_batch
    )
    assert not larger.point.fits
    assert "it does not fit" in str(larger)


def test_auto_takes_copies_where_they_fit_and_splits_where_they_do_not() -> None:
    options = {"gpus": 16, "parallel": "auto", "batch": 2048, "micro_batch": 8, "precision": "fp16", "recompute": True}
    small = ferry.estimate_cluster("gpt-125m", CARD, **options)
    assert str(small.point.split) == "data=16"
    large = ferry.estimate_cluster("gpt-8.3b", CARD, **options)
    assert large.point.fits
    assert large.point.split.data < 16
    assert "data alone does not" in large.reason
    assert large.reason in " ".join(str(large).split())


def test_megatrons_8_billion_fit_their_cards_and_scale_about_as_published() -> None:
    found = ferry.estimate_cluster(
        "gpt-8.3b",
        "v100-32gb-nvlink2",
        gpus=512,
        per_node=16,
        inside="nvswitch",
        network="8xib-edr",
        parallel="tensor=8,data=64",
        batch=512,
        precision="fp16",
        reduce="fp16",
        recompute=True,
    )
    assert found.point.fits
    assert found.point.memory.total_nbytes > 2**34  # more than a card of 16 GB has
    compute = found.point.step.compute_seconds / found.point.step.seconds
    assert 0.7 < compute < 0.9


def test_the_text_says_that_it_is_a_prediction_and_where_the_step_goes(found: ferry.ClusterEstimate) -> None:
    shown = str(found)
    assert "predicted, nothing was run" in shown
    for part in ("compute", "gradients", "optimizer", "stragglers", "activations", "efficiency", "a GPU-hour"):
        assert part in shown


def test_the_page_stands_alone_and_shows_timeline_and_curve(found: ferry.ClusterEstimate, tmp_path: Path) -> None:
    text = found.save(tmp_path / "page.html").read_text()
    page = Page(text)
    assert page is not None
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert text.count("<circle") == 4
    assert text.count('class="backward"') > 12
    with pytest.raises(ferry.BadOption, match=r"end it with \.html"):
        found.save(tmp_path / "page.txt")


@headless.MARKS[0]
@headless.MARKS[1]
def test_the_page_draws_lanes_and_curve_in_a_browser(found: ferry.ClusterEstimate, tmp_path: Path) -> None:
    probe = """
    const lanes = [...document.querySelectorAll(".rank .lane svg")];
    found.lanes = lanes.map((lane) => lane.getBoundingClientRect().width);
    const right = (element) => element.getBoundingClientRect().right;
    found.bars = lanes.map((lane) => Math.max(...[...lane.querySelectorAll("rect")].map(right)) - right(lane));
    found.curve = document.querySelector("svg.curve").getBoundingClientRect().height;
    found.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    """
    saw = headless.look_at(found.save(tmp_path / "page.html").read_text(), probe, tmp_path)
    assert saw["errors"] == []
    assert len(saw["lanes"]) == 2  # compute and gradients
    assert min(saw["lanes"]) > 300
    assert max(saw["bars"]) < 2
    assert saw["curve"] > 100
    assert saw["wide"] <= 0
