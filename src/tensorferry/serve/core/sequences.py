"""Stateful models: all requests of a sequence go to one instance, in their order, one at a time.

Each instance is a model by itself, which batches what its sequences have to do. A sequence has one of the slots of an instance
from its first request to its last, or until it was idle for too long; those for whom there is none wait. States that a
configuration names are kept here and given to the model with each request.
"""

import itertools
import threading
import time
from collections import deque
from dataclasses import replace
from typing import Any

from tensorferry.serve.core.faults import InvalidRequest, ModelFault, RequestFault, Unavailable, as_fault
from tensorferry.serve.core.model import AnswerSink, Done, Model, OneAnswer, Outputs, reason_of
from tensorferry.serve.core.requests import RequestOptions, SequenceStep, Ticket
from tensorferry.serve.core.scheduler import Closed
from tensorferry.serve.core.sequence_policy import SequencePolicy
from tensorferry.serve.core.sequence_ticket import Sequence, SequenceSlots, SequenceTicket
from tensorferry.serve.core.spec import ModelSpec
from tensorferry.serve.core.stats import Stats
from tensorferry.serve.core.tensors import Array, held_nbytes
from tensorferry.units import format_bytes

_MAX_AHEAD = 256  # requests of one sequence that may wait
_MAX_STATE_NBYTES = 2**30  # of all sequences of a model


