"""Streams of a connection, and flow control (RFC 9113, 5.2): who may send how much, so that nobody holds more than they can.

In: every stream may send a small window ahead. A message that is larger gets as much as it needs at once, but what all streams of
a connection hold of large messages is bounded: beyond it, they are let in one after another, in the order of their asking. One is
always let in, so none waits for ever.

Out: what the client's windows, or its reading, have no room for waits in the stream it belongs to; streams take turns.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from tensorferry.serve.core.memory import SMALL_NBYTES, Charge, MemoryBudget
from tensorferry.serve.grpc.frames import (
    DEFAULT_WINDOW,
    MAX_FRAME_NBYTES,
    MAX_WINDOW,
    Code,
    ConnectionFault,
    FloodLimit,
    StreamFault,
    write_data_header,
    write_window_update,
)

CONNECTION_WINDOW = 2**30  # streams have windows of their own; this one only must not stand in their way
_LOW_WINDOW = DEFAULT_WINDOW // 2
_LARGE_NBYTES = 1024
_MAX_TURN_FRAMES = 4  # of one stream, before another has its turn

Write = Callable[[bytes], None]


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


class Stopwatch:
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


class StreamOwner(Protocol):
    """What a stream needs of its connection."""

    budget: MemoryBudget
    inflow: "Inflow"
    outflow: "Outflow"
    is_ending: bool  # no more streams are taken

    def write_headers(self, number: int, block: bytes, *, ends: bool) -> bytes:
        """A HEADERS frame."""

    def leave(self, stream: "Stream") -> None:
        """The stream is answered."""


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

    def __init__(self, connection: StreamOwner, number: int, out_window: int, num_promised: int | None) -> None:
        self.connection = connection
        self.number = number
        self.charge = Charge(connection.budget, SMALL_NBYTES)  # what its request and its answer hold
        self.cost = 0  # what its head took of the client's flood_limit
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
        self.receiving = Stopwatch()
        self.sending = Stopwatch()

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


class Inflow:
    """What the client of one connection may send."""

    def __init__(self, write: Write, max_extra_nbytes: int) -> None:
        self.write = write
        self.max_extra_nbytes = max_extra_nbytes
        self.window = CONNECTION_WINDOW
        self.num_extra = 0
        self.waiting: dict[int, Stream] = {}

    def count(self, nbytes: int) -> None:
        """So much DATA has come, of whatever stream."""
        self.window -= nbytes
        if self.window < 0:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        if self.window < CONNECTION_WINDOW // 2:
            self.write(write_window_update(0, CONNECTION_WINDOW - self.window))
            self.window = CONNECTION_WINDOW

    def count_stream(self, stream: Stream, nbytes: int) -> None:
        """So much of it was this stream's."""
        stream.in_window -= nbytes
        if stream.in_window < 0:
            raise StreamFault(stream.number, Code.FLOW_CONTROL_ERROR)

    def replenish(self, stream: Stream) -> None:
        """Let a stream send what its receiver wants, or have it wait for that."""
        missing = stream.receiver.num_missing
        if not stream.receiver.wants_more or (missing <= stream.in_window and (missing or stream.in_window > _LOW_WINDOW)):
            return
        if missing > DEFAULT_WINDOW and (self.waiting or not self._has_room(stream, missing)):
            self.waiting[stream.number] = stream
        else:
            self._grant(stream, missing)

    def release(self, stream: Stream) -> None:
        """A stream holds no large message any more: the next may come."""
        self.waiting.pop(stream.number, None)
        self.num_extra -= stream.num_extra
        stream.num_extra = 0
        while self.waiting:
            number, other = next(iter(self.waiting.items()))
            missing = other.receiver.num_missing
            if not self._has_room(other, missing):
                break
            del self.waiting[number]
            self._grant(other, missing)

    def _has_room(self, stream: Stream, missing: int) -> bool:
        others = self.num_extra - stream.num_extra
        return others == 0 or others + missing - DEFAULT_WINDOW <= self.max_extra_nbytes

    def _grant(self, stream: Stream, missing: int) -> None:
        extra = max(stream.num_extra, missing - DEFAULT_WINDOW, 0)
        self.num_extra += extra - stream.num_extra
        stream.num_extra = extra
        increment = max(missing, DEFAULT_WINDOW) - stream.in_window
        if increment > 0:
            stream.in_window += increment
            self.write(write_window_update(stream.number, increment))


