"""From what a user has in hand (a model in memory, a file, a folder) to a source and its samples."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel, MissingExtra
from tensorferry.inference.samples import invent_samples, name_samples
from tensorferry.inference.source import Arrays, Source

_KINDS = ".onnx, .xml (OpenVINO), .keras, .pt2, .pt (TorchScript, with --trust), a SavedModel folder or a run"
_INVENTED = "answers were compared on random inputs, which say little about real ones; give real samples"


@dataclass(frozen=True)
class Opened:
    """A source, and what to compare answers on."""

    source: Source
    samples: Arrays


def open_source(
    model: Any, example: Any = None, *, labels: tuple[str, ...] = (), trust: bool = False, num_threads: int = 1, scratch: Path
) -> Opened:
    """The source of a model in memory, or of a file or folder; without an example samples are invented, and a note says so.

    Some sources write files of their own to `scratch`, which must last as long as they do.
    """
    if isinstance(model, str | Path):
        source = _open_path(Path(model), example, trust, num_threads, scratch)
    else:
        source = _open_object(model, example, scratch)
    if labels:
        source = replace(source, labels=labels)
    if example is None:
        return Opened(replace(source, notes=(*source.notes, _INVENTED)), invent_samples(source.signature))
    return Opened(source, name_samples(example, source.signature))


def _open_object(model: Any, example: Any, scratch: Path) -> Source:
    homes = {kind.__module__.split(".")[0] for kind in type(model).__mro__}
    if "keras" in homes and "torch" not in homes:
        from tensorferry.inference.sources.keras import read_keras

        return read_keras(model, scratch)
    if "torch" in homes:
        from tensorferry.inference.sources.torch import order_inputs, read_module

        if example is None:
            raise BadModel(f"a {type(model).__name__} does not tell its inputs; give an example, a batch of real ones")
        return read_module(model, order_inputs(model, example))
    raise BadModel(f"expected a torch module, a Keras model or a path, received a {type(model).__name__}")


def _open_path(path: Path, example: Any, trust: bool, num_threads: int, scratch: Path) -> Source:
    if not path.exists():
        raise BadModel(f"there is no {str(path)!r}; give {_KINDS}")
    try:
        match path.suffix.lower():
            case ".onnx":
                from tensorferry.inference.sources.onnx import read_onnx

                return read_onnx(path, num_threads)
            case ".xml":
                from tensorferry.inference.sources.onnx import read_openvino

                return read_openvino(path, num_threads)
            case ".pt2":
                from tensorferry.inference.sources.torch import read_program

                return read_program(path, num_threads)
            case ".pt" | ".pth" | ".ts":
                return _open_script(path, example, trust)
            case ".keras":
                from tensorferry.inference.sources.keras import read_keras_file

                return read_keras_file(path, trust, num_threads, scratch)
        if (path / "saved_model.pb").is_file():
            from tensorferry.inference.sources.tensorflow import read_saved_model

            return read_saved_model(path, num_threads)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f'{path.name} needs {error.name}, which is not installed: pip install "tensorferry[optimize]"'
        ) from error
    raise BadModel(f"{str(path)!r} is no model that can be read here; give {_KINDS}")


def _open_script(path: Path, example: Any, trust: bool) -> Source:
    from tensorferry.inference.sources.torch import read_script

    if trust and example is None:
        raise BadModel(f"{path.name} does not tell its inputs; give an example, a batch of real ones")
    arrays = example if isinstance(example, Mapping) else {}
    if not arrays and example is not None:
        given = example if isinstance(example, tuple | list) else (example,)
        arrays = {f"input_{at}": array for at, array in enumerate(given)}
    return read_script(path, dict(arrays), trust)
