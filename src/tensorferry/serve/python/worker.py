"""The life of a worker process: load a `model.py`, run what comes, until told to stop or the server is gone.

One thread reads what the server says, the main thread runs the model. Streams (answers that are iterators) take turns in the main
thread, one answer each, as long as their clients have room for it; batches that come meanwhile are run between two turns.
"""

import contextlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel, FerryError
from tensorferry.serve.core.faults import ModelFault, NotOver, RequestFault
from tensorferry.serve.python.api import Context, Request
from tensorferry.serve.python.files import ModelFile, open_model_file
from tensorferry.serve.python.requirements import check_requirements
from tensorferry.serve.python.wire import pack, receive, send, to_array, unpack

_WAKE = ("wake",)


class Worker:
    """One model in this process."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.sending = threading.Lock()
        self.inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.changed = threading.Condition()  # of requests: cancelled, or more answers are welcome
        self.requests: dict[int, Request] = {}
        self.streams: dict[int, Iterator[Any]] = {}
        self.datatypes: dict[str, str] = {}
        self.is_decoupled = False
        self.context: Context | None = None
        self.model: ModelFile | None = None

    def post(self, message: Any) -> None:
        """Tell the server; from any thread."""
        with self.sending:
            send(self.connection, message)

    def load(self) -> bool:
        """Import and load the model that the server names; whether that worked."""
        try:
            _, path, name, version, config = receive(self.connection)
            check_requirements(Path(path).parent)
            self.model = open_model_file(Path(path), self.answer)
            self.post(("declared", self.model.declare(config)))
            _, config = receive(self.connection)
            self.datatypes = {output["name"]: _datatype(output) for output in config["output"]}
            self.is_decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
            self.context = Context(Path(path).parent, name, version, config, self.post)
            threading.Thread(target=self._read, name="ferry-read", daemon=True).start()
            self.model.load(self.context)
        except (EOFError, OSError) as error:
            if self.context is None and self.model is None:
                return False
            self._fail_load(error)
        except BaseException as error:  # also what ends a process: a model that calls sys.exit says so
            self._fail_load(error)
        else:
            self.post(("loaded",))
            return True
        return False

    def serve(self) -> None:
        """Run what comes."""
        assert self.model is not None
        while True:
            can_go_on = self._step_streams()
            try:
                message = self.inbox.get(block=not can_go_on)
            except queue.Empty:
                continue
            match message:
                case ("run", requests):
                    self._run([self._open(*fields) for fields in requests])
                case ("forget", sequence_id):
                    self.model.forget(sequence_id)
                case ("stop",):
                    self.model.unload()
                    return

    def answer(self, request: Request, outputs: Any, is_last: bool) -> None:
        """Tell one answer of a request from any thread; waits until the client has room for it, or has gone."""
        if outputs is not None:
            with self.changed:
                self.changed.wait_for(lambda: request.num_welcome > 0 or request.is_cancelled)
                request.num_welcome -= 1
            if request.is_cancelled and not is_last:
                return
        self.post(("answers", [(request.number, self._write(outputs), is_last)], False))
        if is_last:
            self.requests.pop(request.number, None)

    # ---- from the server ---------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Take what the server says; when it has gone, so does this process, whatever the model is busy with."""
        assert self.context is not None
        with contextlib.suppress(EOFError, OSError):
            while True:
                match receive(self.connection):
                    case ("result", number, answer, is_last):
                        self.context.deliver(number, answer, is_last)
                    case ("credit", number, count):
                        self._change(number, count)
                    case ("cancel", number):
                        self._change(number, None)
                    case message:
                        self.inbox.put(message)
        os._exit(0)

    def _change(self, number: int, count: int | None) -> None:
        request = self.requests.get(number)
        if request is None:
            return
        with self.changed:
            if count is None:
                request.is_cancelled = True
            else:
                request.num_welcome += count
            self.changed.notify_all()
        self.inbox.put(_WAKE)

    def _open(self, number: int, inputs: dict[str, Any], fields: dict[str, Any]) -> Request:
        arrays = {name: unpack(packed) for name, packed in inputs.items()}
        request = self.requests[number] = Request(arrays, number=number, **fields)
        return request

    # ---- running -----------------------------------------------------------------------------------------------------

    def _run(self, requests: list[Request]) -> None:
        assert self.model is not None
        try:
            answers = self.model.infer(requests)
            if len(answers) != len(requests):
                raise ModelFault(f"the model gave {len(answers)} answers to {len(requests)} requests")
        except Exception as error:
            answers = [error] * len(requests)
        told = []
        for request, answer in zip(requests, answers, strict=True):
            if request.comes_again:
                told += self._give_back(request, answer)
            elif isinstance(answer, Iterator) and self.is_decoupled:
                self.streams[request.number] = answer
            elif answer is not None:  # a model that sends its answers itself gives None
                self.requests.pop(request.number, None)
                told.append((request.number, self._write(answer), True))
        self.post(("answers", told, True))

    def _give_back(self, request: Request, answer: Any) -> list[tuple[int, Any, bool]]:
        """Have the server bring a request again; only one that may be answered many times was answered before that."""
        self.requests.pop(request.number, None)
        if isinstance(answer, Exception) or (answer is not None and not self.is_decoupled):
            fault = answer if isinstance(answer, Exception) else ModelFault("a request that comes again is answered with None")
            return [(request.number, self._write(fault), True)]
        told = [] if answer is None else [(request.number, self._write(answer), False)]
        again = NotOver("the model wants to see the request again, for which its configuration needs an iterative_sequence")
        return [*told, (request.number, again, True)]

    def _step_streams(self) -> bool:
        """One answer of every stream that has room for one; whether any could go on."""
        told = []
        for number, stream in list(self.streams.items()):
            request = self.requests[number]
            if request.is_cancelled:
                self._close(stream)
                outcome = None
            elif request.num_welcome <= 0:
                continue
            else:
                try:
                    outcome = next(stream, None)
                except Exception as error:
                    outcome = error
            is_last = outcome is None or isinstance(outcome, Exception)
            if is_last:
                del self.streams[number], self.requests[number]
            else:
                with self.changed:
                    request.num_welcome -= 1
            told.append((number, self._write(outcome), is_last))
        if told:
            self.post(("answers", told, False))
        return bool(told)

    def _close(self, stream: Any) -> None:
        try:
            if hasattr(stream, "close"):
                stream.close()
        except Exception as error:
            print(f"closing a stream: {type(error).__name__}: {error}", file=sys.stderr)

    def _write(self, outcome: Any) -> Any:
        """Outputs, an error or None, as they travel."""
        if outcome is None:
            return None
        try:
            if isinstance(outcome, Exception):
                raise outcome
            if isinstance(outcome, Iterator):
                raise ModelFault("infer gave an iterator; a model that answers many times says so: decoupled = True")
            return {name: pack(to_array(value, self._datatype_of(name))) for name, value in dict(outcome).items()}
        except RequestFault as fault:
            return fault.with_traceback(None)
        except Exception as error:
            return ModelFault(f"{type(error).__name__}: {error}")

    def _datatype_of(self, name: str) -> str:
        if name not in self.datatypes:
            raise ModelFault(f"the model answered with '{name}'; its outputs are {', '.join(map(repr, self.datatypes))}")
        return self.datatypes[name]

    def _fail_load(self, error: BaseException) -> None:
        if not isinstance(error, FerryError):
            error = BadModel(f"{type(error).__name__}: {error}")
        self.post(("failed", str(error)))


def _datatype(output: dict[str, Any]) -> str:
    word: str = output["data_type"].removeprefix("TYPE_")
    return "BYTES" if word == "STRING" else word


def main() -> None:
    """Work for the server at the other end of the standard input, which is a socket."""
    descriptor = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    # Ctrl-C and SIGTERM go to the whole group; the server drains first and then ends its workers itself
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = Worker(Connection(descriptor))
    if worker.load():
        with contextlib.suppress(EOFError, OSError):
            worker.serve()
    sys.stdout.flush()
    os._exit(0)  # threads of the model may still be there
