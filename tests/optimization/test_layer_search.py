"""Which layers stay in fp32: the one that was made sensitive, and no other."""

import json
import math
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import openvino
import pytest
import torch
from nets import make_texts

import tensorferry as ferry
from tensorferry.optimization import quantise
from tensorferry.optimization.candidates import list_variants
from tensorferry.optimization.kept_layers import list_compressed
from tensorferry.optimization.layer_search import find_fewest, rank_layers, short_name

WIDTH = 16


def _make_fragile() -> torch.nn.Module:
    """Classes of rows whose first column dwarfs the others and is hardly used: 256 steps cannot hold both in the first layer."""
    torch.manual_seed(0)
    sizes = [(WIDTH, 64), (64, 64), (64, 64), (64, 3)]
    layers = [torch.nn.Linear(*size) for size in sizes]
    with torch.no_grad():
        layers[0].weight[:, 0] = 1e-9
    steps = [step for layer in layers for step in (layer, torch.nn.ReLU())][:-1]
    return torch.nn.Sequential(*steps).eval()


@pytest.fixture(scope="module")
def fragile_engine() -> Iterator[ferry.Engine]:
    rows = np.random.default_rng(0).standard_normal((300, WIDTH)).astype(np.float32)
    rows[:, 0] *= 5000
    engine = ferry.optimize(_make_fragile(), rows, precision="int8", min_agreement=0.95, seconds=600)
    yield engine
    engine.close()


@pytest.mark.parametrize("backend", ["NNCF", "static"])
def test_only_the_layer_that_was_made_sensitive_stays_in_fp32(fragile_engine: ferry.Engine, backend: str) -> None:
    tried = [each for each in fragile_engine.result.tried if f"({backend}" in each.title]
    assert (tried[0].num_kept, tried[0].passed) == (0, False)
    assert min(each.num_kept for each in tried if each.passed) == 1
    let_in = [each for each in fragile_engine.result.candidates if f"({backend}, 1 layer in fp32)" in each.title]
    kept = {tuple(map(short_name, each.kept)) for each in let_in}
    assert kept == {("node_linear",)}  # the first layer, as the exporter calls it
    assert "in fp32: node_linear" in let_in[0].route


@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning")  # OpenVINO asks torch in an old way
def test_weights_alone_have_layers_too(tmp_path: Path) -> None:
    rows = {"input": np.random.default_rng(0).standard_normal((4, WIDTH)).astype(np.float32)}
    whole = openvino.convert_model(torch.export.export(_make_fragile(), (torch.zeros(1, WIDTH),)))
    openvino.save_model(whole, tmp_path / "fp32.xml", compress_to_fp16=False)
    weights = next(each for each in quantise.list_quantisers("openvino") if each.variant == "weights")
    prepared = weights.prepare(tmp_path / "fp32.xml", rows, tmp_path)
    assert len(prepared.layers) == 4
    for kept in ((), prepared.layers[1:3]):
        folder = tmp_path / str(len(kept))
        folder.mkdir()
        written = openvino.Core().read_model(prepared.write(kept, folder))
        assert list_compressed(written) == tuple(each for each in prepared.layers if each not in kept)


def test_the_notes_say_how_samples_were_split(fragile_engine: ferry.Engine) -> None:
    assert "int8 was calibrated on 128 samples and judged on 172 others; no sample is among both" in fragile_engine.result.notes


def test_the_card_says_which_layers_stayed(fragile_engine: ferry.Engine, tmp_path: Path) -> None:
    card = json.loads((fragile_engine.save(tmp_path / "net") / "card.json").read_text())
    assert card["engine"]["layers_in_fp32"] == list(fragile_engine.result.chosen.kept)
    low, high = card["agreement"]["interval_95"]
    assert low < card["agreement"]["share"] <= high


