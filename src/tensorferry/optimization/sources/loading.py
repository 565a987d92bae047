"""From what a user has in hand (a model in memory, a file, a run, a function) to a source and its samples."""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tensorferry.errors import BadModel, BadOption, MissingExtra
from tensorferry.extras import missing_extra
from tensorferry.files import list_checksums
from tensorferry.fitting.folder import is_fitted
from tensorferry.frameworks import framework_of, is_keras
from tensorferry.machine import count_cores
from tensorferry.optimization.samples import MAX_SAMPLES, Arrays, invent_samples, name_samples, read_samples
from tensorferry.optimization.sources.source import Source, root_cause
from tensorferry.recipes.loading import load_reference
from tensorferry.recipes.recipe import Recipe, Samples
from tensorferry.serve.core.tensors import Array
from tensorferry.train.trained import Trained, load_trained

_KINDS = ".onnx, .xml (OpenVINO), .keras, .pt2, .pt (TorchScript, with --trust), a SavedModel folder, a run, or module:function"
_INVENTED = "answers were compared on random inputs, which say little about real ones; give real ones with --samples"
_MAX_NBYTES = 512 * 2**20  # of samples at once: volumes are large
_EXAMPLE_WANTED = "give a batch of real ones with --samples, as the example in Python"


@dataclass(frozen=True)
class SourceOptions:
    """What a user gives beside the model."""

    example: Any = None
    labels: tuple[str, ...] = ()
    weights: Path | None = None
    trust: bool = False


@dataclass(frozen=True)
class LoadedSource:
    """A source, what to compare answers on, and where else inputs for calibration come from."""

    source: Source
    samples: Arrays
    read_calibration: Callable[[Any], Arrays | None]
    is_invented: bool = False  # nobody gave the samples
    targets: Array | None = None  # the right answers, where a run's data have them as class numbers


def load_source(model: Any, options: SourceOptions, scratch: Path) -> LoadedSource:
    """The source of a model in memory, or of what a word names; without an example samples are invented, and a note says so.

    Some sources write files of their own to `scratch`, which must last as long as they do.
    """
    try:
        if not isinstance(model, str | Path):
            return _finish(_load_object(model, options.example, scratch), options)
        path = Path(model)
        if isinstance(model, str) and ":" in model and not path.exists():
            source = _load_object(_build_model(model, options.weights), options.example, scratch)
            checksums = {} if options.weights is None else list_checksums(options.weights)
            return _finish(replace(source, origin={"function": path.name, "checksums": checksums}), options)
        if options.weights is not None:
            raise BadOption(f"weights go into a model that a function builds; {str(model)!r} has its own")
        if path.is_dir() and not (path / "saved_model.pb").is_file():
            return _load_run(path, options, scratch)
        source = _load_file(path, options, scratch)
        return _finish(replace(source, origin={"file": path.name, "checksums": _sum_file(path)}), options)
    except ModuleNotFoundError as error:
        if isinstance(error, MissingExtra):
            raise
        raise missing_extra("this", error.name, "optimize") from error


def _sum_file(path: Path) -> dict[str, str]:
    """The checksums of a model's file, and of the weights that lie beside it."""
    beside = path.with_suffix(".bin")
    return list_checksums(path) | (list_checksums(beside) if path.suffix.lower() == ".xml" else {})


def _finish(source: Source, options: SourceOptions) -> LoadedSource:
    """A source about which only the user knows more."""
    source = _with_labels(source, options.labels)

    def read_calibration(calibrate: Any) -> Arrays | None:
        if calibrate is None:
            return None
        return name_samples(read_samples(calibrate) if isinstance(calibrate, Path) else calibrate, source.signature)

    if options.example is None:
        noted = replace(source, notes=(*source.notes, _INVENTED))
        return LoadedSource(noted, invent_samples(source.signature), read_calibration, is_invented=True)
    return LoadedSource(source, name_samples(options.example, source.signature), read_calibration)


def _with_labels(source: Source, labels: tuple[str, ...]) -> Source:
    """The source with a user's names for its classes, if there are any; some output must have as many of something."""
    sizes = {size for tensor in source.signature.outputs for size in (tensor.shape[1:] if tensor.has_rank else (-1,))}
    if labels and not sizes & {len(labels), -1}:
        shapes = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in source.signature.outputs)
        raise BadOption(f"the model gives {shapes}, the number of labels is {len(labels)}; give one for each class")
    return replace(source, labels=labels or source.labels)


