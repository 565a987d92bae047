"""One inference: what was asked and what is answered, whatever protocol carried it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tensorferry.serve.core.faults import InvalidRequest, RequestFault
from tensorferry.serve.core.limits import INLINE_NBYTES, INLINE_RAW_NBYTES
from tensorferry.serve.core.memory import Charge
from tensorferry.serve.core.tensors import Array
from tensorferry.serve.core.tracing import RequestTrace, TraceContext

_TEXT_NBYTES = 16  # that each text is worth beside its own bytes, by the time that it takes
_FEW = 256  # elements, which take no time
_NUMBER_NBYTES = 8  # of JSON for a number, about
_MAX_INT64 = 2**63 - 1
_MAX_UINT64 = 2**64 - 1
_MAX_ID_LENGTH = 128  # of a sequence
# the parameters of a request that this server reads itself
_OWN_PARAMETERS = frozenset(
    (
        *("priority", "timeout", "sequence_id", "sequence_start", "sequence_end"),
        *("binary_data_output", "triton_enable_empty_final_response"),
    )
)


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
class SequenceStep:
    """The place of a request in a sequence of them."""

    id: int | str
    is_start: bool = False
    is_end: bool = False
    slot: int = 0  # of the instance that its sequence runs on


# one is made for many requests, and a frozen dataclass takes three times as long to make
@dataclass(slots=True, eq=False)
class RequestOptions:
    """What a request says beside its tensors; it is not changed once it is made."""

    priority: int = 0
    timeout_microseconds: int = 0
    sequence: SequenceStep | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)  # those that mean something to the model alone
    id: str = ""
    callers: tuple[str, ...] = ()  # the models whose calls led to it, where it came from one
    trace: RequestTrace | None = None  # to note what becomes of it


NO_OPTIONS = RequestOptions()


def read_options(parameters: Mapping[str, Any], request_id: str = "") -> RequestOptions:
    """The options that a request's parameters are; raises InvalidRequest."""
    if not parameters and not request_id:
        return NO_OPTIONS
    return RequestOptions(
        _read_count(parameters, "priority"),
        _read_count(parameters, "timeout"),
        _read_sequence(parameters) if "sequence_id" in parameters else None,
        {key: value for key, value in parameters.items() if key not in _OWN_PARAMETERS},
        request_id,
    )


def _read_count(parameters: Mapping[str, Any], key: str) -> int:
    value = parameters.get(key, 0)
    if type(value) is not int or not 0 <= value <= _MAX_INT64:
        raise InvalidRequest(f"'{key}' must be a whole number from zero up, received {value!r}")
    return value


def _read_sequence(parameters: Mapping[str, Any]) -> SequenceStep | None:
    found = parameters["sequence_id"]
    if type(found) is not str and (type(found) is not int or not 0 <= found <= _MAX_UINT64):
        raise InvalidRequest(f"'sequence_id' must be a whole number from zero up, or text, received {found!r}")
    if isinstance(found, str) and len(found) > _MAX_ID_LENGTH:
        raise InvalidRequest(f"'sequence_id' has {len(found)} characters, the most this server takes is {_MAX_ID_LENGTH}")
    flags = [parameters.get(key, False) for key in ("sequence_start", "sequence_end")]
    if not all(isinstance(flag, bool) for flag in flags):
        raise InvalidRequest("'sequence_start' and 'sequence_end' must be true or false")
    return SequenceStep(found, *flags) if found else None  # 0 and no text mean that there is none


class Ticket(Protocol):
    """A request under way."""

    def cancel(self) -> None:
        """Nobody waits for it any more: if it has not started, it does not."""


@dataclass(slots=True, eq=False)
class InferRequest:
    """One inference, from a protocol through the data plane and back: arrays for one model, and what becomes of them.

    A protocol makes it of what a client sends (`wanted` empty means every output), the data plane fills in the rest.
    """

    model_name: str
    model_version: str
    inputs: dict[str, Array]
    wanted: tuple[WantedOutput, ...] = ()
    id: str = ""
    options: RequestOptions = NO_OPTIONS
    charge: Charge | None = None  # to which its arrays are charged already, and its answer will be
    trace: TraceContext | None = None  # that its client sent
    answer: "Answer | None" = None  # called with what became of it; None before it is submitted, and when it is over
    model: Any = None  # the loaded version that has it
    ticket: Ticket | None = None  # of that model
    on_cancel: Callable[[], None] | None = None

    def cancel(self) -> None:
        """The client went away."""
        ticket, on_cancel = self.ticket, self.on_cancel
        self.end()
        if on_cancel is not None:
            on_cancel()
        if ticket is not None:
            ticket.cancel()

    def end(self) -> None:
        """It is over; what leads back here is let go, as a circle would keep the arrays until the collector runs."""
        self.answer = self.model = self.ticket = self.on_cancel = None


# as with options
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


Answer = Callable[[InferResponse | RequestFault], object]
