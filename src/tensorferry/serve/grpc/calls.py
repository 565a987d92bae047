"""A gRPC call on a stream: messages in, messages and a status out, a deadline around it."""

import asyncio
import logging
import re
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Protocol
from urllib.parse import quote

from google.protobuf.message import DecodeError

from tensorferry.errors import BadModel, FerryError
from tensorferry.serve.core.compression import Unpacker
from tensorferry.serve.core.faults import (
    Conflict,
    Denied,
    Forbidden,
    InvalidRequest,
    MemoryFull,
    NotFound,
    TooLarge,
    Unavailable,
    Unsupported,
)
from tensorferry.serve.core.limits import INLINE_NBYTES
from tensorferry.serve.core.memory import SMALL_NBYTES, Charge
from tensorferry.serve.grpc.headers import CallHeaders, Field, write_block, write_first_block
from tensorferry.serve.grpc.streams import Stream

_LOG = logging.getLogger("tensorferry.serve")
_MAX_SECONDS = 1e6  # longer deadlines are none
ENCODINGS = ("identity", "deflate", "gzip")
_PREFIX = struct.Struct(">BI")  # whether compressed, length
_PREFIX_NBYTES = _PREFIX.size
_MAX_TEXT_NBYTES = 4096  # clients take 8 KiB of headers
_SMALL_NBYTES = 4096  # parts below it are put together as they come: each by itself would cost more than its bytes
_PLAIN = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # with letters and digits, what a status text may hold as it is
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class Status(IntEnum):
    """How a call ended."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


_STATUSES: dict[type[Exception], Status] = {
    InvalidRequest: Status.INVALID_ARGUMENT,
    BadModel: Status.INVALID_ARGUMENT,
    Denied: Status.UNAUTHENTICATED,
    Forbidden: Status.PERMISSION_DENIED,
    NotFound: Status.NOT_FOUND,
    Conflict: Status.ALREADY_EXISTS,
    TooLarge: Status.RESOURCE_EXHAUSTED,
    MemoryFull: Status.RESOURCE_EXHAUSTED,
    Unsupported: Status.UNIMPLEMENTED,
    Unavailable: Status.UNAVAILABLE,
}
HEAD_BLOCK = write_first_block(
    [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-accept-encoding", ",".join(ENCODINGS).encode()),
    ]
)
OK_BLOCK = write_block([(b"grpc-status", b"0")])


def status_of(error: Exception) -> Status:
    """The status of an error; those that no client can have caused are INTERNAL."""
    return next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), Status.INTERNAL)


def parse(kind: Any, data: bytes) -> Any:
    """The message that bytes are; what is none is the client's fault."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidRequest(f"the bytes are not a {kind.DESCRIPTOR.name}") from None


def write_message(message: bytes) -> bytes:
    """A message as it goes into DATA."""
    return _PREFIX.pack(0, len(message)) + message


def write_trailers(status: Status, text: str, fields: tuple[Field, ...] = ()) -> bytes:
    """The block that ends a call."""
    made = [(b"grpc-status", b"%d" % status)]
    if text:
        made.append((b"grpc-message", quote_text(text)))
    return write_block([*made, *fields])


def quote_text(text: str) -> bytes:
    """A status text in the characters that a header may hold; a very long one is cut.

    >>> quote_text("100 % größer")
    b'100 %25 gr%C3%B6%C3%9Fer'
    """
    quoted = quote(text, safe=_PLAIN, errors="replace").encode()
    if len(quoted) > _MAX_TEXT_NBYTES:
        quoted = re.sub(rb"%[0-9A-F]?$", b"", quoted[:_MAX_TEXT_NBYTES])
    return quoted.strip(b" ")


def read_timeout(text: str) -> float:
    """The seconds of a grpc-timeout.

    >>> read_timeout("1500m")
    1.5
    """
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"the grpc-timeout {text[:20]!r} is none: up to 8 digits and one of H, M, S, m, u, n")
    return int(match[1]) * _UNITS[match[2]]


