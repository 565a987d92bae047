"""`ferry.optimize`: one call from a trained model to an engine."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel, BadOption
from tensorferry.inference.building import Tell, Wishes
from tensorferry.inference.candidates import has_bf16
from tensorferry.inference.engine import Engine
from tensorferry.inference.exam import Exam, set_exam
from tensorferry.inference.folder import Folder
from tensorferry.inference.opening import Given, Opened, open_source
from tensorferry.inference.samples import MAX_SAMPLES, cut_rows, read_samples, split_samples
from tensorferry.inference.search import ASK_SHARE, search
from tensorferry.inference.source import Arrays
from tensorferry.messages import did_you_mean
from tensorferry.serve.faults import InvalidRequest

PRECISIONS = ("auto", "fp32", "bf16", "int8")


def optimize(
    model: Any,
    example: Any = None,
    *,
    precision: str = "auto",
    min_agreement: float = 0.99,
    judge: str = "auto",
    calibrate: Any = None,
    labels: Sequence[str] = (),
    weights: str | Path | None = None,
    seconds: float = 120.0,
    trust: bool = False,
    tell: Tell = lambda _: None,
) -> Engine:
    """The fastest engine that gives the answers of `model`: a module, a Keras model, or the path of a file, folder or run.

    `example` is a batch of real inputs (an array, a tuple, arrays by name, or a file of them; rows first): answers are compared
    on it, so the more rows the better. `precision` "auto" tries fp32, and bf16 where the CPU has it; "int8" also quantises,
    calibrated on `calibrate` or half of the rows. An engine passes if it agrees with the original on at least `min_agreement` of
    the rows, as `judge` counts: "top1" the same class, "nearest" the same nearest neighbour (embeddings), "close" within 1 %.
    """
    precisions = _read_precision(precision)
    if not 0 < min_agreement <= 1:
        raise BadOption(f"expected an agreement above 0 and at most 1, received {min_agreement!r}; write for example 0.99")
    if not seconds > 0:
        raise BadOption(f"expected seconds above zero, received {seconds!r}")
    if isinstance(labels, str):
        raise BadOption(f"expected labels one by one, received the text {labels!r}; write for example ('cat', 'dog')")
    if calibrate is not None and "int8" not in precisions:
        raise BadOption("samples to calibrate on are for int8, which is not asked for; add --int8 (precision='int8' in Python)")
    began = time.perf_counter()
    folder = Folder()
    try:
        tell("loading the model")
        example = read_samples(Path(example)) if isinstance(example, str | Path) else example
        given = Given(example, tuple(labels), None if weights is None else Path(weights), trust)
        opened = open_source(model, given, folder.new())
        source, samples, calibration = opened.source, cut_rows(opened.samples, MAX_SAMPLES), None
        if "int8" in precisions:
            calibrate = Path(calibrate) if isinstance(calibrate, str) else calibrate
            calibration, samples = split_samples(opened.samples, opened.read_calibration(calibrate))
        tell(f"asking the original: {source.title} in {source.framework}")
        exam = _ask(opened, samples, judge, time.perf_counter() + ASK_SHARE * seconds)
        wishes = Wishes(precisions, min_agreement, seconds, calibration)
        return Engine(source, exam, search(source, exam, wishes, folder, tell, began), folder)
    except BaseException:
        folder.remove()
        raise


def _ask(opened: Opened, samples: Arrays, judge: str, deadline: float) -> Exam:
    source = opened.source
    try:
        return set_exam(source.original.new_runner(), source.signature, samples, judge, deadline)
    except InvalidRequest as error:
        if not opened.is_invented:
            raise
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in samples.items())
        raise BadModel(f"{error}; the inputs were invented, with sizes that may be wrong: {shapes}. Give --samples") from None


def _read_precision(precision: str) -> tuple[str, ...]:
    if precision not in PRECISIONS:
        raise BadOption(
            f"unknown precision {precision!r}{did_you_mean(precision, PRECISIONS)}; choose from {', '.join(PRECISIONS)}"
        )
    if precision == "bf16" and not has_bf16():
        raise BadOption("this CPU does not compute in bf16 by itself, so it would be slower than fp32; take precision auto")
    return {"auto": ("fp32", "bf16"), "int8": ("fp32", "bf16", "int8")}.get(precision, (precision,))
