"""The way into the server for connections of one protocol: listens, times out, drains."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from tensorferry.serve.core.limits import BACKLOG, GRACE_SECONDS, HANDSHAKE_SECONDS


class FrontConnection(Protocol):
    """What a front needs of a protocol's connections, which add themselves to its set and leave it."""

    transport: asyncio.Transport

    def drain(self) -> None:
        """Tell the client to go elsewhere, and go on answering what it sends before it hears of that."""

    def end(self) -> None:
        """Close after what is under way, or at once where there is nothing."""

    def check_timeouts(self, now: float) -> None:
        """End what takes too long."""


AnyConnection = TypeVar("AnyConnection", bound=FrontConnection)


class Front(Generic[AnyConnection]):
    """Listens, and ends connections that take too long; `make` makes one, to be kept in the set that it gets."""

    def __init__(self, make: Callable[[set[AnyConnection]], AnyConnection], max_connections: int = 1024) -> None:
        self.make = make
        self.max_connections = max_connections
        self.connections: set[AnyConnection] = set()
        self.server: asyncio.Server | None = None
        self.greeter: Greeter | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.is_draining = False
        self.loop = asyncio.get_running_loop()

    async def start(self, host: str, port: int, tls: Callable[[], ssl.SSLContext] | None) -> int:
        """Listen, and tell the port: another than asked for where that was 0. `tls` is asked anew for every connection."""
        if tls is None:
            self.server = await self.loop.create_server(self._make, host, port, backlog=BACKLOG)
            listener = self.server.sockets[0]
        else:
            self.greeter = Greeter(tls, self._make, lambda: self.max_connections - len(self.connections))
            listener = self.greeter.listen(host, port)
        self._check_timeouts()
        return int(listener.getsockname()[1])

    async def stop(self, seconds: float) -> None:
        """Have clients leave, let requests under way finish, then close.

        For a moment everything is still answered, new connections too: what was sent before a client could know is not lost.
        """
        self.is_draining = True
        for connection in list(self.connections):
            connection.drain()
        started = self.loop.time()
        if self.connections:  # those who leave may come again at once, with a call that they had begun
            await asyncio.sleep(min(GRACE_SECONDS, seconds / 2))
        if self.server is not None:
            self.server.close()
        if self.greeter is not None:
            self.greeter.close()
        for connection in list(self.connections):
            connection.end()
        while self.connections and self.loop.time() < started + seconds:
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            connection.transport.abort()
        if self.timer is not None:
            self.timer.cancel()

    def _make(self) -> Any:
        connection = self.make(self.connections)
        if self.is_draining:
            connection.drain()
        return connection

    def _check_timeouts(self) -> None:
        self.timer = self.loop.call_later(0.5, self._check_timeouts)
        now = time.monotonic()
        for connection in list(self.connections):
            connection.check_timeouts(now)


class Greeter:
    """Takes connections that begin with a TLS handshake, which count as connections while they last."""

    def __init__(self, tls: Callable[[], ssl.SSLContext], make: Callable[[], Any], count_room: Callable[[], int]) -> None:
        self.tls = tls
        self.make = make
        self.count_room = count_room
        self.loop = asyncio.get_running_loop()
        self.listeners: list[socket.socket] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.num_handshakes = 0

    def listen(self, host: str, port: int) -> socket.socket:
        """Listen on every address of the host; the first of its sockets."""
        for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            bound = self.listeners[0].getsockname()[1] if self.listeners else port
            listener = socket.create_server((str(address[0]), bound), family=family, backlog=BACKLOG)
            listener.setblocking(False)
            self.listeners.append(listener)
            self._start(self._accept(listener))
        return self.listeners[0]

    def close(self) -> None:
        """Take no more."""
        for task in self.tasks:
            task.cancel()
        for listener in self.listeners:
            listener.close()

    def _start(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                line, _ = await self.loop.sock_accept(listener)
            except OSError:  # no descriptors are left; some will be
                await asyncio.sleep(0.1)
                continue
            if self.num_handshakes >= self.count_room():
                line.close()
                continue
            self.num_handshakes += 1
            self._start(self._greet(line))

    async def _greet(self, line: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(self.make, line, ssl=self.tls(), ssl_handshake_timeout=HANDSHAKE_SECONDS)
        except OSError:  # TLS's own errors among them
            line.close()
        finally:
            self.num_handshakes -= 1
