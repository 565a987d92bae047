"""One inference: what was asked and what is answered, whatever protocol carried it."""

from dataclasses import dataclass, field

from tensorferry.serve.tensors import Array


@dataclass(frozen=True, slots=True)
class RegionSlice:
    """A place in a registered shared-memory region."""

    region: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """An output that was asked for, and how it should come."""

    name: str
    num_classes: int = 0  # above zero: the best so many, as text
    target: RegionSlice | None = None  # written there instead of sent


@dataclass(frozen=True, slots=True)
class Urgency:
    """How a request wants to be queued."""

    priority: int = 0
    timeout_microseconds: int = 0


_NOT_URGENT = Urgency()


@dataclass(slots=True)
class InferRequest:
    """Arrays for one model; `wanted` empty means every output."""

    model_name: str
    model_version: str
    inputs: dict[str, Array]
    wanted: tuple[WantedOutput, ...] = ()
    id: str = ""
    urgency: Urgency = _NOT_URGENT


# one of each is made for every request, and a frozen dataclass takes three times as long to make
@dataclass(slots=True)
class OutputTensor:
    """An output; with a `target`, its bytes are there already."""

    name: str
    datatype: str
    array: Array
    target: RegionSlice | None = None
    nbytes: int = 0  # how much was written to the target


@dataclass(slots=True)
class InferResponse:
    """The answer of one model version."""

    model_name: str
    model_version: str
    id: str
    outputs: list[OutputTensor] = field(default_factory=list)
