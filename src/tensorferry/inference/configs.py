"""A model's `config.pbtxt`, as Triton and our server read it."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tensorferry.errors import BadModel
from tensorferry.inference.candidates import Candidate
from tensorferry.machine import count_cores
from tensorferry.serve.runtimes.runtime import Signature, TensorSignature
from tensorferry.serve.spec import datatype_number

_MIN_MAX_BATCH = 8
_OWN_FIELDS = ("name", "backend", "platform", "input", "output", "max_batch_size", "instance_group", "optimization")


def make_engine_config(name: str, candidate: Candidate, signature: Signature, *, batch: int, is_batched: bool) -> Any:
    """The configuration of an engine; `batch` is the number of rows that gave the best throughput."""
    config = make_config(name, candidate.backend, signature, max(_MIN_MAX_BATCH, batch) if is_batched else 0)
    set_parameters(config, candidate.parameters)
    if candidate.accelerator:
        config.instance_group.add(count=1, kind=model_config_pb2.ModelInstanceGroup.KIND_GPU)
        if candidate.accelerator == "tensorrt":
            config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="tensorrt")
    else:
        # an engine that is fastest with few threads leaves cores for others of its kind
        config.instance_group.add(
            count=max(1, count_cores() // candidate.num_threads), kind=model_config_pb2.ModelInstanceGroup.KIND_CPU
        )
    return config


def make_config(name: str, backend: str, signature: Signature, max_batch_size: int) -> Any:
    """The configuration of any model: its name, what runs it, what it takes and gives."""
    config = model_config_pb2.ModelConfig(name=name, backend=backend, max_batch_size=max_batch_size)
    if backend == "ensemble":
        config.backend, config.platform = "", "ensemble"
    add_tensors(config.input, signature.inputs, max_batch_size > 0)
    add_tensors(config.output, signature.outputs, max_batch_size > 0)
    if max_batch_size and backend != "ensemble":
        config.dynamic_batching.SetInParent()  # what queued while an instance was busy goes together; nothing waits
    return config


def add_tensors(declared: Any, tensors: tuple[TensorSignature, ...], is_batched: bool) -> None:
    """Declare inputs or outputs."""
    for tensor in tensors:
        added = declared.add(name=tensor.name, data_type=datatype_number(tensor.datatype))
        added.dims.extend(tensor.shape[1:] if is_batched else tensor.shape)


def set_parameters(config: Any, parameters: Mapping[str, str]) -> None:
    """Set a configuration's parameters."""
    for key, value in parameters.items():
        config.parameters[key].string_value = value


def update_config(old: Any, new: Any) -> Any:
    """What a newer version's configuration is: `new`, with what people added to the old one (versions, queues, warm-up)."""
    for word in ("input", "output"):
        before, after = ([(each.name, each.data_type, *each.dims) for each in getattr(config, word)] for config in (old, new))
        if before and sorted(before) != sorted(after):
            names = ", ".join(each.name for each in getattr(old, word))
            raise BadModel(
                f"the model '{new.name}' that is there has other {word}s ({names}), so its clients would break; "
                "save this one under another name"
            )
    merged = model_config_pb2.ModelConfig()
    merged.CopyFrom(old)
    for field in (*_OWN_FIELDS, "parameters"):
        merged.ClearField(field)
    if new.HasField("ensemble_scheduling"):
        merged.ClearField("ensemble_scheduling")
    merged.MergeFrom(new)
    return merged


def format_config(config: Any) -> str:
    """The text of `config.pbtxt`."""
    return text_format.MessageToString(config)
