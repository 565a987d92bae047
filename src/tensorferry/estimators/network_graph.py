"""The networks of `network`, as part of an ONNX graph: written from their weights, so that no framework takes part.

They compute in float32 whatever precision they were trained in: the weights are float32 in all of them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.estimators.network import FAR, FARTHEST, center_knots, embedding_name
from tensorferry.feature_columns import columns as fc
from tensorferry.feature_columns.encoding import FittedColumns, count_codes
from tensorferry.feature_columns.onnx_columns import add_codes, add_joined, add_numbers, add_sums
from tensorferry.feature_columns.onnx_graph import OnnxGraph, add_all

ReadWeights = Callable[[str], list[NDArray]]  # those of a layer, by its name


def add_network(
    graph: OnnxGraph,
    linear: FittedColumns | None,
    dnn: FittedColumns | None,
    num_hidden: int,
    num_members: int,
    read: ReadWeights,
) -> str:
    """The network's scores, (rows, answers); those of several members are (members, rows, answers)."""
    parts = []
    if linear is not None:
        parts += _add_linear(graph, linear, read)
    if dnn is not None:
        x = _add_deep(graph, dnn, read)
        if num_members > 1:
            (scale,) = read("members")
            x = graph.add("Mul", graph.add("Unsqueeze", x, graph.constant([0])), graph.constant(scale[:, None]))
        for place in range(num_hidden):
            x = add_dense(graph, x, read(f"hidden_{place}"))
            x = graph.add("Mul", x, graph.add("Sigmoid", x))
        parts.append(add_dense(graph, x, read("scores")))
    return add_all(graph, parts)


def add_dense(graph: OnnxGraph, x: str, weights: list[NDArray]) -> str:
    """A product with a matrix, and an offset."""
    kernel, bias = weights
    return str(graph.add("Add", graph.add("MatMul", x, graph.constant(kernel)), graph.constant(bias)))


def _add_linear(graph: OnnxGraph, fitted: FittedColumns, read: ReadWeights) -> list[str]:
    parts = []
    if fitted.numeric:
        parts.append(add_dense(graph, _add_scaled(graph, fitted, ranges=False), read("linear_scaled")))
    learnt = [read(f"linear_{place}")[0] for place in range(len(fitted.categorical))]
    codes = [add_codes(graph, column) for column in fitted.categorical]
    return [*parts, *add_sums(graph, list(zip(codes, learnt, strict=True)))]


def _add_deep(graph: OnnxGraph, fitted: FittedColumns, read: ReadWeights) -> str:
    parts = [_add_scaled(graph, fitted, ranges=True)] if fitted.numeric else []
    looked_up = []
    for place, column in enumerate(fitted.categorical):
        is_learnt = not isinstance(column, fc.Indicator)
        entries = read(embedding_name(column, place))[0] if is_learnt else np.eye(count_codes(column), dtype=np.float32)
        looked_up.append((add_codes(graph, column), entries))
    if looked_up:
        parts.append(add_joined(graph, looked_up))
    return parts[0] if len(parts) == 1 else str(graph.add("Concat", *parts, axis=1))


def _add_scaled(graph: OnnxGraph, fitted: FittedColumns, *, ranges: bool) -> str:
    """`network.ScaledNumbers`, and the centers taken off before it."""
    centers = np.array([each.center for each in fitted.scales])
    numbers = graph.cast(graph.add("Sub", add_numbers(graph, fitted), graph.constant(centers)), "float32")
    missing = graph.add("IsNaN", numbers)
    filled = graph.add("Where", missing, graph.constant(0, "float32"), numbers)
    scaled = graph.add("Div", filled, graph.constant(np.array([each.scale for each in fitted.scales], np.float32)))
    scaled = graph.add("Clip", scaled, graph.constant(-FARTHEST, "float32"), graph.constant(FARTHEST, "float32"))
    far = graph.add("Div", scaled, graph.constant(FAR, "float32"))
    drawn_in = graph.add("Sqrt", graph.add("Add", graph.constant(1, "float32"), graph.add("Mul", far, far)))
    parts: list[Any] = [graph.add("Div", scaled, drawn_in), graph.cast(missing, "float32")]
    knots = {place: center_knots(each) for place, each in enumerate(fitted.scales) if ranges and len(each.knots) > 1}
    if knots:  # all ranges at once: a served row pays for ops, not for numbers
        begins = np.concatenate([each[:-1] for each in knots.values()])
        lengths = np.concatenate([each[1:] - each[:-1] for each in knots.values()])
        columns = np.concatenate([np.full(len(each) - 1, place, np.int64) for place, each in knots.items()])
        passed = graph.add("Sub", graph.add("Gather", filled, graph.constant(columns), axis=1), graph.constant(begins))
        share = graph.add("Div", passed, graph.constant(lengths))
        parts.append(graph.add("Clip", share, graph.constant(0, "float32"), graph.constant(1, "float32")))
    return str(graph.add("Concat", *parts, axis=1))
