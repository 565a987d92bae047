"""SavedModels: graphs that compute are loaded as they are, and those that reach further only with trust."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorferry.errors import BadModel
from tensorferry.serve.runtimes.runtime import LoadOptions
from tensorferry.serve.runtimes.table import load_runtime

tf = pytest.importorskip("tensorflow")
X = np.arange(6, dtype=np.float32).reshape(3, 2)


def save(path: Path, act: Callable[[Any], Any] = lambda x: x) -> Path:
    """Write a model that calls `act` on its input."""

    class Model(tf.Module):
        def __init__(self) -> None:
            self.weights = tf.Variable([[2.0], [1.0]])

        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
        def call(self, x: Any) -> dict[str, Any]:
            return {"y": act(x) @ self.weights}

    model = Model()
    tf.saved_model.save(model, str(path), signatures=model.call)
    return path


def refuse(path: Path, what: str) -> None:
    """Check that a folder is not loaded without trust, and what the error says."""
    with pytest.raises(BadModel) as caught:
        load_runtime("tensorflow", LoadOptions(path))
    assert what in str(caught.value)
    assert "--trust" in str(caught.value)


def run(path: Path, trust: bool) -> Any:
    """What a model gives."""
    (given,) = load_runtime("tensorflow", LoadOptions(path, trust=trust)).new_runner().run({"x": X}, ["y"])
    return given


def test_a_graph_that_computes_gives_the_same_with_and_without_trust(tmp_path: Path) -> None:
    path = save(tmp_path / "model", lambda x: tf.while_loop(lambda x: tf.reduce_sum(x) < 100, lambda x: (x + 1,), [x])[0])
    np.testing.assert_array_equal(run(path, trust=False), run(path, trust=True))


def test_a_file_is_written_only_with_trust(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def write(x: Any) -> Any:
        with tf.control_dependencies([tf.io.write_file(str(mark), "here")]):
            return tf.identity(x)

    path = save(tmp_path / "model", write)
    refuse(path, "the op WriteFile")
    assert not mark.exists()
    run(path, trust=True)
    assert mark.exists()


def test_printing_to_a_file_needs_trust(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def write(x: Any) -> Any:
        tf.print("here", output_stream=f"file://{mark}")
        return x

    path = save(tmp_path / "model", write)
    mark.unlink(missing_ok=True)
    refuse(path, "the op PrintV2")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("act", "op"),
    [
        (lambda x: x + tf.strings.to_number(tf.io.read_file("numbers")), "ReadFile"),
        (lambda x: tf.ensure_shape(tf.py_function(lambda x: x, [x], tf.float32), [None, 2]), "EagerPyFunc"),
        (lambda x: tf.ensure_shape(tf.numpy_function(lambda x: x, [x], tf.float32), [None, 2]), "PyFunc"),
        (lambda x: x + tf.cast(tf.size(tf.io.matching_files("/*")), tf.float32), "MatchingFiles"),
        (lambda x: x + tf.data.TextLineDataset("numbers").reduce(0.0, lambda total, _: total + 1), "Dataset"),
        (
            lambda x: x + tf.raw_ops.RestoreV2(prefix="p", tensor_names=[""], shape_and_slices=[""], dtypes=["float"])[0],
            "RestoreV2",
        ),
        (
            lambda x: x + tf.raw_ops.ImmutableConst(dtype=tf.float32, shape=[2], memory_region_name="/etc/passwd"),
            "ImmutableConst",
        ),
        (lambda x: tf.raw_ops.DebugIdentity(input=x, debug_urls=["file:///tmp/mark"]), "DebugIdentity"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ops_that_do_more_than_compute_need_trust(act: Callable[[Any], Any], op: str, tmp_path: Path) -> None:
    refuse(save(tmp_path / "model", act), op)


def test_an_op_that_only_a_branch_calls_is_found(tmp_path: Path) -> None:
    def branch(x: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) > 1e9, lambda: x + tf.strings.to_number(tf.io.read_file("a")), lambda: x)

    refuse(save(tmp_path / "model", branch), "ReadFile")


def test_a_table_that_is_read_from_a_file_needs_trust(tmp_path: Path) -> None:
    class Model(tf.Module):
        def __init__(self, start: Any) -> None:
            self.table = tf.lookup.StaticHashTable(start, 0)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="x")])
        def call(self, x: Any) -> dict[str, Any]:
            return {"y": self.table.lookup(x)}

    def write(name: str, start: Any) -> Path:
        model = Model(start)
        tf.saved_model.save(model, str(tmp_path / name), signatures=model.call)
        return tmp_path / name

    (tmp_path / "words.txt").write_text("a\nb\n")
    index = tf.lookup.TextFileIndex
    text_file = (str(tmp_path / "words.txt"), tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
    refuse(write("file", tf.lookup.TextFileInitializer(*text_file)), "InitializeTableFromTextFileV2")
    plain = write("plain", tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64)))
    runner = load_runtime("tensorflow", LoadOptions(plain)).new_runner()
    assert runner.run({"x": np.array([b"b", b"c"], np.object_)}, ["y"])[0].tolist() == [2, 0]


def test_an_asset_may_not_lie_elsewhere(tmp_path: Path) -> None:
    from tensorflow.core.protobuf import saved_model_pb2

    path = save(tmp_path / "model")
    model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    model.meta_graphs[0].asset_file_def.add(filename="../../secret")
    (path / "saved_model.pb").write_bytes(model.SerializeToString())
    refuse(path, "'../../secret'")


def test_a_link_out_of_the_folder_needs_trust(tmp_path: Path) -> None:
    path = save(tmp_path / "model")
    (tmp_path / "secret").write_text("x")
    (path / "assets").mkdir(exist_ok=True)
    (path / "assets" / "words").symlink_to(tmp_path / "secret")
    refuse(path, "the link assets/words")


@pytest.mark.filterwarnings("ignore")
def test_a_graph_of_tensorflow_1_is_served_and_may_not_save_while_it_runs(tmp_path: Path) -> None:
    from tensorflow.core.protobuf import saved_model_pb2

    v1 = tf.compat.v1

    def write(path: Path, is_hostile: bool) -> Path:
        with tf.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder(tf.float32, [None, 2], "x")
            weights = v1.get_variable("weights", initializer=[[2.0], [1.0]])
            saving = [
                tf.raw_ops.SaveV2(prefix=str(tmp_path / "mark"), tensor_names=["t"], shape_and_slices=[""], tensors=[[1.0]])
            ]
            with tf.control_dependencies(saving if is_hostile else []):
                y = tf.matmul(x, weights)
            session.run(v1.global_variables_initializer())
            v1.saved_model.simple_save(session, str(path), {"x": x}, {"y": y})
        return path

    np.testing.assert_array_equal(run(write(tmp_path / "plain", False), trust=False), X @ [[2.0], [1.0]])
    refuse(write(tmp_path / "hostile", True), "the op SaveV2 where the model is loaded or run")
    path = write(tmp_path / "loading", False)
    model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    model.meta_graphs[0].saver_def.restore_op_name = "SaveV2"
    (path / "saved_model.pb").write_bytes(model.SerializeToString())
    refuse(path, "the op SaveV2 where the model is loaded or run")
    assert not list(tmp_path.glob("mark*"))