class SequenceModel:
    """A model whose requests belong to sequences."""

    def __init__(
        self, version: int, config: Any, spec: ModelSpec, policy: SequencePolicy, instances: list[Model], stats: Stats
    ) -> None:
        self.name = spec.name
        self.version = version
        self.config = config
        self.spec = spec
        self.policy = policy
        self.instances = instances
        self.stats = stats
        self.is_decoupled = instances[0].is_decoupled
        self.sequences: dict[int | str, Sequence] = {}
        self.num_state_nbytes = 0
        self.numbers = itertools.count(1)  # of sequences that have no name of their client's
        self.waiting: deque[Sequence] = deque()  # for a slot
        self.slots = {id(instance): SequenceSlots(policy.num_slots) for instance in instances}
        self.changed = threading.Condition()
        self.is_closed = False
        self.is_ended = False
        for instance in instances:
            if hasattr(instance, "on_lost"):
                instance.on_lost = self._lose
        self.keeper = threading.Thread(target=self._keep, name=f"{self.name}/sequences", daemon=True)
        self.keeper.start()

    @property
    def num_waiting(self) -> int:
        """How many requests wait for those before them, or for an instance."""
        return sum(len(sequence.waiting) for sequence in list(self.sequences.values())) + sum(
            instance.num_waiting for instance in self.instances
        )

    @property
    def is_ready(self) -> bool:
        """Whether every instance is there."""
        return all(instance.is_ready for instance in self.instances)

    def run_alone(self, inputs: dict[str, Array]) -> None:
        """Never: a request has a place in its sequence."""

    def submit(self, inputs: dict[str, Array], options: RequestOptions, done: Done) -> SequenceTicket:
        """Queue a request of a sequence that gets one answer."""
        return self._queue(inputs, options, OneAnswer(done), 1)

    def stream(self, inputs: dict[str, Array], options: RequestOptions, sink: AnswerSink, num_welcome: int) -> SequenceTicket:
        """Queue a request of a sequence that gets any number of answers."""
        return self._queue(inputs, options, sink, num_welcome)

    def _queue(self, inputs: dict[str, Array], options: RequestOptions, sink: AnswerSink, num_welcome: int) -> SequenceTicket:
        started = time.perf_counter_ns()
        try:
            if self.policy.is_iterative:
                options = replace(options, sequence=self._begin_iterative(options))
            checked = self._check(inputs, options)
            with self.changed:
                if self.is_closed:
                    raise Closed
                sequence = self._find(options)
                ticket = SequenceTicket(self, sequence, checked, options, sink, num_welcome)
                sequence.waiting.append(ticket)
                sequence.used_at = time.monotonic()
                ready = self._advance(sequence)
        except RequestFault as fault:
            self.stats.record_failure(time.perf_counter_ns() - started, reason_of(fault))
            raise
        self._start(ready)
        return ticket

    def finish(self, ticket: SequenceTicket) -> None:
        """A request is over: the next of its sequence may begin, or another sequence where it was the last."""
        sequence, step = ticket.sequence, ticket.options.sequence
        with self.changed:
            if sequence.current is not ticket:
                return
            sequence.current = None
            sequence.used_at = time.monotonic()
            if ticket.is_cancelled and self.policy.is_iterative:
                self._forget(sequence)
            if step is not None and (step.is_end or self.policy.is_iterative) and not sequence.waiting:
                self._drop(sequence)
            ready = self._advance(sequence) or self._fill_slots()
            self.changed.notify_all()
        self._start(ready)

    def turn(self, ticket: SequenceTicket) -> None:
        """Bring a request back to its model for another turn, once its client has room for an answer."""
        options = ticket.options
        assert options.sequence is not None
        with self.changed:
            ticket.ticket = None
            ticket.num_turns += 1
            ticket.num_welcome, ticket.num_extra = ticket.num_welcome + ticket.num_extra, 0
            ticket.is_held = self.is_decoupled and ticket.num_welcome <= 0
            if ticket.is_held:
                return
            step = replace(options.sequence, is_start=False)
            ticket.options = replace(options, sequence=step)
            ticket.inputs |= self._make_controls(step)
            ticket.sequence.used_at = time.monotonic()
        self._start([ticket])

    def keep_states(self, sequence: Sequence, outputs: Outputs) -> Outputs | RequestFault:
        """Take the states out of an answer, for the next request."""
        states = {state.input_name: outputs[state.output_name] for state in self.policy.states}
        with self.changed:
            self._set_states(sequence, states)
            if self.num_state_nbytes > _MAX_STATE_NBYTES:
                self._drop(sequence)
                most = format_bytes(_MAX_STATE_NBYTES)
                return Unavailable(f"the states of {len(self.sequences)} sequences hold more than {most}; end some of them")
        made = {state.output_name for state in self.policy.states}
        return {name: array for name, array in outputs.items() if name not in made}

    def close(self) -> None:
        """Finish what is under way, then close the instances."""
        with self.changed:
            self.is_closed = True
            self.changed.wait_for(lambda: not any(each.current or each.waiting for each in self.sequences.values()))
            self.is_ended = True
            self.changed.notify_all()
        self.keeper.join()
        for instance in self.instances:
            instance.close()

    # ---- under the lock ----------------------------------------------------------------------------------------------

    def _find(self, options: RequestOptions) -> Sequence:
        step = options.sequence
        assert step is not None
        sequence = self.sequences.get(step.id)
        if not step.is_start and (sequence is None or sequence.is_ending):
            raise InvalidRequest(
                f"sequence {step.id!r} of model '{self.name}' is not known: it has ended, was idle for more than "
                f"{self.policy.idle_seconds:g} seconds, or lost its worker; begin it with sequence_start"
            )
        if sequence is None:
            if len(self.sequences) >= self.policy.max_sequences:
                raise Unavailable(
                    f"model '{self.name}' has {len(self.sequences)} sequences, the most it takes; "
                    "end some with sequence_end, or raise the parameter 'max_sequences'"
                )
            sequence = self.sequences[step.id] = Sequence(step.id)
            self.waiting.append(sequence)
            if len(self.sequences) == 1:
                self.changed.notify_all()  # the keeper sleeps while there are none
            self._fill_slots()
        if len(sequence.waiting) >= _MAX_AHEAD:
            raise Unavailable(f"{_MAX_AHEAD} requests of sequence {step.id!r} wait, which is the most; read some answers")
        sequence.is_ending = step.is_end
        return sequence

    def _fill_slots(self) -> list[SequenceTicket]:
        """Give free slots to those who wait; what may begin because of it."""
        ready: list[SequenceTicket] = []
        while self.waiting:
            instance = max(self.instances, key=lambda each: self.slots[id(each)].num_free)
            slots = self.slots[id(instance)]
            if not slots.num_free:
                break
            sequence = self.waiting.popleft()
            sequence.instance, sequence.slot = instance, slots.take()
            ready += self._advance(sequence)
        return ready

    def _advance(self, sequence: Sequence) -> list[SequenceTicket]:
        """The next request of a sequence, if it may begin."""
        while sequence.instance is not None and sequence.current is None and sequence.waiting:
            ticket = sequence.waiting.popleft()
            if not ticket.is_cancelled:
                sequence.current = ticket
                return [ticket]
        return []

    def _set_states(self, sequence: Sequence, states: dict[str, Array]) -> None:
        self.num_state_nbytes += held_nbytes(states.values()) - held_nbytes(sequence.states.values())
        sequence.states = states

    def _drop(self, sequence: Sequence) -> None:
        self._set_states(sequence, {})
        if self.sequences.get(sequence.id) is sequence:
            del self.sequences[sequence.id]
        if sequence.instance is None:
            self.waiting = deque(each for each in self.waiting if each is not sequence)
        else:
            self.slots[id(sequence.instance)].give_back(sequence.slot)
            sequence.instance = None

    # ---- beside it ---------------------------------------------------------------------------------------------------

    def _check(self, inputs: dict[str, Array], options: RequestOptions) -> dict[str, Array]:
        if options.sequence is None:
            raise InvalidRequest(
                f"model '{self.name}' keeps state: give its requests a sequence_id, "
                "the first a sequence_start and the last a sequence_end"
            )
        _, num_rows, _ = self.spec.check_inputs(inputs)
        if self.spec.is_batched and num_rows != 1:
            raise InvalidRequest(f"a request of a sequence has one row, received {num_rows}")
        return inputs | self._make_controls(options.sequence)

    def _make_controls(self, step: SequenceStep) -> dict[str, Array]:
        return {control.name: control.make(step, self.spec.is_batched) for control in self.policy.controls}

    def _begin_iterative(self, options: RequestOptions) -> SequenceStep:
        """The only request of a sequence; where its client gave it no name, one that nobody has."""
        if options.sequence is not None:
            return SequenceStep(options.sequence.id, is_start=True)
        return SequenceStep(next(number for number in self.numbers if number not in self.sequences), is_start=True)

    def _start(self, ready: list[SequenceTicket]) -> None:
        for ticket in ready:
            sequence, step = ticket.sequence, ticket.options.sequence
            inputs = ticket.inputs
            if self.policy.states:
                with self.changed:
                    if (step is not None and step.is_start) or not sequence.states:
                        self._set_states(sequence, {state.input_name: state.initial for state in self.policy.states})
                    inputs = inputs | sequence.states
            if not self.policy.is_iterative:
                ticket.inputs = {}
            num_turns = ticket.num_turns
            try:
                ticket.begin(self._submit(sequence.instance, inputs, ticket), num_turns)
            except Exception as error:  # whatever it is, the request must end: those behind it wait for it
                ticket.tell(as_fault(error), True)

    def _submit(self, instance: Model | None, inputs: dict[str, Array], ticket: SequenceTicket) -> Ticket:
        if instance is None:
            raise ModelFault("the sequence lost its worker; begin it with sequence_start")
        if self.is_decoupled:
            return instance.stream(inputs, ticket.options, ticket, ticket.num_welcome)
        options = ticket.options
        if self.policy.rows is not None and options.sequence is not None:
            options = replace(options, sequence=replace(options.sequence, slot=ticket.sequence.slot))
        return instance.submit(inputs, options, lambda outcome: ticket.tell(outcome, True))

    def _keep(self) -> None:
        """Drop sequences that were idle for too long, and give their slots to others."""
        while True:
            with self.changed:
                if self.is_ended:
                    return
                now = time.monotonic()
                idle = [each for each in self.sequences.values() if each.current is None and not each.waiting]
                late = [each for each in idle if each.used_at + self.policy.idle_seconds <= now]
                for sequence in late:
                    self._forget(sequence)
                    self._drop(sequence)
                ready = self._fill_slots() if late else []
                if not ready:
                    times = [each.used_at + self.policy.idle_seconds - now for each in idle if each not in late]
                    self.changed.wait(min([*times, self.policy.idle_seconds]) if self.sequences else None)
            self._start(ready)

    def _forget(self, sequence: Sequence) -> None:
        forget = getattr(sequence.instance, "forget", None)
        if forget is not None:
            forget(sequence.id)

    def _lose(self, instance: Model) -> None:
        """An instance lost what it knew: its sequences are over."""
        with self.changed:
            lost = [each for each in self.sequences.values() if each.instance is instance]
            tickets = [ticket for sequence in lost for ticket in sequence.waiting]
            for sequence in lost:
                sequence.waiting.clear()
                self._drop(sequence)
            ready = self._fill_slots()
            self.changed.notify_all()
        for ticket in tickets:
            ticket.tell(ModelFault("the sequence lost its worker; begin it with sequence_start"), True)
        self._start(ready)
