"""Models made of models: the steps of an ensemble, each batched with whatever else its model has to do.

A step starts as soon as the tensors it reads are there; a step that reads a tensor nobody could give (an optional input) goes
without it. Steps run in the threads of the models that they call, nothing waits in between.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import ModelFault, RequestFault, as_fault
from tensorferry.serve.core.model import AnswerSink, Done, Model, Outputs, StreamTicket, reason_of
from tensorferry.serve.core.requests import RequestOptions, Ticket
from tensorferry.serve.core.scheduler import Closed
from tensorferry.serve.core.spec import ModelSpec, TensorSpec
from tensorferry.serve.core.stats import Stats
from tensorferry.serve.core.tensors import Array

FindModel = Callable[[str, str], Model]
_MAX_TRIES = 3  # a model may be swapped between looking it up and queueing


@dataclass(frozen=True, slots=True)
class Step:
    """One call of one model."""

    model_name: str
    model_version: str  # empty: the newest
    inputs: dict[str, str]  # of the model -> of the ensemble
    outputs: dict[str, str]


class EnsembleModel:
    """An ensemble; it looks its models up at every request, so they may be swapped under it."""

    is_decoupled = False

    def __init__(self, version: int, config: Any, spec: ModelSpec, find: FindModel) -> None:
        self.name = spec.name
        self.version = version
        self.config = config
        self.spec = spec
        self.stats = Stats()
        self.find = find
        self.steps = read_steps(config)
        _check_steps(self.steps, spec, find)
        self.under_way: set[EnsembleTicket] = set()
        self.idle = threading.Condition()
        self.is_closed = False

    @property
    def num_waiting(self) -> int:
        """Requests wait in the queues of the models they call, not here."""
        return 0

    @property
    def is_ready(self) -> bool:
        """Whether every model that it calls is there."""
        try:
            return all(self.find(step.model_name, step.model_version).is_ready for step in self.steps)
        except RequestFault:
            return False

    def run_alone(self, inputs: dict[str, Array]) -> None:
        """Never: its models have queues of their own."""

    def submit(self, inputs: dict[str, Array], options: RequestOptions, done: Done) -> Ticket:
        """Start every step that only reads the request's own inputs."""
        started = time.perf_counter_ns()
        try:
            checked, _, _ = self.spec.check_inputs(inputs)
        except RequestFault as fault:
            self.stats.record_failure(time.perf_counter_ns() - started, reason_of(fault))
            raise
        ticket = EnsembleTicket(self, checked, options, done)
        with self.idle:
            if self.is_closed:
                raise Closed
            self.under_way.add(ticket)
        ticket.advance()
        return ticket

    def stream(self, inputs: dict[str, Array], options: RequestOptions, sink: AnswerSink, num_welcome: int) -> StreamTicket:
        """Never: it has one answer to a request."""
        raise NotImplementedError

    def close(self) -> None:
        """Wait for the requests under way; the models that it calls stay."""
        with self.idle:
            self.is_closed = True
            self.idle.wait_for(lambda: not self.under_way)

    def forget(self, ticket: "EnsembleTicket") -> None:
        """A request is over."""
        with self.idle:
            self.under_way.discard(ticket)
            self.idle.notify_all()


class EnsembleTicket:
    """One request on its way through the steps."""

    def __init__(self, model: EnsembleModel, inputs: dict[str, Array], options: RequestOptions, done: Done) -> None:
        self.model = model
        self.options = options
        self.done = done
        self.started = time.perf_counter_ns()
        self.lock = threading.Lock()
        self.tensors = dict(inputs)
        self.absent = {spec.name for spec in model.spec.inputs if spec.name not in inputs}
        self.waiting = list(model.steps)
        self.tickets: list[Ticket] = []
        self.is_over = False

    def advance(self) -> None:
        """Start the steps whose tensors are there."""
        with self.lock:
            if self.is_over:
                return
            known = self.tensors.keys() | self.absent
            ready = [step for step in self.waiting if known >= set(step.inputs.values())]
            for step in ready:
                self.waiting.remove(step)
            ready_inputs = [
                {theirs: self.tensors[ours] for theirs, ours in step.inputs.items() if ours in self.tensors} for step in ready
            ]
        for step, inputs in zip(ready, ready_inputs, strict=True):
            self._start(step, inputs)

    def cancel(self) -> None:
        """Cancel the steps that wait in a queue, and start no others."""
        with self.lock:
            if self.is_over:
                return
            self.is_over = True
            tickets = list(self.tickets)
        for ticket in tickets:
            ticket.cancel()
        self.model.stats.record_failure(time.perf_counter_ns() - self.started, "CANCELED")
        self.model.forget(self)

    def _start(self, step: Step, inputs: dict[str, Array]) -> None:
        for _ in range(_MAX_TRIES):
            try:
                model = self.model.find(step.model_name, step.model_version)
                ticket = model.submit(inputs, self.options, lambda outcome: self._finish_step(step, outcome))
            except Closed:
                continue
            except Exception as error:  # whatever it is, the request must end: `close` waits for it
                self._end(as_fault(error))
                return
            with self.lock:
                self.tickets.append(ticket)
            return
        self._end(ModelFault(f"model '{step.model_name}' was swapped {_MAX_TRIES} times while a request came"))

    def _finish_step(self, step: Step, outcome: Outputs | RequestFault) -> None:
        if isinstance(outcome, RequestFault):
            self._end(type(outcome)(f"in step '{step.model_name}': {outcome}"))
            return
        missing = step.outputs.keys() - outcome.keys()
        if missing:
            lacking = ", ".join(sorted(missing))
            self._end(ModelFault(f"model '{step.model_name}' was swapped for one without the output {lacking}"))
            return
        with self.lock:
            self.tensors.update({ours: outcome[theirs] for theirs, ours in step.outputs.items()})
            wanted = self.model.spec.output_names
            outputs = {name: self.tensors[name] for name in wanted if name in self.tensors}
        if len(outputs) == len(wanted):
            self._end(outputs)
        else:
            self.advance()

    def _end(self, outcome: Outputs | RequestFault) -> None:
        with self.lock:
            if self.is_over:
                return
            self.is_over = True
        nanoseconds = time.perf_counter_ns() - self.started
        if isinstance(outcome, RequestFault):
            self.model.stats.record_failure(nanoseconds, reason_of(outcome))
        else:
            self.model.stats.record_success(nanoseconds)
        self.model.forget(self)
        self.done(outcome)


