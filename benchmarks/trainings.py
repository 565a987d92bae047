"""What the memory benchmark trains: which model, at which size, in which precision and layout, with which optimizer."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SEED = 7
NUM_THREADS = 2
FAMILIES = ("unet", "resnet50", "resnet152", "gpt")
_NAMED_SIZES = {"resnet50": 32, "resnet152": 8, "gpt": 16}


@dataclass(frozen=True, slots=True)
class Case:
    """One training to measure."""

    family: str  # one of FAMILIES
    size: int  # unet: edge in voxels; resnet: images; gpt: texts
    precision: str = "fp32"  # or "bf16": autocast
    channels_last: bool = False
    quick: bool = False  # a toy of the same shape, to try the benchmark itself

    @property
    def name(self) -> str:
        """As the user writes it."""
        return f"unet{self.size}" if self.family == "unet" else self.family

    @property
    def label(self) -> str:
        """For people: name, precision and layout."""
        return f"{self.name} {self.precision}{' channels_last' if self.channels_last else ''}"

    @property
    def num_units(self) -> int:
        """What grows with the size: voxels, images or texts."""
        return self.size**3 if self.family == "unet" else self.size


def parse_model(name: str, quick: bool = False) -> Case:
    """The case that a name such as "unet96", "resnet50" or "gpt" stands for; ValueError for any other."""
    if match := re.fullmatch(r"unet(\d+)", name):
        size = int(match[1])
        if size % 8 or not size:
            raise ValueError(f"a U-Net's edge must be a multiple of 8, received {name!r}")
        case = Case("unet", size)
        return replace(case, size=max(16, size // 24 * 8), quick=True) if quick else case
    if name not in _NAMED_SIZES:
        raise ValueError(f"unknown model {name!r}; choose from unetN (such as unet96), {', '.join(_NAMED_SIZES)}")
    case = Case(name, _NAMED_SIZES[name])
    return replace(case, size=2, quick=True) if quick else case


@dataclass(frozen=True, slots=True)
class Request:
    """What to train and how."""

    case: Case
    mode: str  # "plain", "checkpoint" or "ferry"
    budget_nbytes: int | None = None  # ferry only
    tier: str = "auto"
    num_steps: int = 5
    allowance_nbytes: int | None = None  # a hard cap: what may be held beyond what a process holds before the model

    def to_json(self) -> str:
        """The request as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Request":
        """The request that `to_json` wrote."""
        data = json.loads(text)
        return cls(**data | {"case": Case(**data["case"])})


@dataclass(frozen=True, slots=True)
class Training:
    """Everything a step needs."""

    model: "torch.nn.Module"
    optimizer: "torch.optim.Optimizer"
    batch: tuple["torch.Tensor", "torch.Tensor"]
    compute_loss: Callable[..., "torch.Tensor"]
    precision: str

    def forward(self) -> "torch.Tensor":
        """The loss of one forward pass."""
        import torch

        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            return self.compute_loss(self.model, *self.batch)


def build(case: Case) -> Training:
    """The model, its optimizer and its batch, the same ones every time."""
    import torch

    torch.manual_seed(SEED)
    model, batch, compute_loss = _parts(case)
    if case.channels_last:
        layout = torch.channels_last_3d if case.family == "unet" else torch.channels_last
        model = model.to(memory_format=layout)
        batch = (batch[0].to(memory_format=layout), batch[1])
    optimizer: torch.optim.Optimizer
    if case.family == "gpt":
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return Training(model, optimizer, batch, compute_loss, case.precision)


def _parts(case: Case) -> tuple[Any, tuple["torch.Tensor", "torch.Tensor"], Callable[..., "torch.Tensor"]]:
    from tensorferry.recipes import gpt, resnet, unet3d

    match case.family:
        case "unet":
            return unet3d.UNet3d(), unet3d.make_batch(case.size, seed=SEED), unet3d.compute_loss
        case "resnet50" | "resnet152":
            make_model = {"resnet50": resnet.resnet50, "resnet152": resnet.resnet152}[case.family]
            return make_model(), resnet.make_batch(case.size, edge=64 if case.quick else 224, seed=SEED), resnet.compute_loss
        case "gpt":
            model = gpt.GPT(num_layers=2, width=128) if case.quick else gpt.GPT()
            return model, gpt.make_batch(case.size, length=128 if case.quick else 512, seed=SEED), gpt.compute_loss
        case _:
            raise ValueError(f"unknown family {case.family!r}; choose from {', '.join(FAMILIES)}")
