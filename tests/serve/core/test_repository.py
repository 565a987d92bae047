"""The repository: what is loaded when, and that nothing is ever lost or half loaded."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from asking import ask
from models import save_identity, save_mixing, save_scale, save_sum, write_config

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest, NotFound, Unavailable
from tensorferry.serve.core.repository import Repository
from tensorferry.serve.core.scheduler import Closed
from tensorferry.serve.core.workshop import Workshop

X = np.arange(4, dtype=np.float32).reshape(1, 4)
LOAD_AND_UNLOAD = """
import json, sys
from pathlib import Path
from asking import wait_until
from tensorferry.engines.resident import ResidentMeter
from tensorferry.serve.core.workshop import Workshop
from tensorferry.serve.core.repository import Repository

repository, meter = Repository(Path(sys.argv[1]), Workshop()), ResidentMeter()

def unload():
    repository.unload("large")
    wait_until(lambda: "unloaded" in repository.index()[0].reason)

repository.load("large")
unload()
before = meter.now_nbytes()
for _ in range(3):
    repository.load("large")
    assert meter.now_nbytes() - before > 48 * 2**20
    unload()
    wait_until(lambda: meter.now_nbytes() - before < 16 * 2**20)
repository.close()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def repository(root: Path) -> Iterator[Repository]:
    made = Repository(root, Workshop())
    yield made
    made.close()


def test_everything_in_the_folder_is_loaded_and_a_broken_model_harms_none(root: Path, repository: Repository) -> None:
    save_scale(root, "good", 2.0)
    (root / "rubbish" / "1").mkdir(parents=True)
    (root / "rubbish" / "1" / "model.onnx").write_bytes(b"rubbish")
    (root / "empty").mkdir()
    save_scale(root, "misread", 2.0)
    write_config(root, "misread", "max_batch_size: many")
    save_scale(root, "misnamed", 2.0)
    write_config(root, "misnamed", 'name: "other"')
    (root / "a file.txt").write_text("no model")
    repository.load_all()
    np.testing.assert_array_equal(ask(repository.find("good", ""), x=X)["y"], 2 * X)
    reasons = {line.name: line.reason for line in repository.index()}
    assert "cannot load model.onnx" in reasons["rubbish"]
    assert "no version to serve" in reasons["empty"]
    assert "cannot read" in reasons["misread"]
    assert "must be equal" in reasons["misnamed"]
    assert "a file.txt" not in reasons


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", ["10"]),
        ("version_policy { latest { num_versions: 2 } }", ["2", "10"]),
        ("version_policy { all {} }", ["1", "2", "10"]),
        ("version_policy { specific { versions: [1, 2, 7] } }", ["1", "2"]),
    ],
)
def test_the_version_policy_chooses(root: Path, repository: Repository, policy: str, versions: list[str]) -> None:
    for version in (1, 2, 10):
        save_scale(root, "model", float(version), version)
    write_config(root, "model", policy)
    repository.load_all()
    assert repository.versions_of("model") == versions
    for version in versions:
        np.testing.assert_array_equal(ask(repository.find("model", version), x=X)["y"], float(version) * X)
    with pytest.raises(NotFound):
        repository.find("model", "3")


def test_polling_follows_the_folder(root: Path, repository: Repository) -> None:
    save_scale(root, "model", 2.0)
    repository.load_all()
    first = repository.find("model", "")
    repository.poll()
    assert repository.find("model", "") is first  # nothing changed, nothing was loaded
    save_scale(root, "model", 5.0, version=2)
    save_scale(root, "new", 7.0)
    repository.poll()
    assert repository.find("model", "") is first  # it may still be being written
    repository.poll()
    np.testing.assert_array_equal(ask(repository.find("model", ""), x=X)["y"], 5 * X)
    np.testing.assert_array_equal(ask(repository.find("new", ""), x=X)["y"], 7 * X)
    assert repository.versions_of("model") == ["2"]
    shutil.rmtree(root / "new")
    repository.poll()
    with pytest.raises(NotFound):
        repository.find("new", "")


def test_a_version_that_did_not_change_is_not_loaded_again(root: Path, repository: Repository) -> None:
    write_config(root, "model", "version_policy { all {} }")
    save_scale(root, "model", 1.0, version=1)
    repository.load("model")
    first = repository.find("model", "1")
    save_scale(root, "model", 2.0, version=2)
    repository.load("model")
    assert repository.find("model", "1") is first
    assert repository.versions_of("model") == ["1", "2"]


def test_a_reload_that_fails_leaves_the_old_model_serving(root: Path, repository: Repository) -> None:
    save_scale(root, "model", 2.0)
    repository.load("model")
    (root / "model" / "1" / "model.onnx").write_bytes(b"rubbish")
    with pytest.raises(BadModel, match="cannot load"):
        repository.load("model")
    np.testing.assert_array_equal(ask(repository.find("model", ""), x=X)["y"], 2 * X)


