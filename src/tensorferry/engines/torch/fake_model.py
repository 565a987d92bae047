"""`FakeModel`: the trace of a training step of a model that is not there yet, on a device that is not there either.

Model, batch, loss and optimizer are made and run with fake tensors, so that nothing is allocated and nothing computed. With
`kernels="gpu"` the step is what it would be on an accelerator, although the fake tensors say they are on the CPU: no copies
reordered by oneDNN, fused attention also with dropout, autocast's accelerator rules, and the optimizer's multi-tensor form.
"""

import gc
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tensorferry.engines.torch.calls import OpCall
from tensorferry.engines.torch.compat import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    disable_current_modes,
    tensor_tables,
    tree_leaves,
)
from tensorferry.engines.torch.fake_step import QuickFakeMode, follow, unchanged_randomness
from tensorferry.errors import BadModel, FerryError, NotTraceable
from tensorferry.frameworks import is_keras
from tensorferry.messages import kind_and_first_line
from tensorferry.trace import Trace

DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "bool": torch.bool,
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p, **how: torch.optim.SGD(p, lr=0.1, momentum=0.9, **how),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}
LOSSES = ("cross_entropy", "token_cross_entropy", "mse", "mean")
_TORCH_FOLDER = str(Path(torch.__file__).parent)
_OUR_FOLDER = str(Path(__file__).parents[2])
# what autocast runs in fp32 on an accelerator and not on a CPU
_FP32_ON_GPU = {functional.layer_norm, functional.group_norm, functional.cross_entropy, functional.mse_loss, functional.nll_loss}
_SOFTMAX = {functional.softmax, functional.log_softmax, torch.softmax, torch.log_softmax, torch.Tensor.softmax}


@dataclass(frozen=True, slots=True)
class StepOptions:
    """What one step trains on and with."""

    inputs: tuple[tuple[tuple[int, ...], str], ...]  # shape and dtype of each of the model's inputs
    loss: str = "mean"  # one of LOSSES
    optimizer: str = "sgd"  # one of OPTIMIZERS
    precision: str = "fp32"  # "fp16" and "bf16": autocast
    kernels: str = "gpu"  # whose kernels run the step: "gpu", "cpu", or "cpu-lean" as a `large_model` calls them
    updates_at_once: bool = True  # where an accelerator's optimizer does so by itself


class FakeModel:
    """What a factory returned, with nothing behind its parameters if it is a module."""

    def __init__(self, make_model: Callable[[], Any]) -> None:
        self._mode = QuickFakeMode(allow_non_fake_inputs=True)
        with unchanged_randomness():
            try:
                with self._mode:
                    self.model = make_model()
            except Exception:
                # it may read weights from a file, or numbers from a tensor
                self.model = _make_real_model(make_model)
        if isinstance(self.model, torch.nn.Module):
            self._empty(self.model.train())

    def _empty(self, model: torch.nn.Module) -> None:
        """Replace real parameters and buffers by fake ones."""
        fakes: dict[int, torch.Tensor] = {}
        for module in model.modules():
            for held in tensor_tables(module):
                for name, tensor in list(held.items()):
                    if tensor is not None and not isinstance(tensor, FakeTensor):
                        held[name] = fakes.setdefault(id(tensor), self._mode.from_tensor(tensor))
        for variable in _keras_variables(model, "variables"):  # layers compute with what these hold
            if variable._value.is_floating_point():  # a seed is none, and its value is asked for
                variable._value = fakes.setdefault(id(variable._value), self._mode.from_tensor(variable._value))

    def capture(self, step: StepOptions, calls: list[OpCall | None] | None = None) -> Trace:
        """The trace of one training step; every storage that backward or the optimizer waits for is movable, however small.

        A list given as `calls` gets the call of every op of the trace, None for one that cannot be put down.
        Raises `BadModel` where the model rejects the inputs and `NotTraceable` where fake tensors cannot follow.
        """
        if not isinstance(self.model, torch.nn.Module):
            kind = type(self.model).__name__
            raise BadModel(f"expected the factory to return a torch.nn.Module or a Keras model, received {kind}")
        with self._mode:
            return _follow(self.model, step, self._mode, calls)


def _keras_variables(model: Any, name: str) -> list[Any]:
    """A Keras model's variables of that name; a model of torch has none."""
    return list(getattr(model, name)) if is_keras(model) else []


def _make_real_model(make_model: Callable[[], Any]) -> Any:
    try:
        return make_model()
    except Exception as error:  # whatever a user's factory can raise
        raise BadModel(f"the factory failed{_where(error)}: {kind_and_first_line(error)}") from error


