"""Ops of exported programs that trust their caller, called with a look at what they are given.

Without it they would read memory beyond their tensors, write there, or end the process: torch takes shapes, sums and scales that
do not fit each other as they are.
"""

from collections.abc import Callable
from typing import Any

import torch

from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.runtimes.torch_compat import OpOverload

_aten = torch.ops.aten
_MAX_REPEATS = 2**48
_RESIZES = [
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "upsample_trilinear3d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
]


def check_calls(module: torch.nn.Module) -> None:
    """Have a program look at the shapes that it gives to ops which do not."""
    for graph in module.modules():
        if isinstance(graph, torch.fx.GraphModule):
            for node in graph.graph.nodes:
                if node.op == "call_function":
                    node.target = _CHECKED.get(node.target, node.target)
            graph.recompile()


def _lstm(
    sequence: Any, state: list[Any], weights: list[Any], has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    hidden, cell = state
    num_hidden, num_cells, width = hidden.shape[-1], cell.shape[-1], sequence.shape[-1]
    num_directions = 1 + bidirectional
    biases = [(4 * num_cells,)] * 2 if has_biases else []
    projection = [(num_hidden, num_cells)] if num_hidden != num_cells else []
    needed: list[tuple[int, ...]] = []
    for _ in range(min(num_layers, len(weights))):
        needed += num_directions * [(4 * num_cells, width), (4 * num_cells, num_hidden), *biases, *projection]
        width = num_directions * num_hidden
    rows = num_directions * num_layers, sequence.shape[0 if batch_first else 1]
    _check("lstm", [*state, *weights], [(*rows, num_hidden), (*rows, num_cells), *needed])
    if sequence.dim() != 3 or any(each.dtype != sequence.dtype for each in (*state, *weights)):
        raise InvalidRequest("the program calls lstm with tensors of different types")
    return _aten.lstm.input(sequence, state, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first)


def _attend(query: Any, key: Any, value: Any, *options: Any, **more: Any) -> Any:
    _check("scaled_dot_product_attention", [key[..., 0]], [value.shape[:-1]])
    return _aten.scaled_dot_product_attention.default(query, key, value, *options, **more)


def _normalize(batch: Any, weight: Any, bias: Any, mean: Any, variance: Any, *options: Any) -> Any:
    given = [each for each in (weight, bias, mean, variance) if each is not None]
    _check("batch_norm", given, [(batch.shape[1],)] * len(given))
    return _aten._native_batch_norm_legit_no_training.default(batch, weight, bias, mean, variance, *options)


def _weigh(direction: Any, magnitude: Any, dim: int = 0) -> Any:
    if dim != -1:  # which is all of them at once, and looks at shapes
        _check("_weight_norm", [magnitude], [tuple(size if at == dim else 1 for at, size in enumerate(direction.shape))])
    if not direction.numel() or direction.dtype != magnitude.dtype:
        raise InvalidRequest("the program calls _weight_norm with an empty tensor, or with tensors of different types")
    return _aten._weight_norm.default(direction, magnitude, dim)


def _look_up(operator: OpOverload) -> Callable[..., Any]:
    def call(weight: Any, indices: Any, offsets: Any, *options: Any) -> Any:
        if bool((offsets < 0).any()) or bool((offsets.diff() < 0).any()):
            raise InvalidRequest("the program calls embedding_bag with offsets that do not rise from zero up")
        found, *_ = operator(weight, indices, offsets, *options)
        return found, *[offsets.new_zeros(0)] * 3  # what else it gives is for training, and not always written

    return call


def _repeat(given: dict[str, Any]) -> None:
    if bool(given["repeats"].double().sum() > _MAX_REPEATS):  # their sum in whole numbers may have begun again from below
        raise InvalidRequest("the program calls repeat_interleave for more elements than any memory has")


def _resize(given: dict[str, Any]) -> None:
    scales = [value for name, value in given.items() if name.startswith("scales")]
    for before, after, scale in zip(given["self"].shape[2:], given["output_size"], scales, strict=False):
        if scale is not None and not abs(before * scale - after) <= 1:
            raise InvalidRequest(f"the program resizes {before} to {after} by {scale:g}, which do not fit each other")


def _divide(given: dict[str, Any]) -> None:
    number, divisor = given["self"], given["other"]
    kind = torch.result_type(number, divisor)
    if given["rounding_mode"] != "trunc" or kind.is_floating_point or kind.is_complex or kind is torch.bool:
        return
    # the quotient is one more than the type can hold, and the processor ends the process
    is_lowest = number == torch.iinfo(kind).min
    if bool((is_lowest & torch.as_tensor(divisor == -1)).any()):
        raise InvalidRequest(f"the program divides the lowest {str(kind).removeprefix('torch.')} by -1")


def _look_before(operator: OpOverload, look: Callable[[dict[str, Any]], None]) -> Callable[..., Any]:
    """The op, called once `look` has seen its arguments by name."""
    arguments = operator._schema.arguments
    left_out = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}

    def call(*values: Any, **named: Any) -> Any:
        given = {argument.name: value for argument, value in zip(arguments, values, strict=False)}
        look(left_out | given | named)
        return operator(*values, **named)

    return call


def _check(name: str, tensors: list[Any], shapes: list[tuple[int, ...]]) -> None:
    given = [tuple(tensor.shape) for tensor in tensors]
    if given != [tuple(shape) for shape in shapes]:
        raise InvalidRequest(f"the program calls {name} with tensors whose shapes do not fit each other: {given}"[:500])


_CHECKED: dict[Any, Callable[..., Any]] = {
    _aten.lstm.input: _lstm,
    _aten.scaled_dot_product_attention.default: _attend,
    _aten._native_batch_norm_legit_no_training.default: _normalize,
    _aten._weight_norm.default: _weigh,
    _aten.embedding_bag.padding_idx: _look_up(_aten.embedding_bag.padding_idx),
    _aten.embedding_bag.default: _look_up(_aten.embedding_bag.default),
    _aten._embedding_bag.default: _look_up(_aten._embedding_bag.default),
    **{
        operator: _look_before(operator, look)
        for look, operators in {
            _repeat: (_aten.repeat_interleave.Tensor, _aten.repeat_interleave.self_Tensor),
            _resize: [getattr(_aten, name).default for name in _RESIZES],
            _divide: [
                getattr(getattr(_aten, name), overload)
                for name in ("div", "div_", "divide", "divide_")
                for overload in ("Tensor_mode", "Scalar_mode")
            ],
        }.items()
        for operator in operators
    },
}
