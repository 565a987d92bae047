"""Python models in worker processes: what they may do, and what happens when they do not do it."""

import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Question, ask, wait_until
from models import save_scale
from python_models import CALLER, COUNT, DOUBLE, ODD, TRITON, TRITON_CONFIG, parameter, save_python

from tensorferry.errors import BadModel
from tensorferry.serve.core.config import read_config
from tensorferry.serve.core.faults import InvalidRequest, ModelFault, RequestFault
from tensorferry.serve.core.loading import load_model
from tensorferry.serve.core.requests import NO_OPTIONS, RequestOptions
from tensorferry.serve.core.workshop import Workshop
from tensorferry.serve.python.model import PythonModel

X = np.arange(8, dtype=np.float32).reshape(2, 4)


class Answers:
    """Takes the answers of a stream."""

    def __init__(self) -> None:
        self.told: queue.SimpleQueue[tuple[Any, bool]] = queue.SimpleQueue()

    def tell(self, outcome: Any, is_last: bool) -> None:
        """Keep it."""
        self.told.put((outcome, is_last))

    def numbers(self, count: int) -> list[int]:
        """The numbers of so many answers."""
        return [int(self.told.get(timeout=20)[0]["NUMBER"][0]) for _ in range(count)]


class Loaded:
    """Models that are loaded one by one, and find each other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.models: dict[str, Any] = {}

    def load(self, name: str, code: str, config: str = "") -> PythonModel:
        """A Python model."""
        save_python(self.root, name, code, config)
        model = load_model(Workshop(trust=True), self.root / name, 1, read_config(self.root / name), self.find)
        self.models[name] = model
        assert isinstance(model, PythonModel)
        return model

    def find(self, name: str, _: str) -> Any:
        """One of them."""
        if name not in self.models:
            raise InvalidRequest(f"no model {name}")
        return self.models[name]


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Loaded]:
    """No models yet; those that a test loads are closed after it."""
    found = Loaded(tmp_path)
    yield found
    for model in found.models.values():
        model.close()


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PythonModel]:
    """A model that does what its request says, and may take two seconds for it."""
    root = tmp_path_factory.mktemp("odd")
    save_python(root, "odd", ODD, parameter("timeout_seconds", "2"))
    model = load_model(Workshop(trust=True), root / "odd", 1, read_config(root / "odd"))
    assert isinstance(model, PythonModel)
    yield model
    model.close()


def say(what: str) -> np.ndarray:
    """The input of the odd model."""
    return np.array([what.encode()], np.object_)


def count(to: int, wait: float = 0.0) -> dict[str, np.ndarray]:
    """The inputs of the counting model."""
    return {"TO": np.array([to], np.int32), "WAIT": np.array([wait], np.float32)}


def test_requests_that_wait_are_given_to_the_model_together(loaded: Loaded) -> None:
    model = loaded.load("double", DOUBLE)
    assert model.config.max_batch_size == 8
    questions = [Question(model, x=X + number) for number in range(20)]
    answers = [question.answer() for question in questions]
    for number, answer in enumerate(answers):
        np.testing.assert_array_equal(answer["y"], 2 * (X + number))
    assert max(int(answer["rows"][0, 0]) for answer in answers) == 4  # of two rows each
    assert model.stats.success.count == 20
    assert model.stats.inference_count == 40
    assert model.stats.execution_count < 20
    assert sorted(path.name for path in (loaded.root / "double").rglob("*")) == ["1", "model.py"]  # nothing was written there


def test_code_needs_trust_and_is_never_taken_from_a_request(tmp_path: Path) -> None:
    save_python(tmp_path, "double", DOUBLE)
    config = read_config(tmp_path / "double")
    with pytest.raises(BadModel, match=r"model\.py is code that runs as the server does; add --trust"):
        load_model(Workshop(), tmp_path / "double", 1, config)
    with pytest.raises(BadModel, match="not taken from a request"):
        load_model(Workshop(trust=True), tmp_path / "double", 1, config, is_sent=True)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import this_is_not_installed", "No module named 'this_is_not_installed'"),
        ("x = 1", "no class Model"),
        ("class Model:\n    pass", "no method infer"),
        ("class Model:\n    inputs = {'x': 'FP32'}\n    def infer(self, requests): ...", "such as \\('FP32', \\[4\\]\\)"),
        ("class Model:\n    def infer(self, requests): ...", "does not tell its inputs and outputs"),
        ("import os\nos._exit(4)", "ended its process with exit code 4"),
        ("raise SystemExit('bye')", "SystemExit: bye"),
    ],
)
def test_a_file_that_cannot_be_loaded_says_why(tmp_path: Path, code: str, message: str) -> None:
    save_python(tmp_path, "broken", code)
    with pytest.raises(BadModel, match=message):
        load_model(Workshop(trust=True), tmp_path / "broken", 1, read_config(tmp_path / "broken"))


def test_a_load_that_does_not_end_is_ended(tmp_path: Path) -> None:
    save_python(tmp_path, "slow", "import time\ntime.sleep(1000)", parameter("load_timeout_seconds", "1"))
    with pytest.raises(BadModel, match="did not load within 1 seconds"):
        load_model(Workshop(trust=True), tmp_path / "slow", 1, read_config(tmp_path / "slow"))


def test_requirements_are_checked_and_not_installed(tmp_path: Path) -> None:
    path = save_python(tmp_path, "double", DOUBLE)
    wanted = "# what it needs\nnumpy>=2  # any\nno-such-package==1.5\npytest<2; python_version > '3'\nold; python_version < '3'\n"
    (path.parent / "requirements.txt").write_text(wanted)
    with pytest.raises(
        BadModel, match=r"no-such-package==1.5 \(not installed\), pytest<2 \(\d.* is installed\); .* installs nothing"
    ):
        load_model(Workshop(trust=True), tmp_path / "double", 1, read_config(tmp_path / "double"))


def test_a_model_may_have_an_environment_of_its_own(loaded: Loaded, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    script = f'#!/bin/sh\nMARK=found exec {sys.executable} "$@"\n'
    (environment / "bin" / "python").write_text(script)
    (environment / "bin" / "python").chmod(0o755)
    code = ODD.replace("str(os.getpid())", "os.environ['MARK']")
    model = loaded.load("odd", code, parameter("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/../environment"))
    assert ask(model, WHAT=say("process"))["WHAT"][0] == b"found"
    with pytest.raises(BadModel, match="has no bin/python"):
        loaded.load("other", DOUBLE, parameter("EXECUTION_ENV_PATH", "/nowhere"))


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("refuse", InvalidRequest, "not that"),
        ("raise", ModelFault, "ValueError: no"),
        ("forget", ModelFault, "without its output 'WHAT'"),
        ("invent", ModelFault, "answered with 'WHY'; its outputs are 'WHAT'"),
        ("number", ModelFault, "text or bytes, not float"),
        ("iterate", ModelFault, "decoupled = True"),
        ("die", ModelFault, "ended with signal 9; it is started again"),
        ("exit", ModelFault, "ended with exit code 3; it is started again"),
        ("hang", ModelFault, "said nothing for 2 seconds and was ended"),
        ("stop", ModelFault, "said nothing for 2 seconds and was ended"),
    ],
)
def test_whatever_a_model_does_its_request_is_answered_and_so_is_the_next(
    odd: PythonModel, what: str, kind: type[RequestFault], message: str
) -> None:
    with pytest.raises(kind, match=message):
        ask(odd, WHAT=say(what))
    assert ask(odd, WHAT=say("hello"))["WHAT"][0] == b"hello"


def test_a_worker_that_is_killed_between_requests_is_replaced(odd: PythonModel) -> None:
    first = ask(odd, WHAT=say("process"))["WHAT"][0]
    process = odd.instances[0].process
    assert process is not None
    process.kill()
    wait_until(lambda: odd.instances[0].process not in (None, process))
    assert ask(odd, WHAT=say("process"))["WHAT"][0] != first


def test_a_model_that_cannot_be_started_again_says_so_and_recovers(loaded: Loaded) -> None:
    model = loaded.load("odd", ODD)
    path = loaded.root / "odd" / "1" / "model.py"
    path.write_text("raise ValueError('broken now')")
    question = Question(model, WHAT=say("die"))
    with pytest.raises(ModelFault, match="ended with signal 9"):
        question.answer()
    wait_until(lambda: bool(model.broken))
    assert not model.is_ready
    with pytest.raises(RequestFault, match=r"could not be started again.*broken now"):
        ask(model, WHAT=say("hello"))
    path.write_text(ODD)
    wait_until(lambda: model.is_ready)
    assert ask(model, WHAT=say("hello"))["WHAT"][0] == b"hello"


def test_a_model_calls_others_which_batch_and_stream_as_for_anyone(loaded: Loaded) -> None:
    save_scale(loaded.root, "scale", 3.0)
    loaded.models["scale"] = load_model(Workshop(), loaded.root / "scale", 1, read_config(loaded.root / "scale"))
    loaded.load("count", COUNT)
    config = "instance_group { count: 2 }" + parameter("called", "scale")
    caller = loaded.load("caller", CALLER, config)
    questions = [Question(caller, x=X[:1] + number) for number in range(8)]
    for number, question in enumerate(questions):
        np.testing.assert_array_equal(question.answer()["y"], 3 * (X[:1] + number))
    assert loaded.models["scale"].stats.success.count == 8
    streaming = loaded.load("streaming", CALLER, parameter("called", "count"))
    np.testing.assert_array_equal(ask(streaming, x=X[:1])["y"], [[0, 1, 2, 3]])
    lost = loaded.load("lost", CALLER, parameter("called", "nobody"))
    with pytest.raises(InvalidRequest, match="no model nobody"):
        ask(lost, x=X[:1])


def test_models_that_call_each_other_in_a_circle_are_told(loaded: Loaded) -> None:
    here = loaded.load("here", CALLER, parameter("called", "there"))
    loaded.load("there", CALLER, parameter("called", "here"))
    with pytest.raises(InvalidRequest, match="'here' is called by itself: here > there > here"):
        ask(here, x=X[:1])


def test_a_stream_goes_no_further_than_there_is_room_for_it(loaded: Loaded) -> None:
    model = loaded.load("count", COUNT)
    endless, other = Answers(), Answers()
    ticket = model.stream(count(0), NO_OPTIONS, endless, 3)
    assert endless.numbers(3) == [0, 1, 2]
    model.stream(count(-1), NO_OPTIONS, other, 2)
    assert other.numbers(1) == [3]  # made so far, while the first one waits
    ticket.welcome(2)
    assert endless.numbers(2) == [3, 4]
    ticket.cancel()
    wait_until(lambda: not model.instances[0].jobs)
    model.stream(count(-2), NO_OPTIONS, other, 2)
    assert other.told.get(timeout=20) == (None, True)  # the end of the first question
    assert other.numbers(1) == [1]
    assert endless.told.empty()


def test_streams_take_turns_and_one_that_fails_harms_no_other(loaded: Loaded) -> None:
    model = loaded.load("count", COUNT)
    answers = [Answers() for _ in range(5)]
    for sink in answers:
        model.stream(count(4), NO_OPTIONS, sink, 100)
    broken = Answers()
    model.stream(count(-3), NO_OPTIONS, broken, 100)
    for sink in answers:
        assert sink.numbers(4) == [0, 1, 2, 3]
        assert sink.told.get(timeout=20) == (None, True)
    fault, is_last = broken.told.get(timeout=20)
    assert is_last
    assert "cannot count to that" in str(fault)
    with pytest.raises(InvalidRequest, match="may answer a request many times"):
        model.submit(count(1), NO_OPTIONS, lambda _: None)


def test_a_file_made_for_triton_runs_as_it_is(loaded: Loaded) -> None:
    loaded.load("double", DOUBLE)
    model = loaded.load("triton", TRITON, TRITON_CONFIG)
    answers = Answers()
    model.stream({"x": X}, RequestOptions(id="seven"), answers, 100)
    for row in X:
        outputs, is_last = answers.told.get(timeout=20)
        np.testing.assert_array_equal(outputs["y"], 2 * row)
        assert not is_last
    fault, is_last = answers.told.get(timeout=20)
    assert (str(fault), is_last) == ("no model nobody", True)


def test_a_queue_has_the_bounds_that_its_configuration_gives_it(loaded: Loaded) -> None:
    config = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }" + parameter("timeout_seconds", "2")
    model = loaded.load("odd", ODD, config)
    hanging = Question(model, WHAT=say("hang"))
    waiting = [Question(model, WHAT=say("hello")) for _ in range(2)]
    with pytest.raises(RequestFault, match="queue is full: 2 requests wait"):
        ask(model, WHAT=say("hello"))
    waiting[0].ticket.cancel()
    with pytest.raises(ModelFault, match="said nothing for 2 seconds"):
        hanging.answer()
    assert waiting[1].answer()["WHAT"][0] == b"hello"
    assert not waiting[0].done.is_set()
