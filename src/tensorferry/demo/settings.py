"""What the demo shows, and what each of its trainings is told."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

RECIPE = "unet3d-brain"
BACKEND = "torch"  # Keras' other one, TensorFlow, may crash without a word when a cap refuses it memory


@dataclass(frozen=True)
class Settings:
    """The demo as the user wants it."""

    out: Path = Path("ferry-demo")
    num_steps: int = 4
    edge: int = 96  # voxels
    budget_nbytes: int | None = None  # None: a share of the plain peak


@dataclass(frozen=True, slots=True)
class Request:
    """One training, in a process of its own."""

    edge: int
    num_steps: int
    out: str  # the run's folder
    cap_nbytes: int | None = None  # what the process may hold beyond what it held before the model; None: no cap
    budget_nbytes: int | None = None  # None: plain training
    base: int = 16  # channels at full resolution

    def to_json(self) -> str:
        """The request as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Request":
        """The request that `to_json` wrote."""
        return cls(**json.loads(text))
