"""Small models that between them do everything a training step may do; each is trained with and without a plan."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from contract import Outcome
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], tuple[torch.Tensor, ...]]
    step: Callable[[nn.Module, tuple[torch.Tensor, ...], torch.optim.Optimizer], list[torch.Tensor]]
    optimizer: Callable[[Any], torch.optim.Optimizer] = field(default=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
    num_shapes: int = 1  # of batches, by turns
    widest_step: int = 0  # whose batch takes most memory

    def batch_on(self, device: str, step: int) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.to(device) for tensor in self.batch(step))


def images(step: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(4, 3, 16, 16, generator=generator), torch.randint(5, (4,), generator=generator)


def changing_images(step: int) -> tuple[torch.Tensor, ...]:
    edge = (16, 24, 16, 20)[step % 4]
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(4, 3, edge, edge, generator=generator), torch.randint(5, (4,), generator=generator)


def channels_last_images(step: int) -> tuple[torch.Tensor, ...]:
    x, y = images(step)
    return x.to(memory_format=torch.channels_last), y


def tokens(step: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(100 + step)
    return (torch.randint(32, (4, 24), generator=generator),)


class Residual(nn.Module):
    """Convolutions, batch norm, in-place ReLU and an in-place sum."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.body = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Conv2d(16, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.body(x)
        y += x
        y = functional.relu_(y)
        return self.head(functional.max_pool2d(y, 2).mean((2, 3)))


class Skip(nn.Module):
    """A little U-Net: a skip connection held by Python over the whole forward pass, and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, padding=1)
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.last = nn.Conv2d(16, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = functional.gelu(self.down(x))
        deep = functional.silu(self.middle(functional.avg_pool2d(skip, 2)))
        return self.last(torch.cat([self.up(deep), skip], 1)).mean((2, 3))


class Tied(nn.Module):
    """A transformer with tied embedding, views everywhere, layer norm and dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.think = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(dropout), nn.Linear(64, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        q, k, v = self.qkv(self.norm(h)).view(*x.shape, 3, 2, 8).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + attended.transpose(1, 2).reshape(*x.shape, 16)
        h = h + self.think(self.norm(h))
        return h @ self.embed.weight.t()


class Recurrent(nn.Module):
    """An LSTM in two directions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.lstm = nn.LSTM(16, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.head(self.lstm(self.embedding(x))[0])
        return hidden


class Spectral(nn.Module):
    """Complex numbers, and conjugates that are not carried out until they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(16, 16, dtype=torch.cfloat) / 4 for _ in range(3))
        self.head = nn.Linear(768, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.fft.fft(x.to(torch.cfloat))
        for weight in self.weights:
            z = torch.view_as_complex(torch.tanh(torch.view_as_real(z @ weight))) * z.conj() / (z.abs() + 1)
        scores: torch.Tensor = self.head(torch.fft.ifft(z).real.flatten(1))
        return scores


class Checkpointed(nn.Module):
    """A part of the model runs under torch's own checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Residual()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.inner.stem(x))
        y = checkpoint(self.inner.body, x, use_reentrant=False)
        return self.inner.head((y * x).mean((2, 3)))


def classify(model: nn.Module, batch: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    loss = functional.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return [loss.detach()]


def predict_next(model: nn.Module, batch: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    logits = model(batch[0])
    loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[0][:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return [loss.detach()]


def accumulate(model: nn.Module, batch: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    losses = []
    for half in (slice(0, 2), slice(2, 4)):
        loss = functional.cross_entropy(model(batch[0][half]), batch[1][half])
        loss.backward()
        losses.append(loss.detach())
    optimizer.step()
    optimizer.zero_grad()
    return losses


def two_forwards(model: nn.Module, batch: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    loss = functional.cross_entropy(model(batch[0]), batch[1]) + model(batch[0].flip(0)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return [loss.detach()]


def two_backwards(model: nn.Module, batch: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    out = model(batch[0])
    first, second = functional.cross_entropy(out, batch[1]), out.square().mean()
    first.backward(retain_graph=True)
    second.backward()
    optimizer.step()
    optimizer.zero_grad()
    return [first.detach(), second.detach()]


def evaluate_between(model: nn.Module, batch: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    losses = classify(model, batch, optimizer)
    model.eval()
    with torch.no_grad():
        losses.append(model(batch[0]).square().mean().detach())
    losses.append(model(batch[0]).square().mean().detach())  # with a graph that nobody uses
    model.train()
    return losses


def penalise_gradient(model: nn.Module, batch: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    x = batch[0].clone().requires_grad_()
    loss = functional.cross_entropy(model(x), batch[1])
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    total = loss + slope.square().sum()
    total.backward()
    optimizer.step()
    optimizer.zero_grad()
    return [total.detach()]


def under_autocast(step: Callable[..., list[torch.Tensor]]) -> Callable[..., list[torch.Tensor]]:
    def run(model: nn.Module, batch: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        with torch.autocast(batch[0].device.type, dtype=torch.bfloat16):
            return step(model, batch, optimizer)

    return run


def zero_first(model: nn.Module, batch: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    optimizer.zero_grad(set_to_none=False)
    loss = functional.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return [loss.detach()]


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


CASES = [
    Case("batch norm, in-place ops", Residual, images, classify),
    Case("skip connection and concat", Skip, images, classify),
    Case("transformer, tied weights, views", Tied, tokens, predict_next, adam),
    Case("dropout", lambda: Residual(dropout=0.3), images, classify),
    Case("transformer with dropout", lambda: Tied(dropout=0.3), tokens, predict_next, adam),
    Case("channels_last", lambda: Residual().to(memory_format=torch.channels_last), channels_last_images, classify),
    Case("autocast", Residual, images, under_autocast(classify)),
    Case("autocast transformer", Tied, tokens, under_autocast(predict_next), adam),
    Case("torch checkpoint inside", Checkpointed, images, classify),
    Case("LSTM", Recurrent, tokens, predict_next, adam),
    Case("complex numbers", Spectral, images, classify),
    Case("gradient accumulation", Residual, images, accumulate),
    Case("two forwards, one backward", Residual, images, two_forwards),
    Case("two backwards", Residual, images, two_backwards),
    Case("evaluation in between", Residual, images, evaluate_between),
    Case("changing shapes", Residual, changing_images, classify, num_shapes=4, widest_step=1),
    Case("double backward", Skip, images, penalise_gradient),
    Case("zero_grad before forward", Residual, images, zero_first),
]


def train(
    case: Case, *, num_steps: int = 6, around: Callable[[nn.Module], Any] = lambda _: nullcontext(), device: str = "cpu"
) -> Outcome:
    """Train a fresh model and return what came of it."""
    torch.manual_seed(0)
    model = case.build().to(device)
    optimizer = case.optimizer(model.parameters())
    losses: list[float] = []
    with around(model):
        for step in range(num_steps):
            losses += [loss.item() for loss in case.step(model, case.batch_on(device, step), optimizer)]
        compare_step(model, case.batch_on(device, num_steps))
    return Outcome(losses, dict(_bits(model)))


def compare_step(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> None:
    """One more backward pass, so that there are gradients to compare."""
    model(batch[0]).square().mean().backward()


def repeat_widest(case: Case) -> Case:
    """The same with the batch that takes most memory in every step."""
    return replace(case, batch=lambda _: case.batch(case.widest_step))


def _bits(model: nn.Module) -> Iterator[tuple[str, bytes]]:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield name, tensor.detach().cpu().contiguous().numpy().tobytes()
        if tensor.grad is not None:
            yield f"{name}.grad", tensor.grad.cpu().contiguous().numpy().tobytes()
