"""A model's configuration: read from `config.pbtxt`, and completed from the model itself."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format

from tensorferry.errors import BadModel
from tensorferry.serve.core.spec import datatype_name, datatype_number
from tensorferry.serve.proto import inference as pb
from tensorferry.serve.runtimes.runtime import Signature, TensorSignature
from tensorferry.serve.runtimes.table import BACKENDS, OWN_PARAMETERS
from tensorferry.units import format_bytes

CONFIG_NAME = "config.pbtxt"
_SENDABLE = OWN_PARAMETERS.union(*(backend.parameters for backend in BACKENDS.values()))
# what a configuration can make the server hold or do before its model has answered anybody
_MAX_ROWS = 2**16
_MAX_LEVELS = 256
_MAX_WARM_UPS = 1000
_MAX_MADE_NBYTES = 2**28
_UNSUPPORTED = {
    "batch_input": "ragged batches (batch_input); use the parameter 'padding' instead",
    "batch_output": "ragged batches (batch_output)",
    "model_repository_agents": "repository agents",
}


def read_config(folder: Path) -> Any:
    """The ModelConfig of a model's folder; an empty one where there is no file."""
    path = folder / CONFIG_NAME
    config = pb.ModelConfig()
    if path.is_file():
        try:
            text_format.Parse(path.read_text("utf-8"), config)
        except (text_format.ParseError, UnicodeDecodeError, OSError) as error:
            raise BadModel(f"cannot read {path}: {error}") from None
    return _accept(config, folder.name)


def parse_config(text: str, name: str) -> Any:
    """The ModelConfig of a JSON text, as the repository extension sends it."""
    config = pb.ModelConfig()
    try:
        json_format.Parse(text, config)
    except json_format.ParseError as error:
        raise BadModel(f"cannot read the configuration sent for model '{name}': {error}") from None
    unknown = sorted(config.parameters.keys() - _SENDABLE)
    if unknown:
        raise BadModel(
            f"a request may not set the parameter {', '.join(map(repr, unknown))}; put it into {CONFIG_NAME} of model '{name}'"
        )
    if "isolation" in config.parameters and config.parameters["isolation"].string_value != "process":
        raise BadModel(f"a request may set the parameter 'isolation' of model '{name}' to 'process' alone")
    return _accept(config, name)


def is_ensemble(config: Any) -> bool:
    """Whether the model is made of other models."""
    return bool(config.HasField("ensemble_scheduling")) or config.platform == "ensemble"


def choose_versions(config: Any, available: list[int]) -> list[int]:
    """The versions to serve, lowest first, by the model's version policy; the newest alone by default."""
    policy = config.version_policy
    match policy.WhichOneof("policy_choice"):
        case "all":
            return sorted(available)
        case "specific":
            return sorted(set(available) & set(policy.specific.versions))
        case _:
            return sorted(available)[-max(1, policy.latest.num_versions) :]


def complete_config(config: Any, backend: str, signature: Signature | None, default_max_batch_size: int) -> Any:
    """A copy of `config` with everything that the model itself tells filled in, checked against it."""
    complete = pb.ModelConfig()
    complete.CopyFrom(config)
    complete.backend = complete.backend or backend
    complete.platform = complete.platform or BACKENDS[backend].platform
    if signature is None:
        if not complete.input or not complete.output:
            raise BadModel(f"model '{config.name}' does not tell its inputs and outputs; name them in {CONFIG_NAME}")
    else:
        if not complete.input and not complete.output and not complete.max_batch_size:
            complete.max_batch_size = default_max_batch_size if signature.may_be_batched else 0
        if complete.max_batch_size and not complete.HasField("dynamic_batching"):
            complete.dynamic_batching.SetInParent()
        _complete_tensors(complete, complete.input, signature.inputs, "input")
        _complete_tensors(complete, complete.output, signature.outputs, "output")
    if not complete.HasField("version_policy"):
        complete.version_policy.latest.num_versions = 1
    if not complete.instance_group:
        complete.instance_group.add(name=config.name, count=1, kind=pb.ModelInstanceGroup.KIND_CPU)
    return complete


