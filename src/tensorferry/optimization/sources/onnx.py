"""ONNX files, and the way from ONNX to OpenVINO that models of every framework share."""

import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel
from tensorferry.optimization.sources.source import Route, Source
from tensorferry.serve.core.tensors import DTYPES
from tensorferry.serve.runtimes.runtime import LoadOptions, Signature
from tensorferry.serve.runtimes.table import load_runtime

_DECORATION = re.compile(r"^serving_default_|:\d+$")  # what TensorFlow puts around a tensor's name
_ONE_FILE_NBYTES = 2**31 - 2**20  # a protobuf message cannot be larger; weights beyond go beside it


def read_onnx(path: Path, num_threads: int) -> Source:
    """The source of an ONNX file."""
    runtime = load_runtime("onnxruntime", LoadOptions(path, num_threads))
    assert runtime.signature is not None
    signature = runtime.signature

    def copy(folder: Path) -> Path:
        return save_onnx(path, folder / "model.onnx")

    keep = Route("the ONNX file itself", "onnxruntime", copy)
    to_openvino = Route("OpenVINO from ONNX", "openvino", lambda folder: convert(lambda: path, signature, folder))
    return Source(path.name, "onnx", signature, runtime, (keep, to_openvino), keep)


def read_openvino(path: Path, num_threads: int) -> Source:
    """The source of an OpenVINO file, which only OpenVINO runs."""
    if not path.with_suffix(".bin").is_file():
        raise BadModel(f"{path.name} has no weights beside it; put {path.with_suffix('.bin').name} into the same folder")
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    runtime = load_runtime("openvino", LoadOptions(path, num_threads, parameters=settings))
    assert runtime.signature is not None

    def copy(folder: Path) -> Path:
        for suffix in (".xml", ".bin"):
            shutil.copyfile(path.with_suffix(suffix), folder / f"model{suffix}")
        return folder / "model.xml"

    keep = Route("the OpenVINO file itself", "openvino", copy)
    return Source(path.name, "openvino", runtime.signature, runtime, (keep,), keep)


def save_onnx(path: Path, target: Path) -> Path:
    """A copy of an ONNX file whose weights are inside, or beside it where they are too many."""
    import onnx

    model = onnx.load(path)
    beside = model.ByteSize() > _ONE_FILE_NBYTES
    onnx.save(model, target, save_as_external_data=beside, location=f"{target.name}.data" if beside else None)
    return target


def convert(find: Callable[[], Path], signature: Signature, folder: Path) -> Path:
    """Write what OpenVINO makes of a model's file as fp32, with the signature's names."""
    from tensorferry.serve.runtimes.openvino import open_core

    return save_openvino(open_core().read_model(find()), signature, folder)


def save_openvino(model: Any, signature: Signature, folder: Path) -> Path:
    """Write a model of OpenVINO as fp32, with the signature's names."""
    import openvino as ov

    set_names(model.inputs, [tensor.name for tensor in signature.inputs])
    set_names(model.outputs, [tensor.name for tensor in signature.outputs])
    _complete(model, signature)
    ov.save_model(model, folder / "model.xml", compress_to_fp16=False)
    return folder / "model.xml"


def _complete(model: Any, signature: Signature) -> None:
    """Tell the types and shapes of inputs that do not know how many dimensions they have, as TorchScript's do not."""
    import openvino as ov

    by_name = {tensor.name: tensor for tensor in signature.inputs}
    for port in model.inputs:
        if port.get_partial_shape().rank.is_dynamic:
            tensor = by_name[port.get_any_name()]
            port.get_node().set_element_type(ov.Type(DTYPES[tensor.datatype]))
            port.get_node().set_partial_shape(ov.PartialShape(list(tensor.shape)))
    model.validate_nodes_and_infer_types()


def set_names(ports: Sequence[Any], names: Sequence[str]) -> None:
    """Give a model's ports their one name."""
    if len(ports) != len(names):
        raise BadModel(f"the converted model has {len(ports)} inputs or outputs, the original {len(names)}")
    for port, name in zip(ports, match_names([port.get_names() for port in ports], names), strict=True):
        port.get_tensor().set_names({name})


def rename_tensors(model: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """The same ONNX graph with other names for its inputs and outputs."""
    new_names: dict[str, str] = {}
    for given, wanted in ((model.graph.input, inputs), (model.graph.output, outputs)):
        if len(given) != len(wanted):
            raise BadModel(f"the graph has {', '.join(each.name for each in given)} where the model has {', '.join(wanted)}")
        matched = match_names([[each.name] for each in given], wanted)
        new_names |= {end.name: name for end, name in zip(given, matched, strict=True)}
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [new_names.get(name, name) for name in names]
    for end in (*model.graph.input, *model.graph.output):
        end.name = new_names[end.name]
    return model


def match_names(found: Sequence[Iterable[str]], wanted: Sequence[str]) -> list[str]:
    """Which of the wanted names each port has, whatever their order; ports that do not tell take them in order.

    >>> match_names([["serving_default_mask:0"], ["ids:0"]], ["ids", "mask"])
    ['mask', 'ids']
    """
    bare = [{each for name in names for each in (name, _DECORATION.sub("", _DECORATION.sub("", name)))} for names in found]
    matched = [next((name for name in wanted if name in names), "") for names in bare]
    return matched if sorted(matched) == sorted(wanted) else list(wanted)
