"""Runs ops by their rules: slab by slab where something is too large, whole where there is no rule."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

from tensorferry.engines.torch.compat import tree_leaves, tree_map_only
from tensorferry.engines.torch.stream.decision import StreamSizes
from tensorferry.engines.torch.stream.slab_io import SlabIO
from tensorferry.engines.torch.stream.slabs import LAYOUTS, Slab, cut, nbytes_of
from tensorferry.engines.torch.stream.source import Computed, Resident, SlabSource, Stored, read_whole
from tensorferry.engines.torch.stream.tensor import StreamCell, StreamedTensor
from tensorferry.errors import NotSupported

Rule = Callable[..., Any]  # takes a streamer and the op's arguments; NotImplemented: the op is run whole
Reader = tuple[SlabSource, Callable[[Slab], Slab] | None]  # a source and which slab of it is read for one of the op's
RULES: dict[str, Rule] = {}  # by the name of an op without its overload
_SEEDS: set[str] = set()  # ops whose outputs may be too large though no input is streamed
_POINTWISE_BACKWARD = {f"{name}_backward" for name in ("leaky_relu", "elu", "hardtanh", "hardswish", "mish", "silu", "gelu")}
_MAX_LEAVES = 12  # a function of more slabs than this is stored: it would be computed again for every reader


def rule(*names: str, seeds: bool = False) -> Callable[[Rule], Rule]:
    """The rule of these ops; `seeds`: it is asked even where no argument is streamed."""

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        _SEEDS.update(names if seeds else ())
        return function

    return add


@dataclass(slots=True)
class StreamCounts:
    """What streaming did."""

    num_stored: int = 0  # tensors put on the tier
    num_slabs: int = 0


class Streamer:
    """Makes streamed tensors and computes with them."""

    def __init__(self, io: SlabIO, sizes: StreamSizes, make_room: Callable[[], None]) -> None:
        self.io = io
        self.sizes = sizes
        self.counts = StreamCounts()
        self.brought_back: Counter[str] = Counter()  # bytes by op
        self._make_room = make_room
        self._number = 0
        self._wanted_moments: set[int] = set()  # stored tensors, by number, that a norm reads

    def begin_step(self) -> None:
        """Count stored tensors from zero."""
        self._number = 0

    # ops

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op by its rule, or whole."""
        name = op_name(func)
        streamed = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, StreamedTensor)]
        if streamed or name in _SEEDS:
            out = self._by_rule(name, func, args, kwargs)
            if out is not NotImplemented:
                return out
        if not streamed:
            return func(*args, **kwargs)
        return self._run_whole(name, func, args, kwargs)

    def _by_rule(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from tensorferry.engines.torch.stream.pointwise import run_pointwise

        if name in RULES:
            return RULES[name](self, *args, **kwargs)
        if torch.Tag.pointwise in func.tags or name in _POINTWISE_BACKWARD:
            return run_pointwise(self, func, args, kwargs)
        return NotImplemented

    def _run_whole(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What an op writes or returns views of stays in memory, so that all who share it see it."""
        is_shared = any(argument.alias_info is not None for argument in func._schema.arguments)

        def bring_back(tensor: StreamedTensor) -> torch.Tensor:
            source = tensor.source
            if isinstance(source, Resident):
                full = source.tensor
            else:
                self.brought_back[name] += source.nbytes
                self.make_room()
                full = read_whole(source)
            if is_shared:
                tensor.cell.source = Resident(full)
            return full.view(tensor.shape)

        written = _first_written(func, args)
        if isinstance(written, StreamedTensor) and (written.is_flat or written.cell.has_views):
            raise written_through_view(name)
        whole_args, whole_kwargs = tree_map_only(StreamedTensor, bring_back, (args, kwargs))
        out = func(*whole_args, **whole_kwargs)
        return written if isinstance(written, StreamedTensor) else out

    # tensors

    def wrap(self, source: SlabSource) -> StreamedTensor:
        """A tensor whose slabs come from a source; one that is a function of too many others is stored."""
        if isinstance(source, Computed) and sum(1 for _ in source.leaves()) > _MAX_LEAVES:
            stored = self.stored(source.shape, source.dtype)
            for slab in self.each(self.slabs(source.shape, [source], source.nbytes), [(source, None)]):
                stored.write(slab, source.look(slab))
            source = stored
        return StreamedTensor(self, StreamCell(source))

    def stored(self, shape: Sequence[int], dtype: torch.dtype) -> Stored:
        """A new tensor on the tier, to be written slab by slab."""
        from tensorferry.engines.torch.stream.norms import Moments

        stored = Stored(self.io, shape, dtype)
        stored.number, self._number = self._number, self._number + 1
        if stored.number in self._wanted_moments:
            stored.moments = Moments()
        self.counts.num_stored += 1
        return stored

    def want_moments(self, stored: Stored) -> None:
        """In later steps, find what norms want to know of this tensor while it is written."""
        self._wanted_moments.add(stored.number)

    def is_large(self, shape: Sequence[int], dtype: torch.dtype) -> bool:
        """Whether a tensor is not to be in memory whole."""
        return len(shape) in LAYOUTS and nbytes_of(shape, dtype) >= self.sizes.threshold_nbytes

    def collect(
        self, shape: Sequence[int], dtype: torch.dtype, pieces: Iterable[tuple[Slab, torch.Tensor]], groups: Sequence[int] = ()
    ) -> torch.Tensor:
        """A tensor from its slabs, in order: on the tier if it is large. `groups`: channels that are stored apart."""
        from tensorferry.engines.torch.stream.joining import JoinedWriter

        if not self.is_large(shape, dtype):
            tensor = torch.empty(tuple(shape), dtype=dtype, memory_format=LAYOUTS[len(shape)])
            for slab, piece in pieces:
                tensor[slab.first : slab.last, :, slab.low : slab.high] = piece
            return tensor
        writer = JoinedWriter(self, shape, dtype, groups)
        for slab, piece in pieces:
            writer.write(slab, piece)
            del piece
        return self.wrap(writer.source)

    # slabs

    def slabs(
        self,
        shape: Sequence[int],
        sources: Sequence[SlabSource],
        out_nbytes: int,
        *,
        workspace_nbytes: int = 0,
        min_rows: int = 1,
    ) -> list[Slab]:
        """A tensor cut so that working on a slab of it fits; the same for the same shapes in every step and every run.

        `out_nbytes`: of all that is made, which is held twice: as it is made, and as it is written.
        `workspace_nbytes`: of kernels, for all of it.
        """
        read_nbytes = sum(leaf.nbytes for source in sources for leaf in source.leaves() if isinstance(leaf, Stored))
        made_nbytes = sum(source.nbytes for source in sources) + 2 * out_nbytes + workspace_nbytes
        num_parts = ceil((self.sizes.num_buffers * read_nbytes + made_nbytes) / self.sizes.working_nbytes)
        slabs = cut(shape, num_parts, min_rows=min_rows)
        self.counts.num_slabs += len(slabs)
        return slabs

    def each(self, slabs: Sequence[Slab], readers: Sequence[Reader]) -> Iterator[Slab]:
        """The slabs one after another; what is read for the next one is on its way meanwhile, where there is room for that."""
        reads_ahead = self.sizes.num_buffers > 1
        try:
            for number, slab in enumerate(slabs):
                self.make_room()
                if not reads_ahead or number == 0:
                    _expect(readers, slab)
                if reads_ahead and number + 1 < len(slabs):
                    _expect(readers, slabs[number + 1])
                yield slab
        finally:
            for source, _ in readers:
                source.forget()

    def make_room(self) -> None:
        """Give back freed memory if there is little room."""
        self._make_room()


def _expect(readers: Sequence[Reader], slab: Slab) -> None:
    for source, where in readers:
        source.expect(slab if where is None else where(slab))


def source_of(tensor: torch.Tensor) -> SlabSource:
    """Where a tensor's slabs come from, streamed or not."""
    return tensor.source if isinstance(tensor, StreamedTensor) else Resident(tensor)


def op_name(func: Any) -> str:
    """An op's name without its overload."""
    return str(func._schema.name).removeprefix("aten::")


def written_through_view(name: str) -> NotSupported:
    """The error for an in-place op whose effect others would have to see."""
    return NotSupported(
        f"{name!r} writes to a streamed tensor of which there are views, which would not see it; use the op that does not "
        "write in place, or a budget that needs no streaming"
    )


def _first_written(func: Any, args: tuple[Any, ...]) -> Any:
    arguments = func._schema.arguments
    if args and arguments and arguments[0].alias_info is not None and arguments[0].alias_info.is_write:
        return args[0]
    return None


def run_streamed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op on streamed tensors, wherever it is called."""
    streamed = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, StreamedTensor))
    return streamed.streamer.run(func, args, kwargs)
