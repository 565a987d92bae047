"""One instance of a Python model: its worker process, what that has under way, and when it is to be given up."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorferry.errors import FerryError
from tensorferry.serve.core.ensemble import FindModel
from tensorferry.serve.core.model import AnswerSink
from tensorferry.serve.core.queueing import Job
from tensorferry.serve.core.requests import NO_OPTIONS, RequestOptions
from tensorferry.serve.python.calls import ModelCalls
from tensorferry.serve.python.process import WorkerOptions, WorkerProcess, describe_end
from tensorferry.serve.python.wire import pack

_NUMBERS = itertools.count(1)
_MAX_WAIT_SECONDS = 60.0  # before a worker that keeps failing is started again


@dataclass(slots=True, eq=False, kw_only=True)
class PythonJob(Job):
    """One request of a Python model."""

    sink: AnswerSink
    options: RequestOptions = NO_OPTIONS
    num_welcome: int = 1  # answers that may still come
    number: int = 0
    started: int = 0  # nanoseconds
    cancelled_at: float = 0.0


class PythonInstance:
    """A worker and its requests. Its owner calls everything but `start` and `stop` under a lock of its own."""

    def __init__(
        self,
        options: WorkerOptions,
        find: FindModel,
        on_answers: Callable[["PythonInstance", list[tuple[int, Any, bool]], bool], None],
        on_end: Callable[["PythonInstance"], None],
    ) -> None:
        self.options = options
        self.calls = ModelCalls(find, self.post)
        self.on_answers = on_answers
        self.on_end = on_end
        self.process: WorkerProcess | None = None
        self.jobs: dict[int, PythonJob] = {}  # that the worker has, by number
        self.batch: list[PythonJob] = []  # of them, those that it has not returned from
        self.begun_at = 0.0  # that batch
        self.batch_started = 0  # the same in nanoseconds, of a finer clock
        self.changed_at = 0.0  # when it last said something, or was asked for something
        self.reason = ""  # why it was given up
        self.is_starting = False
        self.num_failures = 0  # ends without an answer before them
        self.restart_at = 0.0

    @property
    def is_there(self) -> bool:
        """Whether a worker has loaded the model."""
        return self.process is not None and not self.is_starting

    def start(self, config: dict[str, Any], complete: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Start a process and load the model in it; raises BadModel."""
        process = WorkerProcess(self.options, self._take, lambda: self.on_end(self))
        self.reason = ""
        self.process = process  # calls that the model makes while it loads are answered through it
        try:
            process.load(config, complete)
        except FerryError:
            self.process = None
            self.calls.cancel_all()
            raise

    def stop(self) -> None:
        """End the process in an orderly way."""
        if self.process is not None:
            self.process.stop()

    def post(self, message: tuple[Any, ...]) -> None:
        """Tell the worker, if there is one."""
        process = self.process
        if process is not None:
            process.post(message)

    def begin(self, batch: list[PythonJob], now: float) -> None:
        """Give the worker a batch."""
        self.batch = batch
        self.batch_started = time.perf_counter_ns()
        self.begun_at = self.changed_at = now
        requests = []
        for job in batch:
            job.number = next(_NUMBERS)
            self.jobs[job.number] = job
            requests.append((job.number, {name: pack(array) for name, array in job.inputs.items()}, _describe(job)))
        self.post(("run", requests))

    def callers(self, name: str) -> tuple[str, ...]:
        """The models that wait for whatever this worker calls."""
        above = {caller for job in self.jobs.values() for caller in job.options.callers}
        return (*sorted(above), name)

    def deadline(self, seconds: float) -> float | None:
        """Until when the worker must have said something; None where nothing is owed."""
        times = [job.cancelled_at + seconds for job in self.jobs.values() if job.cancelled_at]
        is_owing = bool(self.batch) or any(job.num_welcome > 0 for job in self.jobs.values())
        if is_owing and not self.calls.under_way:  # what it calls may take as long as it takes
            times.append(self.changed_at + seconds)
        return min(times, default=None)

    def give_up(self, reason: str) -> None:
        """End a worker that does not answer; `on_end` follows."""
        if self.process is not None and not self.reason:
            self.reason = reason
            self.process.kill()

    def lose(self, now: float) -> tuple[list[PythonJob], str]:
        """The worker has ended: what it had, and why."""
        assert self.process is not None
        reason = self.reason or f"ended with {describe_end(self.process.process.returncode)}"
        jobs, self.jobs = list(self.jobs.values()), {}
        self.batch = []
        self.process = None
        self.delay_restart(now)
        return jobs, reason

    def delay_restart(self, now: float) -> None:
        """At once after a first failure, then later and later."""
        self.restart_at = now + (min(_MAX_WAIT_SECONDS, 2.0 ** (self.num_failures - 1)) if self.num_failures else 0.0)
        self.num_failures += 1

    def _take(self, message: tuple[Any, ...]) -> None:
        """What the worker says, in the thread that reads it."""
        match message:
            case ("answers", answers, is_batch_done):
                self.on_answers(self, answers, is_batch_done)
            case ("call", number, model, version, inputs, options, num_welcome):
                callers = self.callers(self.options.name)
                self.calls.start(number, model, version, inputs, options, num_welcome, callers)
            case ("call_credit", number, count):
                self.calls.welcome(number, count)
            case ("cancel_call", number):
                self.calls.cancel(number)


def _describe(job: PythonJob) -> dict[str, Any]:
    """What the worker's Request has beside its inputs."""
    options = job.options
    fields: dict[str, Any] = {"num_welcome": job.num_welcome}
    if options is not NO_OPTIONS:
        fields |= {
            "id": options.id,
            "parameters": dict(options.parameters),
            "timeout_microseconds": options.timeout_microseconds,
        }
        if options.sequence is not None:
            step = options.sequence
            fields |= {"sequence_id": step.id, "sequence_start": step.is_start, "sequence_end": step.is_end}
    return fields
