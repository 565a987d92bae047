"""How much that brings it nothing a gRPC client may ask of the server."""

import time

from tensorferry.serve.grpc.frames import Code, ConnectionFault


class Patience:
    """How much a client may ask that brings it nothing: resets, pings, settings, empty frames, calls of nothing.

    Each costs a little, time and messages that were sent give it back. What one of them costs the server is little as well, so a
    burst is allowed; only a flood ends the connection (CVE-2019-9511 to 9518, CVE-2023-44487, CVE-2025-8671).
    """

    __slots__ = ("counted_at", "left")

    BURST = 1000
    A_SECOND = 100

    def __init__(self) -> None:
        self.left = self.BURST
        self.counted_at = time.monotonic()

    def spend(self, cost: int = 1) -> None:
        """One more of them came; what takes the server longer than others costs more."""
        self.left -= cost
        if self.left < 0:
            now = time.monotonic()
            self.left += min(self.BURST, int((now - self.counted_at) * self.A_SECOND))
            self.counted_at = now
            if self.left < 0:
                raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many resets, pings, settings or headers for nothing")

    def earn(self, cost: int = 0) -> None:
        """A message was sent, or a full frame of one: the client may widen its windows for it, and measure.

        `cost` is what was spent on it before it was known to be of use.
        """
        self.left = min(self.BURST, self.left + 4 + cost)
