"""Which precision a device computes fast in.

Sixteen-bit numbers are only worth it where the hardware multiplies them faster, and many processors do not. So "auto" measures
each precision on the device that will train, and says what it found. It measures them in turns, because whatever else the machine
does slows down one turn and not the next.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

_WORTH_IT = 1.5  # times fp32's rate, which hardware made for it exceeds by far; below that, casting and chance eat the gain
_NUM_TURNS = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """A precision, and why it is that one."""

    name: str  # "fp32", "bf16" or "fp16"
    reason: str


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
