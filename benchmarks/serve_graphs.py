"""ONNX graphs of the sizes that the serving figures are about, with random weights: time does not depend on them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


class Graph:
    """Collects nodes and weights; every method returns the name of what it made."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """One node with one output."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def constant(self, values: np.ndarray) -> str:
        """Values that do not change."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def weight(self, *shape: int) -> str:
        """Random weights of a scale that keeps activations near one."""
        scale = 1.0 / np.sqrt(max(1, np.prod(shape[1:]) if len(shape) > 2 else shape[0]))
        return self.constant((self.random.standard_normal(shape) * scale).astype(np.float32))

    def dense(self, source: str, num_in: int, num_out: int) -> str:
        """A fully connected layer."""
        return self.add("Add", self.add("MatMul", source, self.weight(num_in, num_out)), self.weight(num_out))

    def save(self, path: Path, inputs: dict[str, tuple[int, list[int | str]]], output: str, shape: list[int | str]) -> Path:
        """Write the file; `output` becomes `y`."""
        self.nodes.append(helper.make_node("Identity", [output], ["y"]))
        graph = helper.make_graph(
            self.nodes,
            path.stem,
            [helper.make_tensor_value_info(name, kind, sizes) for name, (kind, sizes) in inputs.items()],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
            self.weights,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9), path)
        return path


def save_mlp(path: Path) -> Path:
    """16 numbers in, 4 out, 32 hidden: a model that costs nothing, so the server is what is measured."""
    graph = Graph()
    hidden = graph.add("Relu", graph.dense("x", 16, 32))
    return graph.save(path, {"x": (TensorProto.FLOAT, ["n", 16])}, graph.dense(hidden, 32, 4), ["n", 4])


def save_minilm(path: Path, num_layers: int = 6, width: int = 384, num_heads: int = 12) -> Path:
    """An encoder of all-MiniLM-L6's size: token ids in, the mean of the last layer out."""
    graph = Graph()
    hidden = graph.add("Gather", graph.weight(30522, width), "input_ids")
    split = graph.constant(np.array([0, 0, num_heads, width // num_heads]))
    join = graph.constant(np.array([0, 0, width]))
    root = graph.constant(np.array(np.sqrt(width / num_heads), np.float32))
    for _ in range(num_layers):
        query, key, value = (
            graph.add("Transpose", graph.add("Reshape", graph.dense(hidden, width, width), split), perm=order)
            for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        weights = graph.add("Softmax", graph.add("Div", graph.add("MatMul", query, key), root), axis=-1)
        mixed = graph.add("Transpose", graph.add("MatMul", weights, value), perm=[0, 2, 1, 3])
        hidden = _normalise(graph, graph.add("Add", hidden, graph.dense(graph.add("Reshape", mixed, join), width, width)), width)
        inner = graph.dense(hidden, width, 4 * width)
        gate = graph.add("Erf", graph.add("Div", inner, graph.constant(np.array(np.sqrt(2), np.float32))))
        half = graph.add("Mul", inner, graph.constant(np.array(0.5, np.float32)))
        gelu = graph.add("Mul", half, graph.add("Add", gate, graph.constant(np.array(1, np.float32))))
        hidden = _normalise(graph, graph.add("Add", hidden, graph.dense(gelu, 4 * width, width)), width)
    mean = graph.add("ReduceMean", hidden, axes=[1], keepdims=0)
    return graph.save(path, {"input_ids": (TensorProto.INT64, ["n", 128])}, mean, ["n", width])


def save_resnet50(path: Path) -> Path:
    """ResNet-50 at 224 x 224, batch norm folded into its convolutions as exporters do."""
    graph = Graph()

    def convolve(source: str, num_in: int, num_out: int, size: int, stride: int = 1) -> str:
        pads = [size // 2] * 4
        kernel, bias = graph.weight(num_out, num_in, size, size), graph.weight(num_out)
        return graph.add("Conv", source, kernel, bias, kernel_shape=[size, size], strides=[stride, stride], pads=pads)

    hidden = graph.add("Relu", convolve("x", 3, 64, 7, 2))
    hidden = graph.add("MaxPool", hidden, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    num_in = 64
    for stage, num_blocks in enumerate((3, 4, 6, 3)):
        narrow = 64 * 2**stage
        for block in range(num_blocks):
            stride = 2 if stage and not block else 1
            inner = graph.add("Relu", convolve(hidden, num_in, narrow, 1))
            inner = graph.add("Relu", convolve(inner, narrow, narrow, 3, stride))
            inner = convolve(inner, narrow, 4 * narrow, 1)
            around = hidden if block else convolve(hidden, num_in, 4 * narrow, 1, stride)
            hidden = graph.add("Relu", graph.add("Add", inner, around))
            num_in = 4 * narrow
    flat = graph.add("Flatten", graph.add("GlobalAveragePool", hidden), axis=1)
    return graph.save(path, {"x": (TensorProto.FLOAT, ["n", 3, 224, 224])}, graph.dense(flat, num_in, 1000), ["n", 1000])


def _normalise(graph: Graph, source: str, width: int) -> str:
    scale, bias = graph.constant(np.ones(width, np.float32)), graph.constant(np.zeros(width, np.float32))
    return graph.add("LayerNormalization", source, scale, bias, axis=-1)
