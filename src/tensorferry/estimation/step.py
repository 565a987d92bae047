"""One training step of a model: its trace, by the framework that the model belongs to, and what its ops take on this machine.

`StepCapture` is the one place that knows frameworks. One more is one more case in it: a function that turns the model that the
factory returned, and a `TrainingStep`, into a `Trace` whose ops have flops, bytes and precision and no seconds.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, TypeAlias

from tensorferry.errors import BadModel
from tensorferry.estimation.models import Input
from tensorferry.frameworks import framework_of
from tensorferry.machine import Machine, free_memory_nbytes, time_trace
from tensorferry.machine.roofline import kind_of, op_seconds
from tensorferry.machine.timed_ops import Sample, find_corrections
from tensorferry.trace import Trace

Shapes: TypeAlias = tuple[tuple[tuple[int, ...], str], ...]  # shape and dtype of each input
_FREE_SHARE = 0.5  # of the free memory that one call may take; the rest is for the process and for others


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """What one training step is made of, beside the model."""

    inputs: tuple[Input, ...]
    loss: str
    optimizer: str
    precision: str
    kernels: str  # whose kernels run it: "gpu", "cpu", or "cpu-lean" as a `large_model` calls them
    updates_at_once: bool = True  # whether an accelerator's optimizer updates all parameters in one op, as it does by itself


class StepCapture:
    """Captures training steps of what a factory returns, which is made once: it may take longer than a capture."""

    def __init__(self, make_model: Callable[[], Any]) -> None:
        self._make_model = make_model
        self._in_precision: dict[str, Any] = {}  # Keras models, by precision: layers take theirs when they are made

    def capture(self, step: TrainingStep, calls: list[Any] | None = None) -> Trace:
        """The trace of one training step, without running or allocating anything; a Keras model's weights alone are real.

        A list given as `calls` gets the call of every op, as torch can make it again; it stays empty for a step of TensorFlow.
        """
        inputs = tuple((given.shape, given.dtype) for given in step.inputs)
        precision = "fp32" if step.precision == "tf32" else step.precision
        if framework_of(self._made.model) == "keras":
            return self._capture_keras(inputs, step, precision)
        from tensorferry.engines.torch.fake_model import StepOptions

        options = StepOptions(inputs, step.loss, step.optimizer, precision, step.kernels, step.updates_at_once)
        return self._made.capture(options, calls)

    @cached_property
    def _made(self) -> Any:
        """A fake model, or what has one of Keras."""
        if find_spec("torch") is None:
            return _MadeWithoutTorch(_make_without_torch(self._make_model))
        from tensorferry.engines.torch.fake_model import FakeModel

        return FakeModel(self._make_model)

    def _capture_keras(self, inputs: Shapes, step: TrainingStep, precision: str) -> Trace:
        import keras

        if keras.backend.backend() != "tensorflow":
            raise BadModel(
                f"the factory returned a Keras model on the {keras.backend.backend()} back end, which is followed as one of "
                "TensorFlow or of torch only; set KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch"
            )
        from tensorferry.engines.policy import make_policy
        from tensorferry.engines.tensorflow.fake_model import capture_fake

        model = self._made.model
        if precision != "fp32":
            with make_policy(precision):
                model = self._in_precision[precision] = self._in_precision.get(precision) or self._make_model()
        return capture_fake(model, inputs, loss=step.loss, optimizer=step.optimizer)


@dataclass(frozen=True, slots=True)
class _MadeWithoutTorch:
    model: Any


def _make_without_torch(make_model: Callable[[], Any]) -> Any:
    try:
        model = make_model()
    except Exception as error:  # whatever a user's factory can raise
        raise BadModel(f"the factory failed: {type(error).__name__}: {error}") from error
    if framework_of(model) != "keras":
        raise BadModel(f"expected the factory to return a Keras model, received {type(model).__name__}")
    return model


@dataclass(frozen=True)
class Timing:
    """What timing a step's ops has shown."""

    corrections: dict[str, float]  # by kind of op, what to multiply the roofline's seconds by
    num_calls: int  # distinct calls that were timed
    share: float  # of the step's seconds, in ops of kinds that were timed
    too_large: tuple[str, ...]  # kinds with a call that did not fit into free memory and was left out


def time_step(trace: Trace, calls: Sequence[Any], machine: Machine, precision: str, free_nbytes: int | None = None) -> Timing:
    """Time the heavy ops of a step of torch on this machine; `calls` has one for each op of the trace."""
    from tensorferry.engines.torch.timing import time_calls

    usable_nbytes = _FREE_SHARE * (free_memory_nbytes() if free_nbytes is None else free_nbytes)
    num_times: Counter[Any] = Counter()
    first: dict[Any, int] = {}
    too_large: dict[str, None] = {}
    for i, (op, call) in enumerate(zip(trace.ops, calls, strict=True)):
        if call is None or not op.outputs or not op.touched_nbytes:
            continue
        if op.touched_nbytes + max(0, op.workspace_nbytes) > usable_nbytes:
            too_large[kind_of(op)] = None
            continue
        num_times[call] += 1
        first.setdefault(call, i)
    samples = [
        Sample(kind_of(trace.ops[i]), num_times[call], op_seconds(trace.ops[i], machine, precision)) for call, i in first.items()
    ]
    timed = time_calls(list(first), samples)
    corrections = find_corrections(timed)
    corrected = time_trace(trace, machine, precision, corrections)
    known_seconds = sum(op.seconds for op in corrected.ops if kind_of(op) in corrections)
    return Timing(
        corrections,
        num_calls=sum(sample.seconds is not None for sample in timed),
        share=known_seconds / corrected.seconds if corrected.seconds else 0.0,
        too_large=tuple(too_large),
    )
