"""Small models with answers that a test can compute by hand."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tensorferry.serve.core.tensors import DTYPES

ONNX_TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}


def save_graph(path: Path, nodes: list, inputs: list, outputs: list, initializers: list | None = None) -> Path:
    """Write an ONNX file."""
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers or [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def tensor(name: str, datatype: str, shape: list) -> onnx.ValueInfoProto:
    """A tensor of a graph."""
    return helper.make_tensor_value_info(name, ONNX_TYPES[datatype], shape)


def save_identity(repository: Path, name: str, datatype: str = "FP32", shape: tuple = ("batch", 4), version: int = 1) -> Path:
    """`y` is `x`."""
    return save_graph(
        repository / name / str(version) / "model.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        [tensor("x", datatype, list(shape))],
        [tensor("y", datatype, list(shape))],
    )


def save_scale(repository: Path, name: str, factor: float, version: int = 1, num_columns: int | str = 4) -> Path:
    """`y` is `x` times `factor`."""
    return save_graph(
        repository / name / str(version) / "model.onnx",
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        [tensor("x", "FP32", ["batch", num_columns])],
        [tensor("y", "FP32", ["batch", num_columns])],
        [helper.make_tensor("factor", TensorProto.FLOAT, [], [factor])],
    )


def save_sum(repository: Path, name: str) -> Path:
    """`total` is `a + b`, `difference` is `a - b`."""
    return save_graph(
        repository / name / "1" / "model.onnx",
        [helper.make_node("Add", ["a", "b"], ["total"]), helper.make_node("Sub", ["a", "b"], ["difference"])],
        [tensor("a", "INT32", ["batch", 3]), tensor("b", "INT32", ["batch", 3])],
        [tensor("total", "INT32", ["batch", 3]), tensor("difference", "INT32", ["batch", 3])],
    )


def save_mixing(repository: Path, name: str) -> Path:
    """A first dimension that is free and no batch: each row loses the sum of all rows."""
    return save_graph(
        repository / name / "1" / "model.onnx",
        [
            helper.make_node("ReduceSum", ["x", "axes"], ["sum"], keepdims=1),
            helper.make_node("Sub", ["x", "sum"], ["y"]),
        ],
        [tensor("x", "FP32", ["length", 2])],
        [tensor("y", "FP32", ["length", 2])],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [0])],
    )


def save_lookup(repository: Path, name: str, num_rows: int = 5) -> Path:
    """`y` is the row of a table that `x` names: an index beyond it fails inside the model."""
    table = np.arange(num_rows * 2, dtype=np.float32).reshape(num_rows, 2)
    return save_graph(
        repository / name / "1" / "model.onnx",
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        [tensor("x", "INT64", ["batch"])],
        [tensor("y", "FP32", ["batch", 2])],
        [helper.make_tensor("table", TensorProto.FLOAT, table.shape, table.reshape(-1).tolist())],
    )


def write_config(repository: Path, name: str, text: str) -> None:
    """Write a model's config.pbtxt."""
    (repository / name).mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(text)


def sample(datatype: str) -> np.ndarray:
    """One row of four values that show what a datatype can hold."""
    match datatype:
        case "BYTES":
            return np.array([[b"", b"ferry", "äöü".encode(), b"a" * 300]], dtype=np.object_)
        case "BOOL":
            return np.array([[True, False, True, True]])
        case _:
            low = 0 if datatype.startswith("UINT") else -3
            return np.array([[low, 1, 2, 100]]).astype(DTYPES[datatype])
