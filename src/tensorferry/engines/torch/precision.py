"""Mixed precision in PyTorch: autocast for the forward pass, and a loss scale for fp16."""

from types import TracebackType
from typing import Any

import torch

from tensorferry.engines.core.precision import Choice, choose
from tensorferry.engines.torch.rates import measure_flops

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class TorchPrecision:
    """What `precision` returns for PyTorch: enter it around every forward pass."""

    def __init__(self, choice: Choice, device: torch.device) -> None:
        self.name = choice.name
        self.reason = choice.reason
        self._device = device
        self._scaler = torch.amp.GradScaler(device.type, enabled=choice.name == "fp16")
        self._entered: list[torch.autocast] = []

    def __enter__(self) -> "TorchPrecision":
        dtype = _DTYPES.get(self.name)
        context = torch.autocast(self._device.type, dtype, enabled=dtype is not None)
        context.__enter__()
        self._entered.append(context)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._entered.pop().__exit__(kind, error, where)

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass of the loss, scaled where the precision needs it."""
        self._scaler.scale(loss).backward()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the weights; where fp16's gradients overflowed, leave them and lower the scale instead."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """The scale, for a checkpoint; empty where there is none."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a scale from a checkpoint."""
        if state:
            self._scaler.load_state_dict(state)


def make_precision(name: str, device: torch.device | None = None) -> TorchPrecision:
    """The precision of that name on a device; without one, on the accelerator if there is one."""
    if device is None:
        device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    return TorchPrecision(choose(name, lambda one: measure_flops(one, device), on_cpu=device.type == "cpu"), device)
