"""Instances of one model: threads that take batches from one queue and run them.

Handing a batch to another thread and its answers back costs more than a tiny model does. A model whose batches have been
quick is therefore run by the thread that brings the requests, in place of an idle instance. Quick batches are counted, and one
that was not is worth several of them: on a busy machine any batch may be interrupted. A truly slow batch ends it at once.

Where the requests of such a model come one at a time, there is no batch to wait for: `run_alone` does without a queue. The first
turn of the event loop that brings two of them ends that.
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tensorferry.serve.core.batching import merge, split
from tensorferry.serve.core.deferred import DeferredCalls
from tensorferry.serve.core.faults import InvalidRequest, ModelFault, RequestFault, Unavailable, as_fault
from tensorferry.serve.core.fixed_rows import FixedRows
from tensorferry.serve.core.limiter import Limiter
from tensorferry.serve.core.queueing import BatchPolicy, Job, JobQueue
from tensorferry.serve.core.spec import ModelSpec
from tensorferry.serve.core.stats import BatchTimes, Stats
from tensorferry.serve.core.tensors import Array
from tensorferry.serve.runtimes.runtime import Runner

_LOG = logging.getLogger("tensorferry.serve")
_QUICK_NANOSECONDS = 150_000  # about what handing a batch over and back takes
_QUICK_NANOSECONDS_EACH = 10_000  # for each of its requests; to read and answer one takes several times as long
_SLOW_NANOSECONDS = 2_000_000  # so long the thread that brings the requests must not be away from them
_MIN_QUICK_BATCHES = 16  # before a model counts as quick
_MAX_QUICK_BATCHES = 64  # no more are remembered
_PENALTY = 8  # quick batches that make up for one that was not
_MIN_ALONE = 16  # batches of one request in a row, before requests count as coming one at a time
_MAX_BATCHES_HERE = 4  # then the instances go on, and the thread returns to its own work


@dataclass(frozen=True, slots=True)
class Instance:
    """One runner, and what it must hold while it runs."""

    runner: Runner
    needs: Mapping[str, int] = field(default_factory=dict)
    priority: int = 0


class Closed(Exception):
    """The scheduler takes no more jobs: its model was swapped or unloaded."""


class Scheduler:
    """A queue and the threads of its instances. `submit` may be called from any thread."""

    def __init__(
        self,
        spec: ModelSpec,
        policy: BatchPolicy,
        instances: list[Instance],
        stats: Stats,
        *,
        limiter: Limiter,
        deferred: DeferredCalls,
        name: str,
        spare: Runner | None = None,
        rows: FixedRows | None = None,
    ) -> None:
        self.spec = spec
        self.rows = rows
        self.stats = stats
        self.limiter = limiter
        self.deferred = deferred
        self.queue = JobQueue(policy)
        self.changed = threading.Condition(threading.Lock())
        self.is_closed = False
        self.num_running = 0
        self.num_quick = 0
        self.num_alone = 0
        self.is_spare_busy = False
        # `spare` is what a batch is run with outside of the instances' threads
        self.spare = None if policy.wants_company else spare
        self.threads = [
            threading.Thread(target=self._serve, args=(instance,), name=f"{name}#{index}", daemon=True)
            for index, instance in enumerate(instances)
        ]
        for thread in self.threads:
            thread.start()

    @property
    def num_waiting(self) -> int:
        """How many requests wait for an instance."""
        return len(self.queue)

    def submit(self, job: Job) -> None:
        """Queue a job; raises Unavailable where the queue is full, and Closed after `close`."""
        with self.changed:
            if self.is_closed:
                raise Closed
            self.queue.push(job, time.monotonic())
        self.deferred.call(self.wake)

    @property
    def may_run_alone(self) -> bool:
        """Whether the model is quick and its requests have come one at a time."""
        return self.num_alone >= _MIN_ALONE and self.num_quick >= _MIN_QUICK_BATCHES

    def run_alone(self, inputs: dict[str, Array], num_rows: int) -> list[Array] | None:
        """The outputs, at once, where the model is quick and requests come one at a time; None where they are to be queued."""
        if self.spare is None or not self.may_run_alone:
            return None
        if not self.deferred.take_turn():
            self.num_alone = 0
            return None
        with self.changed:
            if self.is_closed or self.is_spare_busy or self.num_running or len(self.queue):
                return None
            self.num_running = 1
            self.is_spare_busy = True
        started = time.perf_counter_ns()
        try:
            outputs = self.spare.run(inputs, self.spec.output_names)
            self._check(outputs, num_rows)
        finally:
            self._leave_spare()
        self.num_quick = _count_quick(self.num_quick, time.perf_counter_ns() - started, 1)
        return outputs

    def wake(self) -> None:
        """Have the queue looked at: by an idle instance, or at once where the model is quick."""
        if self.num_quick >= _MIN_QUICK_BATCHES and self._run_here():
            return
        with self.changed:
            self.changed.notify()

    def close(self) -> None:
        """Take no more jobs, finish those that wait, and end the threads and their runners."""
        with self.changed:
            self.is_closed = True
            # nobody comes any more, so nobody is waited for
            self.queue.policy = replace(self.queue.policy, preferred_sizes=(), max_delay_seconds=0.0)
            self.changed.notify_all()
        for thread in self.threads:
            thread.join()
        with self.changed:
            self.changed.wait_for(lambda: self.num_running == 0)
        if self.spare is not None:
            self.spare.close()

    def _run_here(self) -> bool:
        """Run what waits in this thread, if an instance is free; whether nothing is left."""
        for _ in range(_MAX_BATCHES_HERE):
            with self.changed:
                if self.spare is None or self.is_spare_busy or self.is_closed or self.num_running >= len(self.threads):
                    return False
                taken = self.queue.take(time.monotonic())
                if not taken.batch and not taken.late:
                    return True
                self.num_running += 1
                self.is_spare_busy = True
            try:
                _refuse_late(taken.late)
                if taken.batch:
                    self._run(self.spare, taken.batch)
            finally:
                self._leave_spare()
            if not len(self.queue):
                return True
            if self.num_quick < _MIN_QUICK_BATCHES:
                return False
        return False

    def _leave_spare(self) -> None:
        self.is_spare_busy = False
        self._leave()

    def _leave(self) -> None:
        with self.changed:
            self.num_running -= 1
            if self.is_closed:
                self.changed.notify_all()

    def _serve(self, instance: Instance) -> None:
        while (batch := self._take()) is not None:
            try:
                if instance.needs:
                    with self.limiter.lease(instance.needs, instance.priority):
                        self._run(instance.runner, batch)
                else:
                    self._run(instance.runner, batch)
            finally:
                self._leave()
            # what a batch held must not live until the next one comes
            del batch
        instance.runner.close()

    def _take(self) -> list[Job] | None:
        while True:
            with self.changed:
                taken = self.queue.take(time.monotonic(), max(1, len(self.threads) - self.num_running))
                if taken.batch:
                    self.num_running += 1
                    if len(self.queue):
                        self.changed.notify()
                elif not taken.late:
                    if self.is_closed and not len(self.queue):
                        return None
                    self.changed.wait(taken.wait_seconds)
                    continue
            _refuse_late(taken.late)
            if taken.batch:
                return taken.batch

    def _run(self, runner: Runner, batch: list[Job]) -> None:
        started, now = time.perf_counter_ns(), time.monotonic()
        waited, total_rows = 0.0, 0
        requests, num_rows = [], []
        for job in batch:
            waited += now - job.queued_at
            total_rows += job.num_rows
            requests.append(job.inputs)
            num_rows.append(job.num_rows)
        try:
            merged = merge(self.spec, requests)
            if self.rows is not None:
                merged = self.rows.place(merged, [job.slot for job in batch])
            merged_at = time.perf_counter_ns()
            outputs = runner.run(merged, self.spec.output_names)
            inferred_at = time.perf_counter_ns()
            self._check(outputs, total_rows if self.rows is None else self.rows.num_rows)
            if self.rows is not None:
                outputs = self.rows.pick(outputs, [job.slot for job in batch])
            parts = split(self.spec, outputs, requests, num_rows)
        except Exception as error:
            self._fail(runner, batch, error)
            return
        times = BatchTimes(started, merged_at, inferred_at, time.perf_counter_ns())
        self.num_quick = _count_quick(self.num_quick, times.split - started, len(batch))
        self.num_alone = self.num_alone + 1 if len(batch) == 1 else 0
        self.stats.record_batch(total_rows, len(batch), round(waited * 1e9), times)
        for job, part in zip(batch, parts, strict=True):
            if job.trace is not None:
                job.trace.note_batch(self.spec.name, job.queued_at, times, len(batch), total_rows)
            _finish(job, part)

    def _check(self, outputs: list[Array], num_rows: int) -> None:
        if not self.spec.is_batched:
            return
        for output, spec in zip(outputs, self.spec.outputs, strict=True):
            if output.ndim == 0 or output.shape[0] != num_rows:
                raise ModelFault(
                    f"output '{spec.name}' of model '{self.spec.name}' has the shape {list(output.shape)} for {num_rows} rows; "
                    "the model is no batch model, so its max_batch_size must be 0"
                )

    def _fail(self, runner: Runner, batch: list[Job], error: Exception) -> None:
        if len(batch) > 1 and not isinstance(error, ModelFault):
            # one request that the model cannot run must not fail its neighbours
            for job in batch:
                self._run(runner, [job])
            return
        fault = as_fault(error)
        for job in batch:
            _finish(job, fault)


def _count_quick(count: int, nanoseconds: int, num_requests: int) -> int:
    """How many quick batches there have been, after one of so many requests that took so long.

    >>> _count_quick(20, 40_000, 1), _count_quick(20, 300_000, 1), _count_quick(20, 300_000, 32), _count_quick(20, 5_000_000, 1)
    (21, 12, 21, 0)
    """
    if nanoseconds < _QUICK_NANOSECONDS + _QUICK_NANOSECONDS_EACH * num_requests:
        return min(count + 1, _MAX_QUICK_BATCHES)
    return max(count - _PENALTY, 0) if nanoseconds < _SLOW_NANOSECONDS else 0


def _refuse_late(jobs: list[Job]) -> None:
    for job in jobs:
        _finish(job, Unavailable("the request waited in the queue for longer than its time-out"))


def _finish(job: Job, outcome: list[Array] | RequestFault) -> None:
    if isinstance(outcome, InvalidRequest | ModelFault) and outcome.__traceback__ is not None:
        # the frames of the traceback would keep the whole batch alive for as long as someone holds the error
        outcome = outcome.with_traceback(None)
    try:
        job.done(outcome)
    except Exception:  # the instance and the rest of the batch go on
        _LOG.exception("an answer could not be told")
