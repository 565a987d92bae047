"""Where the slabs of a tensor come from: memory, the tier, or a function of other slabs.

`expect` tells that a slab will be read, so that its bytes are on their way by then; who reads a slab that several readers
expect gets a copy, and the last of them the buffer itself. `read` gives memory that the reader may overwrite, `look` need not.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch

from tensorferry.engines.torch.stream.moments import Moments
from tensorferry.engines.torch.stream.slab_io import SlabIO, SlabRead, StoredRows
from tensorferry.engines.torch.stream.slabs import ROWS, Slab, cut, nbytes_of, whole
from tensorferry.errors import SavedTensorModified

_NUM_CHUNKS = 8  # a sample is read whole in so many


class SlabSource(ABC):
    """The slabs of one tensor."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, inputs: Sequence["SlabSource"] = ()) -> None:
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self.inputs = tuple(inputs)

    @property
    def nbytes(self) -> int:
        """What it would hold whole."""
        return nbytes_of(self.shape, self.dtype)

    @abstractmethod
    def read(self, slab: Slab) -> torch.Tensor:
        """A slab in memory of its own; rows that the tensor does not have are undefined."""

    def look(self, slab: Slab) -> torch.Tensor:
        """A slab that the caller leaves as it is."""
        return self.read(slab)

    def take(self, slab: Slab) -> tuple[torch.Tensor, bool]:
        """A slab that the caller is done with before it reads another, and whether it may overwrite it."""
        return self.read(slab), True

    def expect(self, slab: Slab) -> None:
        """A slab will be read."""
        for source in self.inputs:
            source.expect(slab)

    def forget(self) -> None:
        """What is expected will not be read."""
        for source in self.inputs:
            source.forget()

    def memory(self) -> Iterator[torch.Tensor]:
        """The tensors in memory that it reads."""
        for source in self.inputs:
            yield from source.memory()

    def leaves(self) -> Iterator["SlabSource"]:
        """All sources that this one is a function of, once for every time it is read."""
        if not self.inputs:
            yield self
        for source in self.inputs:
            yield from source.leaves()


class Unchanged:
    """A tensor in memory that is read later, and then has to be as it was."""

    def __init__(self, tensor: torch.Tensor, changed_with: torch.Tensor | None = None) -> None:
        """`changed_with`: what is written to instead, where the tensor is a view of ours, whose versions are its own."""
        self._tensor = tensor
        watched = tensor if changed_with is None else changed_with
        self._watched = weakref.ref(watched)  # who writes to it holds it, or a view that does
        self._version = 0 if watched.is_inference() else watched._version

    def get(self) -> torch.Tensor:
        """The tensor, or `SavedTensorModified`."""
        watched = self._watched()
        if watched is not None and not watched.is_inference() and watched._version != self._version:
            raise SavedTensorModified(
                "a streamed tensor is a function of a tensor that was modified in place before it was read: expected version "
                f"{self._version}, received {watched._version}. Read it before, or use the out-of-place form of that op."
            )
        return self._tensor


class Resident(SlabSource):
    """A tensor in memory.

    is_broadcast: its samples or rows are those of all, where it has one alone. changed_with: see `Unchanged`.
    """

    def __init__(self, tensor: torch.Tensor, *, is_broadcast: bool = False, changed_with: torch.Tensor | None = None) -> None:
        super().__init__(tensor.shape, tensor.dtype)
        self.tensor = tensor
        self._unchanged = Unchanged(tensor, changed_with)
        self._has_all_samples = is_broadcast and tensor.shape[0] == 1
        self._has_all_rows = is_broadcast and tensor.shape[ROWS] == 1

    def look(self, slab: Slab) -> torch.Tensor:
        tensor = self._unchanged.get()
        if not self._has_all_samples:
            tensor = tensor[slab.first : slab.last]
        if self._has_all_rows:
            return tensor
        num_rows = tensor.shape[ROWS]
        rows = tensor[:, :, max(slab.low, 0) : min(slab.high, num_rows)]
        if slab.low >= 0 and slab.high <= num_rows:
            return rows
        padding = [0, 0] * (tensor.dim() - 3) + [max(-slab.low, 0), max(slab.high - num_rows, 0)]
        return torch.nn.functional.pad(rows, padding)

    def read(self, slab: Slab) -> torch.Tensor:
        return self.look(slab).clone()

    def take(self, slab: Slab) -> tuple[torch.Tensor, bool]:
        return self.look(slab), False

    def memory(self) -> Iterator[torch.Tensor]:
        yield self.tensor


