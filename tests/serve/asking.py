"""Asking a loaded model directly, without a network."""

import threading
import time
from collections.abc import Callable

import numpy as np

from tensorferry.serve.core.faults import RequestFault
from tensorferry.serve.core.model import Model
from tensorferry.serve.core.requests import RequestOptions, Ticket

Outcome = dict[str, np.ndarray] | RequestFault


class Question:
    """One request under way."""

    def __init__(self, model: Model, options: RequestOptions = RequestOptions(), **inputs: np.ndarray) -> None:  # noqa: B008
        self.done = threading.Event()
        self.outcome: Outcome | None = None
        self.ticket: Ticket = model.submit(inputs, options, self._take)

    def _take(self, outcome: Outcome) -> None:
        assert self.outcome is None, "a request was answered twice"
        self.outcome = outcome
        self.done.set()

    def answer(self) -> dict[str, np.ndarray]:
        """The outputs, waited for; raises what was answered instead."""
        assert self.done.wait(30)
        if isinstance(self.outcome, RequestFault):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome


def ask(model: Model, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs of one request."""
    return Question(model, **inputs).answer()


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for something that happens in another thread."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
