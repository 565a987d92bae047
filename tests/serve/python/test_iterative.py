"""Requests that a model sees again and again until it is done with them, batched with others on the way."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Question, wait_until
from python_models import COUNT_DOWN, save_python

from tensorferry.errors import BadModel
from tensorferry.serve.core.config import read_config
from tensorferry.serve.core.faults import NotOver, RequestFault
from tensorferry.serve.core.loading import load_model
from tensorferry.serve.core.model import Model, Outputs, StreamTicket
from tensorferry.serve.core.requests import NO_OPTIONS
from tensorferry.serve.core.sequence_policy import read_sequences
from tensorferry.serve.core.workshop import Workshop

ITERATIVE = "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 8 } }"
STREAMED = "model_transaction_policy { decoupled: true }"


class Collected:
    """Takes the answers of a request."""

    def __init__(self, model: Model, count_from: int, num_welcome: int = 1000) -> None:
        self.outcomes: list[Outputs | RequestFault | None] = []
        self.over = threading.Event()
        self.ticket: StreamTicket = model.stream(make_inputs(count_from), NO_OPTIONS, self, num_welcome)

    def tell(self, outcome: Outputs | RequestFault | None, is_last: bool) -> None:
        assert not self.over.is_set()
        self.outcomes.append(outcome)
        if is_last:
            self.over.set()

    def left(self) -> list[int]:
        """What the model counted down to so far."""
        return [int(outcome["LEFT"][0, 0]) for outcome in self.outcomes if isinstance(outcome, dict)]


def make_inputs(count_from: int) -> dict[str, Any]:
    return {"FROM": np.array([[count_from]], np.int32)}


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Loads a model once for all tests that need it; it is closed after them."""
    models: dict[tuple[str, str], Model] = {}

    def load_one(config: str, code: str = COUNT_DOWN) -> Model:
        if (config, code) not in models:
            root = tmp_path_factory.mktemp("models")
            save_python(root, "model", code, config)
            models[config, code] = load_model(Workshop(trust=True), root / "model", 1, read_config(root / "model"))
        return models[config, code]

    yield load_one
    for model in models.values():
        model.close()


def test_requests_of_different_stages_share_batches_and_get_one_answer(load: Any) -> None:
    model = load(ITERATIVE)
    before = model.stats.execution_count
    questions = [Question(model, **make_inputs(count)) for count in (40, 41, 42)]
    answers = [question.answer() for question in questions]
    assert [int(answer["LEFT"][0, 0]) for answer in answers] == [0, 0, 0]
    assert 42 <= model.stats.execution_count - before < 40 + 41 + 42
    assert model.stats.success.count == 3
    assert not model.sequences


def test_every_turn_may_answer_and_no_more_than_the_client_reads(load: Any) -> None:
    model = load(ITERATIVE + STREAMED)
    both = Collected(model, 5), Collected(model, 3)
    for each, expected in zip(both, ([4, 3, 2, 1, 0], [2, 1, 0]), strict=True):
        assert each.over.wait(30)
        assert each.left() == expected
    slow = Collected(model, 100, num_welcome=2)
    wait_until(lambda: slow.ticket.is_held)  # type: ignore[attr-defined]
    assert slow.left() == [99, 98]
    slow.ticket.welcome(3)
    wait_until(lambda: len(slow.outcomes) == 5 and slow.ticket.is_held)  # type: ignore[attr-defined]
    slow.ticket.cancel()
    known = Collected(model, -1)
    assert known.over.wait(30)
    assert known.left() == [0]  # the model was told to forget it
    assert not model.sequences


def test_a_client_that_goes_ends_its_turns(load: Any) -> None:
    model = load(ITERATIVE)
    endless = Question(model, **make_inputs(2**30))
    wait_until(lambda: model.stats.execution_count > 5)
    endless.ticket.cancel()
    wait_until(lambda: not model.sequences)
    assert int(Question(model, **make_inputs(-1)).answer()["LEFT"][0, 0]) == 0
    assert endless.outcome is None


TRITON_COUNT_DOWN = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            key = request.correlation_id()
            value = pb_utils.get_input_tensor_by_name(request, "FROM").as_numpy()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.left[key] = int(value[0, 0])
            self.left[key] -= 1
            if self.left[key]:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None if value[0, 0] < 100 else self.respond(self.left[key]))
            else:
                responses.append(self.respond(self.left.pop(key)))
        return responses

    def respond(self, left):
        return pb_utils.InferenceResponse([pb_utils.Tensor("LEFT", np.array([[left]], np.int32))])
"""
TENSORS = """
max_batch_size: 4
input { name: "FROM" data_type: TYPE_INT32 dims: 1 }
output { name: "LEFT" data_type: TYPE_INT32 dims: 1 }
"""


def test_files_made_for_triton_reschedule_requests(load: Any) -> None:
    model = load(ITERATIVE + TENSORS + 'backend: "python"', TRITON_COUNT_DOWN)
    assert int(Question(model, **make_inputs(7)).answer()["LEFT"][0, 0]) == 0
    with pytest.raises(RequestFault, match="a request that comes again is answered with None"):
        Question(model, **make_inputs(100)).answer()


def test_without_an_iterative_sequence_nobody_brings_a_request_back(load: Any, tmp_path: Path) -> None:
    model = load("", COUNT_DOWN.replace("if request.sequence_start:", "if True:"))
    with pytest.raises(NotOver, match="its configuration needs an iterative_sequence"):
        Question(model, **make_inputs(2)).answer()
    (tmp_path / "config.pbtxt").write_text(ITERATIVE)
    with pytest.raises(BadModel, match="only a Python model"):
        read_sequences(read_config(tmp_path), tmp_path, is_python=False)
