"""From what a user has in hand (a model in memory, a file, a run, a function) to a source and its samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel, BadOption, MissingExtra
from tensorferry.extras import missing_extra
from tensorferry.files import list_checksums
from tensorferry.inference.samples import invent_samples, name_samples, read_samples
from tensorferry.inference.source import Arrays, Source
from tensorferry.inference.sources.function import build_model
from tensorferry.machine import count_cores

_KINDS = ".onnx, .xml (OpenVINO), .keras, .pt2, .pt (TorchScript, with --trust), a SavedModel folder, a run, or module:function"
_INVENTED = "answers were compared on random inputs, which say little about real ones; give real ones with --samples"
_EXAMPLE_WANTED = "give a batch of real ones with --samples, as the example in Python"


@dataclass(frozen=True)
class Given:
    """What a user gives beside the model."""

    example: Any = None
    labels: tuple[str, ...] = ()
    weights: Path | None = None
    trust: bool = False


@dataclass(frozen=True)
class Opened:
    """A source, what to compare answers on, and where else inputs for calibration come from."""

    source: Source
    samples: Arrays
    read_calibration: Callable[[Any], Arrays | None]
    is_invented: bool = False  # nobody gave the samples


def open_source(model: Any, given: Given, scratch: Path) -> Opened:
    """The source of a model in memory, or of what a word names; without an example samples are invented, and a note says so.

    Some sources write files of their own to `scratch`, which must last as long as they do.
    """
    try:
        if not isinstance(model, str | Path):
            return _finish(_open_object(model, given.example, scratch), given)
        path = Path(model)
        if isinstance(model, str) and ":" in model and not path.exists():
            source = _open_object(build_model(model, given.weights), given.example, scratch)
            checksums = {} if given.weights is None else list_checksums(given.weights)
            return _finish(replace(source, origin={"function": path.name, "checksums": checksums}), given)
        if given.weights is not None:
            raise BadOption(f"weights go into a model that a function builds; {str(model)!r} has its own")
        if path.is_dir() and not (path / "saved_model.pb").is_file():
            return _open_run(path, given, scratch)
        source = _open_file(path, given, scratch)
        return _finish(replace(source, origin={"file": path.name, "checksums": _sum_file(path)}), given)
    except ModuleNotFoundError as error:
        if isinstance(error, MissingExtra):
            raise
        raise missing_extra("this", error.name, "optimize") from error


def _sum_file(path: Path) -> dict[str, str]:
    """The checksums of a model's file, and of the weights that lie beside it."""
    beside = path.with_suffix(".bin")
    return list_checksums(path) | (list_checksums(beside) if path.suffix.lower() == ".xml" else {})


def _finish(source: Source, given: Given) -> Opened:
    """A source about which only the user knows more."""
    source = _with_labels(source, given.labels)

    def read_calibration(calibrate: Any) -> Arrays | None:
        if calibrate is None:
            return None
        return name_samples(read_samples(calibrate) if isinstance(calibrate, Path) else calibrate, source.signature)

    if given.example is None:
        noted = replace(source, notes=(*source.notes, _INVENTED))
        return Opened(noted, invent_samples(source.signature), read_calibration, is_invented=True)
    return Opened(source, name_samples(given.example, source.signature), read_calibration)


def _with_labels(source: Source, labels: tuple[str, ...]) -> Source:
    """The source with a user's names for its classes, if there are any; some output must have as many of something."""
    sizes = {size for tensor in source.signature.outputs for size in (tensor.shape[1:] if tensor.has_rank else (-1,))}
    if labels and not sizes & {len(labels), -1}:
        shapes = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in source.signature.outputs)
        raise BadOption(f"the model gives {shapes}, the number of labels is {len(labels)}; give one for each class")
    return replace(source, labels=labels or source.labels)


