"""The way into the server for connections of one protocol: listens, sweeps, drains."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from tensorferry.serve.limits import GRACE_SECONDS


class Connection(Protocol):
    """What a front needs of a protocol's connections, which add themselves to its set and leave it."""

    transport: asyncio.Transport

    def drain(self) -> None:
        """Tell the client to go elsewhere, and go on answering what it sends before it hears of that."""

    def end(self) -> None:
        """Close after what is under way, or at once where there is nothing."""

    def sweep(self, now: float) -> None:
        """End what takes too long."""


AnyConnection = TypeVar("AnyConnection", bound=Connection)


class Front(Generic[AnyConnection]):
    """Listens, and sweeps its connections; `make` makes one, to be kept in the set that it gets."""

    def __init__(self, make: Callable[[set[AnyConnection]], AnyConnection]) -> None:
        self.make = make
        self.connections: set[AnyConnection] = set()
        self.server: asyncio.Server | None = None
        self.sweeper: asyncio.TimerHandle | None = None
        self.is_draining = False
        self.loop = asyncio.get_running_loop()

    async def start(self, host: str, port: int, tls: Any) -> int:
        """Listen, and tell the port: another than asked for where that was 0."""
        self.server = await self.loop.create_server(self._make, host, port, ssl=tls, backlog=512)
        self._sweep()
        return int(self.server.sockets[0].getsockname()[1])

    async def stop(self, seconds: float) -> None:
        """Have clients leave, let requests under way finish, then close.

        For a moment everything is still answered, new connections too: what was sent before a client could know is not lost.
        """
        self.is_draining = True
        for connection in list(self.connections):
            connection.drain()
        started = self.loop.time()
        await self._wait_until_empty(started + min(GRACE_SECONDS, seconds / 2))
        if self.server is not None:
            self.server.close()
        for connection in list(self.connections):
            connection.end()
        await self._wait_until_empty(started + seconds)
        for connection in list(self.connections):
            connection.transport.abort()
        if self.sweeper is not None:
            self.sweeper.cancel()

    async def _wait_until_empty(self, end: float) -> None:
        while self.connections and self.loop.time() < end:
            await asyncio.sleep(0.02)

    def _make(self) -> Any:
        connection = self.make(self.connections)
        if self.is_draining:
            connection.drain()
        return connection

    def _sweep(self) -> None:
        self.sweeper = self.loop.call_later(0.5, self._sweep)
        now = time.monotonic()
        for connection in list(self.connections):
            connection.sweep(now)