class MessageReader:
    """Cuts the DATA of one stream into messages: `append` what comes, `take` until there is none."""

    __slots__ = ("at", "charge", "data", "encoding", "max_nbytes", "num_needed", "num_taken", "num_unread", "parts")

    def __init__(self, encoding: str, max_nbytes: int, charge: Charge) -> None:
        self.encoding = encoding
        self.charge = charge  # to which messages are charged that are larger unpacked
        self.max_nbytes = max_nbytes
        self.data = b""
        self.at = 0
        self.parts: list[bytes | bytearray] = []
        self.num_unread = 0
        self.num_needed = _PREFIX_NBYTES
        self.num_taken = 0

    @property
    def num_missing(self) -> int:
        """How many bytes of a message that has begun are not here yet."""
        return max(0, self.num_needed - self.num_unread) if self.num_unread else 0

    def append(self, data: bytes) -> None:
        """More bytes."""
        if self.num_unread:
            if len(data) >= _SMALL_NBYTES or not self.parts:
                self.parts.append(data)
            elif isinstance(self.parts[-1], bytearray):
                self.parts[-1] += data
            else:
                self.parts.append(bytearray(data))
        else:
            self.data, self.at = data, 0
        self.num_unread += len(data)

    def take(self) -> bytes | Unpacker | None:
        """The next message, if it is whole, or what unpacks it; raises TooLarge before its bytes are here."""
        if self.num_unread < self.num_needed:
            return None
        self._gather()
        is_packed, length = _PREFIX.unpack_from(self.data, self.at)
        if length > self.max_nbytes:
            raise TooLarge(f"a message of {length} bytes, the most this server takes is {self.max_nbytes}")
        self.num_needed = _PREFIX_NBYTES + length
        if self.num_unread < self.num_needed:
            return None
        self._gather()
        start, self.at = self.at + _PREFIX_NBYTES, self.at + self.num_needed
        message = self.data[start : self.at]
        self.num_unread -= self.num_needed
        self.num_needed = _PREFIX_NBYTES
        self.num_taken += 1
        if not self.num_unread:
            self.data = b""  # the message is a copy; both would double what a large request holds
        return self._unpack(message, is_packed) if is_packed else message

    def _gather(self) -> None:
        """Make what is needed one piece."""
        if len(self.data) - self.at < self.num_needed:
            self.data = b"".join([self.data[self.at :], *self.parts])
            self.at = 0
            self.parts.clear()

    def _unpack(self, message: bytes, flag: int) -> Unpacker:
        if flag != 1:
            raise InvalidRequest(f"a message with the compression flag {flag}, which is neither 0 nor 1")
        if self.encoding in ("", "identity"):
            raise InvalidRequest("a compressed message without a grpc-encoding")
        if self.encoding not in ENCODINGS:
            raise Unsupported(f"the grpc-encoding {self.encoding[:20]!r} is unknown; known are {', '.join(ENCODINGS)}")
        return Unpacker(message, self.encoding, self.max_nbytes, self.charge)


class Cancellable(Protocol):
    """What is under way for a call: a ticket of the data plane, a task."""

    def cancel(self) -> object:
        """Nobody waits for it any more."""


class Listener(Protocol):
    """What a call's messages are for."""

    def take(self, message: bytes) -> None:
        """One message."""

    def end(self) -> None:
        """There are no more."""

    def cancel(self) -> None:
        """Nobody waits for an answer any more."""

    def sent(self) -> None:
        """Answers that had to wait are on their way."""

    def drain(self) -> None:
        """The connection is to end: what would go on for as long as the client likes must not hold it up."""

    @property
    def wants_more(self) -> bool:
        """Whether another message may come now; see `Call.pump`."""

    @property
    def is_unary(self) -> bool:
        """Whether a client owes its message at once."""


Run = Callable[["Call", bytes], None]