class Constant(SlabSource):
    """The same value everywhere."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, value: float) -> None:
        super().__init__(shape, dtype)
        self.value = value

    def read(self, slab: Slab) -> torch.Tensor:
        return torch.full(slab.shape_in(self.shape), self.value, dtype=self.dtype)


class Stored(SlabSource):
    """A tensor on the tier."""

    def __init__(self, io: SlabIO, shape: Sequence[int], dtype: torch.dtype) -> None:
        super().__init__(shape, dtype)
        self.rows: StoredRows = StoredRows(io, shape, dtype)
        self.slabs: list[Slab] = []  # as they were written
        self.moments: Moments | None = None  # what a norm wants to know of it, if that is found while it is written
        self.number = -1  # of the stored tensors of a step
        self._expected: dict[Slab, tuple[SlabRead, list[int], list[torch.Tensor]]] = {}

    def write(self, slab: Slab, tensor: torch.Tensor) -> None:
        """Add a slab, which follows the one before."""
        self.rows.write(slab, tensor)
        self.slabs.append(slab)
        if self.moments is not None:
            self.moments.add(slab, tensor)

    def expect(self, slab: Slab) -> None:
        if self.rows.in_memory(slab) is not None:
            return
        if slab in self._expected:
            self._expected[slab][1][0] += 1
        else:
            self._expected[slab] = (self.rows.io.read(self.rows, slab), [1], [])

    def read(self, slab: Slab) -> torch.Tensor:
        tensor, is_last = self.take(slab)
        return tensor if is_last else self.rows.io.empty_like(tensor).copy_(tensor)

    def take(self, slab: Slab) -> tuple[torch.Tensor, bool]:
        settled = self.rows.in_memory(slab)
        if settled is not None:
            return settled, False
        if slab not in self._expected:
            self.expect(slab)
        read, num_left, taken = self._expected[slab]
        num_left[0] -= 1
        if not taken:
            taken.append(read.result())
        if num_left[0]:
            return taken[0], False
        del self._expected[slab]
        return taken.pop(), True

    def forget(self) -> None:
        self._expected.clear()


class Computed(SlabSource):
    """A function of slabs of other tensors.

    where: which slab of them it reads for one of its own. is_in_place: whether its result is in the memory of its first input's
    slab. workspace: what it takes beyond its inputs and its result, by the slab that it reads. reads: tensors in memory besides.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        inputs: Sequence[SlabSource],
        compute: Callable[[Slab], torch.Tensor],
        where: Callable[[Slab], Slab] | None = None,
        *,
        name: str = "",
        is_in_place: bool = False,
        workspace: Callable[[Slab], int] | None = None,
        reads: Sequence[torch.Tensor] = (),
    ) -> None:
        super().__init__(shape, dtype, inputs)
        self._reads = tuple(reads)
        self.name = name  # of the op, where somebody asks
        self.where = where
        self.is_in_place = is_in_place
        self._compute = compute
        self._workspace = workspace

    def memory(self) -> Iterator[torch.Tensor]:
        yield from self._reads
        yield from super().memory()

    def workspace(self, slab: Slab) -> int:
        """Bytes beyond inputs and result, by the slab that is read."""
        return 0 if self._workspace is None else self._workspace(slab)

    def read(self, slab: Slab) -> torch.Tensor:
        return self._compute(slab)

    def expect(self, slab: Slab) -> None:
        super().expect(slab if self.where is None else self.where(slab))


class Joined(SlabSource):
    """Several tensors beside each other in channels."""

    def __init__(self, inputs: Sequence[SlabSource]) -> None:
        first = inputs[0].shape
        super().__init__((first[0], sum(part.shape[1] for part in inputs), *first[2:]), inputs[0].dtype, inputs)

    def read(self, slab: Slab) -> torch.Tensor:
        return torch.cat([part.look(slab) for part in self.inputs], dim=1)


def read_whole(source: SlabSource) -> torch.Tensor:
    """All of a tensor in memory, in the default layout; by slabs, since two whole copies at once would be too much."""
    tensor = torch.empty(source.shape, dtype=source.dtype)
    for slab in chunks(source):
        tensor[slab.first : slab.last, :, slab.low : slab.high] = source.look(slab)
    return tensor


def chunks(source: SlabSource) -> list[Slab]:
    """The slabs in which a tensor is read whole, the largest first."""
    if isinstance(source, Stored):
        return source.slabs
    return cut(source.shape, source.shape[0] * min(_NUM_CHUNKS, source.shape[ROWS]))


def is_whole(slab: Slab, shape: Sequence[int]) -> bool:
    """Whether a slab is all of a tensor."""
    return slab == whole(shape)
