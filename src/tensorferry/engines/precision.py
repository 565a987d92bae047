"""Mixed precision in one word, for PyTorch and for Keras: `precision`.

Sixteen-bit numbers are only worth it where the hardware multiplies them faster, and many processors do not. So "auto" measures
each precision on the device that will train, and says what it found. It measures them in turns, because whatever else the machine
does slows down one turn and not the next.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal, overload

from tensorferry.errors import BadOption
from tensorferry.messages import did_you_mean

if TYPE_CHECKING:
    from tensorferry.engines.policy import KerasPrecision
    from tensorferry.engines.torch.precision import TorchPrecision

PRECISIONS = ("fp32", "bf16", "fp16", "auto")
FRAMEWORKS = ("torch", "keras")
_WORTH_IT = 1.5  # times fp32's rate, which hardware made for it exceeds by far; below that, casting and chance eat the gain
_NUM_TURNS = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """A precision, and why it is that one."""

    name: str  # "fp32", "bf16" or "fp16"
    reason: str


@overload
def precision(name: str = "auto", framework: Literal["torch"] = "torch") -> "TorchPrecision": ...
@overload
def precision(name: str, framework: Literal["keras"]) -> "KerasPrecision": ...
def precision(name: str = "auto", framework: str = "torch") -> "TorchPrecision | KerasPrecision":
    """A context for mixed precision: "fp32", "bf16", "fp16", or "auto" for what this hardware does fast; `.reason` says why.

    In PyTorch the forward pass runs inside it, and it takes the backward pass and the step, so that fp16's gradients are scaled:

        amp = ferry.precision("auto")
        with amp:
            loss = loss_fn(model(x), y)
        amp.backward(loss)
        amp.step(optimizer)

    In Keras the model is made inside it, because layers take their precision when they are made:

        with ferry.precision("auto", "keras"):
            model = keras.Sequential([...])
    """
    check_name(name)
    if framework == "torch":
        from tensorferry.engines.torch.precision import make_precision

        return make_precision(name)
    if framework == "keras":
        from tensorferry.engines.policy import make_policy

        return make_policy(name)
    raise BadOption(f"no framework {framework!r}{did_you_mean(framework, FRAMEWORKS)}; there are {' and '.join(FRAMEWORKS)}")


def check_name(name: str) -> None:
    """Raise `BadOption` unless that is a precision."""
    if name not in PRECISIONS:
        raise BadOption(f"no precision {name!r}{did_you_mean(name, PRECISIONS)}; there are {', '.join(PRECISIONS)}")


def choose(asked: str, measure_flops: Callable[[str], float], *, on_cpu: bool) -> Choice:
    """What was asked for; for "auto" the precision that this device computes clearly faster in than in fp32."""
    if asked != "auto":
        return Choice(asked, "as asked")
    # fp16 needs its gradients scaled, so it has to earn that; no processor multiplies it faster than bf16
    names = ("bf16",) if on_cpu else ("bf16", "fp16")
    turns = [{name: measure_flops(name) for name in ("fp32", *names)} for _ in range(_NUM_TURNS)]
    gains = {name: median(turn[name] / turn["fp32"] for turn in turns) for name in names}
    best = "fp16" if gains.get("fp16", 0.0) > _WORTH_IT * gains["bf16"] else "bf16"
    found = ", ".join(f"{name} at {gain:.2g} times" for name, gain in gains.items())
    return Choice(best if gains[best] >= _WORTH_IT else "fp32", f"measured here: {found} the rate of fp32")
