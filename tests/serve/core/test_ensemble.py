"""Ensembles: models made of models."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from asking import Question, ask, wait_until
from models import save_graph, save_lookup, save_scale, save_sum, tensor, write_config
from onnx import helper

from tensorferry.errors import BadModel
from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.deferred import DeferredCalls
from tensorferry.serve.core.faults import InvalidRequest, ModelFault, NotFound
from tensorferry.serve.core.repository import Repository
from tensorferry.serve.core.settings import Settings
from tensorferry.serve.core.workshop import Workshop

X = np.arange(4, dtype=np.float32).reshape(1, 4)
ENDS = 'max_batch_size: 8 input { name: "IN" data_type: TYPE_FP32 dims: 4 } output { name: "OUT" data_type: TYPE_FP32 dims: 4 }'


def step(model: str, source: str, target: str, inner: tuple[str, str] = ("x", "y")) -> str:
    return (
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "{inner[0]}" value: "{source}" }} '
        f'output_map {{ key: "{inner[1]}" value: "{target}" }} }}'
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    save_scale(tmp_path, "double", 2.0)
    save_scale(tmp_path, "triple", 3.0)
    return tmp_path


@pytest.fixture
def repository(root: Path) -> Iterator[Repository]:
    made = Repository(root, Workshop())
    yield made
    made.close()


def test_steps_follow_each_other_and_an_ensemble_may_hold_another(root: Path, repository: Repository) -> None:
    write_config(
        root,
        "six",
        f'platform: "ensemble" {ENDS} ensemble_scheduling {{ {step("double", "IN", "m")} {step("triple", "m", "OUT")} }}',
    )
    write_config(
        root, "a_dozen", f"{ENDS} ensemble_scheduling {{ {step('six', 'IN', 'm', ('IN', 'OUT'))} {step('double', 'm', 'OUT')} }}"
    )
    repository.load_all()
    np.testing.assert_array_equal(ask(repository.find("six", ""), IN=X)["OUT"], 6 * X)
    np.testing.assert_array_equal(ask(repository.find("a_dozen", ""), IN=X)["OUT"], 12 * X)
    assert repository.find("six", "").stats.success.count == 2


def test_branches_join(root: Path, repository: Repository) -> None:
    save_sum(root, "sum")
    config = (
        'max_batch_size: 8 input { name: "A" data_type: TYPE_INT32 dims: 3 } '
        'output { name: "OUT" data_type: TYPE_INT32 dims: 3 } ensemble_scheduling { step { model_name: "sum" '
        'input_map { key: "a" value: "plus" } input_map { key: "b" value: "minus" } '
        'output_map { key: "total" value: "OUT" } } step { model_name: "sum" input_map { key: "a" value: "A" } '
        'input_map { key: "b" value: "A" } output_map { key: "total" value: "plus" } '
        'output_map { key: "difference" value: "minus" } } }'
    )
    write_config(root, "join", config)
    repository.load_all()
    row = np.array([[1, 2, 3]], np.int32)
    np.testing.assert_array_equal(ask(repository.find("join", ""), A=row)["OUT"], 2 * row)


def test_steps_of_many_requests_share_batches(root: Path, repository: Repository) -> None:
    write_config(
        root, "double", "max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 30000000 }"
    )
    write_config(root, "six", f"{ENDS} ensemble_scheduling {{ {step('double', 'IN', 'm')} {step('triple', 'm', 'OUT')} }}")
    repository.load_all()
    ensemble = repository.find("six", "")
    questions = [Question(ensemble, IN=X + index) for index in range(4)]
    for index, question in enumerate(questions):
        np.testing.assert_array_equal(question.answer()["OUT"], 6 * (X + index))
    assert repository.find("double", "").stats.execution_count == 1


def test_a_step_that_fails_fails_the_request_with_its_name(root: Path, repository: Repository) -> None:
    save_lookup(root, "lookup")
    config = (
        'max_batch_size: 8 input { name: "IN" data_type: TYPE_INT64 dims: [] } '
        'output { name: "OUT" data_type: TYPE_FP32 dims: 2 }'
    )
    write_config(root, "wrapped", f"{config} ensemble_scheduling {{ {step('lookup', 'IN', 'OUT')} }}")
    repository.load_all()
    with pytest.raises(InvalidRequest, match="in step 'lookup'"):
        ask(repository.find("wrapped", ""), IN=np.array([99]))
    assert repository.find("wrapped", "").stats.fail.count == 1


def test_its_models_may_be_swapped_and_it_loads_what_it_needs(root: Path, repository: Repository) -> None:
    write_config(root, "six", f"{ENDS} ensemble_scheduling {{ {step('double', 'IN', 'm')} {step('triple', 'm', 'OUT')} }}")
    repository.load("six")
    assert repository.versions_of("double") == ["1"]
    save_scale(root, "double", 10.0)
    repository.load("double")
    np.testing.assert_array_equal(ask(repository.find("six", ""), IN=X)["OUT"], 30 * X)
    repository.unload("six", with_parts=True)
    wait_until(lambda: not repository.models())
    with pytest.raises(NotFound):
        repository.find("double", "")


def test_an_ensemble_is_ready_while_its_parts_are(root: Path, repository: Repository) -> None:
    write_config(root, "twice", f"{ENDS} ensemble_scheduling {{ {step('double', 'IN', 'OUT')} }}")
    repository.load("twice")
    loop = asyncio.new_event_loop()
    plane = DataPlane(repository, Settings(), loop, DeferredCalls(), allows_control=True)
    assert plane.is_model_ready("twice", "")
    repository.unload("double")
    assert not plane.is_model_ready("twice", "")
    repository.load("double")
    assert plane.is_model_ready("twice", "")
    loop.close()


def test_a_part_that_breaks_in_an_unforeseen_way_fails_the_request_alone(root: Path, repository: Repository) -> None:
    write_config(root, "six", f"{ENDS} ensemble_scheduling {{ {step('double', 'IN', 'm')} {step('triple', 'm', 'OUT')} }}")
    repository.load("six")
    ensemble, triple = repository.find("six", ""), repository.find("triple", "")
    levels = triple.scheduler.queue.levels
    taken = dict(levels)
    levels.clear()  # nothing can be queued now
    for _ in range(2):
        with pytest.raises(ModelFault, match="KeyError"):
            ask(ensemble, IN=X)
    levels.update(taken)
    np.testing.assert_array_equal(ask(ensemble, IN=X)["OUT"], 6 * X)
    assert ensemble.under_way == set()


def test_a_part_swapped_for_one_with_other_outputs_fails_the_request_alone(root: Path, repository: Repository) -> None:
    write_config(root, "twice", f"{ENDS} ensemble_scheduling {{ {step('double', 'IN', 'OUT')} }}")
    repository.load("twice")
    nodes = [helper.make_node("Identity", ["x"], ["z"])]
    ends = [tensor(name, "FP32", ["batch", 4]) for name in "xz"]
    save_graph(root / "double" / "1" / "model.onnx", nodes, ends[:1], ends[1:])
    repository.load("double")
    ensemble = repository.find("twice", "")
    with pytest.raises(ModelFault, match="without the output y"):
        ask(ensemble, IN=X)
    assert ensemble.under_way == set()


def test_cancelling_drops_the_steps_that_wait(root: Path, repository: Repository) -> None:
    write_config(root, "double", "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 100000 }")
    write_config(root, "six", f"{ENDS} ensemble_scheduling {{ {step('double', 'IN', 'm')} {step('triple', 'm', 'OUT')} }}")
    repository.load_all()
    ensemble = repository.find("six", "")
    question = Question(ensemble, IN=X)
    question.ticket.cancel()
    np.testing.assert_array_equal(ask(ensemble, IN=X)["OUT"], 6 * X)
    assert not question.done.is_set()
    assert repository.find("double", "").stats.inference_count == 1


def test_ensembles_that_call_each_other_are_refused_and_not_waited_for(root: Path, repository: Repository) -> None:
    for name, other in (("hen", "egg"), ("egg", "hen")):
        write_config(root, name, f"{ENDS} ensemble_scheduling {{ {step(other, 'IN', 'OUT', ('IN', 'OUT'))} }}")
    repository.load_all()
    reasons = {line.name: line.reason for line in repository.index()}
    assert "hen > egg > hen" in reasons["hen"]
    assert "egg > hen > egg" in reasons["egg"]
    assert repository.versions_of("double") == ["1"]


def test_a_change_that_would_close_a_circle_is_refused(root: Path, repository: Repository) -> None:
    inner = f"{ENDS} ensemble_scheduling {{ {step('double', 'IN', 'OUT')} }}"
    write_config(root, "inner", inner)
    write_config(root, "outer", f"{ENDS} ensemble_scheduling {{ {step('inner', 'IN', 'OUT', ('IN', 'OUT'))} }}")
    repository.load_all()
    write_config(root, "inner", inner.replace(step("double", "IN", "OUT"), step("outer", "IN", "OUT", ("IN", "OUT"))))
    with pytest.raises(BadModel, match="inner > outer > inner"):
        repository.load("inner")
    np.testing.assert_array_equal(ask(repository.find("outer", ""), IN=X)["OUT"], 2 * X)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ("", "has no steps"),
        (step("absent", "IN", "OUT"), "no such folder"),
        (step("double", "nothing", "OUT"), "makes nothing"),
        (step("double", "IN", "m"), "makes its output 'OUT'"),
        (step("double", "IN", "IN"), "is made twice"),
        (step("double", "IN", "OUT", ("z", "y")), "has no input 'z'"),
        (step("wide", "IN", "OUT"), r"'IN' of FP32 \[-1, 4\] does not fit the input 'x' of 'wide', which is FP32 \[-1, 5\]"),
        (step("widen", "IN", "OUT"), r"makes its output 'OUT' of FP32 \[-1, 4\]"),
        (step("widen", "IN", "m") + step("double", "m", "OUT"), "'m' of .* does not fit the input 'x' of 'double'"),
        (step("double", "IN", "OUT", ("x", "z")), "has no output 'z'"),
        (step("self", "IN", "OUT"), "calls itself: self > self"),
    ],
)
def test_an_ensemble_that_could_never_answer_is_refused(root: Path, repository: Repository, steps: str, says: str) -> None:
    save_scale(root, "wide", 1.0, num_columns=5)
    ends = [tensor("x", "FP32", ["batch", 4]), tensor("y", "FP32", ["batch", 8])]
    save_graph(root / "widen" / "1" / "model.onnx", [helper.make_node("Concat", ["x", "x"], ["y"], axis=1)], ends[:1], ends[1:])
    write_config(root, "self", f"{ENDS} ensemble_scheduling {{ {steps} }}")
    with pytest.raises(BadModel, match=says):
        repository.load("self")
