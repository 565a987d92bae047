"""A tensor without memory."""

from enum import Enum, auto
from typing import Any, Protocol

import torch

from tensorferry.engines.torch.compat import make_without_memory, tree_leaves
from tensorferry.engines.torch.stream.source import Resident, SlabSource


class OpRunner(Protocol):
    """What computes with tensors that have no memory."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op."""


class Shown(Enum):
    """How a tensor looks beside its source."""

    AS_IT_IS = auto()
    FLAT = auto()  # [samples, channels, 1, everything else], as losses want it
    TOKENS = auto()  # [tokens, features], or with more dimensions before: the source has a row for each token
    TURNED = auto()  # [features, tokens]


class StreamCell:
    """What a streamed tensor and its aliases share: in-place ops replace the source for all of them."""

    def __init__(self, source: SlabSource) -> None:
        self.source = source
        self.has_views = False  # tensors that show other shapes of it and would not see it change


class StreamedTensor(torch.Tensor):
    """Looks like an ordinary tensor in the default layout; its slabs come from a source."""

    cell: StreamCell
    streamer: OpRunner
    shown: Shown

    @staticmethod
    def __new__(
        cls, streamer: OpRunner, cell: StreamCell, shape: torch.Size | None = None, shown: Shown = Shown.FLAT
    ) -> "StreamedTensor":
        source = cell.source
        self: StreamedTensor = make_without_memory(
            cls, source.shape if shape is None else shape, dtype=source.dtype, device=torch.device("cpu")
        )
        self.cell = cell
        self.streamer = streamer
        self.shown = Shown.AS_IT_IS if shape is None else shown
        return self

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    @property
    def is_flat(self) -> bool:
        """Whether it is shown in another shape than its source's."""
        return self.shown is not Shown.AS_IT_IS

    def alike(self, cell: StreamCell) -> "StreamedTensor":
        """Another one that is shown as this one is."""
        return StreamedTensor(self.streamer, cell, self.shape if self.is_flat else None, self.shown)

    @property
    def source(self) -> SlabSource:
        """Where its slabs come from now."""
        source = self.cell.source
        # it may be written to in place, which what was made from it before must not see
        return Resident(source.tensor, changed_with=self) if isinstance(source, Resident) else source

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        streamed = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, StreamedTensor))
        return streamed.streamer.run(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"StreamedTensor(shape={tuple(self.shape)}, dtype={self.dtype}, requires_grad={self.requires_grad})"