def _open_run(path: Path, given: Given, scratch: Path) -> Opened:
    """A run's model, compared on its held-out samples and calibrated on those that it was trained on."""
    if not (path / "config.json").is_file():
        raise BadModel(f"{str(path)!r} is neither a run nor a SavedModel; give {_KINDS}")
    from tensorferry.inference.sources.run import take_calibration, take_held_out
    from tensorferry.train.trained import load_trained

    trained = load_trained(path)
    samples = take_held_out(trained)
    source = replace(
        _open_trained(trained.model, samples, scratch),
        title=f"{path.name}, step {trained.step}",
        origin={
            "run": path.resolve().name,
            "recipe": Path(trained.config.recipe).name,
            "step": trained.step,
            "checksums": {name: each for name, each in list_checksums(trained.checkpoint).items() if name.startswith("model.")},
        },
        columns=trained.recipe.describe_columns(trained.data),
        transform=trained.recipe.describe_transform(trained.data),
    )
    source = _with_labels(replace(source, labels=trained.data.labels), given.labels)

    def read_calibration(calibrate: Any) -> Arrays | None:
        if calibrate is not None and not isinstance(calibrate, Path):
            return name_samples(calibrate, source.signature)
        return name_samples(take_calibration(trained, calibrate), source.signature)

    example = samples if given.example is None else given.example
    return Opened(source, name_samples(example, source.signature), read_calibration)


def _open_trained(model: Any, samples: Arrays, scratch: Path) -> Source:
    """A recipe's model, whose inputs have the recipe's names: its transform makes those."""
    if _framework_of(model) == "torch":
        from tensorferry.inference.sources.torch import read_module

        return read_module(model, samples)
    from tensorferry.inference.sources.keras import read_keras

    return read_keras(model, scratch, tuple(samples))


def _open_object(model: Any, example: Any, scratch: Path) -> Source:
    framework = _framework_of(model)
    if framework == "keras":
        from tensorferry.inference.sources.keras import read_keras

        return read_keras(model, scratch)
    if framework == "torch":
        from tensorferry.inference.sources.torch import order_inputs, read_module

        if example is None:
            raise BadModel(f"a {type(model).__name__} does not tell its inputs; {_EXAMPLE_WANTED}")
        return read_module(model, order_inputs(model, example))
    raise BadModel(f"expected a torch module, a Keras model or a path, received a {type(model).__name__}")


def _framework_of(model: Any) -> str:
    """ "torch", "keras", or nothing for anything else; a Keras model on the torch back end is a module of torch."""
    homes = {kind.__module__.split(".")[0] for kind in type(model).__mro__}
    return next((name for name in ("torch", "keras") if name in homes), "")


def _open_file(path: Path, given: Given, scratch: Path) -> Source:
    if not path.exists():
        raise BadModel(f"there is no {str(path)!r}; give {_KINDS}")
    if path.is_dir():
        from tensorferry.inference.sources.tensorflow import read_saved_model

        return read_saved_model(path, given.trust, count_cores())
    match path.suffix.lower():
        case ".onnx":
            from tensorferry.inference.sources.onnx import read_onnx

            return read_onnx(path, count_cores())
        case ".xml":
            from tensorferry.inference.sources.onnx import read_openvino

            return read_openvino(path, count_cores())
        case ".pt2":
            from tensorferry.inference.sources.torch import read_program

            return read_program(path, given.trust, count_cores())
        case ".pt" | ".pth" | ".ts":
            return _open_script(path, given)
        case ".keras":
            from tensorferry.inference.sources.keras import read_keras_file

            return read_keras_file(path, given.trust, count_cores(), scratch)
        case ".safetensors" | ".h5":
            raise BadModel(
                f"{path.name} holds weights and no model; name the function that builds it: "
                f"ferry optimize file.py:function --weights {path.name} --samples ..."
            )
    raise BadModel(f"{str(path)!r} is no model that can be read here; give {_KINDS}")


def _open_script(path: Path, given: Given) -> Source:
    from tensorferry.inference.sources.torch import read_script

    example = given.example
    if given.trust and example is None:
        raise BadModel(f"{path.name} does not tell its inputs; {_EXAMPLE_WANTED}")
    if not isinstance(example, Mapping):
        arrays = example if isinstance(example, tuple | list) else (example,)
        example = {f"input_{at}": array for at, array in enumerate(arrays)}
    return read_script(path, dict(example), given.trust)
