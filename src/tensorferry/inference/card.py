"""The card beside an engine: what it came from, what it takes and gives, what was measured, and what made it."""

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tensorferry.files import digest
from tensorferry.inference.candidates import count_cores
from tensorferry.inference.outcome import Outcome
from tensorferry.inference.source import Source
from tensorferry.serve.runtimes.runtime import TensorSignature
from tensorferry.train.config import find_processor, find_versions

CARD_NAME = "card.json"
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
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "from": {"model": source.title, "framework": source.framework, "route": chosen.route},
        "inputs": [_describe(tensor) for tensor in source.signature.inputs],
        "outputs": [_describe(tensor) for tensor in source.signature.outputs],
        "labels": list(source.labels),
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
        "tools": {"python": platform.python_version()} | find_versions(_TOOLS),
        "files": {
            str(path.relative_to(folder)): f"sha256:{digest(path)}" for path in sorted(folder.rglob("*")) if path.is_file()
        },
        "notes": list(outcome.notes),
    }


def _describe(tensor: TensorSignature) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
