"""One loaded version of one model: it checks a request, queues it and tells its outputs."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tensorferry.serve.core.cache import ResponseCache, make_key
from tensorferry.serve.core.faults import InvalidRequest, ModelFault, RequestFault, Unavailable, as_fault
from tensorferry.serve.core.queueing import Job, nobody
from tensorferry.serve.core.requests import RequestOptions, Ticket, WantedOutput
from tensorferry.serve.core.scheduler import Scheduler
from tensorferry.serve.core.spec import ModelSpec, TensorSpec, fill_sizes
from tensorferry.serve.core.stats import Stats
from tensorferry.serve.core.tensors import DTYPES, Array
from tensorferry.serve.runtimes.runtime import Runtime

Outputs = dict[str, Array]
Done = Callable[[Outputs | RequestFault], None]
_SERIALS = itertools.count(1)


@runtime_checkable
class StreamTicket(Ticket, Protocol):
    """A request that gets any number of answers."""

    def welcome(self, count: int) -> None:
        """There is room for so many answers more."""


class AnswerSink(Protocol):
    """Takes the answers of a request, from any thread, one call at a time."""

    def tell(self, outcome: Outputs | RequestFault | None, is_last: bool) -> None:
        """One answer, the end, or both; after a fault that is not the last, others may follow."""


class OneAnswer:
    """Takes the only answer of a request."""

    __slots__ = ("done", "is_told")

    def __init__(self, done: Done) -> None:
        self.done = done
        self.is_told = False

    def tell(self, outcome: Outputs | RequestFault | None, is_last: bool) -> None:
        """The answer."""
        if not self.is_told and (outcome is not None or is_last):
            self.is_told = True
            self.done(ModelFault("the model gave no answer") if outcome is None else outcome)


class Model(Protocol):
    """What the data plane needs of a loaded version; an ensemble is one as well."""

    name: str
    version: int
    config: Any
    spec: ModelSpec
    stats: Stats
    is_decoupled: bool  # a request may get none, one or many answers: `stream` it

    @property
    def num_waiting(self) -> int:
        """How many requests wait for an instance."""

    @property
    def is_ready(self) -> bool:
        """Whether a request could be answered."""

    def run_alone(self, inputs: dict[str, Array]) -> Outputs | RequestFault | None:
        """What comes of a request, at once, where these come one at a time and are quick; None where it is to be submitted."""

    def submit(self, inputs: dict[str, Array], options: RequestOptions, done: Done) -> Ticket:
        """Start a request; `done` is called once, from any thread."""

    def stream(self, inputs: dict[str, Array], options: RequestOptions, sink: AnswerSink, num_welcome: int) -> StreamTicket:
        """Start a request of a model that is decoupled; no more answers come than are welcome."""

    def close(self) -> None:
        """Finish what is under way, then give everything back."""


class RuntimeModel:
    """A model with a runtime."""

    is_decoupled = False

    def __init__(
        self,
        version: int,
        config: Any,
        spec: ModelSpec,
        runtime: Runtime,
        scheduler: Scheduler,
        cache: ResponseCache | None,
    ) -> None:
        self.name = spec.name
        self.version = version
        self.config = config
        self.spec = spec
        self.runtime = runtime
        self.scheduler = scheduler
        self.stats = scheduler.stats
        self.cache = cache if config.response_cache.enable else None
        self.cache_prefix = next(_SERIALS).to_bytes(8, "big")

    @property
    def num_waiting(self) -> int:
        """How many requests wait for an instance."""
        return self.scheduler.num_waiting

    @property
    def is_ready(self) -> bool:
        """What is loaded is ready."""
        return True

    def run_alone(self, inputs: dict[str, Array]) -> Outputs | RequestFault | None:
        """What comes of a request that need not wait for others."""
        if not self.scheduler.may_run_alone or self.cache is not None:
            return None
        started = time.perf_counter_ns()
        try:
            checked, num_rows, _ = self.spec.check_inputs(inputs)
            arrays = self.scheduler.run_alone(checked, num_rows)
            if arrays is None:
                return None
            outputs = finish_outputs(self, arrays)
        except Exception as error:
            fault = as_fault(error)
            self.stats.record_failure(time.perf_counter_ns() - started, reason_of(fault))
            return fault.with_traceback(None)  # its frames would keep the arrays
        self.stats.record_alone(num_rows, time.perf_counter_ns() - started)
        return outputs

    def submit(self, inputs: dict[str, Array], options: RequestOptions, done: Done) -> "ModelJob":
        """Check and queue a request; what is wrong with it is raised, what goes wrong later is told to `done`."""
        started = time.perf_counter_ns()
        try:
            checked, num_rows, key = self.spec.check_inputs(inputs)
            job = ModelJob(
                inputs=checked,
                num_rows=num_rows,
                key=key,
                done=nobody,
                priority=options.priority,
                timeout_seconds=options.timeout_microseconds / 1e6,
                trace=options.trace,
                slot=options.sequence.slot if options.sequence is not None else 0,
                model=self,
                tell=done,
                started=started,
            )
            if self.cache is None or not self._answer_from_cache(job):
                self._queue(job)
        except RequestFault as fault:
            self.stats.record_failure(time.perf_counter_ns() - started, reason_of(fault))
            raise
        return job

    def _queue(self, job: "ModelJob") -> None:
        job.done = job.finish
        try:
            self.scheduler.submit(job)
        except Exception:
            job.close()
            raise

    def stream(self, inputs: dict[str, Array], options: RequestOptions, sink: AnswerSink, num_welcome: int) -> StreamTicket:
        """Never: it has one answer to a request."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish what is queued, then give the weights back."""
        self.scheduler.close()
        self.runtime.close()
        if self.cache is not None:
            self.cache.forget(self.cache_prefix)

    def _answer_from_cache(self, job: "ModelJob") -> bool:
        assert self.cache is not None
        job.cache_key = make_key(self.cache_prefix, job.inputs)
        outputs = self.cache.find(job.cache_key)
        nanoseconds = time.perf_counter_ns() - job.started
        self.stats.record_cache(outputs is not None, nanoseconds)
        if outputs is None:
            return False
        self.stats.record_success(nanoseconds)
        job.tell(outputs)
        return True


