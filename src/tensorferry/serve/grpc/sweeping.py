"""Time on a connection: what takes too long ends. Looked at now and then, so that requests pay nothing for it."""

from typing import TYPE_CHECKING

from tensorferry.serve.core.limits import LINGER_SECONDS
from tensorferry.serve.grpc.frames import PING, Code, write_frame
from tensorferry.serve.grpc.streams import Stream, Watch

if TYPE_CHECKING:
    from tensorferry.serve.grpc.http2 import Connection

_PROGRESS_NBYTES = 1024


class Watches:
    """What is watched on one connection."""

    __slots__ = ("lingering", "pinged_at", "silence", "slowness", "stall")

    def __init__(self) -> None:
        self.silence = Watch()  # nothing comes
        self.slowness = Watch()  # a frame or a head has begun, and does not end
        self.stall = Watch()  # the client does not read
        self.lingering = Watch()
        self.pinged_at = -1  # how many reads there had been when we asked whether the client is there


def sweep(connection: "Connection", now: float) -> None:
    """End what takes too long."""
    limits, watches, outflow = connection.limits, connection.watches, connection.outflow
    if connection.is_refused:
        if watches.lingering.look(True, now) > LINGER_SECONDS:
            connection.transport.abort()
        return
    is_stuck = watches.stall.look(outflow.num_pauses if outflow.is_paused else None, now) > limits.read_seconds
    is_partial = bool(connection.rest or connection.block or not connection.has_settings)
    is_slow = watches.slowness.look(connection.num_frames if is_partial else None, now) > limits.read_seconds
    silence = watches.silence.look(connection.num_reads, now)
    if is_stuck or (connection.streams and silence > limits.ping_seconds + limits.pong_seconds):
        connection.transport.abort()
    elif is_slow:
        connection.refuse(Code.ENHANCE_YOUR_CALM, f"a frame did not arrive within {limits.read_seconds:g} seconds")
    elif connection.streams:
        if silence > limits.ping_seconds and watches.pinged_at != connection.num_reads:
            watches.pinged_at = connection.num_reads
            connection.write(write_frame(PING, 0, 0, bytes(8)))
        for stream in list(connection.streams.values()):
            _sweep_stream(connection, stream, now)
    elif silence > limits.idle_seconds:
        connection.end()


def _sweep_stream(connection: "Connection", stream: Stream, now: float) -> None:
    seconds = connection.limits.read_seconds
    # a window that is widened byte by byte is no progress
    if stream.sending.look(stream.num_sent // _PROGRESS_NBYTES if stream.pending else None, now) > seconds:
        connection.reset_stream(stream.number, Code.CANCEL)
        return
    waits_for_us = stream.is_received or stream.number in connection.inflow.waiting or not stream.receiver.wants_more
    if stream.receiving.look(None if waits_for_us else stream.receiver.progress, now) > seconds:
        stream.receiver.expire()
