"""From a model and what it is fed to the trace of a training step, by the framework that the model belongs to.

This is the one place that knows frameworks. One more is one more case in `capture_step`: a function that turns the model that
the factory returned, and a `Step`, into a `Trace` whose ops have flops, bytes and precision and no seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorferry.errors import BadModel, MissingExtra
from tensorferry.estimates.inputs import Input
from tensorferry.trace import Trace


@dataclass(frozen=True, slots=True)
class Step:
    """What one training step is made of, beside the model."""

    inputs: tuple[Input, ...]
    loss: str
    optimizer: str
    precision: str
    kernels: str  # whose kernels run it: "gpu", "cpu", or "cpu-lean" as a `large_model` calls them


def capture_step(make_model: Callable[[], Any], step: Step) -> Trace:
    """The trace of one training step, without running or allocating anything."""
    try:
        from tensorferry.engines.torch.dry import DryModel, DryStep
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra('estimates need torch, which is not installed: pip install "tensorferry[torch]"') from error
    dry = DryModel(make_model)
    if framework_of(dry.model) == "keras":
        raise BadModel("the factory returned a Keras model, and estimates of those are not there yet; return a torch.nn.Module")
    inputs = tuple((given.shape, given.dtype) for given in step.inputs)
    precision = "fp32" if step.precision == "tf32" else step.precision
    return dry.capture(DryStep(inputs, step.loss, step.optimizer, precision, step.kernels))


def framework_of(model: Any) -> str:
    """ "torch", "keras", or nothing for anything else; a Keras model on the torch back end is a module of torch."""
    homes = [kind.__module__.split(".")[0] for kind in type(model).__mro__]
    return next((name for name in ("torch", "keras") if name in homes), "")
