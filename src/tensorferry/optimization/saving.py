"""What is saved of an optimized model: itself, or a pipeline around it, so that clients send an image or a text.

A pipeline is up to four models: `name` is the ensemble that clients call; `name_transform`, `name_engine` and, for classes,
`name_labels` or, for segmentations, `name_volumes` are its steps. Beside every version lies a card: what it came from, what it
takes and gives, what was measured.
"""

import json
import platform
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel
from tensorferry.files import list_checksums
from tensorferry.machine import count_cores, find_processor
from tensorferry.optimization.agreement import Comparison, ReferenceAnswers, relative_difference
from tensorferry.optimization.candidates import Candidate, SearchResult
from tensorferry.optimization.check import check_candidate
from tensorferry.optimization.gate import AnswerGate
from tensorferry.optimization.repository import (
    LABELS_NAME,
    NewVersion,
    make_candidate_config,
    make_config,
    set_parameters,
    write_versions,
)
from tensorferry.optimization.sources.source import Source
from tensorferry.serve.core.folder import CARD_NAME
from tensorferry.serve.core.tensors import DTYPES
from tensorferry.serve.runtimes.runtime import LoadOptions, Signature, TensorSignature
from tensorferry.serve.runtimes.table import load_runtime
from tensorferry.train.config import find_versions

_MAX_DIFFERENCE = 1e-3  # between two independent rows alone and together: kernels sum in other orders
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


@dataclass(frozen=True)
class SavableModel:
    """A model and the candidate that was chosen to serve it, with the answers that a saved copy must still give."""

    source: Source
    reference: ReferenceAnswers
    result: SearchResult

    @property
    def candidate(self) -> Candidate:
        """What is to serve."""
        assert self.result.chosen.candidate is not None
        return self.result.chosen.candidate


def save_model(model: SavableModel, root: Path, name: str, version: int | None, pipeline: bool = True) -> Path:
    """Save as a model of the repository `root`, without a version as its next one; returns the version's folder."""
    if model.source.transform is None or not pipeline:
        return write_versions(root, [_make_version(model, name)], version)
    return write_versions(root, _make_pipeline(model, name), version)


def _make_version(model: SavableModel, name: str) -> NewVersion:
    chosen, labels = model.result.chosen, model.source.labels
    assert chosen.speed is not None
    config = make_candidate_config(
        name, model.candidate, model.source.signature, batch=chosen.speed.batch, is_batched=_has_rows(model.reference)
    )
    scores = _find_scores(model.source.signature, labels)
    if scores is not None:
        next(output for output in config.output if output.name == scores).label_filename = LABELS_NAME
    transform = model.source.transform or {}
    if transform.get("kind") == "text" and config.max_batch_size:
        set_parameters(config, {"padding": f"{transform['ids']}={transform.get('pad', 0)},{transform['mask']}=0"})

    def fill(folder: Path) -> None:
        shutil.copytree(model.candidate.path.parent, folder, dirs_exist_ok=True)
        copied = replace(model.candidate, path=folder / model.candidate.path.name)
        _, reason = check_candidate(copied, model.reference, model.result.gate)
        if reason:
            raise BadModel(f"what was written does not give the original's answers any more: {reason}; nothing was saved")
        _write_card(_make_card(model.source, model.result, folder), folder)

    return NewVersion(config, fill, labels if scores is not None else ())


def _make_pipeline(model: SavableModel, name: str) -> list[NewVersion]:
    transform = model.source.transform
    assert transform is not None
    inner = _make_version(model, f"{name}_engine")
    max_batch = inner.config.max_batch_size
    if not max_batch:
        raise BadModel("a pipeline needs a model whose rows are independent of each other; save it without one")
    first = _complete(transform, model.source.signature)
    versions = [_make_step(model.source, f"{name}_transform", first, max_batch), inner]
    scores = _find_scores(model.source.signature, model.source.labels)
    outputs = model.source.signature.outputs
    if transform["kind"] == "volume":
        (scored,) = outputs
        description = {"kind": "segmentation", "labels": list(model.source.labels), "scores": scored.name}
        description["volumes"] = transform["input"]
        versions.append(_make_step(model.source, f"{name}_volumes", description, max_batch))
        outputs = _read_signature(description).outputs
    elif scores is not None:
        description = {"kind": "labels", "labels": list(model.source.labels), "scores": scores}
        versions.append(_make_step(model.source, f"{name}_labels", description, max_batch))
        outputs = (*outputs, *_read_signature(description).outputs)
    signature = Signature(_read_signature(first).inputs, outputs)
    config = make_config(name, "ensemble", signature, max_batch)
    for output in config.output:
        if output.name == scores:
            output.label_filename = LABELS_NAME
    for version in versions:
        step = config.ensemble_scheduling.step.add(model_name=version.config.name, model_version=-1)
        step.input_map.update({each.name: each.name for each in version.config.input})
        step.output_map.update({each.name: each.name for each in version.config.output})

    def fill(folder: Path) -> None:
        # the steps were written before, side by side with this one
        steps = {version.config.name: folder.parents[1] / version.config.name / folder.name for version in versions}
        _write_card(_make_pipeline_card(model.source, signature, steps), folder)

    return [*versions, NewVersion(config, fill, inner.labels)]


