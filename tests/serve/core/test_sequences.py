"""Sequences: their order, their slots, their states, and what becomes of them when nobody comes any more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
from asking import Question, wait_until
from models import save_graph, tensor
from onnx import helper
from python_models import ACCUMULATE, save_python

from tensorferry.errors import BadModel
from tensorferry.serve.core.config import read_config
from tensorferry.serve.core.faults import InvalidRequest, RequestFault, Unavailable
from tensorferry.serve.core.loading import load_model
from tensorferry.serve.core.requests import RequestOptions, SequenceStep
from tensorferry.serve.core.sequence_policy import read_sequences
from tensorferry.serve.core.sequences import SequenceModel
from tensorferry.serve.core.workshop import Workshop

OLDEST = "sequence_batching { max_sequence_idle_microseconds: 60000000 oldest { max_candidate_sequences: 2 } }"


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Any]:
    """Loads a stateful model; it is closed after the test."""
    models: list[Any] = []

    def load_one(config: str, code: str = "") -> SequenceModel:
        if code:
            save_python(tmp_path, "model", code, config)
        else:
            (tmp_path / "model" / "config.pbtxt").write_text(config)
        model = load_model(Workshop(trust=True), tmp_path / "model", 1, read_config(tmp_path / "model"))
        assert isinstance(model, SequenceModel)
        models.append(model)
        return model

    yield load_one
    for model in models:
        model.close()


def tell(model: SequenceModel, sequence: int | str, value: int, *, start: bool = False, end: bool = False) -> Question:
    """One request of a sequence."""
    return Question(model, RequestOptions(sequence=SequenceStep(sequence, start, end)), x=np.array([[value]], np.int32))


def ask_sum(model: SequenceModel, sequence: int | str, value: int, **flags: bool) -> int:
    """What the sequence adds up to with one more value."""
    return int(tell(model, sequence, value, **flags).answer()["sum"][0, 0])


def test_sequences_stay_with_their_instance_and_in_their_order(load: Any) -> None:
    model = load(OLDEST.replace("2 }", "50 }") + "instance_group { count: 2 }", ACCUMULATE)
    ids = [*range(1, 31), "by name"]
    questions = [[tell(model, each, 1, start=True)] for each in ids]
    for step in range(2, 6):
        for each, asked in zip(ids, questions, strict=True):
            asked.append(tell(model, each, step, end=step == 5))
    processes = []
    for asked in questions:
        answers = [question.answer() for question in asked]
        assert [int(answer["sum"][0, 0]) for answer in answers] == [1, 3, 6, 10, 15]
        (process,) = {int(answer["process"][0, 0]) for answer in answers}
        processes.append(process)
    assert len(set(processes)) == 2
    assert model.stats.success.count == 5 * len(ids)
    assert model.stats.execution_count < 5 * len(ids)
    assert not model.sequences


def test_sequences_beyond_the_slots_wait_for_others_to_end(load: Any) -> None:
    model = load(OLDEST, ACCUMULATE)
    assert ask_sum(model, 1, 1, start=True) == 1
    assert ask_sum(model, 2, 1, start=True) == 1
    third = tell(model, 3, 7, start=True)
    assert ask_sum(model, 1, 1) == 2
    assert not third.done.is_set()
    assert ask_sum(model, 1, 1, end=True) == 3
    assert int(third.answer()["sum"][0, 0]) == 7


def test_what_is_wrong_with_a_sequence_is_told(load: Any) -> None:
    limit = 'parameters { key: "max_sequences" value { string_value: "2" } }'
    model = load(OLDEST + limit, ACCUMULATE)
    with pytest.raises(InvalidRequest, match="keeps state: give its requests a sequence_id"):
        Question(model, x=np.array([[1]], np.int32))
    with pytest.raises(InvalidRequest, match="sequence 9 of model 'model' is not known"):
        tell(model, 9, 1)
    with pytest.raises(InvalidRequest, match="one row, received 2"):
        Question(model, RequestOptions(sequence=SequenceStep(1, True)), x=np.array([[1], [2]], np.int32))
    for each in (1, 2):
        ask_sum(model, each, 1, start=True)
    with pytest.raises(Unavailable, match="has 2 sequences, the most it takes; end some"):
        tell(model, 3, 1, start=True)
    ending = tell(model, 1, 1, end=True)
    with pytest.raises(InvalidRequest, match="sequence 1 of model 'model' is not known"):
        tell(model, 1, 1)
    ending.answer()


def test_an_idle_sequence_gives_its_slot_to_others_and_is_forgotten(load: Any) -> None:
    model = load(OLDEST.replace("60000000", "300000").replace("2 }", "1 }"), ACCUMULATE)
    ask_sum(model, 1, 1, start=True)
    assert ask_sum(model, 2, -2, start=True) == 0  # when its turn came, the model knew of no other
    wait_until(lambda: not model.sequences)
    with pytest.raises(InvalidRequest, match=r"idle for more than 0\.3 seconds"):
        tell(model, 1, 1)


def test_a_lost_worker_ends_its_sequences(load: Any) -> None:
    model = load(OLDEST, ACCUMULATE)
    ask_sum(model, 1, 1, start=True)
    ask_sum(model, 2, 1, start=True)
    dying, waiting = tell(model, 1, -1), tell(model, 1, 1)
    with pytest.raises(RequestFault, match="ended with exit code 1"):
        dying.answer()
    with pytest.raises(RequestFault, match="lost its worker; begin it with sequence_start"):
        waiting.answer()
    with pytest.raises(InvalidRequest, match="sequence 2 of model 'model' is not known"):
        tell(model, 2, 1)
    assert ask_sum(model, 1, 5, start=True) == 5


CONTROLS = """
max_batch_size: 4
input { name: "x" data_type: TYPE_INT32 dims: 1 }
output { name: "sum" data_type: TYPE_INT32 dims: 1 }
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input { name: "start" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
  control_input { name: "end" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [-1, 1] } }
  control_input { name: "ready" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] } }
  control_input { name: "id" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT32 } }
  STATE
}
"""
STATE = 'state { input_name: "old" output_name: "new" data_type: TYPE_INT32 dims: 1 }'


def save_controlled(path: Path) -> None:
    """`sum` and `new` are `old` and `x`; the controls are only looked at, so that they must come."""
    names = {"x": "INT32", "old": "INT32", "start": "INT32", "end": "FP32", "ready": "BOOL", "id": "UINT32"}
    save_graph(
        path,
        [
            helper.make_node("Cast", ["id"], ["id_32"], to=6),
            helper.make_node("Cast", ["end"], ["end_32"], to=6),
            helper.make_node("Cast", ["ready"], ["ready_32"], to=6),
            helper.make_node("Add", ["old", "x"], ["new"]),
            helper.make_node("Concat", ["new", "start", "end_32", "ready_32", "id_32"], ["seen"], axis=1),
            helper.make_node("ReduceSum", ["new", "axis"], ["sum"]),
        ],
        [tensor(name, datatype, ["batch", 1]) for name, datatype in names.items()],
        [tensor("sum", "INT32", ["batch", 1]), tensor("new", "INT32", ["batch", 1]), tensor("seen", "INT32", ["batch", 5])],
        [helper.make_tensor("axis", 7, [1], [1])],
    )


def test_controls_and_states_go_to_models_of_any_runtime(load: Any, tmp_path: Path) -> None:
    save_controlled(tmp_path / "model" / "1" / "model.onnx")
    config = CONTROLS.replace("STATE", STATE).replace(
        "\nsequence", '\noutput { name: "seen" data_type: TYPE_INT32 dims: 5 }\nsequence'
    )
    model = load(config)
    assert [tensor.name for tensor in model.config.input] == ["x"]
    assert [tensor.name for tensor in model.config.output] == ["sum", "seen"]
    firsts = [tell(model, each, each, start=True) for each in range(1, 9)]
    for each, first in enumerate(firsts, 1):
        assert first.answer()["seen"].tolist() == [[each, 1, -1, 1, each]]
        last = tell(model, each, 10, end=True).answer()
        assert last["seen"].tolist() == [[each + 10, 0, 1, 1, each]]
        assert set(last) == {"sum", "seen"}
    with pytest.raises(InvalidRequest, match="'word' is no UINT32"):
        tell(model, "word", 1, start=True)


def test_a_control_that_the_model_does_not_have_is_told(load: Any, tmp_path: Path) -> None:
    save_controlled(tmp_path / "model" / "1" / "model.onnx")
    with pytest.raises(BadModel, match="leaves out the input 'old'"):
        load(CONTROLS.replace("STATE", ""))


def save_rows(path: Path, num_rows: int) -> None:
    """Adds up what comes in each row, and knows its sequences by nothing else: the sums are the model's own."""
    x, start, ready = (ops.parameter([-1, 1], np.int32) for _ in range(3))
    zero = ops.constant(np.zeros([num_rows, 1], np.int32))
    old = ops.read_value(zero, "sums", np.int32, ov.PartialShape([num_rows, 1]))
    began = ops.select(ops.greater(start, zero), zero, old)
    new = ops.add(began, ops.multiply(x, ready))
    rows = ops.constant(np.arange(num_rows, dtype=np.int32)[:, None])
    results = [ops.result(ops.concat([new, rows], 1))]
    for node, name in ((x, "x"), (start, "start"), (ready, "ready"), (results[0], "sum_and_row")):
        node.output(0).get_tensor().set_names({name})
    path.parent.mkdir(parents=True)
    ov.save_model(ov.Model(results, [ops.assign(new, "sums")], [x, start, ready], "rows"), path, compress_to_fp16=False)


