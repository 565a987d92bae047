"""What is saved of an engine: itself, or a pipeline around it, so that clients send an image or a text.

A pipeline is up to four models: `name` is the ensemble that clients call; `name_transform`, `name_engine` and, for classes,
`name_labels` are its steps.
"""

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorferry.errors import BadModel
from tensorferry.inference.building import judge_candidate
from tensorferry.inference.card import make_card, make_pipeline_card, make_step_card, write_card
from tensorferry.inference.configs import make_config, make_engine_config, set_parameters
from tensorferry.inference.exam import Exam, compare
from tensorferry.inference.repository import LABELS_NAME, Entry, write_entries
from tensorferry.inference.source import Source
from tensorferry.serve.runtimes.runtime import LoadOptions, Signature, TensorSignature
from tensorferry.serve.runtimes.table import load_runtime
from tensorferry.serve.tensors import DTYPES

if TYPE_CHECKING:
    from tensorferry.inference.engine import Engine

_MAX_DIFFERENCE = 1e-3  # between two independent rows alone and together: kernels sum in other orders


def save_engine(engine: "Engine", root: Path, name: str, version: int | None, pipeline: bool = True) -> Path:
    """Save as a model of the repository `root`, without a version as its next one; returns the version's folder."""
    if engine.source.transform is None or not pipeline:
        return write_entries(root, [_make_entry(engine, name)], version)
    return write_entries(root, _make_pipeline(engine, name), version)


def _make_entry(engine: "Engine", name: str) -> Entry:
    chosen, labels = engine.outcome.chosen, engine.source.labels
    assert chosen.speed is not None
    config = make_engine_config(
        name, engine.candidate, engine.signature, batch=chosen.speed.batch, is_batched=has_rows(engine.exam)
    )
    scores = find_scores(engine.signature, labels)
    if scores is not None:
        next(output for output in config.output if output.name == scores).label_filename = LABELS_NAME
    transform = engine.source.transform or {}
    if transform.get("kind") == "text" and config.max_batch_size:
        set_parameters(config, {"padding": f"{transform['ids']}={transform.get('pad', 0)},{transform['mask']}=0"})

    def fill(folder: Path) -> None:
        shutil.copytree(engine.candidate.path.parent, folder, dirs_exist_ok=True)
        copied = replace(engine.candidate, path=folder / engine.candidate.path.name)
        _, reason = judge_candidate(copied, engine.exam, engine.outcome.min_agreement)
        if reason:
            raise BadModel(f"what was written does not give the original's answers any more: {reason}; nothing was saved")
        write_card(make_card(engine.source, engine.outcome, folder), folder)

    return Entry(config, fill, labels if scores is not None else ())


def _make_pipeline(engine: "Engine", name: str) -> list[Entry]:
    transform = engine.source.transform
    assert transform is not None
    inner = _make_entry(engine, f"{name}_engine")
    max_batch = inner.config.max_batch_size
    if not max_batch:
        raise BadModel("a pipeline needs a model whose rows are independent of each other; save it without one")
    entries = [_make_step(engine.source, f"{name}_transform", _complete(transform, engine.signature), max_batch), inner]
    scores = find_scores(engine.signature, engine.source.labels)
    outputs = engine.signature.outputs
    if scores is not None:
        description = {"kind": "labels", "labels": list(engine.source.labels), "scores": scores}
        entries.append(_make_step(engine.source, f"{name}_labels", description, max_batch))
        outputs = (*outputs, TensorSignature("LABEL", "BYTES", (-1, 1)))
    first = TensorSignature("TEXT" if transform["kind"] == "text" else "IMAGE", "BYTES", (-1, 1))
    signature = Signature((first,), outputs)
    config = make_config(name, "ensemble", signature, max_batch)
    for output in config.output:
        if output.name == scores:
            output.label_filename = LABELS_NAME
    for entry in entries:
        step = config.ensemble_scheduling.step.add(model_name=entry.config.name, model_version=-1)
        step.input_map.update({each.name: each.name for each in entry.config.input})
        step.output_map.update({each.name: each.name for each in entry.config.output})

    def fill(folder: Path) -> None:
        # the steps were written before, side by side with this one
        steps = {entry.config.name: folder.parents[1] / entry.config.name / folder.name for entry in entries}
        write_card(make_pipeline_card(engine.source, signature, steps), folder)

    return [*entries, Entry(config, fill, inner.labels)]


def _make_step(source: Source, name: str, description: dict[str, Any], max_batch: int) -> Entry:
    signature = _read_signature(description)

    def fill(folder: Path) -> None:
        _write_transform(description, folder)
        write_card(make_step_card(source, signature, folder), folder)

    return Entry(make_config(name, "transform", signature, max_batch), fill)


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
    """The transform with the types that the engine's inputs have."""
    by_name = {tensor.name: tensor for tensor in signature.inputs}
    names = [transform["input"]] if transform["kind"] == "image" else [transform["ids"], transform["mask"]]
    if sorted(names) != sorted(by_name):
        raise BadModel(
            f"the transform makes {', '.join(names)}, the model takes {', '.join(by_name)}; save it without a pipeline"
        )
    if transform["kind"] == "image":
        return transform
    return {**transform, "dtype": DTYPES[by_name[transform["ids"]].datatype].name}


def find_scores(signature: Signature, labels: tuple[str, ...]) -> str | None:
    """The output that has a column for each label."""
    return next((each.name for each in signature.outputs if labels and tuple(each.shape[1:]) == (len(labels),)), None)


def has_rows(exam: Exam) -> bool:
    """Whether rows are answered independently of each other: the first alone as in company."""
    if not exam.signature.may_be_batched or not exam.odd:
        return False
    return all(
        alone.shape[0] == 1 and compare(together[:1], alone) <= _MAX_DIFFERENCE
        for alone, together in zip(exam.odd[0].answers, exam.questions[0].answers, strict=True)
    )