class Outflow:
    """What may be sent to the client of one connection."""

    def __init__(self, write: Write, flood_limit: FloodLimit, on_sent: Callable[[Stream], None]) -> None:
        self.write = write
        self.flood_limit = flood_limit
        self.on_sent = on_sent  # told when nothing of a stream waits any more
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.is_paused = False  # the client does not read what was written
        self.num_pauses = 0
        self.blocked: dict[int, Stream] = {}

    def send_frame(self, stream: Stream, frame: bytes) -> None:
        """A frame that needs no window, in its turn."""
        if stream.pending or self.is_paused:
            self._wait(stream, frame)
        else:
            self.write(frame)

    def send_data(self, stream: Stream, data: bytes) -> None:
        """DATA, now or when there is room for it."""
        if self._fits(stream, len(data)):
            self._spend(stream, len(data))
            self.flood_limit.earn()
            self.write(write_data_header(len(data), 0, stream.number) + data)
        else:
            self._wait(stream, memoryview(data))
            self._push(stream)

    def send_all(self, stream: Stream, head: bytes, data: bytes, tail: bytes) -> None:
        """A whole answer: by far most fit, and are one write."""
        if self._fits(stream, len(data)):
            self._spend(stream, len(data))
            self.write(b"".join((head, write_data_header(len(data), 0, stream.number), data, tail)))
        else:
            for part in (head, memoryview(data), tail):
                self._wait(stream, part)
            self._push(stream)

    def widen(self, increment: int) -> None:
        """The connection's window grows."""
        self.window += increment
        if increment == 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        if self.window > MAX_WINDOW:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "a window of more than 2^31-1")
        self.flush()

    def widen_stream(self, stream: Stream, increment: int) -> None:
        """A stream's window grows."""
        stream.out_window += increment
        if increment == 0:
            raise StreamFault(stream.number, Code.PROTOCOL_ERROR)
        if stream.out_window > MAX_WINDOW:
            raise StreamFault(stream.number, Code.FLOW_CONTROL_ERROR)
        self._push(stream)

    def set_initial_window(self, nbytes: int, streams: list[Stream]) -> None:
        """The client's setting changed: it counts for open streams as well, whose windows may become negative."""
        change, self.initial_window = nbytes - self.initial_window, nbytes
        for stream in streams:
            stream.out_window += change
            if stream.out_window > MAX_WINDOW:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "a window of more than 2^31-1")
        self.flush()

    def pause(self) -> None:
        """Send nothing until `resume`."""
        self.is_paused = True
        self.num_pauses += 1

    def resume(self) -> None:
        """The client has read."""
        self.is_paused = False
        self.flush()

    def flush(self) -> None:
        """Send what has room now, in turns."""
        has_moved = True
        while has_moved and self.blocked and not self.is_paused:
            has_moved = False
            for stream in list(self.blocked.values()):
                has_moved |= self._advance(stream)

    def _push(self, stream: Stream) -> None:
        """Send as much of one stream as there is room for."""
        while stream.pending and self._advance(stream):
            pass

    def _advance(self, stream: Stream) -> bool:
        """Send some of a stream; whether anything went."""
        frames: list[bytes] = []
        pending = stream.pending
        for _ in range(_MAX_TURN_FRAMES):
            if not pending or self.is_paused:
                break
            part = pending[0]
            if isinstance(part, bytes):
                frames.append(part)
                pending.popleft()
                continue
            room = min(len(part), MAX_FRAME_NBYTES, self.window, stream.out_window)
            if room <= 0 < len(part):
                break
            self._spend(stream, room)
            stream.num_sent += room
            if room >= _LARGE_NBYTES or room == len(part):  # windows that let a few bytes through earn nothing
                self.flood_limit.earn()
            frames += (write_data_header(room, 0, stream.number), part[:room].tobytes())
            if room == len(part):
                pending.popleft()
            else:
                pending[0] = part[room:]
        if frames:
            self.write(b"".join(frames))
        if not pending:
            self.blocked.pop(stream.number, None)
            self.on_sent(stream)
        return bool(frames)

    def drop(self, stream: Stream) -> None:
        """Nothing more of a stream is to be sent."""
        stream.pending.clear()
        self.blocked.pop(stream.number, None)

    def _fits(self, stream: Stream, nbytes: int) -> bool:
        room = min(self.window, stream.out_window, MAX_FRAME_NBYTES)
        return nbytes <= room and not stream.pending and not self.is_paused

    def _spend(self, stream: Stream, nbytes: int) -> None:
        self.window -= nbytes
        stream.out_window -= nbytes

    def _wait(self, stream: Stream, part: bytes | memoryview) -> None:
        stream.pending.append(part)
        self.blocked[stream.number] = stream