class Unary:
    """One message in: `run` is called when nothing can follow it."""

    __slots__ = ("call", "message", "run")

    wants_more = True
    is_unary = True

    def __init__(self, call: "Call", run: Run) -> None:
        self.call = call
        self.run = run
        self.message: bytes | None = None

    def take(self, message: bytes) -> None:
        """The message."""
        if self.message is not None:
            raise Unsupported("the call takes one message, two came")
        self.message = message

    def end(self) -> None:
        """Answer it."""
        message, self.message = self.message, None
        if message is None:
            raise Unsupported("the call takes one message, none came")
        self.run(self.call, message)

    def cancel(self) -> None:
        """Nothing but the call's own work is under way."""

    def sent(self) -> None:
        """Nothing follows the answer."""

    def drain(self) -> None:
        """The call ends by itself."""


class Call:
    """One call. `reply`, `send` and `finish` do nothing when it is over."""

    __slots__ = (
        "deadline",
        "has_ended",
        "has_sent",
        "headers",
        "is_over",
        "is_pumping",
        "is_unpacking",
        "listener",
        "reader",
        "stream",
        "trailers",
        "work",
    )

    def __init__(self, stream: Stream, headers: CallHeaders, max_message_nbytes: int) -> None:
        self.stream = stream
        self.headers = headers
        self.reader = MessageReader(headers.encoding, max_message_nbytes, stream.charge)
        self.listener: Listener | None = None
        self.work: Cancellable | None = None
        self.trailers: tuple[Field, ...] = ()
        self.deadline: asyncio.TimerHandle | None = None
        self.has_sent = False
        self.has_ended = False
        self.is_pumping = False
        self.is_unpacking = False
        self.is_over = False

    def start(self, listener: Listener) -> None:
        """Have the call's messages go to `listener`, until its deadline."""
        self.listener = listener
        if self.headers.timeout:
            seconds = min(read_timeout(self.headers.timeout), _MAX_SECONDS)
            self.deadline = asyncio.get_running_loop().call_later(seconds, self._miss_deadline)

    # ---- from the connection -----------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes of the body."""
        if data and not self.is_over:
            if len(data) > SMALL_NBYTES or self.reader.num_unread:
                try:
                    self.stream.charge.add(len(data))
                except MemoryFull as fault:
                    self.fail(fault)
                    return
            self.reader.append(data)
        self.pump()

    def pump(self) -> None:
        """Give the listener what has come, as far as it wants it."""
        listener, reader = self.listener, self.reader
        # an answer that is sent at once may lead here from within
        if listener is None or self.is_pumping or self.is_unpacking:
            return
        self.is_pumping = True
        try:
            while not self.is_over and listener.wants_more and (message := reader.take()) is not None:
                self._release(listener)
                whole = message if isinstance(message, bytes) else self._unpack(message)
                if whole is None:
                    return
                listener.take(whole)
            if self.stream.is_received and listener.wants_more and not self.has_ended and not self.is_over:
                self.has_ended = True
                if reader.num_unread:
                    raise InvalidRequest("the last message ends too early")
                listener.end()
        except Exception as error:
            self.fail(error)
        finally:
            self.is_pumping = False

    def _unpack(self, unpacker: Unpacker) -> bytes | None:
        """A message that unpacks to little; for others None, and they go on when a thread has done it."""
        message = unpacker.start(INLINE_NBYTES)
        if message is not None:
            return message
        self.is_unpacking = True
        self.work = asyncio.get_running_loop().create_task(self._take_unpacked(unpacker))
        return None

    async def _take_unpacked(self, unpacker: Unpacker) -> None:
        try:
            message = await asyncio.to_thread(unpacker.finish)
            self.work = None  # it is this task, which ends by itself
            self.is_unpacking = False
            if self.listener is not None:
                self.listener.take(message)
            self.resume()
        except Exception as error:
            self.work = None
            self.fail(error)

    def abandon(self) -> None:
        """The client is gone."""
        if not self.is_over:
            self._close()

    def drained(self) -> None:
        """Everything that was sent so far is on its way."""
        self._settle()
        if self.listener is not None:
            self.listener.sent()
        self.resume()

    def drain(self) -> None:
        """The connection is to end."""
        if self.listener is not None:
            self.listener.drain()

    def resume(self) -> None:
        """The listener may want more than it did."""
        self.pump()
        self.stream.resume()

    def expire(self) -> None:
        """The request did not come in time."""
        self.finish(Status.DEADLINE_EXCEEDED, "the request did not arrive in time")

    @property
    def wants_more(self) -> bool:
        """Whether bytes are welcome."""
        return self.listener is not None and self.listener.wants_more

    @property
    def num_missing(self) -> int:
        """How many bytes of a message that has begun have not come."""
        return self.reader.num_missing

    @property
    def progress(self) -> int | None:
        """A number that changes with every message; None where none is owed."""
        if self.listener is not None and (self.listener.is_unary or self.reader.num_missing):
            return self.reader.num_taken
        return None

    # ---- to the client -----------------------------------------------------------------------------------------------

    def reply(self, message: bytes) -> None:
        """Answer with one message and OK."""
        if not self.is_over:
            if len(message) > SMALL_NBYTES:
                try:
                    self.stream.charge.replace(len(message))
                except MemoryFull as fault:
                    self.work = None
                    self.fail(fault)
                    return
            tail = write_trailers(Status.OK, "", self.trailers) if self.trailers else OK_BLOCK
            self.work = None  # it is done
            self._close()
            self.stream.send_all(HEAD_BLOCK, write_message(message), tail)

    def send(self, message: bytes) -> None:
        """Answer with one message of several."""
        if not self.is_over:
            try:
                self.stream.charge.add(len(message))
            except MemoryFull as fault:
                self.fail(fault)
                return
            if not self.has_sent:
                self.has_sent = True
                self.stream.send_head(HEAD_BLOCK)
            self.stream.send_data(write_message(message))
            if not self.stream.pending:
                self._settle()

    def finish(self, status: Status = Status.OK, text: str = "") -> None:
        """End the call."""
        if not self.is_over:
            self._close()
            block = write_trailers(status, text, self.trailers)
            self.stream.send_tail(block if self.has_sent else HEAD_BLOCK + block)

    def fail(self, error: Exception) -> Status:
        """End the call with the status of an error."""
        if not isinstance(error, FerryError):
            _LOG.error("an error of the server itself", exc_info=error)
        status = status_of(error)
        self.finish(status, str(error))
        return status

    def refuse(self, block: bytes) -> None:
        """End what is no call of gRPC, with headers of HTTP alone."""
        self._close()
        self.stream.send_tail(block)

    def _release(self, listener: Listener) -> None:
        """A message of a stream of messages is whole: from here on the listener charges and bounds what it holds of them."""
        if listener.is_unary:
            return
        if self.stream.num_extra:
            self.stream.connection.inflow.release(self.stream)
        if not self.stream.pending:
            self._settle()

    def _settle(self) -> None:
        """Of a stream of messages only what is not taken yet is held, once all answers have gone."""
        if not self.is_over and self.stream.charge.nbytes > self.reader.num_unread:
            self.stream.charge.replace(self.reader.num_unread)

    def _miss_deadline(self) -> None:
        self.deadline = None
        self.finish(Status.DEADLINE_EXCEEDED, "the deadline passed")

    def _close(self) -> None:
        """Nothing more happens; what leads back here is let go, as a circle would keep the arrays until the collector runs."""
        self.is_over = True
        listener, work, deadline = self.listener, self.work, self.deadline
        self.listener = self.work = self.deadline = None
        if deadline is not None:
            deadline.cancel()
        if work is not None:
            work.cancel()
        if listener is not None:
            listener.cancel()