def _load_run(path: Path, options: SourceOptions, scratch: Path) -> LoadedSource:
    """A run's model, compared on its held-out samples and calibrated on those that it was trained on."""
    if not (path / "config.json").is_file():
        raise BadModel(f"{str(path)!r} is neither a run nor a SavedModel; give {_KINDS}")
    if is_fitted(path):
        return _load_fitted(path, options, scratch)
    trained = load_trained(path)
    samples, targets = _take_batch(trained.recipe, trained.data.held_out)
    source = replace(
        _load_trained(trained.model, samples, scratch),
        title=f"{path.name}, step {trained.step}",
        origin={
            "run": path.resolve().name,
            "recipe": Path(trained.config.recipe).name,
            "step": trained.step,
            "checksums": {
                name: each for name, each in list_checksums(trained.checkpoint).items() if name.startswith(("model.", "shard-"))
            },
        },
        columns=trained.recipe.describe_columns(trained.data),
        transform=trained.recipe.describe_transform(trained.data),
    )
    source = _with_labels(replace(source, labels=trained.data.labels), options.labels)

    def read_calibration(calibrate: Any) -> Arrays | None:
        if calibrate is not None and not isinstance(calibrate, Path):
            return name_samples(calibrate, source.signature)
        return name_samples(_take_calibration(trained, calibrate), source.signature)

    if options.example is not None:
        return LoadedSource(source, name_samples(options.example, source.signature), read_calibration)
    return LoadedSource(source, name_samples(samples, source.signature), read_calibration, targets=targets)


def _load_fitted(path: Path, options: SourceOptions, scratch: Path) -> LoadedSource:
    """A fitted table's model, which takes raw rows, compared on those that it was tested on."""
    from tensorferry.fitting.run import load_fitted
    from tensorferry.optimization.sources.onnx import read_onnx

    fitted = load_fitted(path)
    file = scratch / "model.onnx"
    file.write_bytes(fitted.estimator.to_onnx())
    origin = {"run": path.resolve().name, "estimator": type(fitted.estimator).__name__, "checksums": list_checksums(file)}
    source = replace(read_onnx(file, count_cores()), title=path.resolve().name, origin=origin)
    few = fitted.test.select(range(min(MAX_SAMPLES, len(fitted.test))))
    rows = {name: _to_bytes(values) for name, values in fitted.estimator.to_tensors(few).items()}

    def refuse(calibrate: Any) -> Arrays | None:
        if calibrate is not None:
            raise BadOption("a model of a table takes no int8, so there is nothing to calibrate; leave it out")
        return None

    return LoadedSource(source, name_samples(rows if options.example is None else options.example, source.signature), refuse)


def _to_bytes(values: Any) -> Any:
    """Texts as they come from a client."""
    if values.dtype != object:
        return values
    return np.array([[text.encode() for text in row] for row in values.tolist()], object).reshape(values.shape)


def _load_trained(model: Any, samples: Arrays, scratch: Path) -> Source:
    """A recipe's model, whose inputs have the recipe's names: its transform makes those."""
    if framework_of(model) == "torch":
        from tensorferry.optimization.sources.torch import read_module

        return read_module(model, samples)
    from tensorferry.optimization.sources.keras import read_keras

    return read_keras(model, scratch, tuple(samples))


def _load_object(model: Any, example: Any, scratch: Path) -> Source:
    framework = framework_of(model)
    if framework == "keras":
        from tensorferry.optimization.sources.keras import read_keras

        return read_keras(model, scratch)
    if framework == "torch":
        from tensorferry.optimization.sources.torch import order_inputs, read_module

        if example is None:
            raise BadModel(f"a {type(model).__name__} does not tell its inputs; {_EXAMPLE_WANTED}")
        return read_module(model, order_inputs(model, example))
    raise BadModel(f"expected a torch module, a Keras model or a path, received a {type(model).__name__}")