def test_a_broken_newer_version_leaves_the_older_one_serving(root: Path, repository: Repository) -> None:
    save_scale(root, "model", 2.0)
    repository.load_all()
    (root / "model" / "2").mkdir()
    (root / "model" / "2" / "model.onnx").write_bytes(b"rubbish")
    repository.poll()
    repository.poll()
    np.testing.assert_array_equal(ask(repository.find("model", ""), x=X)["y"], 2 * X)
    assert [(line.version, str(line.state)) for line in repository.index()] == [("1", "READY"), ("2", "UNAVAILABLE")]
    shutil.rmtree(root / "model" / "2")
    repository.poll()
    repository.poll()
    assert [(line.version, str(line.state)) for line in repository.index()] == [("1", "READY")]
    save_scale(root, "model", 3.0, version=2)
    repository.poll()
    repository.poll()
    assert repository.versions_of("model") == ["2"]


WARM_UP = 'max_batch_size: 4 model_warmup { name: "w" inputs { key: "x" value { %s } } }'
LABELLED = (
    'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: 4 } '
    'output { name: "y" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt" }'
)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (WARM_UP % "data_type: TYPE_FP32 dims: -1 zero_data: true", "the warm-up 'w' of model 'model' failed"),
        (WARM_UP % "dims: 4 zero_data: true", "unknown datatype 'INVALID'"),
        (LABELLED, "the labels 'labels.txt' are not UTF-8"),
    ],
)
def test_whatever_fails_in_a_load_is_said_and_nothing_stays_loading(
    root: Path, repository: Repository, config: str, says: str
) -> None:
    save_scale(root, "model", 1.0)
    write_config(root, "model", config)
    (root / "model" / "labels.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BadModel, match=says):
        repository.load("model")
    (line,) = repository.index()
    assert line.state == "UNAVAILABLE"
    assert says in line.reason


def test_an_error_that_nobody_foresaw_is_the_models_fault(
    root: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no way")

    save_scale(root, "model", 1.0)
    monkeypatch.setattr("tensorferry.serve.core.repository.load_model", fail)
    with pytest.raises(BadModel, match="ZeroDivisionError: no way"):
        repository.load("model")
    assert [line.state for line in repository.index()] == ["UNAVAILABLE"]


CONFIG = '{"max_batch_size": 4}'


@pytest.fixture
def uploads(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that files of clients are kept in."""
    folder = tmp_path_factory.mktemp("uploads")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_a_model_that_came_as_files_outlives_a_load_that_fails(root: Path, repository: Repository, uploads: Path) -> None:
    good = save_scale(uploads / "made", "sent", 2.0).read_bytes()
    shutil.rmtree(uploads / "made")
    repository.load("sent", CONFIG, {"file:1/model.onnx": good})
    (kept,) = uploads.iterdir()
    with pytest.raises(BadModel, match="no such folder"):
        repository.load("sent")
    with pytest.raises(BadModel, match="cannot load"):
        repository.load("sent", CONFIG, {"file:1/model.onnx": b"rubbish"})
    with pytest.raises(BadModel, match="cannot read the configuration"):
        repository.load("sent", "{", {"file:1/model.onnx": good})
    np.testing.assert_array_equal(ask(repository.find("sent", ""), x=X)["y"], 2 * X)
    assert list(uploads.iterdir()) == [kept]
    repository.load("sent", CONFIG, {"file:2/model.onnx": good})
    assert repository.versions_of("sent") == ["2"]
    assert kept not in uploads.iterdir()
    repository.unload("sent")
    assert list(uploads.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "files", "says"),
    [
        ("sent", {"file:1": b"", "file:1/model.onnx": b""}, "cannot keep the file 'file:1/model.onnx'"),
        ("sent", {"file:1/" + "n" * 300: b""}, "File name too long"),
        ("sent", {"file:../out": b""}, "outside of the model's folder"),
        ("sent", {"file:" + "a/" * 5000 + "b": b""}, "longer than 512 characters"),
        ("n" * 400, {"file:1/model.onnx": b""}, "cannot be the name"),
    ],
)
def test_files_that_cannot_be_kept_leave_nothing_and_the_answer_tells_no_path(
    repository: Repository, uploads: Path, name: str, files: dict[str, bytes], says: str
) -> None:
    with pytest.raises((InvalidRequest, BadModel), match=says) as error:
        repository.load(name, CONFIG, files)
    assert str(uploads) not in str(error.value)
    assert list(uploads.iterdir()) == []
    assert repository.index() == []
    assert repository.entries == {}


def test_an_upload_that_does_not_load_leaves_nothing(repository: Repository, uploads: Path) -> None:
    with pytest.raises(BadModel, match="cannot load"):
        repository.load("sent", CONFIG, {"file:1/model.onnx": b"rubbish"})
    assert list(uploads.iterdir()) == []
    assert repository.index() == []


def test_requests_under_way_survive_swaps(root: Path, repository: Repository) -> None:
    save_scale(root, "model", 1.0)
    repository.load("model")
    stop = threading.Event()
    answers: list[float] = []
    faults: list[Exception] = []

    def keep_asking() -> None:
        while not stop.is_set():
            try:
                answers.append(float(ask(repository.find("model", ""), x=X + 1)["y"][0, 0]))
            except Closed:
                continue
            except Exception as error:
                faults.append(error)

    threads = [threading.Thread(target=keep_asking) for _ in range(4)]
    for thread in threads:
        thread.start()
    for factor in range(2, 12):
        save_scale(root, "model", float(factor))
        repository.load("model")
    stop.set()
    for thread in threads:
        thread.join()
    assert faults == []
    assert set(answers) <= set(map(float, range(1, 12)))
    assert float(ask(repository.find("model", ""), x=X + 1)["y"][0, 0]) == 11.0


def test_an_unloaded_model_gives_its_memory_back(root: Path) -> None:
    from models import save_graph, tensor
    from onnx import TensorProto, helper

    edge = 4096  # 64 MiB of weights
    weights = np.random.default_rng(0).random((edge, edge), np.float32)
    raw = helper.make_tensor("w", TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True)
    ends = [tensor("x", "FP32", ["n", edge])], [tensor("y", "FP32", ["n", edge])]
    save_graph(root / "large" / "1" / "model.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], *ends, [raw])
    # in a process of its own: what earlier tests left here may be freed at any time
    child = [sys.executable, "-c", LOAD_AND_UNLOAD, str(root)]
    subprocess.run(child, check=True, cwd=Path(__file__).parents[1])  # where its own helpers are


def test_a_free_first_dimension_is_only_a_batch_if_rows_are_independent(root: Path, repository: Repository) -> None:
    save_mixing(root, "mixing")
    save_scale(root, "scale", 2.0)
    repository.load_all()
    assert repository.find("scale", "").spec.max_batch_size == 8
    mixing = repository.find("mixing", "")
    assert mixing.spec.max_batch_size == 0
    rows = np.array([[1, 2], [3, 4]], np.float32)
    np.testing.assert_array_equal(ask(mixing, x=rows)["y"], rows - rows.sum(axis=0))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('input { name: "z" data_type: TYPE_FP32 dims: 4 }', "names the input 'z'; the model has 'x'"),
        (
            'max_batch_size: 4 input { name: "x" data_type: TYPE_INT8 dims: 4 }',
            "the model says FP32",
        ),
        ('max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: 5 }', "shape"),
        ('backend: "tensorrt"', "asks for 'tensorrt'; this server has onnxruntime"),
        ('platform: "tensorrt_plan"', "tensorrt_plan"),
        ("model_transaction_policy { decoupled: true }", "decoupled"),
        ('default_model_filename: "../../secret.onnx"', "not in"),
        ("max_batch_size: -1", "-1"),
        ('parameters { key: "isolation" value { string_value: "vm" } }', "expected 'process' or 'thread'"),
        ('max_batch_size: 4 parameters { key: "padding" value { string_value: "x" } }', "cannot read the padding"),
        ('max_batch_size: 4 parameters { key: "padding" value { string_value: "z=0" } }', "pads z"),
        ('max_batch_size: 4 model_warmup { name: "w" inputs { key: "z" value { data_type: TYPE_FP32 } } }', "unknown input 'z'"),
        ("instance_group { kind: KIND_GPU }", "CUDAExecutionProvider"),
    ],
)
def test_a_configuration_that_does_not_fit_says_why(root: Path, repository: Repository, config: str, says: str) -> None:
    save_scale(root, "model", 1.0)
    write_config(root, "model", config)
    with pytest.raises(BadModel) as error:
        repository.load("model")
    assert says in str(error.value)


def test_names_from_outside_never_become_paths(root: Path, repository: Repository) -> None:
    save_scale(root / "inner", "model", 1.0)
    outside = Repository(root / "inner", Workshop())
    for name in ("../inner/model", "..", ".", "", "/etc", "model/1", "model\0", ".hidden"):
        with pytest.raises((InvalidRequest, BadModel)):
            outside.load(name)
    outside.close()
    assert outside.entries == {}


def test_a_model_that_is_loading_says_so(root: Path, repository: Repository) -> None:
    from tensorferry.serve.core.repository import Entry, State, VersionState

    repository.entries["slow"] = Entry("slow", states={1: VersionState("slow", "1", State.LOADING)})
    with pytest.raises(Unavailable, match="still loading"):
        repository.find("slow", "")


def test_two_versions_may_take_different_inputs(root: Path, repository: Repository) -> None:
    write_config(root, "model", "version_policy { all {} }")
    save_identity(root, "model", "FP32", version=1)
    save_identity(root, "model", "INT64", version=2)
    repository.load("model")
    assert repository.find("model", "1").spec.inputs[0].datatype == "FP32"
    assert repository.find("model", "2").spec.inputs[0].datatype == "INT64"


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="no folder"):
        Repository(tmp_path / "nowhere", Workshop())


def test_inputs_of_different_sizes_say_so(root: Path, repository: Repository) -> None:
    save_sum(root, "sum")
    repository.load("sum")
    model = repository.find("sum", "")
    with pytest.raises(InvalidRequest, match="differ in their batch size"):
        ask(model, a=np.zeros((1, 3), np.int32), b=np.zeros((2, 3), np.int32))
    with pytest.raises(InvalidRequest, match="1 to 8, received 0"):
        ask(model, a=np.zeros((0, 3), np.int32), b=np.zeros((0, 3), np.int32))
