"""The models: the sizes they are known by, batches that repeat, losses that fall."""

import subprocess
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from tensorferry.recipes.models import bert, googlenet, gpt, resnet, unet3d

SMALL = [
    pytest.param(unet3d, lambda: unet3d.UNet3d(base=4), {"edge": 16}, id="unet3d"),
    pytest.param(
        resnet, lambda: resnet.ResNet((1, 1, 1, 1), num_classes=7), {"num_images": 2, "edge": 64, "num_classes": 7}, id="resnet"
    ),
    pytest.param(
        bert, lambda: bert.BERT(num_layers=4, width=32, num_heads=4, dropout=0.0), {"num_texts": 2, "length": 16}, id="bert"
    ),
    pytest.param(gpt, lambda: gpt.GPT(num_layers=2, width=32, num_heads=4), {"num_texts": 2, "length": 16}, id="gpt"),
]


def _num_weights(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("recipe", "make_model", "sizes"), SMALL)
def test_a_few_steps_lower_the_loss_and_reach_every_weight(recipe: ModuleType, make_model, sizes: dict[str, int]) -> None:
    torch.manual_seed(0)
    model = make_model()
    batch = recipe.make_batch(**sizes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = recipe.compute_loss(model, *batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(("recipe", "make_model", "sizes"), SMALL)
def test_a_batch_repeats_with_its_seed_and_only_then(recipe: ModuleType, make_model, sizes: dict[str, int]) -> None:
    first, again, other = (recipe.make_batch(**sizes, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize(("recipe", "make_model", "sizes"), SMALL)
def test_blocks_hold_nearly_all_weights_and_do_not_overlap(recipe: ModuleType, make_model, sizes: dict[str, int]) -> None:
    model = make_model()
    weights = [id(parameter) for block in model.blocks for parameter in block.parameters()]
    assert len(weights) == len(set(weights)) >= 0.8 * len(list(model.parameters()))


@pytest.mark.parametrize(("depth", "num_weights"), [("resnet50", 25_557_032), ("resnet152", 60_192_808)])
def test_a_resnet_has_the_published_number_of_weights(depth: str, num_weights: int) -> None:
    with torch.device("meta"):
        assert _num_weights(getattr(resnet, depth)()) == num_weights


@pytest.mark.parametrize(
    ("make_model", "num_weights"),
    [(bert.bert_base, 110e6), (bert.bert_large, 340e6), (googlenet.GoogLeNet, 7e6)],
)
def test_other_models_have_about_the_published_number_of_weights(make_model, num_weights: float) -> None:
    with torch.device("meta"):
        assert _num_weights(make_model()) == pytest.approx(num_weights, rel=0.02)


def test_a_googlenet_learns_in_every_branch() -> None:
    torch.manual_seed(0)
    model = googlenet.GoogLeNet(num_classes=7)
    images, classes = googlenet.make_batch(2, edge=32, num_classes=7)
    googlenet.compute_loss(model, images, classes).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    assert len(model.blocks) == 10


def test_hidden_words_of_a_bert_are_masked_and_scored_where_they_were() -> None:
    tokens, places, words = bert.make_batch(3, length=40)
    assert places.shape == words.shape == (3, bert.count_hidden(40))
    assert torch.equal(tokens.gather(1, places), torch.full_like(places, bert.MASK))
    model = bert.BERT(num_layers=1, width=32, num_heads=2).eval()
    assert model.score.weight is model.encoder.tokens.weight
    swapped = places.flip(1)
    assert torch.allclose(model(tokens, places).flip(1), model(tokens, swapped), atol=1e-6)


def test_a_unet_scores_every_voxel_of_any_allowed_size() -> None:
    model = unet3d.UNet3d(num_channels=2, num_classes=5, base=4, num_levels=3)
    assert model(torch.zeros(1, 2, 8, 12, 16)).shape == (1, 5, 8, 12, 16)


def test_a_gpt_sees_no_later_byte() -> None:
    torch.manual_seed(0)
    model = gpt.GPT(num_layers=2, width=32, num_heads=4).eval()
    tokens, _ = gpt.make_batch(1, length=12)
    changed = tokens.clone()
    changed[0, 8] = (changed[0, 8] + 1) % gpt.VOCABULARY
    before, after = model(tokens), model(changed)
    assert torch.equal(before[0, :8], after[0, :8])
    assert not torch.equal(before[0, 8:], after[0, 8:])


def test_a_gpt_ties_its_output_to_its_embedding() -> None:
    model = gpt.GPT(num_layers=1, width=32, num_heads=4)
    assert model.score.weight is model.tokens.weight


@pytest.mark.parametrize(
    ("make_model", "sizes", "recipe", "layout"),
    [
        (lambda: unet3d.UNet3d(base=4), {"edge": 16}, unet3d, torch.channels_last_3d),
        (lambda: resnet.ResNet((1, 1, 1, 1)), {"num_images": 2, "edge": 64}, resnet, torch.channels_last),
    ],
)
def test_a_convolutional_model_trains_in_channels_last(make_model, sizes: dict[str, int], recipe: ModuleType, layout) -> None:
    model = make_model().to(memory_format=layout)
    inputs, classes = recipe.make_batch(**sizes)
    recipe.compute_loss(model, inputs.to(memory_format=layout), classes).backward()
    kernels = [p.grad for p in model.parameters() if p.dim() > 3 and p.shape[1] > 1 and p.shape[2] > 1]
    assert kernels
    assert all(grad is not None and grad.is_contiguous(memory_format=layout) for grad in kernels)


def test_the_catalog_loads_no_framework_by_itself() -> None:
    code = "import sys, tensorferry.recipes; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
