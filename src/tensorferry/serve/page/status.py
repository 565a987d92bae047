"""The status page and the figures that it draws."""

from typing import Any

import orjson

from tensorferry.pages import render
from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.describe import describe_model
from tensorferry.serve.core.model import Model


def make_page() -> bytes:
    """The page: one file that needs no other."""
    return render("serve/page/status.html.j2").encode()


def make_status(plane: DataPlane) -> bytes:
    """Everything the page shows, as JSON."""
    lines = [
        {"name": line.name, "version": line.version, "state": str(line.state), "reason": line.reason}
        for line in plane.index(False)
    ]
    return orjson.dumps(
        {
            "server": {"name": plane.metadata.name, "version": plane.metadata.version, "ready": plane.is_ready},
            "under_way": plane.num_under_way,
            "index": lines,
            "models": [_describe(plane, model) for model in plane.repository.models()],
        }
    )


def _describe(plane: DataPlane, model: Model) -> dict[str, Any]:
    stats = model.stats
    with stats.lock:
        figures = {
            "success": stats.success.count,
            "success_ns": stats.success.nanoseconds,
            "fail": stats.fail.count,
            "executions": stats.execution_count,
            "inferences": stats.inference_count,
            "bounds": list(stats.latency.bounds),
            "counts": list(stats.latency.counts),
        }
    labels = {spec.name: list(spec.labels[:1000]) for spec in model.spec.outputs if spec.labels}
    return describe_model(model, plane.repository.versions_of(model.name)) | {
        "version": str(model.version),
        "max_batch_size": model.spec.max_batch_size,
        "waiting": model.num_waiting,
        "labels": labels,
        "figures": figures,
    }
