"""From a model and what it is fed to the trace of a training step, by the framework that the model belongs to.

This is the one place that knows frameworks. One more is one more case in `capture_step`: a function that turns the model that
the factory returned, and a `TrainingStep`, into a `Trace` whose ops have flops, bytes and precision and no seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeAlias

from tensorferry.errors import BadModel
from tensorferry.estimates.inputs import Input
from tensorferry.trace import Trace

Shapes: TypeAlias = tuple[tuple[tuple[int, ...], str], ...]  # shape and dtype of each input


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """What one training step is made of, beside the model."""

    inputs: tuple[Input, ...]
    loss: str
    optimizer: str
    precision: str
    kernels: str  # whose kernels run it: "gpu", "cpu", or "cpu-lean" as a `large_model` calls them


def capture_step(make_model: Callable[[], Any], step: TrainingStep, calls: list[Any] | None = None) -> Trace:
    """The trace of one training step, without running or allocating anything; a Keras model's weights alone are real.

    A list given as `calls` gets the call of every op, as torch can make it again; it stays empty for a step of TensorFlow.
    """
    inputs = tuple((given.shape, given.dtype) for given in step.inputs)
    precision = "fp32" if step.precision == "tf32" else step.precision
    if find_spec("torch") is None:
        return _capture_keras(_make_without_torch(make_model), make_model, inputs, step, precision)
    from tensorferry.engines.torch.dry import DryModel, DryStep

    dry = DryModel(make_model)
    if framework_of(dry.model) == "keras":
        return _capture_keras(dry.model, make_model, inputs, step, precision)
    return dry.capture(DryStep(inputs, step.loss, step.optimizer, precision, step.kernels), calls)


def _capture_keras(model: Any, make_model: Callable[[], Any], inputs: Shapes, step: TrainingStep, precision: str) -> Trace:
    import keras

    if keras.backend.backend() != "tensorflow":
        raise BadModel(
            f"the factory returned a Keras model on the {keras.backend.backend()} back end, which is followed as one of "
            "TensorFlow or of torch only; set KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch"
        )
    from tensorferry.engines.policy import make_policy
    from tensorferry.engines.tensorflow.dry import capture_dry

    if precision != "fp32":
        with make_policy(precision):  # layers take their precision when they are made
            model = make_model()
    return capture_dry(model, inputs, loss=step.loss, optimizer=step.optimizer)


def _make_without_torch(make_model: Callable[[], Any]) -> Any:
    try:
        model = make_model()
    except Exception as error:  # whatever a user's factory can raise
        raise BadModel(f"the factory failed: {type(error).__name__}: {error}") from error
    if framework_of(model) != "keras":
        raise BadModel(f"expected the factory to return a Keras model, received {type(model).__name__}")
    return model


def framework_of(model: Any) -> str:
    """ "torch", "keras", or nothing for anything else; a Keras model on the torch back end is a module of torch."""
    homes = [kind.__module__.split(".")[0] for kind in type(model).__mro__]
    return next((name for name in ("torch", "keras") if name in homes), "")
