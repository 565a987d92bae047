"""What a gRPC client may take of the server."""

import time
from dataclasses import dataclass

from tensorferry.serve.rpc.frames import Code, ConnectionFault

MAX_MESSAGE_NBYTES = 2**31 - 2**17  # what a window, and protobuf, can hold


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """The limits of one server."""

    max_message_nbytes: int = 64 * 2**20
    max_connections: int = 1024
    max_streams: int = 256  # of one connection at a time; clients keep further calls back themselves
    read_seconds: float = 60.0  # for a whole request to come, or for an answer to be read
    idle_seconds: float = 600.0  # without a call
    ping_seconds: float = 60.0  # of silence during a call, before the client is asked whether it is there
    pong_seconds: float = 20.0  # for its answer


class Patience:
    """How much a client may ask that brings it nothing: resets, pings, settings, empty frames.

    Each costs a little, time and messages that were sent give it back. What one of them costs the server is little as well, so a
    burst is allowed; only a flood ends the connection (CVE-2019-9511 to 9518, CVE-2023-44487, CVE-2025-8671).
    """

    __slots__ = ("counted_at", "left")

    BURST = 1000
    A_SECOND = 100

    def __init__(self) -> None:
        self.left = self.BURST
        self.counted_at = time.monotonic()

    def spend(self) -> None:
        """One more of them came."""
        self.left -= 1
        if self.left < 0:
            now = time.monotonic()
            self.left += min(self.BURST, int((now - self.counted_at) * self.A_SECOND))
            self.counted_at = now
            if self.left < 0:
                raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many resets, pings, settings or empty frames")

    def earn(self) -> None:
        """A message was sent, or a full frame of one: the client may widen its windows for it, and measure."""
        self.left = min(self.BURST, self.left + 4)
