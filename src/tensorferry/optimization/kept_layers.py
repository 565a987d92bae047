"""An OpenVINO model with some layers back in fp32: their quantisers are passed by.

NNCF puts a FakeQuantize before each input of a layer, its weights among them. A layer whose inputs skip theirs computes in fp32
again, with the weights that it had; its neighbours keep their own quantisers. Where weights alone are int8 a layer is given those
of the model that they were made from.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

_QUANTISER = "FakeQuantize"
# what only passes numbers on: a quantiser in front of it belongs to the layer behind
_SHAPERS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Convert", "Slice", "StridedSlice", "Split"})
_UNPACKERS = frozenset({"Multiply", "Subtract"})  # between int8 weights and what multiplies by them


def list_layers(model: Any) -> tuple[str, ...]:
    """What computes in int8, in order: products, and sums too, whose quantisers may cost more answers than all products do."""
    return tuple(
        op.get_friendly_name()
        for op in model.get_ordered_ops()
        if op.get_type_name() not in _SHAPERS | {_QUANTISER} and any(_find_quantised(each) is not None for each in op.inputs())
    )


def list_compressed(model: Any) -> tuple[str, ...]:
    """What has weights alone in int8, in order."""
    ops = [op for op in model.get_ordered_ops() if op.get_type_name() not in _SHAPERS | _UNPACKERS]
    return tuple(op.get_friendly_name() for op in ops if any(map(_has_int8_weights, op.inputs())))


def write_kept(model: Any, kept: Collection[str], folder: Path) -> Path:
    """Write the model with these layers in fp32; it is not changed itself."""
    import openvino as ov

    # the step that nncf.quantize itself ends with: weights behind a quantiser become int8
    from openvino._offline_transformations import compress_quantize_weights_transformation

    copy = model.clone()
    names = set(kept)
    for op in copy.get_ordered_ops():
        if op.get_friendly_name() in names:
            for each in op.inputs():
                quantised = _find_quantised(each)
                if quantised is not None:
                    quantiser = quantised.get_source_output().get_node()
                    quantised.replace_source_output(quantiser.input_value(0))
    compress_quantize_weights_transformation(copy)
    ov.save_model(copy, folder / "model.xml", compress_to_fp16=False)
    return folder / "model.xml"


def restore_weights(compressed: Any, original: Any, kept: Collection[str]) -> None:
    """Give these layers, in place, the weights that they have in the original."""
    from openvino import opset13

    names = set(kept)
    originals = {op.get_friendly_name(): op for op in original.get_ordered_ops() if op.get_friendly_name() in names}
    for op in compressed.get_ordered_ops():
        if op.get_friendly_name() not in names:
            continue
        for at, place in enumerate(op.inputs()):
            if _has_int8_weights(place):
                weights = _skip_shapers(originals[op.get_friendly_name()].input(at)).get_source_output().get_node()
                _skip_shapers(place).replace_source_output(opset13.constant(weights.data).output(0))


def _skip_shapers(place: Any) -> Any:
    """The input in front of what only passes numbers on."""
    while place.get_source_output().get_node().get_type_name() in _SHAPERS:
        place = place.get_source_output().get_node().input(0)
    return place


def _has_int8_weights(place: Any) -> bool:
    """Whether an input is int8 numbers that are scaled back on the way."""
    node = place.get_source_output().get_node()
    while node.get_type_name() in _SHAPERS | _UNPACKERS:
        node = node.input(0).get_source_output().get_node()
    return bool(node.get_type_name() == "Constant") and node.get_element_type().to_string() in ("u8", "i8")


def _find_quantised(place: Any) -> Any:
    """The input, here or in front of what only passes numbers on, that comes from a quantiser; None where none does."""
    while True:
        node = place.get_source_output().get_node()
        if node.get_type_name() == _QUANTISER:
            return place
        if node.get_type_name() not in _SHAPERS:
            return None
        place = node.input(0)
