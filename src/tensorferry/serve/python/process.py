"""A worker process as the server sees it: started, spoken with, and ended however it behaves.

Nothing but its own two threads ever waits for a worker: one writes what was posted, one reads what it says.
"""

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel
from tensorferry.serve.python.wire import receive, send

_PACKAGE = Path(__file__).parents[2]
# the interpreter may be that of another environment, which shall find this package and none of those that lie beside it
_START = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
package = sys.argv[1]
sys.path[:] = filter(None, sys.path)  # not the working folder
spec = spec_from_file_location("tensorferry", package + "/__init__.py", submodule_search_locations=[package])
sys.modules["tensorferry"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["tensorferry"])
from tensorferry.serve.python.worker import main
main()
"""
_STOP_SECONDS = 10.0
_alive: set["WorkerProcess"] = set()


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What a worker runs, and in which environment."""

    path: Path  # of model.py
    name: str
    version: int
    python: Path = Path(sys.executable)
    num_threads: int = 1
    load_seconds: float = 60.0


class WorkerProcess:
    """One process with one model; `on_message` and `on_end` are called by the thread that reads from it."""

    def __init__(self, options: WorkerOptions, on_message: Callable[[tuple[Any, ...]], None], on_end: Callable[[], None]) -> None:
        self.options = options
        self.on_message = on_message
        self.on_end = on_end
        self.outbox: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []
        ours, theirs = socket.socketpair()
        command = [str(options.python), "-c", _START, str(_PACKAGE)]
        environment = {"OMP_NUM_THREADS": str(options.num_threads), **os.environ}
        try:
            self.process = subprocess.Popen(command, stdin=theirs.fileno(), env=environment)
        except OSError as error:
            ours.close()
            raise BadModel(f"cannot start {options.python}: {error.strerror}") from None
        finally:
            theirs.close()
        self.connection = Connection(ours.detach())
        _alive.add(self)

    def load(self, config: dict[str, Any], complete: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Have the model loaded: `complete` makes the whole configuration of what its file declares. Raises BadModel."""
        options = self.options
        end = time.monotonic() + options.load_seconds
        try:
            send(self.connection, ("open", str(options.path), options.name, options.version, config))
            _, declared = self._expect("declared", end)
            self.post(("load", complete(declared)))
            self._start(self._write)
            self._expect("loaded", end)
        except (EOFError, OSError):
            self._give_back()
            raise BadModel(
                f"loading {options.path.name} ended its process with {describe_end(self.process.returncode)}"
            ) from None
        except BaseException:
            self._give_back()
            raise
        self._start(self._read)

    def post(self, message: tuple[Any, ...]) -> None:
        """Tell the worker, without waiting; from any thread."""
        self.outbox.put(message)

    def stop(self) -> None:
        """Have the model unload, and end the process if that takes too long."""
        self.post(("stop",))
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_SECONDS)
        self.kill()
        for thread in self.threads:
            thread.join()

    def kill(self) -> None:
        """End it now; `on_end` follows."""
        self.process.kill()

    def _expect(self, word: str, end: float) -> tuple[Any, ...]:
        while True:
            if not self.connection.poll(max(0.0, end - time.monotonic())):
                raise BadModel(f"{self.options.path.name} did not load within {self.options.load_seconds:g} seconds")
            message: tuple[Any, ...] = receive(self.connection)
            if message[0] == word:
                return message
            if message[0] == "failed":
                raise BadModel(f"cannot load {self.options.path.name}: {message[1]}")
            self.on_message(message)

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while (message := self.outbox.get()) is not None:
                send(self.connection, message)

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self.on_message(receive(self.connection))
        self._give_back()
        self.on_end()

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=f"{self.options.name}/{work.__name__[1:]}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def _give_back(self) -> None:
        """Nothing more is said, by whichever side: end the process, if it has not ended, and what belongs to it."""
        self.kill()
        self.process.wait()
        _alive.discard(self)
        self.outbox.put(None)
        if self.threads:
            self.threads[0].join()
        self.connection.close()


def kill_all() -> None:
    """End every worker at once, whatever it does."""
    for worker in list(_alive):
        worker.kill()


def describe_end(code: int) -> str:
    """An exit code in words.

    >>> describe_end(3), describe_end(-9)
    ('exit code 3', 'signal 9')
    """
    return f"signal {-code}" if code < 0 else f"exit code {code}"
