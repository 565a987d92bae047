"""Weights alone in int8, prepared so that the answers change as little as they can; nothing that runs becomes slower.

OpenVINO quantises what such weights are multiplied by as it runs, on one scale for every few numbers of a row. Two things make
that finer, both from what the layers are given on samples of the calibration:

- SmoothQuant (Xiao et al., 2022): inputs are divided by what their column of the weights is multiplied with, so that no column
  dwarfs its neighbours on the same scale.
- GPTQ (Frantar et al., 2022), at 8 bits: weights are rounded so that their errors cancel in what they multiply, instead of each
  to its nearest step. The inputs of a layer are alike from one row to the next, so an error in one column can mostly be made
  good in those that are still to be rounded. Which go together is told by the sums of products of the inputs.

Only products with a constant second factor are prepared so. The sums take the square of a layer's width: columns of a wide layer
make errors good within blocks of it, and layers that there is no memory for keep the nearest step.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorferry.optimization.samples import Arrays
from tensorferry.serve.core.tensors import Array

_BLOCK = 1536  # columns that make each other's errors good
_ENOUGH = 2048  # rows that half of the layers were given; a text gives them one for each token, a picture's last layer one
_MAX_SUMS_NBYTES = 2**29  # of all layers
_SMOOTHING = 0.5  # the share of the difference between columns that the weights take over
_LEAST = 1e-5  # of a column, so that nothing is divided by zero
_LEAST_SHARE = 0.01  # of the usual column: what these samples never used others may
_DAMPING = 0.01  # of the mean of the diagonal, added to it: with columns that are never used there would be no inverse
_NUM_ROUNDED_AT_ONCE = 64  # columns
_RANGES = {"u8": (0, 255), "i8": (-127, 127)}


@dataclass(frozen=True)
class LayerInputs:
    """What a layer was given: a number for each column."""

    largest: Array
    sums: tuple[Array, ...]  # of the products of each two columns, a block after the other; empty: there was no memory for them

    def divide(self, by: Array) -> "LayerInputs":
        """The same of inputs that are divided by a number for each column."""
        sums = tuple(total / np.outer(by[block], by[block]) for block, total in zip(_blocks(len(by)), self.sums, strict=False))
        return LayerInputs(self.largest / by, sums)


@dataclass(frozen=True)
class CompressedLayer:
    """The int8 weights of one layer as they stand in a model."""

    name: str
    constant: Any  # the node that holds the codes
    scale: Array  # of each output: what a step is worth
    zero: Array  # the code of zero
    is_turned: bool  # a row for each output, instead of a column


def watch_inputs(model: Any, rows: Iterable[Arrays], compile_model: Callable[[Any], Any]) -> dict[str, LayerInputs]:
    """What each product with weights is given on these rows, or on the first of them if those are enough, by the layer's name."""
    watched = model.clone()
    places: dict[tuple[str, int], list[str]] = {}  # several layers may be given the same
    widths = []
    for op in list(list_products(watched)):
        source = op.input_value(0)
        place = (source.get_node().get_friendly_name(), source.get_index())
        if place not in places:
            watched.add_outputs([source])
            widths.append(_count_columns(op))
        places.setdefault(place, []).append(op.get_friendly_name())
    is_summed = _choose_summed(widths)
    request = compile_model(watched).create_infer_request()
    largest: list[Array] = [np.zeros(width, np.float32) for width in widths]
    blocks = [_blocks(width) if chosen else [] for width, chosen in zip(widths, is_summed, strict=True)]
    sums = [[np.zeros((each.stop - each.start,) * 2, np.float32) for each in parts] for parts in blocks]
    num_given = [0] * len(widths)
    for row in rows:
        if num_given and sorted(num_given)[len(num_given) // 2] >= _ENOUGH:
            break
        request.infer(row, share_inputs=True)
        for at in range(len(widths)):
            given = request.get_output_tensor(len(model.outputs) + at).data
            given = given.reshape(-1, given.shape[-1])
            num_given[at] += len(given)
            largest[at] = np.maximum(largest[at], np.abs(given).max(0))
            for block, total in zip(blocks[at], sums[at], strict=True):
                np.add(total, given[:, block].T @ given[:, block], out=total)
    found = [LayerInputs(*each) for each in zip(largest, map(tuple, sums), strict=True)]
    return {name: inputs for names, inputs in zip(places.values(), found, strict=True) for name in names}


def _blocks(width: int) -> list[slice]:
    """The blocks of a layer's columns."""
    return [slice(at, min(width, at + _BLOCK)) for at in range(0, width, _BLOCK)]


def _choose_summed(widths: list[int]) -> list[bool]:
    """Which layers there is memory for, the narrow ones first."""
    chosen, nbytes = [False] * len(widths), 0
    for width, at in sorted((width, at) for at, width in enumerate(widths)):
        nbytes += 4 * width * min(width, _BLOCK)
        chosen[at] = nbytes <= _MAX_SUMS_NBYTES
    return chosen


def smooth(model: Any, inputs: Mapping[str, LayerInputs]) -> dict[str, LayerInputs]:
    """Move what differs between the columns of a layer's inputs into its weights, in place; returns what layers are given now."""
    from openvino import opset13

    given = dict(inputs)
    for op in list(list_products(model)):
        name = op.get_friendly_name()
        weights = op.input(1).get_source_output().get_node()
        columns = _with_outputs_last(op, weights.data)
        largest = inputs[name].largest
        wanted = np.maximum(largest, max(_LEAST, _LEAST_SHARE * float(np.median(largest)))) ** _SMOOTHING
        by = wanted / np.maximum(np.abs(columns).max(1), _LEAST) ** (1 - _SMOOTHING)
        by = (by / np.exp(np.log(by).mean())).astype(np.float32)
        turned = by[None] if op.get_attributes()["transpose_b"] else by[:, None]
        constant = opset13.constant(np.ascontiguousarray(weights.data * turned))
        constant.set_friendly_name(weights.get_friendly_name())
        divided = opset13.multiply(op.input_value(0), opset13.constant(1 / by))
        divided.set_friendly_name(f"{name}/smooth")
        op.input(0).replace_source_output(divided.output(0))
        op.input(1).replace_source_output(constant.output(0))
        given[name] = inputs[name].divide(by)
    return given


def choose_codes(model: Any, compressed: Any, inputs: Mapping[str, LayerInputs]) -> dict[str, Array]:
    """For each layer of `compressed` the codes that cost its answers least; `model` is the same in fp32, given `inputs`."""
    products = {op.get_friendly_name(): op for op in list_products(model)}
    codes = {}
    for layer in list_compressed_layers(compressed):
        op, given = products.get(layer.name), inputs.get(layer.name)
        if op is None or given is None or not given.sums:
            continue
        columns = _with_outputs_last(op, op.input(1).get_source_output().get_node().data)
        ends = _RANGES[layer.constant.get_element_type().to_string()]
        parts = zip(_blocks(len(columns)), given.sums, strict=True)
        chosen = np.concatenate([round_columns(columns[block], sums, layer.scale, layer.zero, ends) for block, sums in parts])
        codes[layer.name] = np.ascontiguousarray(chosen.T if layer.is_turned else chosen).astype(layer.constant.data.dtype)
    return codes


def write_codes(compressed: Any, codes: Mapping[str, Array]) -> None:
    """Put these codes in the place of those that the model has."""
    from openvino import opset13

    for layer in list(list_compressed_layers(compressed)):
        if layer.name in codes:
            constant = opset13.constant(codes[layer.name])
            constant.set_friendly_name(layer.constant.get_friendly_name())
            for each in list(layer.constant.output(0).get_target_inputs()):
                each.replace_source_output(constant.output(0))


def round_columns(weights: Array, sums: Array, scale: Array, zero: Array, ends: tuple[int, int]) -> Array:
    """Codes for weights that stand in a row for each input; `sums` are those of the products of each two inputs."""
    # what is used most is rounded first, while there is much left that can make it good
    order = np.argsort(-np.diag(sums), kind="stable")
    rest = weights[order].astype(np.float32)
    damped = sums[np.ix_(order, order)].astype(np.float64)
    damped[np.diag_indices_from(damped)] += _DAMPING * max(float(np.mean(np.diag(damped))), _LEAST)
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T.astype(np.float32)
    step, middle = scale.astype(np.float32), zero.astype(np.float32)
    codes = np.empty_like(rest)
    for begin in range(0, len(rest), _NUM_ROUNDED_AT_ONCE):
        end = min(len(rest), begin + _NUM_ROUNDED_AT_ONCE)
        errors = np.empty_like(rest[begin:end])
        for at in range(begin, end):
            codes[at] = np.clip(np.round(rest[at] / step) + middle, *ends)
            errors[at - begin] = (rest[at] - (codes[at] - middle) * step) / factor[at, at]
            rest[at + 1 : end] -= np.outer(factor[at, at + 1 : end], errors[at - begin])
        rest[end:] -= factor[begin:end, end:].T @ errors
    found = np.empty_like(codes)
    found[order] = codes
    return found


def list_compressed_layers(model: Any) -> Iterator[CompressedLayer]:
    """The products of a model whose second factor is int8 codes with one scale for each output."""
    for op in model.get_ordered_ops():
        if op.get_type_name() != "MatMul" or op.get_attributes()["transpose_a"]:
            continue
        constant, scale, zero = _read_codes(op.input(1).get_source_output().get_node())
        if constant is None or constant.get_element_type().to_string() not in _RANGES or len(constant.shape) != 2:
            continue
        is_turned = op.get_attributes()["transpose_b"]
        if scale.size == constant.shape[0 if is_turned else 1] and zero.size in (1, scale.size):
            yield CompressedLayer(op.get_friendly_name(), constant, scale, zero, is_turned)


def _read_codes(node: Any) -> tuple[Any, Array, Array]:
    """The node with the codes behind what turns them into numbers again (None: there is none), their scale, the code of zero."""
    scale, zero = np.ones(0), np.zeros(1)
    while node.get_type_name() in ("Convert", "Multiply", "Subtract"):
        if node.get_type_name() == "Multiply":
            scale = _read_constant(node.input(1))
        elif node.get_type_name() == "Subtract":
            zero = _read_constant(node.input(1))
        node = node.input(0).get_source_output().get_node()
    return node if node.get_type_name() == "Constant" else None, scale, zero


def _read_constant(place: Any) -> Array:
    node = place.get_source_output().get_node()
    while node.get_type_name() == "Convert":
        node = node.input(0).get_source_output().get_node()
    return node.data.reshape(-1).astype(np.float32) if node.get_type_name() == "Constant" else np.ones(0, np.float32)


def list_products(model: Any) -> Iterator[Any]:
    """The products of a model with weights that are a matrix of fp32 numbers."""
    for op in model.get_ordered_ops():
        if op.get_type_name() == "MatMul" and not op.get_attributes()["transpose_a"]:
            weights = op.input(1).get_source_output().get_node()
            is_matrix = weights.get_type_name() == "Constant" and len(weights.shape) == 2
            if is_matrix and weights.get_element_type().to_string() == "f32":
                yield op


def _with_outputs_last(op: Any, weights: Array) -> Array:
    return weights.T if op.get_attributes()["transpose_b"] else weights


def _count_columns(op: Any) -> int:
    rows, columns = op.input(1).get_source_output().get_node().shape
    return int(columns if op.get_attributes()["transpose_b"] else rows)
