"""One budget of bytes for everything that clients make the server hold, over REST and gRPC together.

A request has a `Charge` from its first byte until its answer has gone: for its body, what that unpacks and decodes to, and the
answer that waits to be read. What would go beyond the budget is refused, and whoever holds bytes already is not harmed.

Small requests are charged beforehand, as counting the bytes of each would cost more than some models do: a connection of REST
holds `CONNECTION_NBYTES` while it is open, one of gRPC `STREAM_NBYTES` for each call that it had at a time.
"""

import threading

from tensorferry.serve.faults import MemoryFull
from tensorferry.units import format_bytes

CONNECTION_NBYTES = 2**16  # a connection, and a request of it that takes no more
STREAM_NBYTES = 2**13  # a call, with a message of up to `SMALL_NBYTES`
SMALL_NBYTES = 2**12


class MemoryBudget:
    """So many bytes for all clients."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.num_held = 0
        self.lock = threading.Lock()  # bodies are unpacked and decoded in threads

    def change(self, nbytes: int) -> None:
        """Hold so many bytes more, or fewer; raises MemoryFull, and holds none of them, where that is beyond the budget."""
        with self.lock:
            if nbytes > 0 and self.num_held + nbytes > self.nbytes:
                held, most = format_bytes(self.num_held), format_bytes(self.nbytes)
                raise MemoryFull(
                    f"requests hold {held} of the server's memory, and {format_bytes(nbytes)} more would be beyond the {most} "
                    "that they may; try again later"
                )
            self.num_held += nbytes


class Charge:
    """What one request holds of the budget."""

    __slots__ = ("budget", "nbytes")

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.nbytes = 0

    def add(self, nbytes: int) -> None:
        """Hold so many bytes more; raises MemoryFull."""
        self.budget.change(nbytes)
        self.nbytes += nbytes

    def replace(self, nbytes: int) -> None:
        """Hold so many bytes instead of those held so far; raises MemoryFull, and goes on holding those."""
        self.budget.change(nbytes - self.nbytes)
        self.nbytes = nbytes

    def release(self) -> None:
        """Hold nothing any more."""
        if self.nbytes:
            self.budget.change(-self.nbytes)
            self.nbytes = 0