def _load_file(path: Path, options: SourceOptions, scratch: Path) -> Source:
    if not path.exists():
        raise BadModel(f"there is no {str(path)!r}; give {_KINDS}")
    if path.is_dir():
        from tensorferry.optimization.sources.tensorflow import read_saved_model

        return read_saved_model(path, options.trust, count_cores())
    match path.suffix.lower():
        case ".onnx":
            from tensorferry.optimization.sources.onnx import read_onnx

            return read_onnx(path, count_cores())
        case ".xml":
            from tensorferry.optimization.sources.onnx import read_openvino

            return read_openvino(path, count_cores())
        case ".pt2":
            from tensorferry.optimization.sources.torch import read_program

            return read_program(path, options.trust, count_cores())
        case ".pt" | ".pth" | ".ts":
            return _load_script(path, options)
        case ".keras":
            from tensorferry.optimization.sources.keras import read_keras_file

            return read_keras_file(path, options.trust, count_cores(), scratch)
        case ".safetensors" | ".h5":
            raise BadModel(
                f"{path.name} holds weights and no model; name the function that builds it: "
                f"ferry optimize file.py:function --weights {path.name} --samples ..."
            )
    raise BadModel(f"{str(path)!r} is no model that can be read here; give {_KINDS}")


def _load_script(path: Path, options: SourceOptions) -> Source:
    from tensorferry.optimization.sources.torch import read_script

    example = options.example
    if options.trust and example is None:
        raise BadModel(f"{path.name} does not tell its inputs; {_EXAMPLE_WANTED}")
    if not isinstance(example, Mapping):
        arrays = example if isinstance(example, tuple | list) else (example,)
        example = {f"input_{at}": array for at, array in enumerate(arrays)}
    return read_script(path, dict(example), options.trust)


def _build_model(reference: str, weights: Path | None) -> Any:
    """What `package.module:function` or `file.py:function` returns, with the weights of a file."""
    factory = load_reference(reference, "function", "a model", BadModel)
    try:
        model = factory()
    except Exception as error:  # whatever a user's function can raise
        raise BadModel(f"{reference!r} failed: {root_cause(error)}") from error
    if weights is not None:
        _load_weights(model, weights)
    return model


def _load_weights(model: Any, path: Path) -> None:
    """Put a file's weights into a torch module or a Keras model."""
    if not path.is_file():
        raise BadModel(f"there is no file {str(path)!r} to take weights from")
    try:
        if is_keras(model):
            model.load_weights(path)
        else:
            model.load_state_dict(_read_state(path))
    except MissingExtra:
        raise
    except Exception as error:  # pickle, zip, HDF5 and names that differ, each in its own words
        raise BadModel(f"cannot take weights from {path.name}: {root_cause(error)}") from error


def _read_state(path: Path) -> Any:
    if path.suffix == ".safetensors":
        try:
            from safetensors.torch import load_file
        except ModuleNotFoundError as error:
            raise missing_extra(path.name, "safetensors", "optimize") from error
        return load_file(path)
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        # torch advises to unpickle it all the same
        raise BadModel("it holds more than tensors, or is damaged; save them with safetensors.torch.save_file") from None


def _take_calibration(trained: Trained, source: Path | None) -> Arrays:
    """Inputs that the model was trained on, or those of another source that its recipe reads."""
    data = trained.data if source is None else trained.recipe.load_data(source)
    return _take_batch(trained.recipe, data.train)[0]


def _take_batch(recipe: Recipe, samples: Samples) -> tuple[Arrays, Array | None]:
    """The model's inputs of at most `MAX_SAMPLES` samples, evenly from all of them (they may be sorted), and their classes."""
    first = samples.read(0, np.random.default_rng(0))
    nbytes = sum(first[name].nbytes for name in recipe.inputs)
    num_rows = max(1, min(len(samples), MAX_SAMPLES, _MAX_NBYTES // max(1, nbytes)))
    places = np.linspace(0, len(samples) - 1, num_rows).astype(int)
    rows = [samples.read(int(place), np.random.default_rng((0, int(place)))) for place in places]
    batch: dict[str, Any] = recipe.collate(rows)
    others = [np.asarray(array) for name, array in batch.items() if name not in recipe.inputs]
    targets = others[0] if len(others) == 1 and others[0].dtype.kind in "iub" else None
    return {name: np.asarray(batch[name]) for name in recipe.inputs}, targets
