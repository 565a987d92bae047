"""The device a model lives on, opened with its tier and its budget."""

import resource
from contextlib import ExitStack
from typing import NamedTuple, Protocol

import torch

from tensorferry.engines.budget import AUTO_SHARE
from tensorferry.engines.resident import Heap, ResidentMeter
from tensorferry.engines.torch.accelerator import AcceleratorDevice, open_pinned_tier
from tensorferry.engines.torch.device import CpuDevice, Device, device_of
from tensorferry.machine import TierSpeed, free_memory_nbytes
from tensorferry.tiers import open_tier

# the engine's own code and what it makes when it is opened: as a rule it is loaded once the model is built, so the rise is there
_OWN_NBYTES = 4 * 2**20


class SwapSpace(Protocol):
    """What the engine asks of any tier."""

    @property
    def describe(self) -> str:
        """Where it is and how it copies."""

    def check_room(self, nbytes: int) -> None:
        """Raise `TierFull` unless `nbytes` more fit."""

    def speed(self) -> TierSpeed:
        """The rates of the copies so far."""


class OpenedDevice(NamedTuple):
    """A device, where its bytes go, and how many it may hold."""

    device: Device
    tier: SwapSpace
    budget_nbytes: int


class DeviceOpener(Protocol):
    """Opens the device of a model; what it opens is closed with the stack.

    `held_nbytes` is what the model and its optimizer hold already. A budget of None is "auto".
    """

    def __call__(
        self, model: torch.nn.Module, tier: str, budget_nbytes: int | None, held_nbytes: int, stack: ExitStack
    ) -> OpenedDevice: ...


def open_device(model: torch.nn.Module, tier: str, budget_nbytes: int | None, held_nbytes: int, stack: ExitStack) -> OpenedDevice:
    """The device that the model's parameters are on."""
    where = device_of(model)
    return (
        _open_cpu(tier, budget_nbytes, held_nbytes, stack)
        if where.type in ("cpu", "meta")  # of weights on the tier nothing is anywhere yet
        else _open_accelerator(where, tier, budget_nbytes, stack)
    )


def _open_cpu(text: str, budget_nbytes: int | None, held_nbytes: int, stack: ExitStack) -> OpenedDevice:
    tier = open_tier(text)
    stack.callback(tier.close)
    Heap().trim()  # memory that was freed before would be taken for free
    meter = ResidentMeter()
    stack.callback(meter.close)
    if budget_nbytes is None:
        free_nbytes = min(free_memory_nbytes(), _left_under_cap_nbytes(meter))
        budget_nbytes = int((free_nbytes + held_nbytes) * AUTO_SHARE)
    device = CpuDevice(tier, meter, meter.now_nbytes() - held_nbytes - _OWN_NBYTES)
    stack.callback(device.close)
    return OpenedDevice(device, tier, budget_nbytes)


def _open_accelerator(where: torch.device, text: str, budget_nbytes: int | None, stack: ExitStack) -> OpenedDevice:
    tier = open_pinned_tier(text)
    stack.callback(tier.close)
    device = AcceleratorDevice(tier, where)
    stack.callback(device.close)
    return OpenedDevice(device, tier, int(device.free_nbytes() * AUTO_SHARE) if budget_nbytes is None else budget_nbytes)


def _left_under_cap_nbytes(meter: ResidentMeter) -> int:
    """What a cap on the process's data, if there is one, leaves."""
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return 2**63 if soft == resource.RLIM_INFINITY else max(0, soft - meter.data_nbytes())
