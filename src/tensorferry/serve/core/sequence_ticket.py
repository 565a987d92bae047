"""One sequence of a stateful model, its slot, and its requests on their way through it."""

from collections import deque
from heapq import heappop, heappush
from threading import Condition
from typing import Protocol

from tensorferry.serve.core.faults import NotOver, RequestFault
from tensorferry.serve.core.model import AnswerSink, Model, Outputs, StreamTicket
from tensorferry.serve.core.requests import RequestOptions, Ticket
from tensorferry.serve.core.sequence_policy import SequencePolicy
from tensorferry.serve.core.tensors import Array


class Sequence:
    """One sequence: where it runs, what of it waits, and its states."""

    __slots__ = ("current", "id", "instance", "is_ending", "slot", "states", "used_at", "waiting")

    def __init__(self, sequence_id: int | str) -> None:
        self.id = sequence_id
        self.instance: Model | None = None  # None: it waits for a slot
        self.slot = 0  # of the instance
        self.waiting: deque[SequenceTicket] = deque()
        self.current: SequenceTicket | None = None
        self.states: dict[str, Array] = {}
        self.is_ending = False  # its last request has come
        self.used_at = 0.0


class SequenceSlots:
    """The slots of one instance; the lowest that is free goes first."""

    __slots__ = ("num_free", "num_touched", "returned")

    def __init__(self, num_slots: int) -> None:
        self.num_free = num_slots
        self.num_touched = 0
        self.returned: list[int] = []  # a heap

    def take(self) -> int:
        """A slot, while there is one."""
        self.num_free -= 1
        if self.returned:
            return heappop(self.returned)
        self.num_touched += 1
        return self.num_touched - 1

    def give_back(self, slot: int) -> None:
        """Its sequence is over."""
        self.num_free += 1
        heappush(self.returned, slot)


class SequenceOwner(Protocol):
    """The model that a ticket is of, as far as it asks for something."""

    policy: SequencePolicy
    changed: Condition
    is_decoupled: bool

    def turn(self, ticket: "SequenceTicket") -> None:
        """Have the instance see it again."""

    def finish(self, ticket: "SequenceTicket") -> None:
        """It is over, and the next of its sequence may begin."""

    def keep_states(self, sequence: Sequence, outputs: Outputs) -> Outputs | RequestFault:
        """The outputs without the states among them, which the sequence keeps."""


class SequenceTicket:
    """One request of a sequence; it takes the answers of the instance, and passes them on."""

    __slots__ = (
        *("inputs", "is_cancelled", "is_held", "model", "num_extra", "num_turns", "num_welcome"),
        *("options", "sequence", "sink", "ticket"),
    )

    def __init__(
        self,
        model: SequenceOwner,
        sequence: Sequence,
        inputs: dict[str, Array],
        options: RequestOptions,
        sink: AnswerSink,
        num_welcome: int,
    ) -> None:
        self.model = model
        self.sequence = sequence
        self.inputs = inputs
        self.options = options
        self.sink = sink
        self.num_welcome = num_welcome
        self.num_extra = 0
        self.ticket: Ticket | None = None
        self.is_cancelled = False
        self.is_held = False  # its next turn waits until the client has read
        self.num_turns = 0  # that it had before, where the model sees it again and again

    def tell(self, outcome: Outputs | RequestFault | None, is_last: bool) -> None:
        """An answer of the instance."""
        if isinstance(outcome, NotOver) and self.model.policy.is_iterative and not self.is_cancelled:
            self.model.turn(self)
            return
        if outcome is not None:
            self.num_welcome -= 1
        if isinstance(outcome, dict) and self.model.policy.states:
            outcome = self.model.keep_states(self.sequence, outcome)
        if is_last:
            self.model.finish(self)
        if not self.is_cancelled:
            self.sink.tell(outcome, is_last)

    def cancel(self) -> None:
        """Nobody waits for it any more; one that runs is finished, as the sequence goes on from it, unless it streams."""
        self.is_cancelled = True
        if self.model.is_decoupled and self.ticket is not None:
            self.ticket.cancel()
            self.model.finish(self)
        elif self.is_held:
            self.model.finish(self)

    def begin(self, ticket: Ticket, num_turns: int) -> None:
        """The instance has the request."""
        with self.model.changed:
            if num_turns != self.num_turns:  # that turn is over, and another has begun
                return
            self.ticket = ticket
            count, self.num_extra = self.num_extra, 0
        if count:
            self.welcome(count)
        if self.is_cancelled:
            self.cancel()

    def welcome(self, count: int) -> None:
        """There is room for so many answers more."""
        with self.model.changed:
            ticket = self.ticket
            if self.is_held or ticket is not None:
                self.num_welcome += count
            else:  # the first answers were quicker than `begin`
                self.num_extra += count
            is_free, self.is_held = self.is_held, False
        if is_free:
            self.model.turn(self)
        elif isinstance(ticket, StreamTicket):
            ticket.welcome(count)