def test_a_mask_that_reaches_far_below_the_scores_does_not_cost_static_int8_its_answers() -> None:
    class Attention(torch.nn.Module):
        """Classes of texts by one layer of attention; what the mask hides counts -3e38."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed = torch.nn.Embedding(50, WIDTH)
            self.look = torch.nn.Linear(WIDTH, 3 * WIDTH)
            self.head = torch.nn.Linear(WIDTH, 3)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            query, key, value = self.look(3 * self.embed(ids)).chunk(3, -1)
            hidden = torch.where(mask[:, None] > 0, 0.0, torch.finfo(torch.float32).min)
            return self.head((torch.softmax(query @ key.transpose(1, 2) + hidden, -1) @ value)[:, 0])

    engine = ferry.optimize(Attention().eval(), make_texts(80), precision="fp32,int8", min_agreement=0.5, seconds=600)
    (static,) = [each for each in engine.result.tried if "(static)" in each.title]
    assert static.comparison.agreement >= 0.9
    engine.close()


def test_wider_groups_of_activations_are_tried_only_where_the_cpu_quantises_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def list_settings() -> list[str]:
        return [size for each in quantise.list_quantisers("openvino") for size in each.settings.values()]

    monkeypatch.setattr(quantise, "_has_vnni", lambda: True)
    assert list_settings() == ["128"]
    monkeypatch.setattr(quantise, "_has_vnni", lambda: False)
    assert list_settings() == []


def test_what_a_file_needs_of_its_runtime_is_in_its_configuration() -> None:
    settings = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "128"}
    for each in list_variants("openvino", "int8", Path("model.xml"), "weights", settings):
        assert each.parameters["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "128"
        assert each.parameters["INFERENCE_NUM_THREADS"] == str(each.num_threads)


class Harm:
    """A model whose answers are off by so much for each quantised layer; squares add up. It counts how often it is asked."""

    def __init__(self, harm: dict[str, float]) -> None:
        self.harm, self.num_asked = harm, 0

    def __call__(self, kept: Collection[str], probe: dict[str, np.ndarray]) -> list[np.ndarray]:
        self.num_asked += 1
        return [np.ones(4) + math.sqrt(sum(each**2 for layer, each in self.harm.items() if layer not in kept))]


def test_layers_are_ranked_by_what_quantising_them_alone_does() -> None:
    model = Harm({"a": 0.5, "b": 3.0, "c": 1.0})
    assert [each.layer for each in rank_layers(tuple(model.harm), model, {}, math.inf)] == ["b", "c", "a"]


def test_the_few_layers_that_matter_are_found_in_few_looks_and_first() -> None:
    harm = {str(at): 0.01 for at in range(100)} | {"17": 1.0, "60": 2.0, "61": 0.6}
    model = Harm(harm)
    assert [each.layer for each in rank_layers(tuple(harm), model, {}, math.inf)][:3] == ["60", "17", "61"]
    assert model.num_asked < 50


def test_when_the_time_is_up_what_is_known_so_far_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Harm({str(at): 0.01 for at in range(64)} | {"40": 1.0})
    monkeypatch.setattr("tensorferry.optimization.layer_search.time.perf_counter", lambda: model.num_asked)
    known = rank_layers(tuple(model.harm), model, {}, deadline=8)
    assert "40" in [each.layer for each in known[:8]]
    assert len(known) == 64
    model.num_asked = 0
    assert rank_layers(tuple(model.harm), model, {}, deadline=0) == []


def test_a_layer_that_gives_nan_is_the_most_sensitive() -> None:
    model = Harm({"a": 0.5, "b": math.nan, "c": 1.0})
    assert [each.layer for each in rank_layers(tuple(model.harm), model, {}, math.inf)] == ["b", "c", "a"]


@pytest.mark.parametrize("needed", [1, 5, 23])
def test_the_fewest_layers_are_found_in_few_trials(needed: int) -> None:
    trials: list[int] = []

    def passes(num_kept: int) -> bool:
        trials.append(num_kept)
        return num_kept >= needed

    assert find_fewest(36, passes, math.inf) == needed
    assert len(trials) == len(set(trials)) <= 7
    assert sum(trial >= needed for trial in trials) <= 4  # only those that pass take all samples


def test_where_hardly_a_layer_could_be_quantised_nothing_is_found() -> None:
    assert find_fewest(36, lambda num_kept: num_kept >= 30, math.inf) is None


def test_names_are_shown_without_what_exporters_put_around_them() -> None:
    assert short_name("__module.net.0/aten::linear/MatMul") == "net.0"
    assert short_name("node_MatMul_32") == "node_MatMul_32"
