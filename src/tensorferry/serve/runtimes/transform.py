"""The steps around a model: a client's image, text or scan into the model's inputs, and its scores into what they mean.

What a step does is data (`transform.json`), written by `ferry optimize` from what the model was trained with; no code is loaded.
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.tensors import DATATYPES, Array
from tensorferry.serve.runtimes.runtime import LoadOptions, Signature, TensorSignature
from tensorferry.serve.runtimes.volumes import Step, make_segmentation, make_volume

_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
_MAX_PIXELS = 2**26  # of one image; a few bytes can claim to hold far more


def load(options: LoadOptions) -> "TransformRuntime":
    """The step that a file describes."""
    try:
        description = json.loads(options.path.read_text("utf-8"))
        signature, step = _KINDS[description["kind"]](description)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadModel(f"cannot read {options.path.name}: {type(error).__name__}: {error}") from None
    return TransformRuntime(signature, step)


class TransformRuntime:
    """One step for all runners: it keeps nothing between two calls."""

    def __init__(self, signature: Signature, step: Step) -> None:
        self.signature: Signature | None = signature
        self.step = step

    def new_runner(self) -> "TransformRunner":
        """One more runner of the same step."""
        return TransformRunner(self.step)

    def close(self) -> None:
        """Nothing is held."""


class TransformRunner:
    """Calls the step."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """The named outputs."""
        made = self.step(inputs)
        return [made[name] for name in outputs]

    def close(self) -> None:
        """Nothing is held."""


def _make_image(description: dict[str, Any]) -> tuple[Signature, Step]:
    import_module("PIL.Image")  # missing: said when the model is loaded, not at the first request
    height, width, channels_first = int(description["height"]), int(description["width"]), description["layout"] == "NCHW"
    mean, std = (np.asarray(description[name], np.float32) for name in ("mean", "std"))
    if mean.shape != (3,) or std.shape != (3,) or description["resize"] not in ("crop", "squash"):
        raise ValueError("expected three means, three deviations and a resize of 'crop' or 'squash'")
    output = description["input"]

    def step(inputs: Mapping[str, Array]) -> dict[str, Array]:
        rows = [read_image(data, height, width, description["resize"]) for data in inputs["IMAGE"].reshape(-1).tolist()]
        images = (np.stack(rows).astype(np.float32) - mean) / std
        return {output: np.ascontiguousarray(images.transpose(0, 3, 1, 2)) if channels_first else images}

    shape = (-1, 3, height, width) if channels_first else (-1, height, width, 3)
    signature = Signature((TensorSignature("IMAGE", "BYTES", (-1, 1)),), (TensorSignature(output, "FP32", shape),))
    return signature, step


def read_image(data: bytes, height: int, width: int, resize: str) -> Array:
    """An image file's pixels as height x width x 3: squashed, or its middle with the shorter side fitted ("crop")."""
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as opened:
            if opened.width * opened.height > _MAX_PIXELS:
                raise InvalidRequest(f"the image has {opened.width}x{opened.height} pixels; at most {_MAX_PIXELS:,} are taken")
            image = ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InvalidRequest(f"the bytes are no image that can be read ({', '.join(_FORMATS)}): {error}") from None
    share = min(image.width / width, image.height / height)
    size = (share * width, share * height) if resize == "crop" else (image.width, image.height)
    left, top = (image.width - size[0]) / 2, (image.height - size[1]) / 2
    box = (left, top, left + size[0], top + size[1])
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR, box=box))


def _make_text(description: dict[str, Any]) -> tuple[Signature, Step]:
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_str(description["tokenizer"])
    except Exception as error:  # the library raises nothing more specific
        raise BadModel(f"cannot read the tokenizer of a transform: {error}") from None
    tokenizer.enable_truncation(int(description["max_length"]))
    tokenizer.no_padding()  # to the longest of a batch, below
    ids_name, mask_name, pad = description["ids"], description["mask"], int(description.get("pad", 0))
    dtype = np.dtype(description.get("dtype", "int64"))

    def step(inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            texts = [data.decode() for data in inputs["TEXT"].reshape(-1).tolist()]
        except UnicodeDecodeError:
            raise InvalidRequest("input 'TEXT' holds bytes that are not UTF-8 text") from None
        rows = [row.ids for row in tokenizer.encode_batch(texts)]
        length = max(1, *map(len, rows))
        ids = np.full((len(rows), length), pad, dtype)
        mask = np.zeros((len(rows), length), dtype)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = row
            mask[at, : len(row)] = 1
        return {ids_name: ids, mask_name: mask}

    outputs = tuple(TensorSignature(name, DATATYPES[dtype], (-1, -1)) for name in (ids_name, mask_name))
    return Signature((TensorSignature("TEXT", "BYTES", (-1, 1)),), outputs), step


def _make_labels(description: dict[str, Any]) -> tuple[Signature, Step]:
    labels = [str(label).encode() for label in description["labels"]]
    scores = description["scores"]

    def step(inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = np.empty((len(inputs[scores]), 1), np.object_)
        found[:, 0] = [labels[at] for at in inputs[scores].argmax(1)]
        return {"LABEL": found}

    ends = (TensorSignature(scores, "FP32", (-1, len(labels))),), (TensorSignature("LABEL", "BYTES", (-1, 1)),)
    return Signature(*ends), step


_KINDS: dict[str, Callable[[dict[str, Any]], tuple[Signature, Step]]] = {
    "image": _make_image,
    "text": _make_text,
    "labels": _make_labels,
    "volume": make_volume,
    "segmentation": make_segmentation,
}
