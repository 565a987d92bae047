"""One budget of bytes for everything that clients make the server hold, over REST and gRPC together.

A request has a `Charge` from its first byte until its answer has gone: for its body, what that unpacks and decodes to, and the
answer that waits to be read. What would go beyond the budget is refused, and whoever holds bytes already is not harmed.

Small requests are charged beforehand, as counting the bytes of each would cost more than some models do: a connection of REST
holds `CONNECTION_NBYTES` while it is open, one of gRPC `STREAM_NBYTES` for each call that it had at a time.
"""

import threading

from tensorferry.serve.core.faults import MemoryFull
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


class Charge:
    """What one request holds of the budget; used by the thread that reads the request and the loop that may drop it."""

    __slots__ = ("budget", "is_closed", "nbytes", "num_free")

    def __init__(self, budget: MemoryBudget, num_free: int = 0) -> None:
        self.budget = budget
        self.num_free = num_free  # bytes of arrays that are charged beforehand
        self.nbytes = 0
        self.is_closed = False

    def add(self, nbytes: int) -> None:
        """Hold so many bytes more, or fewer; raises MemoryFull, and holds none of them, where that is beyond the budget."""
        budget = self.budget
        with budget.lock:
            if nbytes > 0:
                if self.is_closed:
                    raise MemoryFull("the client has gone, and what it sent is dropped")
                if budget.num_held + nbytes > budget.nbytes:
                    held, more, most = map(format_bytes, (budget.num_held, nbytes, budget.nbytes))
                    raise MemoryFull(
                        f"requests hold {held} of memory, {more} more are beyond the {most} that they may; try later"
                    )
            elif self.is_closed:
                return
            budget.num_held += nbytes
            self.nbytes += nbytes

    def hold(self, nbytes: int) -> None:
        """Hold what arrays take, unless it is so little that it was charged beforehand."""
        if nbytes > self.num_free:
            self.add(nbytes)

    def exchange(self, nbytes: int) -> None:
        """Hold what an answer's arrays take instead of all that was held for its request."""
        if self.nbytes or nbytes > self.num_free:
            self.replace(nbytes)

    def replace(self, nbytes: int) -> None:
        """Hold so many bytes instead of those held so far; raises MemoryFull, and goes on holding those."""
        self.add(nbytes - self.nbytes)

    def release(self) -> None:
        """Hold nothing any more."""
        self.add(-self.nbytes)

    def close(self) -> None:
        """Hold nothing, for good: a thread that still reads for a client who has gone gets no more, and stops."""
        with self.budget.lock:
            self.budget.num_held -= self.nbytes
            self.nbytes = 0
            self.is_closed = True
