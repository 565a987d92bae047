"""A runtime in processes of its own, one a runner.

For frameworks that keep memory until their process ends, hold the interpreter lock, or may crash: a worker that dies fails the
requests it had and is started again for the next. Arrays travel over a pipe as pickle's out-of-band buffers.
"""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from tensorferry.errors import BadModel, FerryError
from tensorferry.serve.core.faults import ModelFault
from tensorferry.serve.core.tensors import Array
from tensorferry.serve.python.process import kill_all
from tensorferry.serve.python.wire import receive, send
from tensorferry.serve.runtimes.runtime import LoadOptions, Signature
from tensorferry.serve.runtimes.table import load_runtime

_STOP = None  # the message that ends a worker


class WorkerRuntime:
    """Starts one process for every runner; the first also tells the signature."""

    def __init__(self, backend: str, options: LoadOptions) -> None:
        self.backend = backend
        self.options = options
        self.first: WorkerRunner | None = WorkerRunner(backend, options)
        self.signature = self.first.signature

    def new_runner(self) -> "WorkerRunner":
        """The process that loading started, then new ones."""
        if self.first is not None:
            runner, self.first = self.first, None
            return runner
        return WorkerRunner(self.backend, self.options)

    def close(self) -> None:
        """End the process that no runner took."""
        if self.first is not None:
            self.first.close()


class WorkerRunner:
    """One process with one loaded model."""

    def __init__(self, backend: str, options: LoadOptions) -> None:
        self.backend = backend
        self.options = options
        self.process: SpawnProcess | None = None
        self.signature = self._start()

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """The named outputs, or what the worker raised."""
        if self.process is None or not self.process.is_alive():
            self._end()
            self._start()
        assert self.process is not None
        try:
            send(self.connection, (dict(inputs), list(outputs)))
            answer = receive(self.connection)
        except (EOFError, OSError):
            self.process.join(timeout=10)
            raise ModelFault(
                f"the worker process of {self.options.path.name} ended with {self.process.exitcode}; it is started again"
            ) from None
        if isinstance(answer, FerryError):
            raise answer
        return answer

    def close(self) -> None:
        """Ask the process to end, and end it if it does not."""
        with contextlib.suppress(OSError):
            send(self.connection, _STOP)
        if self.process is not None:
            self.process.join(timeout=10)
        self._end()

    def _start(self) -> Signature | None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        process = context.Process(
            target=work, args=(theirs, self.backend, self.options), daemon=True, name=f"ferry-{self.options.path.name}"
        )
        process.start()
        self.process = process
        theirs.close()
        try:
            answer = receive(self.connection)
        except EOFError:
            process.join(timeout=10)
            code = process.exitcode
            self._end()
            raise BadModel(f"loading {self.options.path} ended its process with {code}") from None
        if isinstance(answer, FerryError):
            self._end()
            raise answer
        return answer

    def _end(self) -> None:
        process, self.process = self.process, None
        if process is None:  # the last start failed, and left nothing to end
            return
        if process.is_alive():
            process.kill()
            process.join()
        self.connection.close()
        process.close()


def kill_workers() -> None:
    """End every worker process of this one at once, whatever it does."""
    for process in multiprocessing.active_children():
        process.kill()
    kill_all()


def work(connection: Connection, backend: str, options: LoadOptions) -> None:
    """The life of a worker process: load, then run what comes until told to stop or the server is gone."""
    # Ctrl-C and SIGTERM go to the whole group; the server drains first and then ends its workers itself
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        runtime = load_runtime(backend, options)
        runner = runtime.new_runner()
    except FerryError as error:
        send(connection, error)
        return
    except Exception as error:
        send(connection, BadModel(f"{type(error).__name__}: {error}"))
        return
    send(connection, runtime.signature)
    with contextlib.suppress(EOFError, OSError):
        while (message := receive(connection)) is not _STOP:
            send(connection, _run(runner, *message))


def _run(runner: Any, inputs: dict[str, Array], outputs: list[str]) -> Any:
    try:
        return runner.run(inputs, outputs)
    except FerryError as error:
        return error
    except Exception as error:
        return ModelFault(f"{type(error).__name__}: {error}")
