"""A Python model as the data plane sees it: requests in a queue, workers that take batches of them, answers as they come.

No thread waits for a worker. A batch is handed over by whoever brings the last request, or frees the worker; answers are told by
the thread that reads them. One more thread starts workers again that have ended, and ends those that do not answer.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tensorferry.errors import BadModel
from tensorferry.serve.core.deferred import DeferredCalls
from tensorferry.serve.core.ensemble import FindModel
from tensorferry.serve.core.faults import InvalidRequest, ModelFault, NotOver, RequestFault, Unavailable, as_fault
from tensorferry.serve.core.model import AnswerSink, Done, OneAnswer, Outputs, finish_output, reason_of
from tensorferry.serve.core.queueing import BatchPolicy, JobQueue
from tensorferry.serve.core.requests import RequestOptions
from tensorferry.serve.core.scheduler import Closed
from tensorferry.serve.core.spec import ModelSpec
from tensorferry.serve.core.stats import BatchTimes, Stats
from tensorferry.serve.core.tensors import Array
from tensorferry.serve.python.instance import PythonInstance, PythonJob
from tensorferry.serve.python.process import WorkerOptions
from tensorferry.serve.python.wire import unpack

_LOG = logging.getLogger("tensorferry.serve")
_MAX_OPEN = 256  # requests that one worker has at a time, streams among them
Answers = list[tuple[int, Any, bool]]  # of a worker: the number of a request, what it is told, and whether that is the last


class PythonModel:
    """A model with worker processes."""

    def __init__(
        self, version: int, workers: WorkerOptions, find: FindModel, deferred: DeferredCalls, seconds: float, stats: Stats
    ) -> None:
        self.version = version
        self.name = workers.name
        self.workers = workers
        self.find = find
        self.deferred = deferred
        self.seconds = seconds  # that a worker may take to say something, where it owes it
        self.stats = stats
        self.is_decoupled = False
        self.config: Any = None
        self.described: dict[str, Any] = {}  # the same as the worker gets it
        self.spec: ModelSpec = None  # type: ignore[assignment]  # known when the first worker has told what the file declares
        self.queue = JobQueue(BatchPolicy())
        self.instances: list[PythonInstance] = []
        self.changed = threading.Condition()
        self.is_closed = False
        self.is_ended = False
        self.broken = ""  # why no worker could be started
        self.on_lost: Callable[[PythonModel], None] | None = None  # told when a worker has ended, and with it what it knew
        self.is_watched = False  # the keeper looks again before anything could be too late
        self.look_at: float | None = None  # when a batch that waits for company is to go without
        self.keeper = threading.Thread(target=self._keep, name=f"{self.name}/keep", daemon=True)

    def load(self, described: dict[str, Any], num_instances: int, complete: Callable[[dict[str, Any]], "Completed"]) -> None:
        """Start the workers; `complete` makes everything else of what the first one declares. Raises BadModel."""

        def take(declared: dict[str, Any]) -> dict[str, Any]:
            self.config, self.spec, policy, self.described = complete(declared)
            self.is_decoupled = self.config.model_transaction_policy.decoupled
            self.queue = JobQueue(policy)
            return self.described

        try:
            for index in range(num_instances):
                instance = PythonInstance(self.workers, self.find, self.take_answers, self.lose)
                instance.start(described, take if index == 0 else lambda _: self.described)
                self.instances.append(instance)
        except BaseException:
            self.is_closed = True  # so that none is started again
            for instance in self.instances:
                instance.stop()
            raise
        self.keeper.start()

    @property
    def num_waiting(self) -> int:
        """How many requests wait for an instance."""
        return len(self.queue)

    @property
    def is_ready(self) -> bool:
        """Whether a worker is there."""
        return any(instance.is_there for instance in self.instances)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def run_alone(self, inputs: dict[str, Array]) -> None:
        """Never: the model is in another process."""

    def submit(self, inputs: dict[str, Array], options: RequestOptions, done: Done) -> "PythonTicket":
        """Check and queue a request that gets one answer."""
        if self.is_decoupled:
            raise InvalidRequest(
                f"model '{self.name}' may answer a request many times; use generate_stream, or ModelStreamInfer of gRPC"
            )
        return self._queue(inputs, options, OneAnswer(done), 1)

    def stream(self, inputs: dict[str, Array], options: RequestOptions, sink: AnswerSink, num_welcome: int) -> "PythonTicket":
        """Check and queue a request that gets any number of answers."""
        return self._queue(inputs, options, sink, num_welcome)

    def _queue(self, inputs: dict[str, Array], options: RequestOptions, sink: AnswerSink, num_welcome: int) -> "PythonTicket":
        started = time.perf_counter_ns()
        try:
            checked, num_rows, _ = self.spec.check_inputs(inputs)
            job = PythonJob(
                inputs=checked,
                num_rows=num_rows,
                key=(),  # the model takes requests as they are, whatever their sizes
                done=_nobody,
                priority=options.priority,
                timeout_seconds=options.timeout_microseconds / 1e6,
                sink=sink,
                options=options,
                num_welcome=num_welcome,
                started=started,
            )
            with self.changed:
                if self.is_closed:
                    raise Closed
                if self.broken:
                    raise Unavailable(self.broken)
                self.queue.push(job, time.monotonic())
        except RequestFault as fault:
            self.stats.record_failure(time.perf_counter_ns() - started, reason_of(fault))
            raise
        self.deferred.call(self.dispatch)
        return PythonTicket(self, job)

    def dispatch(self) -> None:
        """Give free workers what waits."""
        late: list[PythonJob] = []
        with self.changed:
            now = time.monotonic()
            self.look_at = None
            for instance in self.instances:
                if not instance.is_there or instance.batch or len(instance.jobs) >= _MAX_OPEN:
                    continue
                taken = self.queue.take(now)
                late += taken.late  # type: ignore[arg-type]  # nothing else is pushed
                if taken.batch:
                    instance.begin(taken.batch, now)  # type: ignore[arg-type]
                elif taken.wait_seconds is not None:
                    self.look_at = now + taken.wait_seconds
            if self.is_closed or not self.is_watched or self.look_at is not None:
                self.changed.notify_all()
        for job in late:
            self.tell(job, Unavailable("the request waited in the queue for longer than its time-out"), True)

    def cancel(self, job: PythonJob) -> None:
        """Nobody waits for a request any more: one that has not begun does not, and the worker of another hears of it."""
        with self.changed:
            if job.cancelled:
                return
            job.cancelled = True
            job.inputs = {}
            instance = next((each for each in self.instances if each.jobs.get(job.number) is job), None)
            if instance is not None:
                job.cancelled_at = time.monotonic()
                instance.post(("cancel", job.number))
        self.stats.record_failure(time.perf_counter_ns() - job.started, "CANCELED")

    def welcome(self, job: PythonJob, count: int) -> None:
        """There is room for so many answers more."""
        with self.changed:
            instance = next((each for each in self.instances if each.jobs.get(job.number) is job), None)
            job.num_welcome += count
            if instance is not None:
                instance.changed_at = time.monotonic()
                instance.post(("credit", job.number, count))

    # ---- answers -----------------------------------------------------------------------------------------------------

    def take_answers(self, instance: PythonInstance, answers: Answers, is_batch_done: bool) -> None:
        """What a worker says, in the thread that reads it."""
        told: list[tuple[PythonJob, Any, bool]] = []
        with self.changed:
            now = time.monotonic()
            instance.changed_at = now
            instance.num_failures = 0
            for number, outcome, is_last in answers:
                job = instance.jobs.pop(number, None) if is_last else instance.jobs.get(number)
                if job is not None:
                    job.num_welcome -= outcome is not None
                    told.append((job, outcome, is_last))
            if is_batch_done:
                self._count(instance)
                instance.batch = []
        self.dispatch()
        for job, outcome, is_last in told:
            self.tell(job, outcome, is_last)

    def tell(self, job: PythonJob, outcome: Any, is_last: bool) -> None:
        """Pass an answer on."""
        if job.cancelled:
            return
        nanoseconds = time.perf_counter_ns() - job.started
        try:
            if outcome is not None:
                outcome = outcome if isinstance(outcome, RequestFault) else self._finish(outcome)
        except Exception as error:
            outcome = as_fault(error)
        if isinstance(outcome, NotOver):
            pass  # it comes again, and is counted when it is over
        elif isinstance(outcome, RequestFault):
            self.stats.record_failure(nanoseconds, reason_of(outcome))
        elif is_last:
            self.stats.record_success(nanoseconds)
        try:
            job.sink.tell(outcome, is_last)
        except Exception:  # the others of the batch go on
            _LOG.exception("an answer could not be told")

    def _finish(self, outcome: dict[str, Any]) -> Outputs:
        missing = [name for name in self.spec.output_names if name not in outcome]
        if missing and not self.is_decoupled:
            raise ModelFault(f"model '{self.name}' answered without its output {', '.join(map(repr, missing))}")
        return {
            spec.name: finish_output(self, spec, unpack(outcome[spec.name])) for spec in self.spec.outputs if spec.name in outcome
        }

    def _count(self, instance: PythonInstance) -> None:
        batch, started, ended = instance.batch, instance.batch_started, time.perf_counter_ns()
        if batch:
            waited = sum(instance.begun_at - job.queued_at for job in batch)
            times = BatchTimes(started, started, ended, ended)
            num_rows = sum(job.num_rows for job in batch)
            self.stats.record_batch(num_rows, len(batch), round(waited * 1e9), times)
            for job in batch:
                if job.options.trace is not None:
                    job.options.trace.note_batch(self.name, job.queued_at, times, len(batch), num_rows)

    # ---- workers -----------------------------------------------------------------------------------------------------

    def lose(self, instance: PythonInstance) -> None:
        """A worker has ended: what it had fails, and another is started in its place."""
        with self.changed:
            jobs, reason = instance.lose(time.monotonic())
            is_expected = self.is_ended
            self.changed.notify_all()
        instance.calls.cancel_all()
        if is_expected:
            return
        _LOG.error("a worker of model '%s' %s; it is started again", self.name, reason)
        fault = ModelFault(f"the worker process of model '{self.name}' {reason}; it is started again")
        if self.on_lost is not None:
            self.on_lost(self)
        for job in jobs:
            self.tell(job, fault, True)

    def forget(self, sequence_id: int | str) -> None:
        """A sequence was dropped before its end: the model need not remember it."""
        for instance in self.instances:
            instance.post(("forget", sequence_id))

    def _keep(self) -> None:
        """Start workers again that have ended, end those that do not answer, and let nobody wait for company for too long."""
        while True:
            with self.changed:
                if self.is_ended:
                    return
                now = time.monotonic()
                times = [] if self.look_at is None else [self.look_at]
                times += filter(None, (self._look_after(instance, now) for instance in self.instances))
                self.is_watched = bool(times)
                # whatever begins while this waits has as long as that at least
                self.changed.wait(min(max(0.01, min(times) - now), self.seconds) if times else None)
                is_due = self.look_at is not None and self.look_at <= time.monotonic()
            if is_due:
                self.dispatch()

    def _look_after(self, instance: PythonInstance, now: float) -> float | None:
        """Start or end its worker, where it is time to; else when it will be, where that is known."""
        if instance.is_starting:
            return None
        if instance.process is None:
            if instance.restart_at <= now:
                instance.is_starting = True
                threading.Thread(target=self._restart, args=(instance,), daemon=True).start()
            return instance.restart_at
        deadline = instance.deadline(self.seconds)
        if deadline is not None and deadline <= now:
            allowing = "the parameter 'timeout_seconds' allows it more"
            instance.give_up(f"said nothing for {self.seconds:g} seconds and was ended ({allowing})")
        return deadline

    def _restart(self, instance: PythonInstance) -> None:
        try:
            instance.start(self.described, lambda _: self.described)
            broken = ""
        except BadModel as error:
            broken = f"the worker process of model '{self.name}' could not be started again: {error}"
            _LOG.error("%s", broken)
        except Exception:
            broken = f"the worker process of model '{self.name}' could not be started again"
            _LOG.exception("%s", broken)
        with self.changed:
            instance.is_starting = False
            if broken:
                instance.delay_restart(time.monotonic())
            self.broken = "" if self.is_ready else broken
            waiting = self._drop_waiting() if self.broken else []
            self.changed.notify_all()
        for job in waiting:
            self.tell(job, Unavailable(self.broken), True)
        self.dispatch()

    def _drop_waiting(self) -> list[PythonJob]:
        dropped: list[PythonJob] = []
        for waiting in self.queue.in_order:
            dropped += waiting  # type: ignore[arg-type]
            waiting.clear()
        return dropped

    def close(self) -> None:
        """Finish what is queued, then end the workers."""
        with self.changed:
            self.is_closed = True
            # nobody comes any more, so nobody is waited for
            self.queue.policy = replace(self.queue.policy, preferred_sizes=(), max_delay_seconds=0.0)
        self.dispatch()
        with self.changed:
            self.changed.wait_for(lambda: not len(self.queue) and not any(instance.jobs for instance in self.instances))
            self.changed.wait_for(lambda: not any(instance.is_starting for instance in self.instances))
            self.is_ended = True
            self.changed.notify_all()
        self.keeper.join()
        for instance in self.instances:
            instance.stop()


Completed = tuple[Any, ModelSpec, BatchPolicy, dict[str, Any]]  # configuration, what it means, and itself as plain values


class PythonTicket:
    """One request of a Python model."""

    __slots__ = ("job", "model")

    def __init__(self, model: PythonModel, job: PythonJob) -> None:
        self.model = model
        self.job = job

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self.model.cancel(self.job)

    def welcome(self, count: int) -> None:
        """There is room for so many answers more."""
        self.model.welcome(self.job, count)


def _nobody(_: object) -> None:
    """Answers go to the sink of a job."""
