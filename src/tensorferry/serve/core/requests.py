"""One inference: what was asked and what is answered, whatever protocol carried it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tensorferry.serve.core.limits import INLINE_NBYTES, INLINE_RAW_NBYTES
from tensorferry.serve.core.memory import Charge
from tensorferry.serve.core.tensors import Array

_TEXT_NBYTES = 16  # that each text is worth beside its own bytes, by the time that it takes
_FEW = 256  # elements, which take no time
_NUMBER_NBYTES = 8  # of JSON for a number, about


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
    charge: Charge | None = None  # to which its arrays and its answer are charged


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

    def is_quick_to_write(self, is_binary: Callable[[str], bool]) -> bool:
        """Whether the outputs take no longer to write than the event loop may be busy.

        `is_binary` tells of an output whether it goes as bytes, which for numbers means that they are only copied.
        """
        num_copied = num_written = 0
        for output in self.outputs:
            array = output.array
            has_texts = array.dtype.hasobject
            if (array.size <= _FEW and not has_texts) or output.target is not None:
                continue
            if has_texts:
                num_written += _TEXT_NBYTES * array.size
                if num_written <= INLINE_NBYTES:
                    num_written += sum(map(len, array.flat))
            elif is_binary(output.name):
                num_copied += array.nbytes
            else:
                num_written += _NUMBER_NBYTES * array.size
        return num_written <= INLINE_NBYTES and num_copied <= INLINE_RAW_NBYTES
