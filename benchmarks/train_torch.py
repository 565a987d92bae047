"""The torch side of the memory benchmark: build, train, hash."""

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

import tensorferry as ferry
from tensorferry.recipes.models import gpt, resnet, unet3d
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
    training = build(request.case)
    if request.mode == "checkpoint":
        checkpoint_blocks(training.model)
    context: Any = nullcontext()
    if request.mode == "ferry":
        assert request.budget_nbytes is not None, "a budget goes with this mode"
        stream = "auto" if request.stream else False
        how: dict[str, Any] = {"weights": True, "early_updates": True} if request.weights else {}
        context = ferry.large_model(training.model, budget=request.budget_nbytes, tier=request.tier, stream=stream, **how)
    with context as big:
        for step in range(request.num_steps):
            clock.start()
            loss = training.forward()
            loss.backward()
            training.optimizer.step()
            if step < request.num_steps - 1 or request.weights:  # the last gradients are compared, but where there are none
                training.optimizer.zero_grad()
            clock.stop(loss.item())
    num_parameters = sum(parameter.numel() for parameter in training.model.parameters())
    report = big.report() if request.mode == "ferry" else None
    return Trained(partial(digest, training.model), report, num_parameters=num_parameters)


def build(case: Case) -> Training:
    """The model, its optimizer and its batch, the same ones every time."""
    torch.manual_seed(SEED)
    model, batch, compute_loss = _parts(case)
    if case.channels_last:
        layout = torch.channels_last_3d if case.family == "unet" else torch.channels_last
        model = model.to(memory_format=layout)
        batch = (batch[0].to(memory_format=layout), batch[1])
    optimizer: torch.optim.Optimizer
    if case.family.startswith("gpt"):
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return Training(model, optimizer, batch, compute_loss, case.precision)


def _parts(case: Case) -> tuple[Any, tuple[Tensor, Tensor], Callable[..., Tensor]]:
    match case.family:
        case "unet":
            return unet3d.UNet3d(), unet3d.make_batch(case.size, seed=SEED), unet3d.compute_loss
        case "resnet50" | "resnet152":
            make_model = {"resnet50": resnet.resnet50, "resnet152": resnet.resnet152}[case.family]
            return make_model(), resnet.make_batch(case.size, edge=64 if case.quick else 224, seed=SEED), resnet.compute_loss
        case "gpt":
            model = gpt.GPT(num_layers=2, width=128) if case.quick else gpt.GPT()
            return model, gpt.make_batch(case.size, length=128 if case.quick else 512, seed=SEED), gpt.compute_loss
        case "gpt350m":  # 353 million weights
            layers, width, length = (2, 64, 32) if case.quick else (28, 1024, 256)
            model = gpt.GPT(num_layers=layers, width=width, num_heads=16, max_length=length)
            return model, gpt.make_batch(case.size, length=length, seed=SEED), gpt.compute_loss
        case "gpt50k":
            layers, length, vocabulary = (2, 256, 5000) if case.quick else (6, 8192, 50257)
            model = gpt.GPT(num_layers=layers, max_length=length, vocabulary=vocabulary)
            return model, gpt.make_batch(case.size, length=length, seed=SEED), gpt.compute_loss
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
