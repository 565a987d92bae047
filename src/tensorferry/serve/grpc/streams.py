"""One stream of a connection: where its two directions are."""

from collections import deque
from typing import TYPE_CHECKING, Protocol

from tensorferry.serve.core.memory import Charge
from tensorferry.serve.grpc.frames import DEFAULT_WINDOW

if TYPE_CHECKING:
    from tensorferry.serve.grpc.http2 import Connection


class Receiver(Protocol):
    """What takes a request's bytes."""

    def receive(self, data: bytes) -> None:
        """Bytes of the body; it is whole where `Stream.is_received`."""

    def abandon(self) -> None:
        """The client is gone: nothing more is to be done, or sent."""

    def drained(self) -> None:
        """Everything that was sent so far is on its way."""

    def drain(self) -> None:
        """The connection takes no more streams, and waits for those that are open."""

    def expire(self) -> None:
        """The client took too long over its part."""

    @property
    def wants_more(self) -> bool:
        """Whether bytes are welcome now; see `Stream.resume`."""

    @property
    def num_missing(self) -> int:
        """How many bytes of a message that has begun have not come."""

    @property
    def progress(self) -> int | None:
        """A number that changes as the client does its part; None while it owes nothing."""


class Nobody:
    """The receiver of a stream that is over: one that stayed would keep the request until the collector runs."""

    wants_more = False
    num_missing = 0
    progress = None

    def receive(self, data: bytes) -> None:
        """Too late."""

    def abandon(self) -> None:
        """Nothing is under way."""

    def drained(self) -> None:
        """Nothing follows."""

    def drain(self) -> None:
        """Nothing is open."""

    def expire(self) -> None:
        """Nothing is owed."""


NOBODY = Nobody()


class Watch:
    """For how long something has not changed, as far as those see who look at it now and then."""

    __slots__ = ("mark", "since")

    def __init__(self) -> None:
        self.mark: object = None
        self.since = 0.0

    def look(self, mark: object, now: float) -> float:
        """The seconds since the mark was first seen; 0 for None."""
        if mark is None or mark != self.mark:
            self.mark, self.since = mark, now
        return now - self.since


class Stream:
    """A request and its answer; `send` and the like do nothing when the client is gone."""

    __slots__ = (
        "charge",
        "connection",
        "cost",
        "in_window",
        "is_answered",
        "is_gone",
        "is_received",
        "num_extra",
        "num_promised",
        "num_sent",
        "number",
        "out_window",
        "pending",
        "receiver",
        "receiving",
        "sending",
    )

    def __init__(self, connection: "Connection", number: int, out_window: int, num_promised: int | None) -> None:
        self.connection = connection
        self.number = number
        self.charge = Charge(connection.budget)  # what its request and its answer hold
        self.cost = 0  # what its head took of the client's patience
        self.receiver: Receiver = NOBODY
        self.in_window = DEFAULT_WINDOW  # what the client may still send
        self.num_extra = 0  # what of it the connection counts, see `Inflow`
        self.num_promised = num_promised  # bytes of the body that a content-length leaves
        self.out_window = out_window  # what we may still send
        self.pending: deque[bytes | memoryview] = deque()  # whole frames, and views of what becomes DATA
        self.num_sent = 0  # bytes of `pending` that could go
        self.is_received = False  # the client has sent everything
        self.is_answered = False  # so have we, or it waits in `pending`
        self.is_gone = False
        self.receiving = Watch()
        self.sending = Watch()

    @property
    def num_pending_nbytes(self) -> int:
        """What waits for a client that does not read."""
        return sum(map(len, self.pending))

    def send_head(self, block: bytes) -> None:
        """Begin the answer."""
        if not self.is_gone:
            self.connection.outflow.send_frame(self, self.connection.write_headers(self.number, block, ends=False))

    def send_data(self, data: bytes) -> None:
        """Go on with it."""
        if not self.is_gone:
            self.connection.outflow.send_data(self, data)

    def send_tail(self, block: bytes) -> None:
        """End it: with trailers, or with the only headers that it has."""
        if not self.is_gone:
            self.is_answered = True
            self.connection.outflow.send_frame(self, self.connection.write_headers(self.number, block, ends=True))
            if not self.pending:
                self.connection.leave(self)

    def send_all(self, head: bytes, data: bytes, tail: bytes) -> None:
        """A whole answer, in one piece where it fits."""
        if not self.is_gone:
            self.is_answered = True
            connection = self.connection
            connection.outflow.send_all(
                self,
                connection.write_headers(self.number, head, ends=False),
                data,
                connection.write_headers(self.number, tail, ends=True),
            )
            if not self.pending:
                connection.leave(self)

    def resume(self) -> None:
        """The receiver wants bytes again."""
        if not self.is_gone and not self.is_received:
            self.connection.inflow.replenish(self)
