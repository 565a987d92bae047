"""An estimator's ONNX graph carried out by TensorFlow's ops, and so written as a SavedModel.

Only the ops that estimators' graphs are made of are known, each as it is used there; see `feature_columns.onnx_graph`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import tensorflow as tf
from onnx import helper, numpy_helper

from tensorferry.estimators.tensorflow_trees import sum_trees

Tensors = dict[str, Any]  # by the name of the value

_PLAIN: dict[str, Callable[..., Any]] = {
    "Add": tf.add,
    "And": tf.logical_and,
    "Clip": tf.clip_by_value,
    "Div": tf.divide,
    "Equal": tf.equal,
    "Floor": tf.floor,
    "Greater": tf.greater,
    "GreaterOrEqual": tf.greater_equal,
    "Identity": tf.identity,
    "IsNaN": tf.math.is_nan,
    "Less": tf.less,
    "Log": tf.math.log,
    "MatMul": tf.matmul,
    "Max": tf.maximum,
    "Min": tf.minimum,
    "Mod": tf.math.floormod,
    "Mul": tf.multiply,
    "Range": tf.range,
    "Shape": lambda x: tf.shape(x, tf.int64),
    "Sigmoid": tf.sigmoid,
    "Sqrt": tf.sqrt,
    "Sub": tf.subtract,
    "Where": tf.where,
}


def _read(axes: Any) -> list[int]:
    return [int(axis) for axis in tf.get_static_value(axes)]


def _slice(x: Any, start: Any, stop: Any, axis: Any) -> Any:
    assert _read(axis) == [1]
    return x[:, _read(start)[0] : _read(stop)[0]]


def _split(cells: Any, separator: str) -> tuple[Any, Any]:
    """The words of every cell, (rows, 1, most words), and how many there are."""
    words = tf.strings.split(cells[:, 0], separator)
    return words.to_tensor("")[:, None], words.row_lengths()[:, None]


_WITH_ATTRIBUTES: dict[str, Callable[..., Any]] = {
    "ArgMax": lambda x, axis, keepdims: tf.expand_dims(tf.argmax(x, axis), axis) if keepdims else tf.argmax(x, axis),
    "Cast": lambda x, to: tf.cast(x, helper.tensor_dtype_to_np_dtype(to)),
    "Concat": lambda *parts, axis: tf.concat(parts, axis),
    "Expand": lambda x, shape: tf.broadcast_to(x, tf.broadcast_dynamic_shape(tf.shape(x, tf.int64), shape)),
    "Gather": lambda x, places, axis=0: tf.gather(x, places, axis=axis),
    "ReduceMean": lambda x, axes, keepdims=1: tf.reduce_mean(x, axes, keepdims=bool(keepdims)),
    "ReduceSum": lambda x, axes, keepdims=1: tf.reduce_sum(x, axes, keepdims=bool(keepdims)),
    "Slice": _slice,
    "Softmax": tf.nn.softmax,
    "Squeeze": lambda x, axes: tf.squeeze(x, _read(axes)),
    "StringSplit": lambda x, delimiter: _split(x, delimiter.decode()),
    "TreeEnsemble": sum_trees,
    "Unsqueeze": lambda x, axes: tf.expand_dims(x, _read(axes)[0]),
}


class EstimatorModule(tf.Module):
    """What a SavedModel of an estimator holds."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self._graph = onnx.load_from_string(content).graph
        self._tables: dict[str, Any] = {}  # tracked, so that they are saved
        for node in self._graph.node:
            if node.op_type == "LabelEncoder":
                self._tables[node.output[0]] = _make_table(_read_attributes(node))

    def list_inputs(self) -> dict[str, tf.TensorSpec]:
        """The columns, by name."""
        return {
            each.name: tf.TensorSpec((None, 1), helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type), name=each.name)
            if each.type.tensor_type.elem_type != onnx.TensorProto.STRING
            else tf.TensorSpec((None, 1), tf.string, name=each.name)
            for each in self._graph.input
        }

    def answer(self, columns: Tensors) -> Tensors:
        """The outputs of the graph."""
        values: Tensors = dict(columns)
        for each in self._graph.initializer:
            values[each.name] = tf.constant(numpy_helper.to_array(each))
        for node in self._graph.node:
            inputs = [values[name] for name in node.input]
            if node.op_type == "LabelEncoder":
                found = self._tables[node.output[0]](inputs[0])
            elif node.op_type in _PLAIN:
                found = _PLAIN[node.op_type](*inputs)
            else:
                found = _WITH_ATTRIBUTES[node.op_type](*inputs, **_read_attributes(node))
            values.update(zip(node.output, found if isinstance(found, tuple) else (found,), strict=True))
        return {each.name: values[each.name] for each in self._graph.output}


def write_saved_model(content: bytes, folder: str) -> None:
    """Write an estimator's ONNX file as a SavedModel, which takes the same columns under the same names."""
    module = EstimatorModule(content)
    function = tf.function(lambda **columns: module.answer(columns), autograph=False)
    signature = function.get_concrete_function(**module.list_inputs())
    tf.saved_model.save(module, folder, signatures={"serving_default": signature})


class _Words(tf.Module):
    """Places of words."""

    def __init__(self, keys: Any, places: Any, default: Any) -> None:
        super().__init__()
        found = tf.lookup.KeyValueTensorInitializer(tf.constant(keys, tf.string), tf.constant(places, tf.int64))
        self.table = tf.lookup.StaticHashTable(found, int(default[0]))

    def __call__(self, words: Any) -> Any:
        return self.table.lookup(words)


class _Numbers(tf.Module):
    """Values of numbers, of which NaN is one."""

    def __init__(self, keys: Any, values: Any, default: Any) -> None:
        super().__init__()
        known = ~np.isnan(keys)
        order = np.argsort(keys[known])
        self.keys, self.values = np.append(keys[known][order], np.inf), np.append(values[known][order], default)
        self.missing, self.default = (values[~known][0] if (~known).any() else default[0]), default[0]

    def __call__(self, numbers: Any) -> Any:
        flat = tf.reshape(numbers, [-1])
        places = tf.searchsorted(tf.constant(self.keys), flat)
        places = tf.minimum(places, len(self.keys) - 1)
        found = tf.where(tf.gather(self.keys, places) == flat, tf.gather(self.values, places), self.default)
        return tf.reshape(tf.where(tf.math.is_nan(flat), self.missing, found), tf.shape(numbers))


def _make_table(attributes: dict[str, Any]) -> Any:
    keys, values, default = (attributes[f"{part}_tensor"] for part in ("keys", "values", "default"))
    return (_Words if keys.dtype == object else _Numbers)(keys, values, default)


def _read_attributes(node: Any) -> dict[str, Any]:
    found = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    return {name: numpy_helper.to_array(each) if isinstance(each, onnx.TensorProto) else each for name, each in found.items()}
