"""What every runtime offers: a signature, and runners that one thread uses at a time."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tensorferry.serve.core.tensors import Array

# terminal colours, and the places in its sources that OpenVINO names before it comes to the point
_NOISE = re.compile(r"\x1b\[[0-9;]*m|^\s*(Check '|Exception from ).*$")


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """One input or output as the model's file tells it; -1 is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    has_rank: bool = True  # False: the file does not even tell how many dimensions


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model's file tells of its inputs and outputs."""

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]

    @property
    def may_be_batched(self) -> bool:
        """Whether the first dimension of everything is free, so that it could count rows."""
        tensors = self.inputs + self.outputs
        return bool(tensors) and all(tensor.has_rank and tensor.shape and tensor.shape[0] == -1 for tensor in tensors)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model's file is to be loaded; plain values, so that a worker process can be told."""

    path: Path
    num_threads: int = 1
    device: str = "cpu"  # or "gpu"
    device_id: int = 0
    trust: bool = False  # run files that may carry code
    parameters: Mapping[str, str] = field(default_factory=dict)
    input_names: tuple[str, ...] = ()  # in the configuration's order, for files that tell none
    output_names: tuple[str, ...] = ()


def in_one_line(error: BaseException) -> str:
    """The first line that says anything of what a library tells, without where in its sources that was."""
    lines = [_NOISE.sub("", line).strip() for line in str(error).splitlines()]
    return next(filter(None, lines), type(error).__name__)


class Runner(Protocol):
    """Runs the model; one thread at a time."""

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """The named outputs, in order."""

    def close(self) -> None:
        """Give back what only this runner holds."""


class Runtime(Protocol):
    """A loaded model."""

    signature: Signature | None

    def new_runner(self) -> Runner:
        """One more runner; runners share weights where the runtime can."""

    def close(self) -> None:
        """Give back the weights; no runner is used after it."""
