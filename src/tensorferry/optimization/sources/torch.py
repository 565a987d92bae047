"""PyTorch: modules, programs of `torch.export` (`.pt2`), and TorchScript for who trusts the file.

A module is exported once, with a free batch axis; both ONNX and OpenVINO are made from that program. Where it cannot be exported,
TorchScript's tracer is the way round.
"""

import copy
import inspect
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tensorferry.errors import BadModel
from tensorferry.optimization.samples import Arrays
from tensorferry.optimization.sources.onnx import convert, save_openvino
from tensorferry.optimization.sources.source import Route, Source, quiet_exporters, root_cause
from tensorferry.serve.core.tensors import DATATYPES
from tensorferry.serve.runtimes.exported_program import load_program, vet_program
from tensorferry.serve.runtimes.runtime import LoadOptions, Runtime, Signature, TensorSignature
from tensorferry.serve.runtimes.table import load_runtime
from tensorferry.serve.runtimes.torch import TorchRuntime

_CPU = torch.device("cpu")


def read_module(module: torch.nn.Module, example: Arrays, title: str = "") -> Source:
    """The source of a module; `example` names its inputs in the order of the call."""
    example = {name: _cast(module, name, array) for name, array in example.items()}
    with quiet_exporters():  # copies of TorchScript warn of gradients that nobody wants
        original = copy.deepcopy(module).to(_CPU).eval()
        exported = copy.deepcopy(original)  # exporting may change what it exports
    # two rows tell what a call gives: one would be taken for a constant, and all of them may take minutes
    rows = tuple(torch.from_numpy(np.take(array, range(2), axis=0, mode="wrap")) for array in example.values())
    shapes = [find_free_axes(array) for array in example.values()]
    inputs = tuple(
        TensorSignature(
            name, DATATYPES[array.dtype], tuple(-1 if axis in free else size for axis, size in enumerate(array.shape))
        )
        for (name, array), free in zip(example.items(), shapes, strict=True)
    )
    outputs = _find_outputs(original, rows, shapes)
    signature = Signature(inputs, tuple(outputs.values()))
    runtime = TorchRuntime(original, _CPU, signature, tuple(example), tuple(outputs))
    title = title or type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        scripted = Route("OpenVINO from TorchScript", "openvino", lambda folder: _convert_object(exported, signature, folder))
        return _make_source(title, runtime, (scripted,), _keep_script(lambda target: torch.jit.save(exported, target)))

    def export() -> Any:
        dynamic = tuple(dict.fromkeys(free, torch.export.Dim.AUTO) for free in shapes)
        return torch.export.export(exported, rows, dynamic_shapes=dynamic)

    program = _once(export)
    traced = Route(
        "OpenVINO from TorchScript's tracer", "openvino", lambda folder: _convert_traced(exported, rows, signature, folder)
    )
    routes = (*_routes_of_program(program, signature), traced)
    keep = Route("torch.export", "pytorch", lambda folder: _save_program(program(), folder), trust=True)
    return _make_source(title, runtime, routes, keep)


def read_program(path: Path, trust: bool, num_threads: int) -> Source:
    """The source of a `.pt2` file; one that holds more than tensors and their graph needs trust."""
    runtime = load_runtime("pytorch", LoadOptions(path, num_threads, trust=trust))
    assert runtime.signature is not None
    # a second time: the first one gives the answers to compare with
    program = _once(lambda: load_program(path, trust))

    def keep(folder: Path) -> Path:
        (folder / "model.pt2").write_bytes(path.read_bytes() if trust else vet_program(path))
        return folder / "model.pt2"

    routes = _routes_of_program(program, runtime.signature)
    kept = Route("the .pt2 file itself", "pytorch", keep, trust)
    return _make_source(path.name, runtime, routes, kept)


def read_script(path: Path, example: Arrays, trust: bool) -> Source:
    """The source of a TorchScript file, which may carry code."""
    if not trust:
        raise BadModel(
            f"{path.name} is TorchScript or a pickle, which may carry code; save the model with torch.export.save to a .pt2, "
            "or trust the file with --trust"
        )
    try:
        with quiet_exporters():  # torch wants people to use torch.export instead, and so do we
            module = torch.jit.load(str(path), map_location=_CPU).eval()
    except RuntimeError as error:
        raise BadModel(f"PyTorch cannot load {path.name}: {root_cause(error)}") from None
    return replace(read_module(module, example, path.name), keep=_keep_script(lambda target: shutil.copyfile(path, target)))


def order_inputs(module: torch.nn.Module, example: Any) -> Arrays:
    """An example (an array, a tuple of them, or arrays by name) by the names of the module's call, in its order."""
    parameters = [] if isinstance(module, torch.jit.ScriptModule) else list(inspect.signature(module.forward).parameters.values())
    known = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if isinstance(example, dict):
        unknown = [name for name in example if known and name not in known]
        if unknown:
            raise BadModel(f"{type(module).__name__} takes {', '.join(known)}; the example has {', '.join(unknown)}")
        return {name: np.asarray(example[name]) for name in (known or example) if name in example}
    arrays = example if isinstance(example, tuple | list) else (example,)
    names = [known[at] if at < len(known) else f"input_{at}" for at in range(len(arrays))]
    return {name: np.asarray(array) for name, array in zip(names, arrays, strict=True)}


