"""Streamed tensors are functions of others: what is written in place, by the user or by an op, never changes what they were."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from slab_ops import gradients_of, streaming, whole
from torch import nn
from torch.nn import functional

from tensorferry.engines.torch.stream.tensor import StreamedTensor
from tensorferry.errors import NotSupported, SavedTensorModified

VOLUME = (2, 2, 11, 6, 5)


@pytest.fixture(name="made")
def make_streamed() -> Iterator[torch.Tensor]:
    torch.manual_seed(0)
    with streaming():
        yield nn.Conv3d(2, 4, 3, padding=1)(torch.randn(VOLUME)).detach()


def test_a_number_that_changes_later_is_read_as_it_was(made: torch.Tensor) -> None:
    factor = torch.tensor(2.0)
    product = made * factor
    factor.fill_(5.0)
    assert torch.equal(whole(product), whole(made) * 2.0)


def _joined(made: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.cat([made, other], 1)


def _last_squares(made: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(made, other, reduction="none")


@pytest.mark.parametrize("make", [torch.add, _joined, _last_squares])
def test_a_tensor_that_is_written_to_before_it_is_read_is_an_error(made: torch.Tensor, make: Callable[..., torch.Tensor]) -> None:
    other = torch.randn(made.shape)
    before, after = make(made, other), make(made, other)
    seen = whole(before)
    torch.testing.assert_close(seen, make(whole(made), other))
    other.add_(1.0)
    with pytest.raises(SavedTensorModified, match="expected version 0, received 1"):
        whole(after)


def test_scores_read_after_their_weights_were_updated_are_an_error() -> None:
    torch.manual_seed(0)
    head = nn.Linear(16, 300)
    with streaming(32_000):
        scores = head(torch.randn(200, 16))
        functional.cross_entropy(scores, torch.zeros(200, dtype=torch.int64)).backward()
        assert len(gradients_of(head)) == 2
        torch.optim.SGD(head.parameters(), lr=0.1).step()
        with pytest.raises(SavedTensorModified, match="modified in place before it was read"):
            scores.detach().sum()


def test_a_view_of_a_tensor_that_was_brought_back_sees_what_is_written_to_it(made: torch.Tensor) -> None:
    made.index_fill_(1, torch.tensor([0]), 3.0)
    product = made * 3
    windows = made.unfold(2, 3, 1)
    made.neg_()
    assert torch.equal(windows, whole(made).unfold(2, 3, 1))
    assert float(windows[:, 0].max()) == -3.0
    with pytest.raises(SavedTensorModified):
        whole(product)


def test_a_row_that_is_padded_is_the_users_own_and_stays_as_it_is() -> None:
    torch.manual_seed(0)
    conv, row = nn.Conv3d(2, 4, 3, padding=1), torch.randn(2, 2, 1, 6, 5)
    before = row.clone()
    with streaming():
        out = whole(conv(row))
    assert torch.equal(row, before)
    torch.testing.assert_close(out, conv(row).detach())


def test_out_is_what_is_written_to_and_returned(made: torch.Tensor) -> None:
    first, second = whole(made), whole(made * 2)
    target, plain_target, total = made * 3, torch.empty(made.shape), torch.empty(2, 4, 1, 1, 1)
    assert torch.add(made, made * 2, out=target) is target
    torch.mul(made, made * 2, out=plain_target)
    torch.sum(made, (2, 3, 4), keepdim=True, out=total)
    assert isinstance(target, StreamedTensor)
    assert torch.equal(whole(made), first)
    assert torch.equal(whole(target), first + second)
    assert torch.equal(plain_target, first * second)
    torch.testing.assert_close(total, first.sum((2, 3, 4), keepdim=True))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out_of_another_shape_is_refused(made: torch.Tensor) -> None:
    with pytest.raises(NotSupported, match="'cat' gives a streamed tensor another shape"):
        torch.cat([made, made], 1, out=made * 2)


@pytest.mark.parametrize("reduce", [torch.sum, torch.mean])
@pytest.mark.parametrize("keepdim", [False, True])
def test_all_of_a_flattened_tensor_is_summed_to_the_shape_that_torch_gives(
    made: torch.Tensor, reduce: Callable[..., torch.Tensor], keepdim: bool
) -> None:
    for flat in (made.view(2, 4, 1, -1), made):
        dims = tuple(range(flat.dim()))
        expected = reduce(whole(made).view(flat.shape), dims, keepdim=keepdim)
        found = reduce(flat, dims, keepdim=keepdim)
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected)


def test_a_random_op_draws_once_and_what_it_draws_in_plain_torch() -> None:
    torch.manual_seed(0)
    conv, x = nn.Conv3d(2, 4, 3, padding=1), torch.randn(VOLUME)
    outcomes = []
    for around in (nullcontext, streaming):
        conv.zero_grad()
        torch.manual_seed(1)
        with around():  # type: ignore[operator]
            out: Any = functional.rrelu(conv(x), training=True)
            out.sum().backward()
            outcomes.append([out.detach() + 0.0, out.detach() + 0.0, *gradients_of(conv)])
    torch.testing.assert_close(*outcomes, rtol=1e-4, atol=1e-4)
    assert torch.equal(outcomes[1][0], outcomes[1][1])


class _Sum(nn.Module):
    """A norm of what is a function of so many tensors that it is stored by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Conv3d(2, 4, 3, padding=1) for _ in range(13))
        self.norm = nn.BatchNorm3d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = self.parts[0](x)
        for part in self.parts[1:]:
            total = total + part(x)
        out: torch.Tensor = self.norm(total)
        return out


def test_a_norm_of_a_sum_of_many_trains_more_than_one_step() -> None:
    torch.manual_seed(0)
    model, x = _Sum(), torch.randn(VOLUME)
    outcomes = []
    with streaming() as streamer:
        for _ in range(3):
            streamer.begin_step(streamer.sizes)
            model.zero_grad()
            model(x).square().mean().backward()
            outcomes.append(gradients_of(model))
    assert all(torch.equal(a, b) for a, b in zip(outcomes[0], outcomes[2], strict=True))
    model.zero_grad()
    model(x).square().mean().backward()
    torch.testing.assert_close(outcomes[0], gradients_of(model), rtol=1e-3, atol=1e-5)
