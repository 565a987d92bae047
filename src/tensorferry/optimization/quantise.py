"""int8: weights and activations on 256 steps, whose width is calibrated on real samples.

Which way works best depends on the graph, so each is a candidate like any other, and the gate decides. For OpenVINO: weights
alone (`weights.py`), and NNCF, with activations on scales that are calibrated. For onnxruntime: static quantisation, and dynamic
quantisation (products of transformers, no calibration needed). Without VNNI pairs of products overflow 16 bits unless weights
keep to half of their range; all but the weights alone do.

Transformers get NNCF's SmoothQuant (Xiao et al., 2022). Convolutions of one channel each stay in fp32: they compute little for
the bytes that they read, OpenVINO runs most of them in fp32 anyway, and in EfficientNet-lite0 their inputs made half of the
error. In onnxruntime only the inputs of a transformer's products are quantised: the mask that is added to attention reaches to
-3e38, and on 256 steps from there to zero every score is the same; and what products give has a few values far above the others,
which sums and norms then take in fp32 anyway.

NNCF and static quantisation prepare once and can then write files in which some layers stay in fp32; `layer_search.py` finds
out which.
"""

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tensorferry.errors import BadModel
from tensorferry.extras import missing_extra
from tensorferry.optimization.kept_layers import list_compressed, list_layers, restore_weights, write_kept
from tensorferry.optimization.samples import MAX_CALIBRATION, Arrays
from tensorferry.optimization.weights import choose_codes, list_products, smooth, watch_inputs, write_codes

_PRODUCTS = ["MatMul", "Gemm"]
_WIDE_GROUP = 128  # activations on one scale
_INT4_GROUP = 128  # weights on one scale
_INT4_SAMPLES = 32  # that scales are estimated on


@dataclass(frozen=True)
class QuantisedModel:
    """A calibrated model that can be written with some of its layers in fp32."""

    layers: tuple[str, ...]  # what may stay in fp32; empty: all or nothing
    write: Callable[[Collection[str], Path], Path]  # with these layers in fp32, into an empty folder; returns the file


Prepare: TypeAlias = Callable[[Path, Arrays, Path], QuantisedModel]  # from an fp32 file and samples, with a folder of its own


@dataclass(frozen=True)
class Quantiser:
    """One way to an int8 file."""

    title: str
    variant: str  # what tells it from the backend's other ways
    prepare: Prepare
    settings: Mapping[str, str] = field(default_factory=dict)  # of the runtime that is to run it
    precision: str = "int8"


def list_quantisers(backend: str) -> tuple[Quantiser, ...]:
    """The ways to int8, and to int4, for a backend's files."""
    return {
        "openvino": (
            Quantiser("NNCF, weights alone", "weights", _prepare_weights),
            *_list_wider_groups(),
            Quantiser("NNCF", "NNCF", _prepare_nncf),
            Quantiser("NNCF, weights alone", "weights", _prepare_int4, precision="int4"),
        ),
        "onnxruntime": (
            Quantiser("onnxruntime, static", "static", _prepare_static),
            Quantiser("onnxruntime, dynamic", "dynamic", _in_one_piece(_quantise_dynamic)),
        ),
    }.get(backend, ())


def _list_wider_groups() -> tuple[Quantiser, ...]:
    """Weights alone, with more activations on one scale than the 32 that OpenVINO takes by itself: faster, and coarser."""
    if not _has_vnni():  # activations stay in fp32 there
        return ()
    title, settings = f"NNCF, weights alone, activations by {_WIDE_GROUP}", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": str(_WIDE_GROUP)}
    return (Quantiser(title, f"weights, by {_WIDE_GROUP}", _prepare_weights, settings),)


def _in_one_piece(quantise: Callable[[Path, Path], Path]) -> Prepare:
    """A way that needs no samples and takes all layers or none."""
    return lambda path, samples, scratch: QuantisedModel((), lambda kept, folder: quantise(path, folder))  # noqa: ARG005


def _prepare_nncf(path: Path, samples: Arrays, scratch: Path) -> QuantisedModel:  # noqa: ARG001
    from tensorferry.serve.runtimes.openvino import open_core

    nncf = _import_nncf()
    model = open_core().read_model(path)
    rows = list(_single_rows(samples))
    kinds = {node.get_type_name() for node in model.get_ops()}
    is_transformer = bool(kinds & {"Softmax", "ScaledDotProductAttention"}) and not any("Convolution" in kind for kind in kinds)
    overflow_fix = None if _has_vnni() else nncf.OverflowFix.ENABLE  # None: as NNCF does by itself
    thin = [node.get_friendly_name() for node in model.get_ops() if _has_thin_channels(node)]
    quantised = nncf.quantize(
        model,
        nncf.Dataset(rows),
        subset_size=len(rows),
        model_type=nncf.ModelType.TRANSFORMER if is_transformer else None,
        ignored_scope=nncf.IgnoredScope(names=thin) if thin else None,
        # weights around zero, activations anywhere: they are rarely symmetric
        preset=nncf.QuantizationPreset.MIXED,
        advanced_parameters=nncf.AdvancedQuantizationParameters(
            overflow_fix=overflow_fix,
            backend_params={"compress_weights": False},  # weights stay as they are behind their quantiser, so a layer can go back
        ),
    )
    return QuantisedModel(list_layers(quantised), lambda kept, folder: write_kept(quantised, kept, folder))


