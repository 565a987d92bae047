"""Metadata, statistics and the index as plain values, in the protocol's words."""

from typing import Any

from tensorferry.serve.model import Model
from tensorferry.serve.spec import TensorSpec
from tensorferry.serve.stats import Duration


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


def _describe_tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _describe(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.nanoseconds}
