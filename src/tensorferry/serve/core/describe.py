"""Metadata, statistics and the index as plain values, in the protocol's words."""

from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from tensorferry.serve.core.model import Model
from tensorferry.serve.core.spec import TensorSpec
from tensorferry.serve.core.stats import Duration


def describe_model(model: Model, versions: list[str]) -> dict[str, Any]:
    """The metadata of a model."""
    return {
        "name": model.name,
        "versions": versions,
        "platform": model.config.platform,
        "inputs": [_describe_tensor(spec) for spec in model.spec.inputs],
        "outputs": [_describe_tensor(spec) for spec in model.spec.outputs],
    }


def describe_statistics(model: Model) -> dict[str, Any]:
    """The statistics of a loaded version."""
    stats = model.stats
    with stats.lock:
        return {
            "name": model.name,
            "version": str(model.version),
            "last_inference": stats.last_inference_milliseconds,
            "inference_count": stats.inference_count,
            "execution_count": stats.execution_count,
            "inference_stats": {
                "success": _describe(stats.success),
                "fail": _describe(stats.fail),
                "queue": _describe(stats.queue),
                "compute_input": _describe(stats.compute_input),
                "compute_infer": _describe(stats.compute_infer),
                "compute_output": _describe(stats.compute_output),
                "cache_hit": _describe(stats.cache_hit),
                "cache_miss": _describe(stats.cache_miss),
            },
            "batch_stats": [
                {
                    "batch_size": size,
                    "compute_input": _describe(batch.compute_input),
                    "compute_infer": _describe(batch.compute_infer),
                    "compute_output": _describe(batch.compute_output),
                }
                for size, batch in sorted(stats.batches.items())
            ],
        }


def describe_config(config: Any) -> dict[str, Any]:
    """A model's configuration in the words of its file, with numbers as numbers."""
    found = json_format.MessageToDict(config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return _restore_numbers(config.DESCRIPTOR, found)


def _restore_numbers(message: Any, found: dict[str, Any]) -> dict[str, Any]:
    """`found` with its 64-bit numbers, which protobuf writes as text."""
    return {key: _restore(message.fields_by_name[key], value) for key, value in found.items()}


def _restore(field: Any, value: Any) -> Any:
    if isinstance(value, list):
        return [_restore(field, each) for each in value]
    if field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64):
        return int(value)
    if not isinstance(value, dict):
        return value
    if field.message_type.GetOptions().map_entry:
        return {key: _restore(field.message_type.fields_by_name["value"], each) for key, each in value.items()}
    return _restore_numbers(field.message_type, value)


def _describe_tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _describe(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.nanoseconds}