@dataclass(slots=True, eq=False, kw_only=True)
class ModelJob(Job):
    """One request of a RuntimeModel, from the queue to its answer."""

    model: RuntimeModel
    tell: Done
    started: int  # nanoseconds
    cache_key: bytes | None = None

    def cancel(self) -> None:
        """Let the queue drop it; one that already runs is finished for nobody."""
        if not self.cancelled and self.done is not nobody:
            self.cancelled = True
            self.close()
            self.model.stats.record_failure(time.perf_counter_ns() - self.started, "CANCELED")

    def close(self) -> None:
        """Let go of what it holds: `done` leads back here, and a circle would keep the arrays until the collector runs."""
        self.done = nobody
        self.inputs = {}

    def finish(self, outcome: list[Array] | RequestFault) -> None:
        """Called by the scheduler, once."""
        self.done = nobody
        model = self.model
        if isinstance(outcome, RequestFault):
            self._fail(outcome)
            return
        try:
            outputs = finish_outputs(model, outcome)
        except Exception as error:
            self._fail(as_fault(error))
            return
        if self.cache_key is not None and model.cache is not None:
            model.cache.put(self.cache_key, outputs)
        model.stats.record_success(time.perf_counter_ns() - self.started)
        self.tell(outputs)

    def _fail(self, fault: RequestFault) -> None:
        self.model.stats.record_failure(time.perf_counter_ns() - self.started, reason_of(fault))
        self.tell(fault)


def finish_outputs(model: Model, arrays: list[Array]) -> Outputs:
    """The outputs by name, as the model's configuration promises them."""
    return {spec.name: finish_output(model, spec, array) for spec, array in zip(model.spec.outputs, arrays, strict=True)}


def finish_output(model: Model, spec: TensorSpec, array: Array) -> Array:
    """An output as its configuration promises it."""
    if array.dtype != DTYPES[spec.datatype]:
        raise ModelFault(f"output '{spec.name}' of model '{model.name}' is {array.dtype}, its configuration says {spec.datatype}")
    if spec.reshape is None:
        return array
    head = array.shape[:1] if model.spec.is_batched else ()
    sizes = array.shape[len(head) :]
    shape = head + fill_sizes(spec.shape[len(head) :], spec.reshape, sizes)
    try:
        return array.reshape(shape)
    except ValueError:
        raise ModelFault(f"output '{spec.name}' of model '{model.name}' has the shape {array.shape}, not {shape}") from None


def reason_of(fault: RequestFault) -> str:
    """The word that the failure metric has for a fault."""
    if isinstance(fault, Unavailable):
        return "REJECTED"
    return "OTHER" if isinstance(fault, InvalidRequest) else "BACKEND"


def check_wanted(model: Model, wanted: tuple[WantedOutput, ...]) -> tuple[WantedOutput, ...]:
    """`wanted`, if the model has those outputs."""
    if not wanted:
        return wanted
    for want in wanted:
        if want.name not in model.spec.output_names:
            known = ", ".join(map(repr, model.spec.output_names))
            raise InvalidRequest(f"model '{model.name}' has no output {want.name!r}; it has {known}")
    if len({want.name for want in wanted}) < len(wanted):
        raise InvalidRequest("an output is asked for twice")
    return wanted
