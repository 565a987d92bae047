"""A gRPC call on a stream: messages in, messages and a status out, a deadline around it."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from tensorferry.errors import FerryError
from tensorferry.serve.core.compression import Unpacker
from tensorferry.serve.core.faults import (
    InvalidRequest,
    MemoryFull,
    Unsupported,
)
from tensorferry.serve.core.limits import INLINE_NBYTES
from tensorferry.serve.core.memory import SMALL_NBYTES
from tensorferry.serve.core.received import Received
from tensorferry.serve.grpc.headers import CallHeaders, Field
from tensorferry.serve.grpc.messages import (
    HEAD_BLOCK,
    OK_BLOCK,
    MessageReader,
    Status,
    read_timeout,
    status_of,
    write_message,
    write_trailers,
)
from tensorferry.serve.grpc.streams import Stream

_LOG = logging.getLogger("tensorferry.serve")
_MAX_SECONDS = 1e6  # longer deadlines are none


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
        "is_completing",
        "is_over",
        "is_pumping",
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
        self.is_completing = False
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
        if listener is None or self.is_pumping or self.is_completing:
            return
        self.is_pumping = True
        try:
            while not self.is_over and listener.wants_more and (message := reader.take()) is not None:
                self._release(listener)
                whole = message if isinstance(message, bytes) else self._complete(message)
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

    def _complete(self, message: Received | Unpacker) -> bytes | None:
        """A message that unpacks to little; for others None, and they go on when a thread has made them one piece."""
        whole = message.start(INLINE_NBYTES) if isinstance(message, Unpacker) else None
        if whole is None:
            self.is_completing = True
            self.work = asyncio.get_running_loop().create_task(self._take_completed(message))
        return whole

    async def _take_completed(self, message: Received | Unpacker) -> None:
        try:
            whole = await asyncio.to_thread(message.finish)
            self.work = None  # it is this task, which ends by itself
            self.is_completing = False
            if self.listener is not None:
                self.listener.take(whole)
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
