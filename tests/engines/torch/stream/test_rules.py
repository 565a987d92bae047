"""Every rule against plain torch: loss, input gradient and weight gradient, no further from float64 than twice plain's error."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slab_ops import gradients_of, streaming, whole
from torch import nn
from torch.nn import functional

from tensorferry.engines.torch.stream.tensor import StreamedTensor
from tensorferry.errors import NotSupported

Outcome = list[torch.Tensor]


def run(model: nn.Module, x: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]) -> Outcome:
    x = x.detach().clone().requires_grad_()
    model.zero_grad()
    out = model(x)
    value = loss(out)
    value.backward()
    assert x.grad is not None
    return [value.detach(), whole(x.grad), *gradients_of(model)]


def check(model: nn.Module, x: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor], *, brings_back: bool = False) -> None:
    plain = run(model, x, loss)
    with streaming() as streamer:
        streamed = run(model, x, loss)
        assert streamer.counts.num_slabs > streamer.counts.num_stored > 0
        assert bool(streamer.brought_back) is brings_back
    truth = run(model.double(), x.double(), loss)
    model.float()
    for mine, stock, exact in zip(streamed, plain, truth, strict=True):
        scale = float(exact.abs().max()) + 1e-12
        mine_error, stock_error = (float((t.double() - exact).abs().max()) / scale for t in (mine, stock))
        assert mine_error <= 2 * stock_error + 1e-6, (mine_error, stock_error)


def squares(out: torch.Tensor) -> torch.Tensor:
    return (out * out).mean()


def classes(out: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    target = torch.randint(out.shape[1], (out.shape[0], *out.shape[2:]), generator=generator)
    target[0, 0] = -100  # nobody's class
    weight = torch.linspace(0.5, 1.5, out.shape[1], dtype=out.dtype)
    return functional.cross_entropy(out, target, weight=weight) + functional.cross_entropy(out, target)


def dice(out: torch.Tensor) -> torch.Tensor:
    shares = out.softmax(1)
    target = torch.linspace(0, 1, out.numel(), dtype=out.dtype).view(out.shape).round()
    both = (shares * target).sum((2, 3, 4))
    return 1 - ((2 * both + 1) / (shares.sum((2, 3, 4)) + target.sum((2, 3, 4)) + 1)).mean()


class Skip(nn.Module):
    """Two ways through, joined in channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv3d(2, 4, 3, padding=1), nn.Conv3d(4, 4, 3, padding=1)
        self.last = nn.Conv3d(8, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.relu(self.first(x))
        return self.last(torch.cat([self.second(first), first], 1)) * 0.5 + first[:, :3]


VOLUME = (2, 2, 11, 6, 5)
IMAGE = (3, 2, 13, 8)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "batch norm": (
        lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(inplace=True)),
        VOLUME,
        squares,
    ),
    "group norm": (lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU()), VOLUME, squares),
    "instance norm": (
        lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.InstanceNorm3d(4, affine=True), nn.LeakyReLU(0.1)),
        (1, *VOLUME[1:]),
        squares,
    ),
    "batch norm in eval": (lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4)).eval(), VOLUME, squares),
    "pooling": (lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.MaxPool3d(2)), (2, 2, 12, 6, 4), squares),
    "overlapping pooling": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(3, stride=2, padding=1)), IMAGE, squares),
    "transposed convolution": (
        lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.ConvTranspose3d(4, 3, 2, stride=2)),
        VOLUME,
        squares,
    ),
    "linear enlarging": (
        lambda: nn.Sequential(nn.Conv3d(2, 4, 3), nn.Upsample(scale_factor=2, mode="trilinear"), nn.Conv3d(4, 2, 3)),
        VOLUME,
        squares,
    ),
    "linear with corners": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Upsample((17, 5), mode="bilinear", align_corners=True), nn.Conv2d(4, 2, 3)),
        IMAGE,
        squares,
    ),
    "linear shrinking": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Upsample(scale_factor=0.6, mode="bilinear"), nn.Conv2d(4, 2, 1)),
        IMAGE,
        squares,
    ),
    "enlarging": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Upsample(scale_factor=2), nn.Conv2d(4, 2, 3)), IMAGE, squares),
    "cross-entropy": (lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.GELU(), nn.Conv3d(4, 3, 1)), VOLUME, classes),
    "cross-entropy of images": (lambda: nn.Conv2d(2, 4, 3), IMAGE, classes),
    "dice": (lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.Conv3d(4, 3, 1)), VOLUME, dice),
    "joined": (Skip, VOLUME, classes),
    "prelu": (lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.PReLU(4), nn.Conv3d(4, 4, 3)), VOLUME, squares),
    "prelu of images with one weight": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.PReLU()), IMAGE, squares),
    "squared error": (lambda: nn.Conv3d(2, 3, 3), VOLUME, lambda out: functional.mse_loss(out, torch.ones(out.shape).to(out))),
}


