"""`ferry.optimize`: one call from a trained model to an engine."""

import time
from pathlib import Path
from typing import Any

from tensorferry.errors import BadOption
from tensorferry.inference.candidates import has_bf16
from tensorferry.inference.engine import Engine
from tensorferry.inference.exam import set_exam
from tensorferry.inference.folder import Folder
from tensorferry.inference.opening import Given, open_source
from tensorferry.inference.samples import MAX_SAMPLES, cut_rows, split_samples
from tensorferry.inference.search import ASK_SHARE, Tell, Wishes, search
from tensorferry.plan.machines import nearest

PRECISIONS = ("auto", "fp32", "bf16", "int8")


def optimize(
    model: Any,
    example: Any = None,
    *,
    precision: str = "auto",
    min_agreement: float = 0.99,
    judge: str = "auto",
    calibrate: Any = None,
    labels: tuple[str, ...] = (),
    weights: Path | None = None,
    seconds: float = 120.0,
    trust: bool = False,
    tell: Tell = lambda _: None,
) -> Engine:
    """The fastest engine that gives the answers of `model`: a module, a Keras model, or the path of a file, folder or run.

    `example` is a batch of real inputs (an array, a tuple, or arrays by name; rows first): answers are compared on it, so the
    more rows the better. `precision` "auto" tries fp32, and bf16 where the CPU has it; "int8" also quantises, calibrated on
    `calibrate` or half of the rows. An engine passes if it agrees with the original on at least `min_agreement` of the rows, as
    `judge` counts: "top1" the same class, "nearest" the same nearest neighbour (embeddings), "close" within 1 %.
    """
    precisions = _read_precision(precision)
    if not 0 < min_agreement <= 1:
        raise BadOption(f"expected an agreement above 0 and at most 1, received {min_agreement!r}; write for example 0.99")
    if not seconds > 0:
        raise BadOption(f"expected seconds above zero, received {seconds!r}")
    began = time.perf_counter()
    folder = Folder()
    try:
        tell("loading the model")
        opened = open_source(model, Given(example, tuple(labels), weights, trust), folder.new())
        source, samples, calibration = opened.source, cut_rows(opened.samples, MAX_SAMPLES), None
        if "int8" in precisions:
            calibration, samples = split_samples(opened.samples, opened.read_calibration(calibrate))
        tell(f"asking the original: {source.title} in {source.framework}")
        exam = set_exam(source.original.new_runner(), source.signature, samples, judge, time.perf_counter() + ASK_SHARE * seconds)
        wishes = Wishes(precisions, min_agreement, seconds, calibration)
        return Engine(source, exam, search(source, exam, wishes, folder, tell, began), folder)
    except BaseException:
        folder.remove()
        raise


def _read_precision(precision: str) -> tuple[str, ...]:
    if precision not in PRECISIONS:
        raise BadOption(f"unknown precision {precision!r}{nearest(precision, PRECISIONS)}; choose from {', '.join(PRECISIONS)}")
    if precision == "bf16" and not has_bf16():
        raise BadOption("this CPU does not compute in bf16 by itself, so it would be slower than fp32; take precision auto")
    return {"auto": ("fp32", "bf16"), "int8": ("fp32", "bf16", "int8")}.get(precision, (precision,))
