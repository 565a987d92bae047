"""All rules, loaded by importing this file."""

from tensorferry.engines.torch.stream import convolution, interpolation, joining, losses, norms, pointwise, resampling, tokens
from tensorferry.engines.torch.stream.registry import RULES, can_stream

_FILES = (convolution, interpolation, joining, losses, norms, pointwise, resampling, tokens)

__all__ = ["can_stream", "load"]


def load() -> int:
    """Have all rules, which their files add when they are imported; how many there are."""
    return len(RULES) if all(_FILES) else 0