def _cast(module: torch.nn.Module, name: str, array: Any) -> Any:
    """An input in the type of the module's weights; whole numbers stay what they are."""
    array = np.asarray(array)
    if array.dtype.kind not in "fiub" or not array.ndim or not array.size:
        shape = list(array.shape)
        raise BadModel(f"expected rows of numbers for the input {name!r}, received {array.dtype} of the shape {shape}")
    own = next((each.dtype for each in module.parameters() if each.is_floating_point()), None)
    if array.dtype.kind != "f" or own not in (torch.float16, torch.float32, torch.float64):
        return array
    return array.astype(str(own).removeprefix("torch."), copy=False)


def find_free_axes(array: Any) -> tuple[int, ...]:
    """The axes of an input that may have any size: the rows, and the length of a text."""
    return (0, 1) if array.ndim == 2 and array.dtype.kind in "iu" else (0,)


def _routes_of_program(program: Callable[[], Any], signature: Signature) -> tuple[Route, ...]:
    onnx_program = _once(
        lambda: torch.onnx.export(
            program(),
            dynamo=True,
            input_names=[tensor.name for tensor in signature.inputs],
            output_names=[tensor.name for tensor in signature.outputs],
            verbose=False,
        )
    )

    def to_onnx(folder: Path) -> Path:
        onnx_program().save(folder / "model.onnx")
        return folder / "model.onnx"

    def to_openvino(folder: Path) -> Path:
        with tempfile.TemporaryDirectory(prefix="ferry-onnx-") as between:
            path = to_onnx(Path(between))
            return convert(lambda: path, signature, folder)

    return (
        Route("torch.export, then ONNX", "onnxruntime", to_onnx),
        Route("torch.export, ONNX, then OpenVINO", "openvino", to_openvino),
        Route("torch.export, then OpenVINO", "openvino", lambda folder: _convert_object(program(), signature, folder)),
    )


def _make_source(title: str, runtime: Runtime, routes: tuple[Route, ...], keep: Route) -> Source:
    assert runtime.signature is not None
    return Source(title, "torch", runtime.signature, runtime, routes, keep, set_num_threads=_thread_setter())


def _once(make: Callable[[], Any]) -> Callable[[], Any]:
    """The same result every time, or the same error: an export that fails takes as long as one that does not."""

    @cache
    def attempt() -> tuple[Any, Exception | None]:
        try:
            return make(), None
        except Exception as error:  # whatever an exporter raises at a model that it does not know
            return None, error

    def get() -> Any:
        result, error = attempt()
        if error is not None:
            raise error
        return result

    return get


def _keep_script(write: Callable[[str], object]) -> Route:
    def keep(folder: Path) -> Path:
        write(str(folder / "model.pt"))
        return folder / "model.pt"

    return Route("TorchScript itself, for ferry serve --trust", "pytorch", keep, trust=True)


def _convert_traced(module: torch.nn.Module, tensors: tuple[torch.Tensor, ...], signature: Signature, folder: Path) -> Path:
    return _convert_object(torch.jit.trace(module, tensors, strict=False), signature, folder)


def _convert_object(model: Any, signature: Signature, folder: Path) -> Path:
    import openvino as ov

    return save_openvino(ov.convert_model(model), signature, folder)


def _save_program(program: Any, folder: Path) -> Path:
    torch.export.save(program, folder / "model.pt2")
    return folder / "model.pt2"


def _thread_setter() -> Callable[[int], None]:
    before = torch.get_num_threads()
    return lambda num_threads: torch.set_num_threads(num_threads or before)


def _call(module: torch.nn.Module, tensors: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    try:
        with torch.inference_mode():
            result = module(*tensors)
    except Exception as error:  # a module may raise whatever it likes
        shapes = " and ".join("x".join(map(str, tensor.shape)) for tensor in tensors)
        raise BadModel(f"the model cannot be called with rows of the example, {shapes}: {root_cause(error)}") from error
    if isinstance(result, torch.Tensor):
        return {"output": result}
    named = dict(result) if isinstance(result, dict) else {f"output_{at}": each for at, each in enumerate(result)}
    wrong = [name for name, each in named.items() if not isinstance(each, torch.Tensor)]
    if wrong or not named:
        raise BadModel(f"expected the model to give tensors, a tuple or a dict of them; {', '.join(wrong) or 'nothing'} is none")
    return named


def _find_outputs(module: torch.nn.Module, tensors: tuple[torch.Tensor, ...], free: list[tuple[int, ...]]) -> dict[str, Any]:
    """The outputs; sizes that follow the free sizes of the inputs are free too."""
    results = _call(module, tensors)
    followers: dict[str, set[int]] = {name: set() for name in results}
    for axis in {axis for axes in free for axis in axes}:
        for name, other in _call(
            module, tuple(_resize(t, axis) if axis in f else t for t, f in zip(tensors, free, strict=True))
        ).items():
            pairs = zip(results[name].shape, other.shape, strict=True)
            followers[name] |= {at for at, (size, changed) in enumerate(pairs) if size != changed}
    return {
        name: TensorSignature(
            name,
            DATATYPES[np.dtype(str(result.dtype).removeprefix("torch."))],
            tuple(-1 if at in followers[name] else size for at, size in enumerate(result.shape)),
        )
        for name, result in results.items()
    }


def _resize(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    if axis == 0:
        return torch.cat([tensor, tensor[:1]])
    return tensor[:, : max(1, tensor.shape[1] // 2)]  # a longer text might be longer than the model allows