def read_steps(config: Any) -> list[Step]:
    """The steps of a ModelConfig."""
    return [
        Step(
            model_name=step.model_name,
            model_version=str(step.model_version) if step.model_version > 0 else "",
            inputs=dict(step.input_map),
            outputs=dict(step.output_map),
        )
        for step in config.ensemble_scheduling.step
    ]


def _check_steps(steps: list[Step], spec: ModelSpec, find: FindModel) -> None:
    """Refuse an ensemble that could never answer: unknown names, types or sizes that do not meet, tensors nobody makes."""
    if not steps:
        raise BadModel(f"the ensemble '{spec.name}' has no steps")
    made = {tensor.name: replace(tensor, shape=tensor.inner_shape(spec.is_batched)) for tensor in spec.inputs}
    waiting = list(steps)
    while waiting:
        ready = [step for step in waiting if made.keys() >= set(step.inputs.values())]
        if not ready:
            missing = {ours for step in waiting for ours in step.inputs.values()} - made.keys()
            raise BadModel(f"nothing in the ensemble '{spec.name}' makes {', '.join(sorted(missing))}")
        for step in ready:
            waiting.remove(step)
            _check_step(step, spec, find(step.model_name, step.model_version), made)
    for output in spec.outputs:
        if output.name not in made or not _meet(made[output.name], output):
            raise BadModel(f"nothing in the ensemble '{spec.name}' makes its output '{output.name}' of {_describe(output)}")


def _meet(given: TensorSpec, taken: TensorSpec) -> bool:
    """Whether what is given may be what is taken; a shape of no sizes is one that the model's file does not tell."""
    if given.datatype != taken.datatype:
        return False
    if not given.shape or not taken.shape:
        return True
    pairs = zip(given.shape, taken.shape, strict=False)
    return len(given.shape) == len(taken.shape) and all(-1 in pair or pair[0] == pair[1] for pair in pairs)


def _describe(tensor: TensorSpec) -> str:
    return f"{tensor.datatype} {list(tensor.shape)}"


def _check_step(step: Step, spec: ModelSpec, model: Model, made: dict[str, TensorSpec]) -> None:
    taken = {tensor.name: tensor for tensor in model.spec.inputs}
    given = {tensor.name: tensor for tensor in model.spec.outputs}
    for theirs, ours in step.inputs.items():
        if theirs not in taken:
            raise BadModel(f"ensemble '{spec.name}': '{model.name}' has no input '{theirs}'")
        if not _meet(made[ours], taken[theirs]):
            raise BadModel(
                f"ensemble '{spec.name}': '{ours}' of {_describe(made[ours])} does not fit the input '{theirs}' of "
                f"'{model.name}', which is {_describe(taken[theirs])}"
            )
    missing = [name for name, tensor in taken.items() if not tensor.optional and name not in step.inputs]
    if missing:
        raise BadModel(f"ensemble '{spec.name}': '{model.name}' also needs {', '.join(missing)}")
    for theirs, ours in step.outputs.items():
        if theirs not in given:
            raise BadModel(f"ensemble '{spec.name}': '{model.name}' has no output '{theirs}'")
        if ours in made:
            raise BadModel(f"ensemble '{spec.name}': '{ours}' is made twice")
        made[ours] = given[theirs]
    if spec.max_batch_size > model.spec.max_batch_size > 0:
        raise BadModel(
            f"ensemble '{spec.name}' takes batches of {spec.max_batch_size}, "
            f"its model '{model.name}' only {model.spec.max_batch_size}"
        )