DIRECT = """
backend: "openvino"
max_batch_size: 3
input { name: "x" data_type: TYPE_INT32 dims: 1 }
output { name: "sum_and_row" data_type: TYPE_INT32 dims: 2 }
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  direct { UTILIZATION }
  control_input { name: "start" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
  control_input { name: "ready" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1] } }
}
"""


def ask_row(model: SequenceModel, sequence: int, value: int, **flags: bool) -> list[int]:
    """The sum of a sequence with one more value, and the row that it has."""
    return list(tell(model, sequence, value, **flags).answer()["sum_and_row"][0])


def test_a_sequence_keeps_its_row_and_the_model_its_state(load: Any, tmp_path: Path) -> None:
    save_rows(tmp_path / "model" / "1" / "model.xml", 3)
    model = load(DIRECT.replace("UTILIZATION", ""))
    for each in (1, 2, 3):
        assert ask_row(model, each, each, start=True) == [each, each - 1]
    late = tell(model, 4, 100, start=True)
    assert ask_row(model, 2, 10) == [12, 1]  # the rows of the others were there, and not ready
    assert ask_row(model, 3, 10) == [13, 2]
    assert not late.done.is_set()
    assert ask_row(model, 2, 10, end=True) == [22, 1]
    assert list(late.answer()["sum_and_row"][0]) == [100, 1]
    for step in range(1, 40):  # long enough for a quick model to be run elsewhere, if it were not stateful
        assert ask_row(model, 1, 1) == [1 + step, 0]
    questions = [tell(model, each, 1000) for each in (4, 1, 3) for _ in range(5)]
    assert [int(question.answer()["sum_and_row"][0, 0]) for question in questions] == [
        *(1100, 2100, 3100, 4100, 5100),
        *(1040, 2040, 3040, 4040, 5040),
        *(1013, 2013, 3013, 4013, 5013),
    ]
    assert ask_row(model, 4, 1) == [5101, 1]


def test_slots_wait_for_company_until_enough_are_used(load: Any, tmp_path: Path) -> None:
    save_rows(tmp_path / "model" / "1" / "model.xml", 3)
    model = load(DIRECT.replace("UTILIZATION", "max_queue_delay_microseconds: 60000000 minimum_slot_utilization: 0.6"))
    first = tell(model, 1, 1, start=True)
    assert not first.done.wait(0.05)
    second = tell(model, 2, 2, start=True)
    assert [int(each.answer()["sum_and_row"][0, 0]) for each in (first, second)] == [1, 2]
    assert model.stats.execution_count == 1


def test_without_a_ready_control_an_instance_has_one_sequence(tmp_path: Path) -> None:
    config = DIRECT.replace("UTILIZATION", "").replace('control_input { name: "ready"', 'control_input { name: "end"')
    config = config.replace("CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_END")
    (tmp_path / "config.pbtxt").write_text(config)
    assert read_sequences(read_config(tmp_path), tmp_path, is_python=False).num_slots == 1
