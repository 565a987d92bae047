"""All rules, loaded by importing this file, and the names of the ops that have one."""

import torch

from tensorferry.engines.torch.stream import convolution, joining, losses, norms, pointwise, resampling, tokens
from tensorferry.engines.torch.stream.streamer import RULES

_FILES = (convolution, joining, losses, norms, pointwise, resampling, tokens)


def load() -> int:
    """Have all rules, which their files add when they are imported; how many there are."""
    return len(RULES) if all(_FILES) else 0


def can_stream(name: str) -> bool:
    """Whether an op of that name, without its overload, has a rule."""
    if name in RULES:
        return True
    packet = getattr(torch.ops.aten, name, None)
    return packet is not None and any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads())
