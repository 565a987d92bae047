"""An OpenVINO model with some layers back in fp32: their quantisers are passed by.

NNCF puts a FakeQuantize before each input of a layer, its weights among them. A layer whose inputs skip theirs computes in fp32
again, with the weights that it had; its neighbours keep their own quantisers.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

_QUANTISER = "FakeQuantize"
# what only passes numbers on: a quantiser in front of it belongs to the layer behind
_SHAPERS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Convert", "Slice", "StridedSlice", "Split"})


def list_layers(model: Any) -> tuple[str, ...]:
    """What computes in int8, in order: products, and sums too, whose quantisers may cost more answers than all products do."""
    return tuple(
        op.get_friendly_name()
        for op in model.get_ordered_ops()
        if op.get_type_name() not in _SHAPERS | {_QUANTISER} and any(_find_quantised(each) is not None for each in op.inputs())
    )


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


def _find_quantised(place: Any) -> Any:
    """The input, here or in front of what only passes numbers on, that comes from a quantiser; None where none does."""
    while True:
        node = place.get_source_output().get_node()
        if node.get_type_name() == _QUANTISER:
            return place
        if node.get_type_name() not in _SHAPERS:
            return None
        place = node.input(0)