def _make_step(source: Source, name: str, description: dict[str, Any], max_batch: int) -> NewVersion:
    signature = _read_signature(description)

    def fill(folder: Path) -> None:
        _write_transform(description, folder)
        _write_card(_make_step_card(source, signature, folder), folder)

    return NewVersion(make_config(name, "transform", signature, max_batch), fill)


def _write_transform(description: dict[str, Any], folder: Path) -> Path:
    path = folder / "transform.json"
    path.write_text(json.dumps(description), "utf-8")
    return path


def _read_signature(description: dict[str, Any]) -> Signature:
    """What a step takes and gives, from the runtime that will run it."""
    with tempfile.TemporaryDirectory(prefix="ferry-transform-") as folder:
        runtime = load_runtime("transform", LoadOptions(_write_transform(description, Path(folder))))
    assert runtime.signature is not None
    return runtime.signature


def _complete(transform: dict[str, Any], signature: Signature) -> dict[str, Any]:
    """The transform with the types that the model's inputs have."""
    by_name = {tensor.name: tensor for tensor in signature.inputs}
    names = [transform["ids"], transform["mask"]] if transform["kind"] == "text" else [transform["input"]]
    if sorted(names) != sorted(by_name):
        raise BadModel(
            f"the transform makes {', '.join(names)}, the model takes {', '.join(by_name)}; save it without a pipeline"
        )
    if transform["kind"] != "text":
        return transform
    return {**transform, "dtype": DTYPES[by_name[transform["ids"]].datatype].name}


def _find_scores(signature: Signature, labels: tuple[str, ...]) -> str | None:
    """The output that has a column for each label."""
    return next((each.name for each in signature.outputs if labels and tuple(each.shape[1:]) == (len(labels),)), None)


def _has_rows(reference: ReferenceAnswers) -> bool:
    """Whether rows are answered independently of each other: the first alone as in company."""
    if not reference.signature.may_be_batched or not reference.odd_batches:
        return False
    return all(
        alone.shape[0] == 1 and relative_difference(together[:1], alone) <= _MAX_DIFFERENCE
        for alone, together in zip(reference.odd_batches[0].answers, reference.batches[0].answers, strict=True)
    )


def _make_card(source: Source, result: SearchResult, folder: Path) -> dict[str, Any]:
    """The card of the chosen candidate, whose files are in `folder`."""
    chosen, baseline = result.chosen, result.baseline
    assert chosen.candidate is not None
    assert chosen.comparison is not None
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
            "layers_in_fp32": list(chosen.kept),
        },
        "agreement": {
            "judge": result.judge,
            "samples": result.num_samples,
            "share": chosen.comparison.agreement,
            "interval_95": [chosen.comparison.interval.low, chosen.comparison.interval.high],
            "answers": chosen.comparison.num_answers,
            "asked_for": result.gate.min_agreement,
            "largest_relative_difference": chosen.comparison.difference,
        },
        "metric": _describe_drop(chosen.comparison, result.gate),
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
        "notes": list(result.notes),
    }


def _describe_drop(comparison: Comparison, gate: AnswerGate) -> dict[str, Any] | None:
    """What is lost of accuracy or Dice; None where the right answers are not known."""
    lost = comparison.metric_drop
    if lost is None:
        return None
    return {
        "name": lost.metric,
        "original": lost.original,
        "engine": lost.candidate,
        "drop": lost.drop,
        "drop_interval_95": [lost.interval.low, lost.interval.high],
        "may_be_lost": gate.max_drop,
    }


def _make_step_card(source: Source, signature: Signature, folder: Path) -> dict[str, Any]:
    """The card of a pipeline's step beside the model, whose files are in `folder`."""
    return {**_begin(source, signature), "tools": _list_tools(), "files": list_checksums(folder)}


def _make_pipeline_card(source: Source, signature: Signature, steps: Mapping[str, Path]) -> dict[str, Any]:
    """The card of a pipeline: what clients send and get, and which files its steps had when it was saved."""
    files = {f"{name}/{file}": each for name, folder in steps.items() for file, each in list_checksums(folder).items()}
    return {
        **_begin(source, signature),
        "labels": list(source.labels),
        "pipeline": list(steps),
        "tools": _list_tools(),
        "files": files,
    }


def _write_card(card: dict[str, Any], folder: Path) -> None:
    """Write a card into a version's folder."""
    (folder / CARD_NAME).write_text(json.dumps(card, indent=1) + "\n", "utf-8")


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