def _follow(model: torch.nn.Module, step: StepOptions, mode: FakeTensorMode, calls: list[OpCall | None] | None) -> Trace:
    on_gpu = step.kernels == "gpu"
    # an accelerator's default is one multi-tensor op for all parameters, a CPU's is a loop
    trained = [variable._value for variable in _keras_variables(model, "trainable_variables")] or model.parameters()
    optimizer = OPTIMIZERS[step.optimizer](trained, foreach=on_gpu and step.updates_at_once)
    _make_state(optimizer)
    inputs = [torch.zeros(shape, dtype=DTYPES[dtype]) for shape, dtype in step.inputs]

    def train() -> None:
        with ExitStack() as stack:
            if step.precision in ("fp16", "bf16"):
                stack.enter_context(torch.autocast("cpu", DTYPES[step.precision]))
            if on_gpu:
                stack.enter_context(_GpuRules(step.precision))
            scores = _find_scores(_call(model, inputs), step.loss)
            with disable_current_modes(), mode:  # targets come with the batch, so no op of the step makes them
                target = _make_target(scores[0], step.loss)
            loss = _compute_loss(scores, target, step.loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    try:
        with _quiet(), _without_collection():
            trace = follow(train, model, mode, torch.device("cpu"), [optimizer], min_nbytes=1, kernels=step.kernels, calls=calls)
    except FerryError:
        raise
    except Exception as error:  # whatever a user's forward or backward can raise
        raise NotTraceable(
            f"the step cannot be followed without running it{_where(error)}: {kind_and_first_line(error)}"
        ) from error
    # no process holds anything yet, so the step's storages are all there is
    return replace(trace, overhead_nbytes=0, device=step.kernels.split("-")[0])


@contextmanager
def _quiet() -> Iterator[None]:
    """While inside, torch does not log the errors of fake ops: they are raised, and told in one line."""
    log = logging.getLogger(FakeTensorMode.__module__)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


@contextmanager
def _without_collection() -> Iterator[None]:
    """While inside, tensors in reference cycles live on: else when one ends would not repeat, nor be alike for two batches."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _make_state(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimizer's state as its first step does, so that the recorded step is like every later one."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    optimizer.zero_grad()


def _call(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Any:
    try:
        return model(*inputs)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise NotTraceable(
            f"the model's control flow depends on values{_where(error)} ({kind_and_first_line(error)}), "
            "which a step that is not run does not have; capture it with ferry.capture(..., fake=False)"
        ) from error
    except Exception as error:
        shapes = ", ".join("x".join(map(str, tensor.shape)) for tensor in inputs)
        raise BadModel(f"the model rejects an input of {shapes}{_where(error)}: {kind_and_first_line(error)}") from error


def _find_scores(output: Any, loss: str) -> list[torch.Tensor]:
    """The tensors of a model's output that the loss is for, the first one shaped as it wants it."""
    scores = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.is_floating_point() and t.requires_grad]
    if not scores:
        raise BadModel("expected the model to return a tensor with a gradient, and it returned none")
    if "cross_entropy" in loss and scores[0].dim() < 2:
        raise BadModel(f"cross entropy needs scores by class, received an output of shape {tuple(scores[0].shape)}")
    if loss == "token_cross_entropy":  # classes in the last dimension
        scores[0] = scores[0].flatten(0, -2)
    return scores


def _make_target(scores: torch.Tensor, loss: str) -> torch.Tensor:
    if loss == "mse":
        return torch.zeros_like(scores)
    return torch.zeros(scores.shape[:1] + scores.shape[2:], dtype=torch.int64)


def _compute_loss(scores: list[torch.Tensor], target: torch.Tensor, loss: str) -> torch.Tensor:
    if loss == "mean":
        return torch.stack([t.float().mean() for t in scores]).sum()
    return functional.mse_loss(scores[0], target) if loss == "mse" else functional.cross_entropy(scores[0], target)


class _GpuRules(TorchFunctionMode):
    """What differs on an accelerator, for functions called while inside."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        self._lower = precision in ("fp16", "bf16")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is functional.scaled_dot_product_attention:
            # fused kernels draw the mask again in backward; the CPU's would fall back to keeping every weight
            kwargs["dropout_p"], args = 0.0, args[:4]
        elif self._lower and func in _FP32_ON_GPU:
            args = tuple(a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)
        elif self._lower and func in _SOFTMAX and args[0].dtype in (torch.float16, torch.bfloat16):
            kwargs["dtype"] = torch.float32
        return func(*args, **kwargs)


def _where(error: BaseException) -> str:
    """The user's line that led to the error, if any."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_TORCH_FOLDER, _OUR_FOLDER, "<"))
    ]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
