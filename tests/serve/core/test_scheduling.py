"""Models under concurrent requests: batches, instances, limits, padding, cache, cancellation."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from asking import Question, ask, wait_until
from google.protobuf import text_format
from models import save_graph, save_identity, save_lookup, save_scale, tensor, write_config
from onnx import TensorProto, helper
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tensorferry.errors import BadModel
from tensorferry.serve.core.cache import ResponseCache, make_key
from tensorferry.serve.core.deferred import DeferredCalls
from tensorferry.serve.core.faults import InvalidRequest, ModelFault, Unavailable
from tensorferry.serve.core.limiter import Limiter
from tensorferry.serve.core.model import ModelJob, RuntimeModel
from tensorferry.serve.core.queueing import BatchPolicy, Job, QueuePolicy
from tensorferry.serve.core.repository import Repository
from tensorferry.serve.core.requests import RequestOptions
from tensorferry.serve.core.scheduler import Instance, Scheduler
from tensorferry.serve.core.spec import ModelSpec, TensorSpec, make_spec
from tensorferry.serve.core.stats import Stats
from tensorferry.serve.core.workshop import Workshop

X = np.arange(4, dtype=np.float32).reshape(1, 4)
SPEC = ModelSpec("gate", 8, (TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("y", "FP32", (-1, 1)),))
PADDED = (
    'max_batch_size: 8 parameters { key: "padding" value { string_value: "x=0" } } '
    "dynamic_batching { max_queue_delay_microseconds: 30000000 preferred_batch_size: 2 }"
)


class GatedRunner:
    """A runner that notes its batches and lets each through when told."""

    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        self.passes = threading.Semaphore(0)
        self.is_closed = False

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        self.batches.append(inputs["x"][:, 0].tolist())
        assert self.passes.acquire(timeout=30)
        if (inputs["x"] < 0).any():
            raise InvalidRequest("a negative value")
        return [inputs["x"] * 2]

    def close(self) -> None:
        self.is_closed = True


class Behind:
    """A scheduler before gates, and what its jobs were answered."""

    def __init__(
        self,
        policy: BatchPolicy,
        num_gates: int = 1,
        limiter: Limiter | None = None,
        spare: GatedRunner | None = None,
        **instance: object,
    ) -> None:
        self.gates = [GatedRunner() for _ in range(num_gates)]
        instances = [Instance(gate, **instance) for gate in self.gates]
        self.stats = Stats()
        self.scheduler = Scheduler(
            SPEC, policy, instances, self.stats, limiter=limiter or Limiter(), deferred=DeferredCalls(), name="gate", spare=spare
        )
        self.answers: dict[float, object] = {}

    def submit(self, value: float, **changes: object) -> Job:
        job = Job({"x": np.array([[value]], np.float32)}, 1, (), lambda outcome: self.answers.update({value: outcome}), **changes)
        self.scheduler.submit(job)
        return job


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def repository(root: Path) -> Iterator[Repository]:
    made = Repository(root, Workshop(cache=ResponseCache(1000), limiter=Limiter({"slot": 1})))
    yield made
    made.close()


def test_an_idle_instance_takes_a_request_at_once_and_what_queued_meanwhile_together() -> None:
    behind = Behind(BatchPolicy(max_batch_size=8))
    (gate,) = behind.gates
    behind.submit(1)
    wait_until(lambda: gate.batches == [[1]])
    for value in (2, 3, 4):
        behind.submit(value)
    assert behind.scheduler.num_waiting == 3
    gate.passes.release(2)
    behind.scheduler.close()
    assert gate.batches == [[1], [2, 3, 4]]
    assert {value: float(answer[0][0, 0]) for value, answer in behind.answers.items()} == {1: 2, 2: 4, 3: 6, 4: 8}
    assert gate.is_closed
    assert behind.stats.execution_count == 2
    assert behind.stats.inference_count == 4


def test_a_request_that_fails_does_not_fail_its_batch() -> None:
    behind = Behind(BatchPolicy(max_batch_size=8))
    (gate,) = behind.gates
    behind.submit(1)
    wait_until(lambda: gate.batches == [[1]])
    for value in (2, -3, 4):
        behind.submit(value)
    gate.passes.release(10)
    behind.scheduler.close()
    assert isinstance(behind.answers[-3], InvalidRequest)
    assert float(behind.answers[2][0][0, 0]) == 4
    assert float(behind.answers[4][0][0, 0]) == 8


def test_closing_waits_for_no_company() -> None:
    behind = Behind(BatchPolicy(max_batch_size=8, preferred_sizes=(4,), max_delay_seconds=3600.0))
    behind.gates[0].passes.release(1)
    behind.submit(1)
    behind.submit(2)
    behind.scheduler.close()  # which waits for what is under way
    assert behind.gates[0].batches == [[1, 2]]
    assert len(behind.answers) == 2


@pytest.mark.parametrize("runs_here", [False, True])
def test_an_answer_that_cannot_be_told_ends_neither_the_instance_nor_its_batch(runs_here: bool) -> None:
    def refuse(outcome: object) -> None:
        raise KeyError(5)

    behind = Behind(BatchPolicy(max_batch_size=1), spare=GatedRunner() if runs_here else None)
    gate = behind.scheduler.spare or behind.gates[0]
    assert isinstance(gate, GatedRunner)
    gate.passes.release(2)
    for value in (1, 2):
        behind.scheduler.num_quick = 1000 if runs_here else 0
        if value == 1:
            behind.scheduler.submit(Job({"x": np.ones((1, 1), np.float32)}, 1, (), refuse))
        else:
            behind.submit(value)
    behind.scheduler.close()
    assert gate.batches == [[1], [2]]
    assert float(behind.answers[2][0][0, 0]) == 4


def test_an_output_that_cannot_be_finished_is_an_error_of_its_request() -> None:
    spec = ModelSpec("odd", 8, SPEC.inputs, (TensorSpec("y", "INVALID", (-1, 1)),))
    gate = GatedRunner()
    gate.passes.release(1)
    scheduler = Scheduler(spec, BatchPolicy(), [Instance(gate)], Stats(), limiter=Limiter(), deferred=DeferredCalls(), name="odd")
    model = RuntimeModel(1, ModelConfig(), spec, gate, scheduler, None)
    with pytest.raises(ModelFault, match="KeyError: 'INVALID'"):
        ask(model, x=np.ones((1, 1), np.float32))
    model.close()


@pytest.mark.parametrize("max_batch_size", [1, 8])
def test_instances_run_side_by_side_and_share_what_waits(max_batch_size: int) -> None:
    behind = Behind(BatchPolicy(max_batch_size=max_batch_size), num_gates=2)
    behind.submit(1)
    behind.submit(2)
    wait_until(lambda: all(len(gate.batches) == 1 for gate in behind.gates))
    for gate in behind.gates:
        gate.passes.release()
    behind.scheduler.close()
    assert sorted(batch for gate in behind.gates for batch in gate.batches) == [[1], [2]]
    assert len(behind.answers) == 2


def test_a_cancelled_request_is_never_run() -> None:
    behind = Behind(BatchPolicy(max_batch_size=1))
    (gate,) = behind.gates
    behind.submit(1)
    wait_until(lambda: gate.batches == [[1]])
    behind.submit(2).cancelled = True
    behind.submit(3)
    gate.passes.release(3)
    behind.scheduler.close()
    assert gate.batches == [[1], [3]]


def test_late_requests_are_told_so() -> None:
    behind = Behind(BatchPolicy(max_batch_size=1, queue=QueuePolicy(allows_own_timeout=True)))
    (gate,) = behind.gates
    behind.submit(1)
    wait_until(lambda: gate.batches == [[1]])
    job = behind.submit(2, timeout_seconds=1e-6)
    assert job.deadline is not None
    gate.passes.release(2)
    behind.scheduler.close()
    assert isinstance(behind.answers[2], Unavailable)
    assert gate.batches == [[1]]


def test_a_resource_lets_so_many_instances_run_and_no_more() -> None:
    limiter = Limiter({"slot": 1})
    behind = Behind(BatchPolicy(max_batch_size=1), num_gates=2, limiter=limiter, needs={"slot": 1})
    behind.submit(1)
    behind.submit(2)
    wait_until(lambda: limiter.used.get("slot") == 1 and len(limiter.waiting) == 1)
    assert sum(len(gate.batches) for gate in behind.gates) == 1
    for gate in behind.gates:
        gate.passes.release()
    behind.scheduler.close()
    assert len(behind.answers) == 2
    assert limiter.used["slot"] == 0


def test_a_quick_model_runs_in_the_thread_that_asks_until_a_batch_is_slow() -> None:
    spare = GatedRunner()
    behind = Behind(BatchPolicy(max_batch_size=8), spare=spare)
    (gate,) = behind.gates
    behind.scheduler.num_quick = 1000  # as after many quick batches, however slow this machine is now
    spare.passes.release(1)
    behind.submit(1)
    assert spare.batches == [[1]]
    assert float(behind.answers[1][0][0, 0]) == 2  # answered before submit returned
    behind.scheduler.num_quick = 0
    gate.passes.release(1)
    behind.submit(2)
    behind.scheduler.close()
    assert gate.batches == [[2]]
    assert spare.batches == [[1]]
    assert spare.is_closed


def test_a_batch_in_the_asking_thread_takes_the_place_of_an_instance() -> None:
    spare = GatedRunner()
    behind = Behind(BatchPolicy(max_batch_size=8), spare=spare)
    (gate,) = behind.gates
    behind.submit(1)
    wait_until(lambda: gate.batches == [[1]])
    behind.scheduler.num_quick = 1000
    behind.submit(2)
    assert spare.batches == []  # the only instance is busy, so this request waits for it
    gate.passes.release(2)
    behind.scheduler.close()
    assert gate.batches == [[1], [2]]


def test_only_models_of_fixed_sizes_may_run_in_the_asking_thread(root: Path, repository: Repository) -> None:
    save_scale(root, "fixed", 2.0)
    save_scale(root, "free", 2.0, num_columns="length")
    repository.load_all()
    assert repository.find("fixed", "").scheduler.spare is not None
    assert repository.find("free", "").scheduler.spare is None


def test_an_instance_that_could_never_run_is_refused(root: Path, repository: Repository) -> None:
    save_scale(root, "greedy", 1.0)
    write_config(root, "greedy", 'instance_group { rate_limiter { resources { name: "slot" count: 2 } } }')
    with pytest.raises(BadModel, match="needs 2 of the resource 'slot', there are 1"):
        repository.load("greedy")


def test_many_clients_get_their_own_answers_in_shared_batches(root: Path, repository: Repository) -> None:
    save_scale(root, "model", 3.0)
    write_config(root, "model", "instance_group { count: 2 }")
    repository.load("model")
    model = repository.find("model", "")
    wrong: list[int] = []

    def client(number: int) -> None:
        for step in range(100):
            value = np.full((1 + step % 3, 4), number * 1000 + step, np.float32)
            if not np.array_equal(ask(model, x=value)["y"], 3 * value):
                wrong.append(number)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert model.stats.success.count == 800
    assert model.stats.inference_count == sum(1 + step % 3 for step in range(100)) * 8
    assert model.stats.execution_count <= 800


def test_a_bad_index_in_a_shared_batch_fails_alone(root: Path, repository: Repository) -> None:
    save_lookup(root, "lookup")
    repository.load("lookup")
    model = repository.find("lookup", "")
    questions = [Question(model, x=np.array([99 if index == 5 else index % 5])) for index in range(20)]
    for index, question in enumerate(questions):
        if index == 5:
            with pytest.raises(InvalidRequest, match="cannot run these inputs"):
                question.answer()
        else:
            assert question.answer()["y"].tolist() == [[index % 5 * 2, index % 5 * 2 + 1]]


def save_cumulative(root: Path, name: str) -> None:
    """`y` is the running sum of `x` over its length, `length` what the model saw of it."""
    save_graph(
        root / name / "1" / "model.onnx",
        [
            helper.make_node("CumSum", ["x", "axis"], ["y"]),
            helper.make_node("ReduceSum", ["x", "axes"], ["total"], keepdims=0),
        ],
        [tensor("x", "INT64", ["n", "length"])],
        [tensor("y", "INT64", ["n", "length"]), tensor("total", "INT64", ["n"])],
        [helper.make_tensor("axis", TensorProto.INT64, [], [1]), helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )


def test_requests_of_different_lengths_share_a_padded_batch(root: Path) -> None:
    save_cumulative(root, "padded")
    write_config(root, "padded", PADDED.replace("size: 2", "size: 3"))
    repository = Repository(root, Workshop())
    repository.load("padded")
    model = repository.find("padded", "")
    rows = [np.arange(1, length + 1).reshape(1, length) for length in (2, 5, 3)]
    questions = [Question(model, x=row) for row in rows]
    for row, question in zip(rows, questions, strict=True):
        answer = question.answer()
        np.testing.assert_array_equal(answer["y"], row.cumsum(axis=1))
        assert answer["total"].tolist() == [row.sum()]
    assert model.stats.execution_count == 1
    repository.close()


@pytest.mark.parametrize(
    ("shapes", "num_batches"),
    [
        ([(1, 2, 5), (1, 4, 3)], 1),
        ([(1, 5, 2), (1, 4, 5)], 2),  # both sizes are padded to 5: which is which cannot be told
        ([(1, 3, 3), (1, 5, 5)], 1),
    ],
)
def test_requests_of_two_variable_sizes_get_their_own_shapes(root: Path, shapes: list[tuple[int, ...]], num_batches: int) -> None:
    save_identity(root, "same", shape=("batch", "height", "width"))
    write_config(root, "same", PADDED)
    repository = Repository(root, Workshop())
    repository.load("same")
    model = repository.find("same", "")
    images = [np.random.default_rng(0).random(shape, np.float32) for shape in shapes]
    for image, question in zip(images, [Question(model, x=image) for image in images], strict=True):
        np.testing.assert_array_equal(question.answer()["y"], image)
    assert model.stats.execution_count == num_batches
    repository.close()


def test_a_padded_input_may_be_reshaped(root: Path) -> None:
    save_cumulative(root, "padded")
    ends = 'input { name: "x" data_type: TYPE_INT64 dims: [-1, 1] reshape { shape: [-1] } }'
    ends += 'output { name: "y" data_type: TYPE_INT64 dims: [1, -1] reshape { shape: [-1] } }'
    write_config(root, "padded", f"{PADDED} {ends}")
    repository = Repository(root, Workshop())
    repository.load("padded")
    model = repository.find("padded", "")
    rows = [np.arange(length).reshape(1, length, 1) for length in (2, 5)]
    for row, question in zip(rows, [Question(model, x=row) for row in rows], strict=True):
        np.testing.assert_array_equal(question.answer()["y"], row.cumsum(axis=1).reshape(1, 1, -1))
    assert model.stats.execution_count == 1
    repository.close()


def test_without_padding_different_lengths_go_apart(root: Path, repository: Repository) -> None:
    save_cumulative(root, "apart")
    repository.load("apart")
    model = repository.find("apart", "")
    rows = [np.arange(1, length + 1).reshape(1, length) for length in (2, 5, 3)]
    for row, question in zip(rows, [Question(model, x=row) for row in rows], strict=True):
        np.testing.assert_array_equal(question.answer()["y"], row.cumsum(axis=1))
    assert model.stats.execution_count == 3


def test_the_cache_answers_what_was_asked_before(root: Path, repository: Repository) -> None:
    save_scale(root, "model", 2.0)
    write_config(root, "model", "response_cache { enable: true }")
    repository.load("model")
    model = repository.find("model", "")
    for _ in range(3):
        np.testing.assert_array_equal(ask(model, x=X)["y"], 2 * X)
    np.testing.assert_array_equal(ask(model, x=X + 1)["y"], 2 * X + 2)
    assert model.stats.execution_count == 2
    assert (model.stats.cache_hit.count, model.stats.cache_miss.count) == (2, 2)
    save_scale(root, "model", 5.0)
    repository.load("model")
    np.testing.assert_array_equal(ask(repository.find("model", ""), x=X)["y"], 5 * X)


def test_the_cache_keeps_within_its_bytes_and_drops_what_is_oldest() -> None:
    cache = ResponseCache(100)
    keys = [make_key(b"m", {"x": np.array([value])}) for value in range(3)]
    for key in keys[:2]:
        cache.put(key, {"y": np.zeros(5, np.float64)})
    assert cache.find(keys[0]) is not None
    cache.put(keys[2], {"y": np.zeros(5, np.float64)})
    assert cache.find(keys[1]) is None
    assert cache.find(keys[0]) is not None
    cache.put(b"large", {"y": np.zeros(50, np.float64)})
    assert cache.nbytes == 80
    cache.forget(b"m")
    assert cache.nbytes == 0
    assert make_key(b"m", {"x": np.array([b"a", b"bc"], object)}) != make_key(b"m", {"x": np.array([b"ab", b"c"], object)})


def test_a_model_is_warmed_up_before_it_serves_and_may_be_reshaped(root: Path, repository: Repository) -> None:
    save_scale(root, "warm", 2.0)
    sample = 'inputs { key: "x" value { data_type: TYPE_FP32 dims: [2, 2] '
    write_config(
        root,
        "warm",
        'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [2, 2] reshape { shape: [4] } } '
        'output { name: "y" data_type: TYPE_FP32 dims: [2, 2] reshape { shape: [4] } } '
        f'model_warmup {{ name: "zero" batch_size: 2 count: 3 {sample} zero_data: true }} }} }} '
        f'model_warmup {{ name: "file" batch_size: 1 {sample} input_data_file: "x" }} }} }}',
    )
    (root / "warm" / "warmup").mkdir()
    (root / "warm" / "warmup" / "x").write_bytes(X.tobytes())
    repository.load("warm")
    model = repository.find("warm", "")
    assert model.stats.execution_count == 0
    np.testing.assert_array_equal(ask(model, x=X.reshape(1, 2, 2))["y"], 2 * X.reshape(1, 2, 2))
    (root / "warm" / "warmup" / "x").write_bytes(b"short")
    with pytest.raises(BadModel, match="takes 16 bytes, received 5"):
        Repository(root, Workshop()).load("warm")


def test_priorities_and_queue_limits_come_from_the_configuration(root: Path, repository: Repository) -> None:
    save_scale(root, "model", 2.0)
    write_config(
        root,
        "model",
        "max_batch_size: 4 dynamic_batching { preferred_batch_size: [2, 4] max_queue_delay_microseconds: 500 priority_levels: 3 "
        "default_priority_level: 2 default_queue_policy { max_queue_size: 7 default_timeout_microseconds: 2000000 } "
        "priority_queue_policy { key: 1 value { timeout_action: DELAY allow_timeout_override: true } } }",
    )
    repository.load("model")
    model = repository.find("model", "")
    assert isinstance(model, RuntimeModel)
    policy = model.scheduler.queue.policy
    assert (policy.preferred_sizes, policy.max_delay_seconds, policy.num_levels, policy.default_level) == ((2, 4), 0.0005, 3, 2)
    assert (policy.queue.max_size, policy.queue.timeout_seconds, policy.queue.delays_late) == (7, 2.0, False)
    assert (policy.queues[1].delays_late, policy.queues[1].allows_own_timeout) == (True, True)
    np.testing.assert_array_equal(Question(model, RequestOptions(priority=3), x=X).answer()["y"], 2 * X)
    with pytest.raises(InvalidRequest, match="priority 9"):
        Question(model, RequestOptions(priority=9), x=X)


ENDS = 'input {{ name: "x" data_type: TYPE_FP32 dims: {0} }} output {{ name: "y" data_type: TYPE_FP32 dims: 4 }}'


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 5 }",
            "a default_priority_level of 5 and 2 priority_levels",
        ),
        (
            "dynamic_batching { priority_levels: 2 priority_queue_policy { key: 3 value { max_queue_size: 1 } } }",
            "a priority_queue_policy for level 3 and 2 priority_levels",
        ),
        ("dynamic_batching { preferred_batch_size: [4, 9] }", "a preferred_batch_size of 9; expected 1 to its max_batch_size, 8"),
        ("instance_group { count: -1 }", "an instance_group with a count of -1"),
        (ENDS.format("3 reshape { shape: [4] }"), r"has the dims \[3\], which cannot be reshaped to \[4\]"),
        (ENDS.format("-1 reshape { shape: [4] }"), r"has the dims \[-1\], which cannot be reshaped to \[4\]"),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(root: Path, config: str, says: str, repository: Repository) -> None:
    save_scale(root, "model", 2.0)
    write_config(root, "model", f"max_batch_size: 8 {config}")
    num_threads = threading.active_count()
    with pytest.raises(BadModel, match=says):
        repository.load("model")
    assert threading.active_count() == num_threads


@pytest.mark.parametrize("ends", ['input { name: "x" dims: 1 }', 'output { name: "y" dims: 1 }'])
def test_a_tensor_without_a_datatype_is_refused_where_the_model_does_not_tell_it(ends: str, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="of model 'silent' has no data_type"):
        make_spec(text_format.Parse(f'name: "silent" {ends}', ModelConfig()), tmp_path)


def test_a_cancelled_ticket_is_counted_and_never_answered(root: Path, repository: Repository) -> None:
    save_scale(root, "model", 2.0)
    write_config(root, "model", "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 200000 }")
    repository.load("model")
    model = repository.find("model", "")
    question = Question(model, x=X)
    assert isinstance(question.ticket, ModelJob)
    question.ticket.cancel()
    question.ticket.cancel()
    np.testing.assert_array_equal(ask(model, x=X)["y"], 2 * X)
    assert not question.done.is_set()
    assert model.stats.failures == {"CANCELED": 1}
    assert model.stats.inference_count == 1