def _has_thin_channels(node: Any) -> bool:
    """Whether it is a convolution of one channel each: its weights are a group for each channel, of one output and one input."""
    return bool(node.get_type_name() == "GroupConvolution" and list(node.get_input_shape(1)[1:3]) == [1, 1])


def _prepare_weights(path: Path, samples: Arrays, scratch: Path) -> QuantisedModel:  # noqa: ARG001
    import openvino as ov

    from tensorferry.serve.runtimes.openvino import open_core

    nncf, core = _import_nncf(), open_core()

    def compress(model: Any) -> Any:
        return nncf.compress_weights(model.clone(), mode=nncf.CompressWeightsMode.INT8_ASYM)

    def compile_plain(model: Any) -> Any:
        return core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    model = core.read_model(path)
    if len(list(list_products(model))) < sum("Convolution" in op.get_type_name() for op in model.get_ops()):
        raise BadModel("it has more convolutions than products, and those compute in fp32 where weights alone are int8")
    inputs = smooth(model, watch_inputs(model, _single_rows(samples), compile_plain))
    whole = compress(model)
    write_codes(whole, choose_codes(model, whole, inputs))

    def write(kept: Collection[str], folder: Path) -> Path:
        written = whole.clone()
        restore_weights(written, model, kept)
        ov.save_model(written, folder / "model.xml", compress_to_fp16=False)
        return folder / "model.xml"

    return QuantisedModel(list_compressed(whole), write)


def _prepare_int4(path: Path, samples: Arrays, scratch: Path) -> QuantisedModel:  # noqa: ARG001
    """For large products, whose time goes by in reading weights; embeddings and the last layer keep 8 bits, as NNCF has it."""
    import openvino as ov

    from tensorferry.serve.runtimes.openvino import open_core

    nncf = _import_nncf()
    compressed = nncf.compress_weights(
        open_core().read_model(path),
        mode=nncf.CompressWeightsMode.INT4_ASYM,
        group_size=_INT4_GROUP,
        dataset=nncf.Dataset(list(itertools.islice(_single_rows(samples), _INT4_SAMPLES))),
        subset_size=_INT4_SAMPLES,
        scale_estimation=True,
        advanced_parameters=nncf.AdvancedCompressionParameters(group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST),
    )
    constants = (node for node in compressed.get_ops() if node.get_type_name() == "Constant")
    if not any(node.get_element_type().to_string() in ("u4", "i4") for node in constants):
        raise BadModel("it has no product that is wide enough")

    def write(kept: Collection[str], folder: Path) -> Path:  # noqa: ARG001
        ov.save_model(compressed, folder / "model.xml", compress_to_fp16=False)
        return folder / "model.xml"

    return QuantisedModel((), write)


def _import_nncf() -> Any:
    try:
        import nncf
    except ModuleNotFoundError as error:
        raise missing_extra("int8 in OpenVINO", error.name, "optimize") from error
    return nncf


def _prepare_static(path: Path, samples: Arrays, scratch: Path) -> QuantisedModel:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rows = _single_rows(samples)

        def get_next(self) -> Arrays | None:
            return next(self.rows, None)

    prepared = _prepare(path, scratch)
    kinds, layers = _read_graph(prepared)
    is_transformer = "Softmax" in kinds and "Conv" not in kinds

    def write(kept: Collection[str], folder: Path) -> Path:
        quantize_static(
            prepared,
            folder / "model.onnx",
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=_PRODUCTS if is_transformer else None,
            nodes_to_exclude=list(kept),
            per_channel=True,
            reduce_range=not _has_vnni(),
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibration_cache_path=scratch / "ranges.json",
            extra_options={"OpTypesToExcludeOutputQuantization": _PRODUCTS} if is_transformer else None,
        )
        return folder / "model.onnx"

    return QuantisedModel(layers, write)


def _read_graph(path: Path) -> tuple[set[str], tuple[str, ...]]:
    """The kinds of op in an ONNX file, and the names of those with weights to multiply by."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    weights = {weight.name for weight in graph.initializer}
    layers = [
        node.name
        for node in graph.node
        if node.name and node.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose") and weights & set(node.input)
    ]
    return {node.op_type for node in graph.node}, tuple(layers)


def _quantise_dynamic(path: Path, folder: Path) -> Path:
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
    for at in range(min(MAX_CALIBRATION, len(next(iter(samples.values()))))):
        yield {name: np.ascontiguousarray(array[at : at + 1]) for name, array in samples.items()}