def _accept(config: Any, name: str) -> Any:
    if config.name not in ("", name):
        raise BadModel(f"the configuration in the folder '{name}' is named '{config.name}'; the two must be equal")
    config.name = name
    for field, words in _UNSUPPORTED.items():
        present = getattr(config, field)
        if config.HasField(field) if hasattr(present, "SetInParent") else len(present):
            raise BadModel(f"model '{name}' asks for {words}, which this server does not do")
    for group in config.instance_group:
        if group.count < 0:
            raise BadModel(f"model '{name}' has an instance_group with a count of {group.count}; expected 0 or more")
    batching, sequences = config.dynamic_batching, config.sequence_batching
    for field, value, most in (
        ("max_batch_size", config.max_batch_size, _MAX_ROWS),
        ("priority_levels", batching.priority_levels, _MAX_LEVELS),
        ("max_candidate_sequences", sequences.oldest.max_candidate_sequences, _MAX_ROWS),
        ("number of preferred_batch_size", len(batching.preferred_batch_size), _MAX_ROWS),
        ("number of warm-ups", len(config.model_warmup), _MAX_WARM_UPS),
        *(("count of a warm-up", sample.count, _MAX_WARM_UPS) for sample in config.model_warmup),
    ):
        if not 0 <= value <= most:
            raise BadModel(f"model '{name}' has a {field} of {value:,}; expected 0 to {most:,}")
    for sample in config.model_warmup:
        _check_memory(name, "warm-up", sample.inputs.values(), max(1, sample.batch_size))
    _check_memory(name, "state of a sequence", sequences.state, 1)
    return config


def _check_memory(name: str, what: str, tensors: Iterable[Any], num_rows: int) -> None:
    nbytes = 0
    for tensor in tensors:
        nbytes += 8 * num_rows * math.prod(max(1, size) for size in tensor.dims)
        for state in getattr(tensor, "initial_state", ()):
            nbytes += 8 * math.prod(max(1, size) for size in state.dims)
    if nbytes > _MAX_MADE_NBYTES:
        most = format_bytes(_MAX_MADE_NBYTES)
        raise BadModel(f"model '{name}' has a {what} of {format_bytes(nbytes)}; at most {most} are made")


def _complete_tensors(config: Any, declared: Any, actual: tuple[TensorSignature, ...], word: str) -> None:
    is_batched = config.max_batch_size > 0
    if not declared:
        for tensor in actual:
            if is_batched and (not tensor.shape or tensor.shape[0] != -1):
                raise BadModel(f"model '{config.name}' has a max_batch_size, but the first size of '{tensor.name}' is fixed")
            added = declared.add(name=tensor.name, data_type=datatype_number(tensor.datatype))
            added.dims.extend(tensor.shape[1:] if is_batched else tensor.shape)
        return
    by_name = {tensor.name: tensor for tensor in actual}
    for tensor in declared:
        found = by_name.pop(tensor.name, None)
        if found is None:
            known = ", ".join(repr(tensor.name) for tensor in actual)
            raise BadModel(f"{CONFIG_NAME} of '{config.name}' names the {word} '{tensor.name}'; the model has {known}")
        _check_tensor(config, tensor, found, word)
    if by_name and word == "input":
        raise BadModel(f"{CONFIG_NAME} of '{config.name}' leaves out the input {', '.join(map(repr, by_name))}")


def _check_tensor(config: Any, tensor: Any, found: TensorSignature, word: str) -> None:
    if datatype_name(tensor.data_type) != found.datatype:
        raise BadModel(
            f"{CONFIG_NAME} of '{config.name}' says {datatype_name(tensor.data_type)} for the {word} '{tensor.name}', "
            f"the model says {found.datatype}"
        )
    sizes = list(tensor.reshape.shape) if tensor.HasField("reshape") else list(tensor.dims)
    shape = [-1, *sizes] if config.max_batch_size else sizes
    same = len(shape) == len(found.shape) and all(-1 in (a, b) or a == b for a, b in zip(shape, found.shape, strict=True))
    if found.has_rank and not same:
        raise BadModel(
            f"{CONFIG_NAME} of '{config.name}' gives the {word} '{tensor.name}' the shape {shape} (batch included), "
            f"the model has {list(found.shape)}"
        )
    if found.has_rank and config.max_batch_size and found.shape[0] not in (-1, config.max_batch_size):
        raise BadModel(f"'{config.name}' has a max_batch_size, but the first size of '{tensor.name}' is {found.shape[0]}")
