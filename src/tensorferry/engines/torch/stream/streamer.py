"""Runs ops by their rules: slab by slab where something is too large, whole where there is no rule."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensorferry.engines.torch.compat import tree_leaves, tree_map_only
from tensorferry.engines.torch.demand import estimate_demand, most_nbytes
from tensorferry.engines.torch.lean import run_op
from tensorferry.engines.torch.stream.decision import StreamSizes
from tensorferry.engines.torch.stream.log import StreamLog
from tensorferry.engines.torch.stream.moments import Moments
from tensorferry.engines.torch.stream.needs import Made, Reader, Where, need_of, nothing
from tensorferry.engines.torch.stream.registry import SEEDS, op_name, run_by_rule
from tensorferry.engines.torch.stream.room import SlabRoom
from tensorferry.engines.torch.stream.slab_io import SlabIO
from tensorferry.engines.torch.stream.slabs import LAYOUTS, ROWS, Slab, cut, nbytes_of
from tensorferry.engines.torch.stream.source import Computed, Joined, Resident, SlabSource, Stored, chunks, read_whole
from tensorferry.engines.torch.stream.tensor import Shown, StreamCell, StreamedTensor
from tensorferry.errors import NotSupported

_LEAST_SHARE = 4  # of an op's working memory: what slabs have at least
_MAX_LEAVES = 3  # a function of more slabs than this is stored: it would be computed again for every reader
_MAX_LEAVES_ONCE = 12  # where there is one reader


@dataclass(slots=True)
class StreamCounts:
    """What streaming did."""

    num_stored: int = 0  # tensors put on the tier
    num_slabs: int = 0


class Streamer:
    """Makes streamed tensors and computes with them."""

    def __init__(self, io: SlabIO, sizes: StreamSizes, room: SlabRoom) -> None:
        self.io = io
        self.sizes = sizes
        self.counts = StreamCounts()
        self.brought_back: Counter[str] = Counter()  # bytes by op
        self.op = ""  # that is run
        self.log: StreamLog | None = None  # of the step, where one is kept
        self.room = room
        self.is_closed = False
        self._number = 0
        self._wanted_moments: set[tuple[StreamSizes, int]] = set()  # of stored tensors, by number, that a norm reads

    def begin_step(self, sizes: StreamSizes) -> None:
        """Count stored tensors from zero, and cut ops in other sizes."""
        self._number = 0
        self.sizes = sizes

    # ops

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op by its rule, or whole."""
        name = self.op = op_name(func)
        streamed = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, StreamedTensor)]
        # what outlives the context is in memory, and nothing is stored any more
        if (streamed or name in SEEDS) and not self.is_closed:
            out = run_by_rule(self, func, args, kwargs)
            if out is not NotImplemented:
                return out
        if not streamed:
            return self._run_plain(func, args, kwargs)
        return self._run_whole(name, func, args, kwargs)

    def _run_plain(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An op on tensors in memory, which fits or is not begun."""
        if not self.room.fits(most_nbytes(args, kwargs)):  # which mostly spares the estimate
            self.room.demand(estimate_demand(func, args, kwargs), self.op)
        return run_op(func, args, kwargs)

    def _run_whole(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What an op writes or returns views of stays in memory, so that all who share it see it."""
        written = [tensor for tensor in _written(func, args, kwargs) if isinstance(tensor, StreamedTensor)]
        if any(tensor.is_flat or tensor.cell.has_views for tensor in written):
            raise written_through_view(name)
        is_shared = any(argument.alias_info is not None for argument in func._schema.arguments)
        brought: list[tuple[torch.Tensor, StreamedTensor]] = []

        def bring_back(tensor: StreamedTensor) -> torch.Tensor:
            full = self._brought_back(tensor, name)
            if is_shared:
                tensor.cell.source = Resident(full)
            shown = _as_shown(full, tensor)
            brought.append((shown, tensor))
            return shown

        whole_args, whole_kwargs = tree_map_only(StreamedTensor, bring_back, (args, kwargs))
        out = self._run_plain(func, whole_args, whole_kwargs)
        if any(shown.shape != tensor.shape for shown, tensor in brought):
            raise NotSupported(
                f"{name!r} gives a streamed tensor another shape; leave `out` away, or give one of the right shape"
            )
        streamed = {id(shown): tensor for shown, tensor in brought}
        return tree_map_only(torch.Tensor, lambda tensor: streamed.get(id(tensor), tensor), out)

    def _brought_back(self, tensor: StreamedTensor, name: str) -> torch.Tensor:
        """All of a tensor in memory, in the shape of its source."""
        source = tensor.source
        if isinstance(source, Resident):
            return source.tensor
        self.brought_back[name] += 0 if self.is_closed else source.nbytes
        chunk_nbytes = max(need_of([(source, None)], nothing, slab).nbytes for slab in chunks(source))
        self.room.demand(source.nbytes + chunk_nbytes, name)
        return read_whole(source)

    # tensors

    def wrap(self, source: SlabSource, *, is_read_once: bool = False) -> StreamedTensor:
        """A tensor whose slabs come from a source; one that is a function of too many others is stored."""
        most = _MAX_LEAVES_ONCE if is_read_once else _MAX_LEAVES
        if isinstance(source, Computed) and sum(1 for _ in source.leaves()) > most:
            stored = self.stored(source.shape, source.dtype)
            for slab in self.each(source.shape, [(source, None)], self.made(source.shape, source.dtype)):
                stored.write(slab, source.look(slab))
            source = stored
        return StreamedTensor(self, StreamCell(source))

    def stored(self, shape: Sequence[int], dtype: torch.dtype) -> Stored:
        """A new tensor on the tier, to be written slab by slab."""
        stored = Stored(self.io, shape, dtype)
        stored.number, self._number = self._number, self._number + 1
        if (self.sizes, stored.number) in self._wanted_moments:
            stored.moments = Moments()
        self.counts.num_stored += 1
        return stored

    def want_moments(self, stored: Stored) -> None:
        """In later steps, find what norms want to know of this tensor while it is written."""
        self._wanted_moments.add((self.sizes, stored.number))

    def is_large(self, shape: Sequence[int], dtype: torch.dtype) -> bool:
        """Whether a tensor is not to be in memory whole."""
        return len(shape) in LAYOUTS and nbytes_of(shape, dtype) >= self.sizes.threshold_nbytes

    def made(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        workspace: Callable[[Slab], int] | None = None,
        where: Where | None = None,
        *,
        may_be_normed: bool = True,
    ) -> Made:
        """What a kernel takes that makes a slab of a tensor for `collect`, which writes it from a copy; a norm may have one, too.

        `workspace`: beyond its output. `where`: which slab it makes for one that is cut, where that is another.
        """
        num_copies = (1 + may_be_normed) * self.is_large(shape, dtype)

        def nbytes(slab: Slab) -> tuple[int, int]:
            out_nbytes = nbytes_of((slab if where is None else where(slab)).shape_in(shape), dtype)
            return out_nbytes + (0 if workspace is None else workspace(slab)), num_copies * out_nbytes

        return nbytes

    def whole_nbytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """What `collect` leaves in memory."""
        return 0 if self.is_large(shape, dtype) else nbytes_of(shape, dtype)

    def collect(
        self, shape: Sequence[int], dtype: torch.dtype, pieces: Iterable[tuple[Slab, torch.Tensor]], groups: Sequence[int] = ()
    ) -> torch.Tensor:
        """A tensor from its slabs, in order: on the tier if it is large. `groups`: channels that are stored apart."""
        if not self.is_large(shape, dtype):
            tensor = torch.empty(tuple(shape), dtype=dtype, memory_format=LAYOUTS[len(shape)])
            for slab, piece in pieces:
                tensor[slab.first : slab.last, :, slab.low : slab.high] = piece
                del piece
            return tensor
        sizes = list(groups) if len(groups) > 1 else [shape[1]]
        parts = [self.stored((shape[0], num_channels, *shape[2:]), dtype) for num_channels in sizes]
        for slab, piece in pieces:
            for stored, part in zip(parts, piece.split(sizes, dim=1), strict=True):
                stored.write(slab, part)
            del piece, part
        return self.wrap(parts[0] if len(parts) == 1 else Joined(parts))

    # slabs

    def each(
        self,
        shape: Sequence[int],
        readers: Sequence[Reader],
        made: Made = nothing,
        *,
        whole_nbytes: int = 0,
        min_rows: int = 1,
        least_rows: int = 1,
        slabs: Sequence[Slab] | None = None,
    ) -> Iterator[Slab]:
        """The slabs of a tensor one after another, cut so that working on each of them fits; `slabs`: as they are given.

        readers: what is read for a slab, which is on its way before it is yielded. made: what the kernel takes for a slab.
        whole_nbytes: what all slabs together leave in memory. min_rows: for a fast kernel; least_rows: for any.
        Cuts are the same for the same shapes in every step and every run.
        """
        if slabs is None:
            slabs = self._cut(shape, readers, made, min_rows, least_rows, whole_nbytes)
        self.counts.num_slabs += len(slabs)
        is_expected = False
        under_way = None if self.log is None else self.log.begin_pass(self.op, slabs, readers)
        try:
            for number, slab in enumerate(slabs):
                following = slabs[number + 1] if number + 1 < len(slabs) and self.sizes.num_buffers > 1 else None
                is_expected = self._begin_slab(slab, following, readers, made, whole_nbytes, is_expected)
                if under_way is not None:
                    under_way.num_ahead += is_expected
                yield slab
            if under_way is not None:
                under_way.end()
        finally:
            for source, _ in readers:
                source.forget()

    def _cut(
        self, shape: Sequence[int], readers: Sequence[Reader], made: Made, min_rows: int, least_rows: int, whole_nbytes: int
    ) -> list[Slab]:
        """The fewest slabs that fit; below the least rows for fast kernels only where those would not."""

        def need_nbytes(slabs: list[Slab], num_buffers: int) -> int:
            inner = slabs[1:-1] or slabs  # where there is halo on both sides
            need = need_of(readers, made, max(inner, key=lambda slab: slab.num_rows * (slab.last - slab.first)))
            return need.nbytes + (num_buffers - 1) * need.read_nbytes

        def fewest(rows: int, limit_nbytes: int) -> list[Slab]:
            low, high = 0, shape[0] * max(1, shape[ROWS] // rows)  # of parts: too few, and enough if any are
            while high - low > 1:
                middle = (low + high) // 2
                if need_nbytes(cut(shape, middle, min_rows=rows), self.sizes.num_buffers) <= limit_nbytes:
                    high = middle
                else:
                    low = middle
            return cut(shape, high, min_rows=rows)

        # what all slabs leave takes its part; where that is nearly all there is, slabs are small and not tiny
        working_nbytes = max(self.sizes.working_nbytes - whole_nbytes, self.sizes.working_nbytes // _LEAST_SHARE)
        slabs = fewest(max(min_rows, least_rows), working_nbytes)
        # a fast kernel is worth more than reads ahead
        if min_rows > least_rows and need_nbytes(slabs, 1) > self.sizes.most_nbytes:
            slabs = min(slabs, fewest(least_rows, self.sizes.most_nbytes), key=lambda each: need_nbytes(each, 1))
        return slabs

    def _begin_slab(
        self, slab: Slab, following: Slab | None, readers: Sequence[Reader], made: Made, whole_nbytes: int, is_expected: bool
    ) -> bool:
        """Have a slab's bytes on their way, and room for working on it; whether there is room for the next one's too."""
        need = need_of(readers, made, slab)
        # what was read ahead is held already, but for the copies that all but one of its readers get
        need_nbytes = need.nbytes + whole_nbytes
        ahead_nbytes = 0 if following is None else need_of(readers, nothing, following).read_nbytes
        may_read_ahead = self.sizes.num_buffers > 1 and self.room.make(need_nbytes + ahead_nbytes, need.buffer_nbytes)
        if not may_read_ahead:
            self.room.demand(need_nbytes, self.op, need.buffer_nbytes)
        if not is_expected:
            _expect(readers, slab)
        if may_read_ahead and following is not None:
            _expect(readers, following)
        return may_read_ahead


def _expect(readers: Sequence[Reader], slab: Slab) -> None:
    for source, where in readers:
        source.expect(slab if where is None else where(slab))


def source_of(tensor: torch.Tensor) -> SlabSource:
    """Where a tensor's slabs come from, streamed or not."""
    return tensor.source if isinstance(tensor, StreamedTensor) else Resident(tensor)


def written_through_view(name: str) -> NotSupported:
    """The error for an in-place op whose effect others would have to see."""
    return NotSupported(
        f"{name!r} writes to a streamed tensor of which there are views, which would not see it; use the op that does not "
        "write in place, or a budget that needs no streaming"
    )


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """What an op writes to."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tree_leaves(args[number] if number < len(args) else kwargs.get(argument.name))


def _as_shown(full: torch.Tensor, tensor: StreamedTensor) -> torch.Tensor:
    if tensor.shown not in (Shown.TOKENS, Shown.TURNED):
        return full.view(tensor.shape)
    rows = full[0, :, :, 0].t()
    return rows.t() if tensor.shown is Shown.TURNED else rows.view(tensor.shape)
