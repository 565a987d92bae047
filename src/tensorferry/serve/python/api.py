"""What the author of a Python model is given: requests, and a context that calls the other models of the server.

Everything here lives in a worker process.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorferry.serve.core.faults import RequestFault
from tensorferry.serve.python.wire import Array, datatype_of, pack, to_array, unpack

Outputs = dict[str, Array]
_WINDOW = 16  # answers of another model's stream that may wait here


@dataclass(slots=True, eq=False)
class Request:
    """One request: `request["x"]` is an input's array."""

    inputs: dict[str, Array]
    id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    sequence_id: int | str = 0  # 0: it belongs to no sequence
    sequence_start: bool = False
    sequence_end: bool = False
    timeout_microseconds: int = 0
    number: int = 0  # by which the server knows it
    num_welcome: int = 0  # answers that the client has room for
    is_cancelled: bool = False  # the client has gone; what is still told it is dropped
    comes_again: bool = False  # set by a model with `iterative_sequence` that is not done with it

    def __getitem__(self, name: str) -> Array:
        return self.inputs[name]

    def __contains__(self, name: str) -> bool:
        return name in self.inputs


class ModelCall:
    """A call of another model under way; what comes of it is waited for by one thread."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.answers: queue.SimpleQueue[tuple[Outputs | RequestFault | None, bool]] = queue.SimpleQueue()

    def deliver(self, answer: Any, is_last: bool) -> None:
        """An answer, a fault or None, from the thread that reads from the server."""
        outputs = {name: unpack(packed) for name, packed in answer.items()} if isinstance(answer, dict) else answer
        self.answers.put((outputs, is_last))


class Context:
    """What `load` is given: where the model lies, how it is configured, and the way to the other models of the server."""

    def __init__(self, folder: Path, name: str, version: int, config: dict[str, Any], post: Callable[[Any], None]) -> None:
        self.folder = folder  # of this version
        self.name = name
        self.version = version
        self.config = config  # the whole ModelConfig, in the words of config.pbtxt
        self.parameters = {key: value.get("string_value", "") for key, value in config.get("parameters", {}).items()}
        self._post = post
        self._calls: dict[int, ModelCall] = {}
        self._lock = threading.Lock()
        self._serial = 0

    def infer(self, model: str, inputs: Mapping[str, Any], *, version: str = "", **options: Any) -> Outputs:
        """The outputs of another model; its batches are shared with whoever else calls it. Raises what it answers with.

        `options` may be `parameters`, `priority`, `timeout_microseconds`, `sequence_id`, `sequence_start` and `sequence_end`.
        """
        call = self._start(model, version, inputs, options, streams=False)
        answer, _ = call.answers.get()
        if isinstance(answer, RequestFault):
            raise answer
        return answer or {}

    def stream(self, model: str, inputs: Mapping[str, Any], *, version: str = "", **options: Any) -> Iterator[Outputs]:
        """The answers of another model that streams, as they come; leaving the loop early cancels the rest."""
        call = self._start(model, version, inputs, options, streams=True)
        is_last, num_taken = False, 0
        try:
            while not is_last:
                answer, is_last = call.answers.get()
                if isinstance(answer, RequestFault):
                    raise answer
                if answer is not None:
                    yield answer
                    num_taken += 1
                    if num_taken >= _WINDOW // 2 and not is_last:
                        self._post(("call_credit", call.number, num_taken))
                        num_taken = 0
        finally:
            if not is_last:
                with self._lock:
                    self._calls.pop(call.number, None)
                self._post(("cancel_call", call.number))

    def deliver(self, number: int, answer: Any, is_last: bool) -> None:
        """What came of a call; one that nobody waits for any more is dropped."""
        with self._lock:
            call = self._calls.pop(number, None) if is_last else self._calls.get(number)
        if call is not None:
            call.deliver(answer, is_last)

    def _start(self, model: str, version: str, inputs: Mapping[str, Any], options: dict[str, Any], *, streams: bool) -> ModelCall:
        packed = {name: pack(_as_array(value)) for name, value in inputs.items()}
        with self._lock:
            self._serial += 1
            call = self._calls[self._serial] = ModelCall(self._serial)
        self._post(("call", call.number, model, version, packed, options, _WINDOW if streams else 0))
        return call


def _as_array(value: Any) -> Array:
    import numpy as np

    array = np.asarray(value)
    return to_array(array, datatype_of(array.dtype))


Answer = Callable[[Request, Any, bool], None]  # one answer of a request, or None, and whether it is the last
