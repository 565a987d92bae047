"""The torch side of the memory benchmark: build, train, hash.

As a command it writes the weights of a case to a file: a model that does not fit memory cannot be built in it first.
"""

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

import tensorferry as ferry
from tensorferry.extras import load_extra
from tensorferry.recipes.models import gpt, resnet, unet3d
from tensorferry.tiers.scratch_file import best_folder
from trainings import NUM_THREADS, SEED, Case, Request, StepClock, Trained


@dataclass(frozen=True, slots=True)
class Training:
    """Everything a step needs."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: tuple[Tensor, Tensor]
    compute_loss: Callable[..., Tensor]
    precision: str

    def forward(self) -> Tensor:
        """The loss of one forward pass."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            return self.compute_loss(self.model, *self.batch)


def warm_up() -> None:
    """Start torch's threads and load everything that any mode loads, so that none of it counts as a mode's own."""
    torch.set_num_threads(NUM_THREADS)
    _ = ferry.large_model  # loads the engine
    model = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.Flatten(), nn.Linear(2048, 4))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.optim.AdamW(model.parameters())]
    for optimizer, precise in zip(optimizers, (True, False), strict=True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not precise):
            model(torch.zeros(2, 1, 8, 8, 8)).sum().backward()
        optimizer.step()


def train(request: Request, clock: StepClock) -> Trained:
    """Train as asked."""
    if request.mode == "ferry" and request.weights:
        return _train_from_file(request, clock)
    training = build(request.case)
    if request.mode == "checkpoint":
        checkpoint_blocks(training.model)
    context: Any = nullcontext()
    if request.mode == "ferry":
        assert request.budget_nbytes is not None, "a budget goes with this mode"
        stream = "auto" if request.stream else False
        context = ferry.large_model(training.model, budget=request.budget_nbytes, tier=request.tier, stream=stream)
    with context as big:
        _run_steps(training, request, clock)
    report = big.report() if request.mode == "ferry" else None
    return Trained(partial(digest, training.model), report, num_parameters=_count(training.model))


def _train_from_file(request: Request, clock: StepClock) -> Trained:
    """With weights that are never in memory all at once, updated in backward."""
    make_model, batch, compute_loss = _parts(request.case)
    with torch.device("meta"):
        model = make_model()
    assert request.budget_nbytes is not None
    with _weights_of(request.case) as path:
        ferry.load_onto_tier(model, path)
        how: dict[str, Any] = {"weights": True, "early_updates": True, "stream": "auto" if request.stream else False}
        with ferry.large_model(model, request.budget_nbytes, tier=request.tier, **how) as big:
            training = Training(model, _make_optimizer(model, request.case), batch, compute_loss, request.case.precision)
            _run_steps(training, request, clock)
    return Trained(partial(digest, model), big.report(), num_parameters=_count(model))


@contextmanager
def _weights_of(case: Case) -> Iterator[Path]:
    """A file with the weights that a case begins with, written by a process of its own."""
    with tempfile.TemporaryDirectory(prefix="ferry-weights-", dir=best_folder()) as folder:
        path = Path(folder, "weights.safetensors")
        subprocess.run([sys.executable, __file__, Request(case, "plain").to_json(), str(path)], check=True)
        yield path


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _run_steps(training: Training, request: Request, clock: StepClock) -> None:
    """Every step as a user writes it."""
    for step in range(request.num_steps):
        clock.start()
        loss = training.forward()
        loss.backward()
        training.optimizer.step()
        if step < request.num_steps - 1 or request.weights:  # the last gradients are compared, but where there are none
            training.optimizer.zero_grad()
        clock.stop(loss.item())


def build(case: Case) -> Training:
    """The model, its optimizer and its batch, the same ones every time."""
    torch.manual_seed(SEED)
    make_model, batch, compute_loss = _parts(case)
    model = make_model()
    if case.channels_last:
        layout = torch.channels_last_3d if case.family == "unet" else torch.channels_last
        model = model.to(memory_format=layout)
        batch = (batch[0].to(memory_format=layout), batch[1])
    return Training(model, _make_optimizer(model, case), batch, compute_loss, case.precision)


def _make_optimizer(model: nn.Module, case: Case) -> torch.optim.Optimizer:
    if case.family.startswith("gpt"):
        return torch.optim.AdamW(model.parameters(), lr=3e-4)
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _parts(case: Case) -> tuple[Callable[[], Any], tuple[Tensor, Tensor], Callable[..., Tensor]]:
    match case.family:
        case "unet":
            return unet3d.UNet3d, unet3d.make_batch(case.size, seed=SEED), unet3d.compute_loss
        case "resnet50" | "resnet152":
            make_model = {"resnet50": resnet.resnet50, "resnet152": resnet.resnet152}[case.family]
            return make_model, resnet.make_batch(case.size, edge=64 if case.quick else 224, seed=SEED), resnet.compute_loss
        case "gpt":
            make_gpt = partial(gpt.GPT, num_layers=2, width=128) if case.quick else gpt.GPT
            return make_gpt, gpt.make_batch(case.size, length=128 if case.quick else 512, seed=SEED), gpt.compute_loss
        case "gpt350m":  # 353 million weights
            layers, width, length = (2, 64, 32) if case.quick else (28, 1024, 256)
            make_gpt = partial(gpt.GPT, num_layers=layers, width=width, num_heads=16, max_length=length)
            return make_gpt, gpt.make_batch(case.size, length=length, seed=SEED), gpt.compute_loss
        case "gpt50k":
            layers, length, vocabulary = (2, 256, 5000) if case.quick else (6, 8192, 50257)
            make_gpt = partial(gpt.GPT, num_layers=layers, max_length=length, vocabulary=vocabulary)
            return make_gpt, gpt.make_batch(case.size, length=length, seed=SEED), gpt.compute_loss
        case _:
            raise ValueError(f"there is no {case.family!r} for torch")


def checkpoint_blocks(model: nn.Module) -> None:
    """Wrap every block with torch's own checkpointing, as a user would."""
    blocks: Any = model.blocks
    for block in blocks:
        block.forward = partial(torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False)


def digest(model: nn.Module) -> dict[str, str]:
    """A hash over the bits of the last gradients, the parameters and the buffers, each on its own."""
    return {
        "gradients": _hash_tensors((name, parameter.grad) for name, parameter in model.named_parameters()),
        "parameters": _hash_tensors(model.named_parameters()),
        "buffers": _hash_tensors(model.named_buffers()),
    }


def _hash_tensors(tensors: Any) -> str:
    sha = hashlib.sha256()
    for name, tensor in tensors:
        sha.update(name.encode())
        if tensor is not None:
            sha.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return sha.hexdigest()


def _write_weights(case: Case, path: Path) -> None:
    safetensors = load_extra("safetensors.torch", "writing the weights of a benchmark")
    safetensors.save_model(build(case).model, str(path))


if __name__ == "__main__":
    _write_weights(Request.from_json(sys.argv[1]).case, Path(sys.argv[2]))
