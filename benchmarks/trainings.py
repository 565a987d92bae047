"""What the memory benchmark trains, whatever the framework: which model, at which size, in which precision and layout."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, process_time
from typing import Any

SEED = 7
NUM_THREADS = 2
_NAMED_SIZES = {"resnet50": 32, "resnet152": 8, "googlenet": 32, "gpt": 16, "gpt350m": 1, "gpt50k": 1}


@dataclass(frozen=True, slots=True)
class Case:
    """One training to measure."""

    family: str  # unet, or one of the named sizes
    size: int  # unet: edge in voxels; resnet, googlenet: images; the GPTs: texts
    precision: str = "fp32"  # or "bf16": autocast
    channels_last: bool = False  # torch only; Keras models are in it by themselves
    quick: bool = False  # a toy of the same shape, to try the benchmark itself

    @property
    def name(self) -> str:
        """As the user writes it."""
        if self.family == "unet":
            return f"unet{self.size}"
        return self.family if self.size == _NAMED_SIZES[self.family] else f"{self.family}-{self.size}"

    @property
    def label(self) -> str:
        """For people: name, precision and layout."""
        return f"{self.name} {self.precision}{' channels_last' if self.channels_last else ''}"

    @property
    def num_units(self) -> int:
        """What grows with the size: voxels, images or texts."""
        return self.size**3 if self.family == "unet" else self.size


def parse_model(name: str, quick: bool = False) -> Case:
    """The case that a name such as "unet96", "resnet50-16" or "gpt" stands for; ValueError for any other."""
    if match := re.fullmatch(r"unet(\d+)", name):
        size = int(match[1])
        if size % 8 or not size:
            raise ValueError(f"a U-Net's edge must be a multiple of 8, received {name!r}")
        case = Case("unet", size)
        return replace(case, size=max(16, size // 24 * 8), quick=True) if quick else case
    match = re.fullmatch(r"(\w+?)(?:-([1-9]\d*))?", name)
    if match is None or match[1] not in _NAMED_SIZES:
        known = ", ".join(_NAMED_SIZES)
        raise ValueError(f"unknown model {name!r}; choose from unetN (such as unet96), {known}, or one at a size (resnet50-16)")
    case = Case(match[1], int(match[2] or _NAMED_SIZES[match[1]]))
    return replace(case, size=2, quick=True) if quick else case


@dataclass(frozen=True, slots=True)
class Request:
    """What to train and how."""

    case: Case
    mode: str  # "plain", "checkpoint" or "ferry"
    budget_nbytes: int | None = None  # ferry's; none: "auto"
    tier: str = "auto"
    num_steps: int = 5
    allowance_nbytes: int | None = None  # a hard cap: what may be held beyond what a process holds before the model
    engine: str = "torch"  # or "tensorflow"
    stream: bool = False  # whether ferry may stream below its smallest exact budget
    weights: bool = False  # whether weights, gradients and optimizer state wait on the tier, updated in backward
    cap: str = "process"  # who keeps the allowance: the kernel for the "process", or the framework's "allocator"

    def to_json(self) -> str:
        """The request as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Request":
        """The request that `to_json` wrote."""
        data = json.loads(text)
        return cls(**data | {"case": Case(**data["case"])})


@dataclass
class StepClock:
    """What the steps of a training took, and their losses. A framework's loop starts it and stops it around every step."""

    losses: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    wall_seconds: list[float] = field(default_factory=list)
    disk_nbytes: list[int] = field(default_factory=list)  # read and written
    ended_at: float = 0.0  # time.monotonic() at the end of the last step
    peak_nbytes: int = 0  # by `find_peak`, until then: what leaving a context brings back is not the training's
    find_peak: Callable[[], int] = int
    _started: tuple[float, float, int] = (0.0, 0.0, 0)

    def start(self) -> None:
        """A step begins."""
        self._started = (process_time(), perf_counter(), _disk_nbytes())

    def stop(self, loss: float) -> None:
        """The step is done, and this is its loss."""
        self.cpu_seconds.append(process_time() - self._started[0])
        self.wall_seconds.append(perf_counter() - self._started[1])
        self.disk_nbytes.append(_disk_nbytes() - self._started[2])
        self.losses.append(loss)
        self.ended_at, self.peak_nbytes = monotonic(), self.find_peak()

    def medians(self) -> dict[str, float]:
        """CPU and wall seconds and the disk's bytes of the median step, without the first."""
        return {
            "cpu_seconds": median(self.cpu_seconds[1:]),
            "wall_seconds": median(self.wall_seconds[1:]),
            "disk_nbytes": median(self.disk_nbytes[1:]),
        }


def _disk_nbytes() -> int:
    """What this process has had read from disks and written to them; 0 where the kernel does not tell."""
    try:
        counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    except OSError:
        return 0
    return int(counts["read_bytes"]) + int(counts["write_bytes"])


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training leaves to look at."""

    digest: Callable[[], dict[str, str]]  # hashes over the bits of each part of its state; hashing takes memory
    report: Any = None  # ferry's
    allocator_nbytes: int | None = None  # the peak that the framework's own allocator saw, where it counts
    num_parameters: int = 0
