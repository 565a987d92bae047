"""The calls that one worker makes of the other models of the server, each batched with whatever else its model has to do."""

import threading
from collections.abc import Callable
from typing import Any

from tensorferry.serve.core.ensemble import FindModel
from tensorferry.serve.core.faults import InvalidRequest, RequestFault, Unavailable, as_fault
from tensorferry.serve.core.model import Outputs, StreamTicket
from tensorferry.serve.core.requests import RequestOptions, SequenceStep, Ticket
from tensorferry.serve.core.scheduler import Closed
from tensorferry.serve.core.tensors import Array
from tensorferry.serve.python.wire import pack, unpack

_MAX_TRIES = 3  # a model may be swapped between looking it up and queueing


class ModelCalls:
    """The calls of one worker that are under way; `post` tells the worker what came of them."""

    def __init__(self, find: FindModel, post: Callable[[tuple[Any, ...]], None]) -> None:
        self.find = find
        self.post = post
        self.lock = threading.Lock()
        self.under_way: dict[int, Ticket | None] = {}

    def start(
        self,
        number: int,
        model: str,
        version: str,
        inputs: dict[str, Any],
        options: dict[str, Any],
        num_welcome: int,
        callers: tuple[str, ...],
    ) -> None:
        """Begin a call; above zero, `num_welcome` is how many answers the worker has room for, and more come as it asks."""
        with self.lock:
            self.under_way[number] = None
        try:
            if model in callers:
                raise InvalidRequest(f"model '{model}' is called by itself: {' > '.join((*callers, model))}")
            arrays = {name: unpack(packed) for name, packed in inputs.items()}
            ticket = self._submit(number, model, version, arrays, _read_options(options, callers), num_welcome)
        except Exception as error:
            self.tell(number, as_fault(error))
            return
        with self.lock:
            if number in self.under_way:
                self.under_way[number] = ticket

    def welcome(self, number: int, count: int) -> None:
        """The worker has room for so many answers more."""
        ticket = self.under_way.get(number)
        if isinstance(ticket, StreamTicket):
            ticket.welcome(count)

    def cancel(self, number: int) -> None:
        """The worker does not wait for it any more."""
        with self.lock:
            ticket = self.under_way.pop(number, None)
        if ticket is not None:
            ticket.cancel()

    def cancel_all(self) -> None:
        """The worker has gone."""
        for number in list(self.under_way):
            self.cancel(number)

    def tell(self, number: int, outcome: Outputs | RequestFault | None, is_last: bool = True) -> None:
        """What came of a call."""
        if is_last:
            with self.lock:
                self.under_way.pop(number, None)
        self.post(("result", number, _write(outcome), is_last))

    def _submit(
        self, number: int, name: str, version: str, inputs: dict[str, Array], options: RequestOptions, num_welcome: int
    ) -> Ticket:
        for _ in range(_MAX_TRIES):
            model = self.find(name, version)
            try:
                if num_welcome and model.is_decoupled:
                    return model.stream(inputs, options, CallSink(self, number), num_welcome)
                return model.submit(inputs, options, lambda outcome: self.tell(number, outcome))
            except Closed:
                continue
        raise Unavailable(f"model '{name}' was swapped {_MAX_TRIES} times while a request came")


class CallSink:
    """Takes the answers of a model that streams to a worker."""

    def __init__(self, calls: ModelCalls, number: int) -> None:
        self.calls = calls
        self.number = number

    def tell(self, outcome: Outputs | RequestFault | None, is_last: bool) -> None:
        """One answer, the end, or both."""
        self.calls.tell(self.number, outcome, is_last)


def _read_options(options: dict[str, Any], callers: tuple[str, ...]) -> RequestOptions:
    sequence_id = options.get("sequence_id", 0)
    is_start, is_end = bool(options.get("sequence_start")), bool(options.get("sequence_end"))
    return RequestOptions(
        options.get("priority", 0),
        options.get("timeout_microseconds", 0),
        SequenceStep(sequence_id, is_start, is_end) if sequence_id else None,
        options.get("parameters") or {},
        options.get("id", ""),
        callers,
    )


def _write(outcome: Outputs | RequestFault | None) -> Any:
    if isinstance(outcome, RequestFault):
        return outcome.with_traceback(None)  # its frames would keep the arrays
    return None if outcome is None else {name: pack(array) for name, array in outcome.items()}
