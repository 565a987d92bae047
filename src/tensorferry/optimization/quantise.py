"""int8: weights and activations on 256 steps, whose width is calibrated on real samples.

Which way works best depends on the graph, so each is a candidate like any other, and the gate decides. For OpenVINO: NNCF, and
weights alone, which keep nearly every answer at a quarter of the size. For onnxruntime: static quantisation (convolutions) and
dynamic quantisation (products of transformers, no calibration needed). Without VNNI pairs of products overflow 16 bits unless
weights keep to half of their range; all but the weights alone do.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorferry.extras import missing_extra
from tensorferry.optimization.samples import Arrays

_NUM_CALIBRATION = 128  # rows; more only takes longer


@dataclass(frozen=True)
class Quantiser:
    """One way to an int8 file."""

    title: str
    variant: str  # what tells it from the backend's other ways
    write: Callable[[Path, Arrays, Path], Path]  # from an fp32 file and samples, into a folder


def list_quantisers(backend: str) -> tuple[Quantiser, ...]:
    """The ways to int8 for a backend's files."""
    return {
        "openvino": (
            Quantiser("NNCF", "NNCF", _quantise_openvino),
            Quantiser("NNCF, weights alone", "weights", _quantise_weights),
        ),
        "onnxruntime": (
            Quantiser("onnxruntime, static", "static", _quantise_static),
            Quantiser("onnxruntime, dynamic", "dynamic", _quantise_dynamic),
        ),
    }.get(backend, ())


def _quantise_openvino(path: Path, samples: Arrays, folder: Path) -> Path:
    import openvino as ov

    from tensorferry.serve.runtimes.openvino import open_core

    nncf = _import_nncf()
    model = open_core().read_model(path)
    rows = list(_single_rows(samples))
    kinds = {node.get_type_name() for node in model.get_ops()}
    is_transformer = bool(kinds & {"Softmax", "ScaledDotProductAttention"}) and not any("Convolution" in kind for kind in kinds)
    model_type = nncf.ModelType.TRANSFORMER if is_transformer else None
    overflow_fix = None if _has_vnni() else nncf.OverflowFix.ENABLE  # None: as NNCF does by itself
    quantised = nncf.quantize(
        model,
        nncf.Dataset(rows),
        subset_size=len(rows),
        model_type=model_type,
        advanced_parameters=nncf.AdvancedQuantizationParameters(overflow_fix=overflow_fix),
    )
    ov.save_model(quantised, folder / "model.xml", compress_to_fp16=False)
    return folder / "model.xml"


def _quantise_weights(path: Path, samples: Arrays, folder: Path) -> Path:  # noqa: ARG001
    import openvino as ov

    from tensorferry.serve.runtimes.openvino import open_core

    nncf = _import_nncf()
    compressed = nncf.compress_weights(open_core().read_model(path), mode=nncf.CompressWeightsMode.INT8_ASYM)
    ov.save_model(compressed, folder / "model.xml", compress_to_fp16=False)
    return folder / "model.xml"


def _import_nncf() -> Any:
    try:
        import nncf
    except ModuleNotFoundError as error:
        raise missing_extra("int8 in OpenVINO", error.name, "optimize") from error
    return nncf


def _quantise_static(path: Path, samples: Arrays, folder: Path) -> Path:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rows = _single_rows(samples)

        def get_next(self) -> Arrays | None:
            return next(self.rows, None)

    quantize_static(
        _prepare(path, folder),
        folder / "model.onnx",
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        reduce_range=not _has_vnni(),
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    (folder / "prepared.onnx").unlink()
    return folder / "model.onnx"


def _quantise_dynamic(path: Path, samples: Arrays, folder: Path) -> Path:  # noqa: ARG001
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        _prepare(path, folder), folder / "model.onnx", per_channel=True, reduce_range=not _has_vnni(), weight_type=QuantType.QInt8
    )
    (folder / "prepared.onnx").unlink()
    return folder / "model.onnx"


def _has_vnni() -> bool:
    """Whether sums of int8 products have room enough; without VNNI pairs of them overflow 16 bits unless weights keep to 7."""
    with contextlib.suppress(OSError):
        return "vnni" in Path("/proc/cpuinfo").read_text()
    return False


def _prepare(path: Path, folder: Path) -> Path:
    """The graph with its shapes inferred and its constants folded, as onnxruntime's quantisers want it."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = folder / "prepared.onnx"
    quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
    model = onnx.load(prepared)
    # exporters note the shapes of weights there too; a quantiser that transposes a weight would contradict the note
    weights = {weight.name for weight in model.graph.initializer}
    kept = [note for note in model.graph.value_info if note.name not in weights]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    onnx.save(model, prepared)
    return prepared


def _single_rows(samples: Arrays) -> Iterator[Arrays]:
    for at in range(min(_NUM_CALIBRATION, len(next(iter(samples.values()))))):
        yield {name: np.ascontiguousarray(array[at : at + 1]) for name, array in samples.items()}
