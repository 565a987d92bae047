"""An ONNX graph that grows op by op; every op gives the name of what it computes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.errors import BadModel
from tensorferry.extras import load_extra

_OPSET, _TREE_OPSET = 20, 5  # strings can be split since 20; trees may ask whether a value is in a set since 5
_IR_VERSION = 10  # which every runtime reads that has these opsets
TREES = "ai.onnx.ml"


class OnnxGraph:
    """Columns of a table in, whatever is computed from them out; an input is a value a row, shape (rows, 1).

    `number_columns` are those that hold numbers; the others hold texts, of which the empty one is a missing value.
    """

    def __init__(self, number_columns: frozenset[str]) -> None:
        self.number_columns = number_columns
        self._onnx = load_extra("onnx", "exporting an estimator", "optimize")
        self._columns: dict[str, None] = {}
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._made: dict[bytes, Any] = {}  # what there is already, by what it is computed from

    def column(self, name: str) -> str:
        """A column of the table as it is sent."""
        self._columns[name] = None
        return name

    def add(self, op: str, *inputs: str, domain: str = "", num_outputs: int = 1, **attributes: Any) -> Any:
        """What an op gives: a name, or a list of names where it has several outputs; what is there already is not made again."""
        node = self._onnx.helper.make_node(op, list(inputs), [""] * num_outputs, domain=domain, **attributes)
        key = node.SerializeToString(deterministic=True)
        if key not in self._made:
            made = [f"/{op}_{len(self._nodes)}_{place}" for place in range(num_outputs)]
            node.output[:] = made
            self._nodes.append(node)
            self._made[key] = made[0] if num_outputs == 1 else made
        return self._made[key]

    def cast(self, value: str, dtype: str) -> str:
        """The same values in another type, by NumPy's name for it."""
        return str(self.add("Cast", value, to=self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))))

    def constant(self, value: Any, dtype: str | None = None) -> str:
        """A number, or an array of numbers or texts."""
        array: NDArray = np.ascontiguousarray(value, dtype) if np.ndim(value) else np.array(value, dtype)
        tensor = self.tensor(array.astype(object) if array.dtype.kind == "U" else array)
        key = tensor.SerializeToString(deterministic=True)
        if key not in self._made:
            self._made[key] = tensor.name = f"/constant_{len(self._constants)}"
            self._constants.append(tensor)
        return str(self._made[key])

    def tensor(self, array: NDArray, name: str = "") -> Any:
        """An array as an attribute of an op has it."""
        return self._onnx.numpy_helper.from_array(array, name)

    def to_bytes(self, outputs: dict[str, tuple[str, str, int]]) -> bytes:
        """The file of the model; `outputs` gives each output's value, NumPy type and number of columns by name."""
        helper, types = self._onnx.helper, self._onnx.TensorProto
        if taken := [name for name in outputs if name in self._columns]:
            raise BadModel(f"the table's column {taken[0]!r} has the name of an answer; call it otherwise and train again")

        def describe(name: str, kind: int, width: int) -> Any:
            return helper.make_tensor_value_info(name, kind, ["rows", width])

        def kind_of(dtype: str) -> int:
            return int(types.STRING if dtype == "str" else helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

        for name, (value, _, _) in outputs.items():
            self._nodes.append(helper.make_node("Identity", [value], [name]))
        read = {name for node in self._nodes for name in node.input}
        graph = helper.make_graph(
            self._nodes,
            "tensorferry-estimator",
            [describe(name, types.DOUBLE if name in self.number_columns else types.STRING, 1) for name in self._columns],
            [describe(name, kind_of(dtype), width) for name, (_, dtype, width) in outputs.items()],
            [each for each in self._constants if each.name in read],
        )
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(TREES, _TREE_OPSET)]
        made = helper.make_model(graph, opset_imports=opsets, producer_name="tensorferry", ir_version=_IR_VERSION)
        self._onnx.checker.check_model(made)
        return bytes(made.SerializeToString())


def add_all(graph: OnnxGraph, parts: list[str]) -> str:
    """The sum of several values."""
    total = parts[0]
    for part in parts[1:]:
        total = graph.add("Add", total, part)
    return total
