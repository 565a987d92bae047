"""The card beside an engine: what it came from, what it takes and gives, what was measured, and what made it."""

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tensorferry.files import list_checksums
from tensorferry.inference.outcome import Outcome
from tensorferry.inference.source import Source
from tensorferry.machine import count_cores, find_processor
from tensorferry.serve.runtimes.runtime import Signature, TensorSignature
from tensorferry.train.config import find_versions

_NAME = "card.json"
_TOOLS = (
    "tensorferry",
    "onnx",
    "onnxruntime",
    "openvino",
    "nncf",
    "onnxscript",
    "tf2onnx",
    "torch",
    "tensorflow",
    "tensorflow-cpu",
    "keras",
)


def make_card(source: Source, outcome: Outcome, folder: Path) -> dict[str, Any]:
    """The card of the chosen engine, whose files are in `folder`."""
    chosen, baseline = outcome.chosen, outcome.baseline
    assert chosen.candidate is not None
    assert chosen.match is not None
    assert chosen.speed is not None
    assert baseline.speed is not None
    return {
        **_begin(source, source.signature, chosen.route),
        "labels": list(source.labels),
        "columns": dict(source.columns),
        "transform": None if source.transform is None else {k: v for k, v in source.transform.items() if k != "tokenizer"},
        "engine": {
            "backend": chosen.candidate.backend,
            "precision": chosen.precision,
            "threads": chosen.candidate.num_threads,
            "parameters": dict(chosen.candidate.parameters),
        },
        "agreement": {
            "judge": outcome.judge,
            "samples": outcome.num_samples,
            "share": chosen.match.agreement,
            "asked_for": outcome.min_agreement,
            "largest_relative_difference": chosen.match.difference,
        },
        "measured": {
            "latency_seconds": chosen.speed.latency_seconds,
            "rows_per_second": chosen.speed.rows_per_second,
            "batch": chosen.speed.batch,
            "original_latency_seconds": baseline.speed.latency_seconds,
            "original_rows_per_second": baseline.speed.rows_per_second,
        },
        "machine": {"cpu": find_processor(), "cores": count_cores()},
        "tools": _list_tools(),
        "files": list_checksums(folder),
        "notes": list(outcome.notes),
    }


def make_step_card(source: Source, signature: Signature, folder: Path) -> dict[str, Any]:
    """The card of a pipeline's step beside the engine, whose files are in `folder`."""
    return {**_begin(source, signature), "tools": _list_tools(), "files": list_checksums(folder)}


def make_pipeline_card(source: Source, signature: Signature, steps: Mapping[str, Path]) -> dict[str, Any]:
    """The card of a pipeline: what clients send and get, and which files its steps had when it was saved."""
    files = {f"{name}/{file}": each for name, folder in steps.items() for file, each in list_checksums(folder).items()}
    return {
        **_begin(source, signature),
        "labels": list(source.labels),
        "pipeline": list(steps),
        "tools": _list_tools(),
        "files": files,
    }


def write_card(card: dict[str, Any], folder: Path) -> None:
    """Write a card into a version's folder."""
    (folder / _NAME).write_text(json.dumps(card, indent=1) + "\n", "utf-8")


def _begin(source: Source, signature: Signature, route: str = "") -> dict[str, Any]:
    origin = {"model": source.title, "framework": source.framework, **source.origin} | ({"route": route} if route else {})
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "from": origin,
        "inputs": [_describe(tensor) for tensor in signature.inputs],
        "outputs": [_describe(tensor) for tensor in signature.outputs],
    }


def _list_tools() -> dict[str, str]:
    return {"python": platform.python_version()} | find_versions(_TOOLS)


def _describe(tensor: TensorSignature) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
