"""A model as a chain: what its forward pass calls, one after the other. A pipeline puts pieces of it on different ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class ChainEnd:
    """One end of a chain: what to call, and the modules whose weights that uses."""

    call: Callable[..., Any]
    modules: tuple[nn.Module, ...]


@dataclass(frozen=True)
class Chain:
    """`last(block(... first(*inputs)), *inputs)`: both ends are given the model's inputs, a block what the one before returns."""

    first: ChainEnd
    blocks: tuple[nn.Module, ...]
    last: ChainEnd
