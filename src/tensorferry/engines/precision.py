"""Mixed precision in one word, for PyTorch and for Keras: `precision`."""

from typing import TYPE_CHECKING, Literal, overload

from tensorferry.errors import BadOption
from tensorferry.messages import did_you_mean

if TYPE_CHECKING:
    from tensorferry.engines.policy import KerasPrecision
    from tensorferry.engines.torch.precision import TorchPrecision

PRECISIONS = ("fp32", "bf16", "fp16", "auto")
FRAMEWORKS = ("torch", "keras")


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