@pytest.mark.parametrize("name", MODELS)
def test_streamed_gradients_are_as_near_to_the_truth_as_plain_ones(name: str) -> None:
    build, shape, loss = MODELS[name]
    torch.manual_seed(0)
    check(build(), torch.randn(shape), loss)


@settings(max_examples=40, deadline=None)
@given(
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    num_rows=st.integers(9, 17),
    num_samples=st.integers(1, 3),
    bias=st.booleans(),
)
def test_a_convolution_of_any_shape_is_cut_rightly(
    kernel: int, stride: int, padding: int, dilation: int, num_rows: int, num_samples: int, bias: bool
) -> None:
    torch.manual_seed(1)
    conv = nn.Conv2d(3, 4, kernel, stride=stride, padding=padding, dilation=dilation, bias=bias)
    check(conv, torch.randn(num_samples, 3, num_rows, 12), squares)


def test_an_op_without_a_rule_is_brought_back_whole_and_counted() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.AvgPool3d(3, stride=1))
    check(model, torch.randn(VOLUME), squares, brings_back=True)


def test_two_runs_give_the_same_bits() -> None:
    torch.manual_seed(0)
    model, x = Skip(), torch.randn(VOLUME)
    outcomes = []
    for _ in range(2):
        with streaming():
            outcomes.append(run(model, x, classes))
    assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))


def test_running_statistics_are_updated_once() -> None:
    torch.manual_seed(0)
    x = torch.randn(VOLUME)
    models = [nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    run(models[0], x, squares)
    with streaming():
        run(models[1], x, squares)
    for plain, streamed in zip(models[0].buffers(), models[1].buffers(), strict=True):
        torch.testing.assert_close(streamed, plain, rtol=1e-5, atol=1e-6)


def test_statistics_met_while_writing_are_those_of_a_pass_of_their_own() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4)), torch.randn(VOLUME)
    with streaming() as streamer:
        first = run(model, x, squares)
        read = streamer.io.read_nbytes
        streamer.begin_step(streamer.sizes)
        second = run(model, x, squares)
        assert streamer.io.read_nbytes - read < read
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_no_slot_outlives_its_tensor() -> None:
    torch.manual_seed(0)
    with streaming() as streamer:
        run(Skip(), torch.randn(VOLUME), classes)
        streamer.io.release_departed()
        assert not streamer.io.live()


def test_writing_in_place_to_a_tensor_with_views_is_refused() -> None:
    with streaming():
        out = nn.Conv3d(2, 4, 3)(torch.randn(VOLUME)).detach()
        assert isinstance(out, StreamedTensor)
        first = out[:, :2]
        with pytest.raises(NotSupported, match="views"):
            out.relu_()
        assert first.shape[1] == 2


def test_second_derivatives_are_those_of_plain_torch() -> None:
    torch.manual_seed(0)
    conv, x = nn.Conv2d(2, 3, 3), torch.randn(IMAGE, requires_grad=True)

    def penalty() -> torch.Tensor:
        (of_x,) = torch.autograd.grad(torch.sigmoid(conv(x)).sum(), x, create_graph=True)
        return (of_x * of_x).sum()

    (plain,) = torch.autograd.grad(penalty(), conv.weight)
    with streaming():
        (streamed,) = torch.autograd.grad(penalty(), conv.weight)
    torch.testing.assert_close(streamed, plain, rtol=1e-4, atol=1e-5)


def test_autocast_streams_in_the_type_it_chose() -> None:
    torch.manual_seed(0)
    conv, x = nn.Conv2d(2, 8, 3), torch.randn(IMAGE)
    with streaming(), torch.autocast("cpu", dtype=torch.bfloat16):
        out = conv(x)
        assert isinstance(out, StreamedTensor)
        assert out.dtype is torch.bfloat16
        streamed = whole(out)
    torch.testing.assert_close(streamed.float(), conv(x).detach(), rtol=0.05, atol=0.05)
