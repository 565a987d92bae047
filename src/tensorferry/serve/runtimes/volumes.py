"""The steps around a network that segments volumes: a client's NIfTI file into a cube, and scores into millilitres and a picture.

A file is a few bytes that can claim to hold far more, so what its header says is compared with what there is before room is
made for it. What the file says of its axes and of the size of its voxels is believed.
"""

import io
import logging
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tensorferry.extras import load_extra
from tensorferry.recipes.data.segmentation import draw_slice
from tensorferry.recipes.data.volumes import fit_cube
from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.tensors import Array
from tensorferry.serve.runtimes.runtime import Signature, TensorSignature

Step = Callable[[Mapping[str, Array]], dict[str, Array]]
_MAX_VOXELS = 2**25  # of one scan, all channels; ten heads at a millimetre
_MAX_NBYTES = 8 * _MAX_VOXELS + 2**20  # of a file once it is unpacked
_GZIP = b"\x1f\x8b"
_MAX_EDGE = 512
_VOXEL = "VOXEL_MM"


def make_volume(description: dict[str, Any]) -> tuple[Signature, Step]:
    """NIfTI files into cubes of `edge` voxels a side, and how long these voxels are."""
    for module in ("nibabel", "scipy.ndimage"):  # missing: said when the model is loaded, not at the first request
        load_extra(module, "a step that reads scans", "volumes")
    logging.getLogger("nibabel.global").setLevel(logging.CRITICAL)  # it would log what clients send
    name, edge, num_channels = description["input"], int(description["edge"]), int(description["channels"])
    if not (0 < edge <= _MAX_EDGE and num_channels > 0):
        raise ValueError(f"expected an edge from 1 to {_MAX_EDGE} and at least one channel")

    def step(inputs: Mapping[str, Array]) -> dict[str, Array]:
        cubes = [_fit_scan(data, edge, num_channels) for data in inputs["SCAN"].reshape(-1).tolist()]
        return {
            name: np.stack([cube for cube, _ in cubes]),
            _VOXEL: np.array([[voxel] for _, voxel in cubes], np.float32),
        }

    outputs = (
        TensorSignature(name, "FP32", (-1, edge, edge, edge, num_channels)),
        TensorSignature(_VOXEL, "FP32", (-1, 1)),
    )
    return Signature((TensorSignature("SCAN", "BYTES", (-1, 1)),), outputs), step


def make_segmentation(description: dict[str, Any]) -> tuple[Signature, Step]:
    """Scores for every voxel into classes, the millilitres of each class but the first, and a picture of the middle."""
    load_extra("PIL.ImageDraw", "a step that draws a segmentation", "volumes")
    labels = [str(label) for label in description["labels"]]
    scores, volumes = description["scores"], description["volumes"]
    if len(labels) < 2:
        raise ValueError("expected labels for two classes or more")

    def step(inputs: Mapping[str, Array]) -> dict[str, Array]:
        classes = inputs[scores].argmax(-1).astype(np.uint8)
        counts = np.array([np.bincount(each.reshape(-1), minlength=len(labels))[1:] for each in classes])
        pictures, names = (np.empty((len(classes), num), np.object_) for num in (1, len(labels) - 1))
        pictures[:, 0] = [draw_slice(*pair, labels) for pair in _list_slices(inputs[volumes], classes)]
        names[:] = [label.encode() for label in labels[1:]]
        millilitres = counts * (inputs[_VOXEL].astype(np.float64) ** 3 / 1000)
        return {"CLASSES": classes, "VOLUMES_ML": millilitres.astype(np.float32), "LABELS": names, "PICTURE": pictures}

    inputs = (
        TensorSignature(scores, "FP32", (-1, -1, -1, -1, len(labels))),
        TensorSignature(volumes, "FP32", (-1, -1, -1, -1, -1)),
        TensorSignature(_VOXEL, "FP32", (-1, 1)),
    )
    outputs = (
        TensorSignature("VOLUMES_ML", "FP32", (-1, len(labels) - 1)),
        TensorSignature("LABELS", "BYTES", (-1, len(labels) - 1)),
        TensorSignature("PICTURE", "BYTES", (-1, 1)),
        TensorSignature("CLASSES", "UINT8", (-1, -1, -1, -1)),
    )
    return Signature(inputs, outputs), step


def _list_slices(volumes: Array, classes: Array) -> list[tuple[Array, None, Array, int]]:
    return [(volume, None, found, found.shape[1] // 2) for volume, found in zip(volumes, classes, strict=True)]


def _fit_scan(data: bytes, edge: int, num_channels: int) -> tuple[Array, float]:
    image, spacing = read_scan(data)
    if image.shape[-1] != num_channels:
        raise InvalidRequest(f"the scan has {image.shape[-1]} channels; the model was trained on {num_channels}")
    return fit_cube(image, spacing, edge)


def read_scan(data: bytes) -> tuple[Array, tuple[float, float, float]]:
    """The voxels of a NIfTI file, channels last and axes to right, forward and up, and their sizes; raises InvalidRequest."""
    nibabel: Any = load_extra("nibabel", "a step that reads scans", "volumes")
    try:
        raw = _unpack(data)
        version = nibabel.Nifti2Image if raw[:4] in (b"\x1c\x02\0\0", b"\0\0\x02\x1c") else nibabel.Nifti1Image
        _check_header(version.header_class.from_fileobj(io.BytesIO(raw), check=False), len(raw))
        turned = nibabel.as_closest_canonical(version.from_bytes(raw))
        voxels = np.asarray(turned.dataobj, np.float32)
        x, y, z = (float(step) for step in turned.header.get_zooms()[:3])
    except InvalidRequest:
        raise
    except Exception as error:  # whatever a parser of foreign bytes stumbles over
        raise InvalidRequest(f"the bytes are no NIfTI file that can be read: {str(error)[:200]}") from None
    if not all(math.isfinite(step) and step > 0 for step in (x, y, z)) or max(x, y, z) > 1000 * min(x, y, z):
        raise InvalidRequest(f"the scan's voxels are {x:g} x {y:g} x {z:g} mm, which cannot be")
    if not np.isfinite(voxels).all():
        raise InvalidRequest("the scan holds voxels that are NaN or infinite; replace them by zero")
    return (voxels if voxels.ndim == 4 else voxels[..., None]), (x, y, z)


def _unpack(data: bytes) -> bytes:
    """The file's bytes, and no more of them than a scan may have."""
    if data[:2] == _GZIP:
        data = zlib.decompressobj(wbits=31).decompress(data, _MAX_NBYTES + 1)
    if len(data) > _MAX_NBYTES:
        raise InvalidRequest(f"the scan has more than {_MAX_NBYTES >> 20} MiB; at most {_MAX_VOXELS:,} voxels are taken")
    return data


def _check_header(header: Any, nbytes: int) -> None:
    shape = header.get_data_shape()
    if len(shape) not in (3, 4) or min(shape, default=0) < 1:
        raise InvalidRequest(f"the scan has the shape {list(shape)[:8]}; expected three axes, or four with channels last")
    if math.prod(shape) > _MAX_VOXELS:
        raise InvalidRequest(f"the scan has {math.prod(shape):,} voxels; at most {_MAX_VOXELS:,} are taken")
    dtype = header.get_data_dtype()
    if dtype.kind not in "iuf":
        raise InvalidRequest(f"the scan's voxels are {dtype}; expected numbers")
    if math.prod(shape) * dtype.itemsize > nbytes:
        raise InvalidRequest(f"the scan ends too early: {nbytes:,} bytes are no {math.prod(shape):,} voxels of {dtype}")
