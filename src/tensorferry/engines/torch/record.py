"""A trace from a step as it runs: every op that reaches the dispatcher, every storage it makes, reads or frees.

A dispatch mode sees the ops below autograd, so backward and the optimizer are seen too. Storages are followed by weak
references, and a saved storage is let go while it is idle (its bytes are copied elsewhere), so that the moment when only
autograd would hold it is observed, not guessed.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from tensorferry.engines.torch.compat import (
    CPU_ATTENTION,
    CPU_ATTENTION_BACKWARD,
    TorchDispatchMode,
    current_graph_task_id,
    tree_leaves,
)
from tensorferry.engines.torch.device import Device
from tensorferry.engines.torch.layer_names import LayerNames
from tensorferry.engines.torch.swap import Handle, HeldTensor, SavedStorage, SavedTensors
from tensorferry.trace import Kind, Op, Phase, Storage, Trace

Timing = Callable[[int, int], float]  # an op's seconds from its flops and the bytes it touches
Workspace = Callable[[int], int]  # an op's bytes beyond its new outputs, from the sum of those

_PRECISIONS = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}


def in_backward() -> bool:
    """Whether autograd is running a backward pass in this thread."""
    return current_graph_task_id() != -1


class OpMode(TorchDispatchMode):
    """Hands every op of this thread to `run_op`."""

    def __init__(self, run_op: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run_op = run_op

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the default wraps every op in a guard that costs 50 µs; nothing is compiled in here

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return self._run_op(func, args, kwargs or {})


@dataclass(slots=True)
class _Row:
    """A storage while it is being recorded."""

    nbytes: int
    kind: Kind
    writers: list[int]
    label: str
    uses: list[int] = field(default_factory=list)
    saved_at: int | None = None
    idle_after: int | None = None
    wanted_at: int | None = None
    freed_after: int | None = None
    num_blocks: int = 1  # blocks now holding its bytes
    was_there: bool = False  # before the step


class Recorder:
    """Builds a trace from what it is told; one per step."""

    def __init__(
        self,
        model: torch.nn.Module,
        device: Device,
        names: LayerNames,
        holds: Callable[[torch.Tensor], bool] | None = None,
    ) -> None:
        """`holds`: which tensors the trace counts; all that are in the device's memory unless it is given."""
        self.rows: list[_Row] = []
        self.ops: list[Op] = []
        self.funcs: list[Any] = []
        self.loose_nbytes: list[int] = []  # each op's workspace if nothing that it frees were given back or used again
        self.saved_rows: list[int] = []  # by the ordinal of the save
        self.inputs: list[tuple[int, int]] = []  # address and bytes of what the step read and nobody in it made
        self._holds = holds or device.holds
        self._start_nbytes = device.resident_nbytes()
        self._backward_seen = False
        self._row_of: dict[int, int] = {}  # block address -> row
        self._refs: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._names = names
        self._state_rows: set[int] = set()
        for parameter in filter(self._holds, model.parameters()):
            self._add(parameter.untyped_storage(), Kind.PARAMETER, [], "")
        for buffer in filter(self._holds, model.buffers()):
            self._add(buffer.untyped_storage(), Kind.BUFFER, [], "")

    @property
    def complete(self) -> bool:
        """Whether the step came to its backward pass."""
        return self._backward_seen

    @property
    def position(self) -> int:
        """The op that runs next."""
        return len(self.ops)

    def held_by_kind(self) -> dict[Kind, int]:
        """What is resident now, of all that has been seen."""
        held: Counter[Kind] = Counter()
        for row in self.rows:
            held[row.kind] += row.nbytes * (row.num_blocks > 0)
        return dict(held)

    def record(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        *,
        timing: Timing,
        workspace: Workspace,
        touched_nbytes: int = 0,
    ) -> None:
        """An op has run; `touched_nbytes` is the fresh memory that one of its kernels took at most, freed again or not."""
        position, phase = self.position, self._phase()
        name = f"{self._names.current(phase)} {func.name().removeprefix('aten::')}".strip()
        read = [self._seen(tensor, phase) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)]
        inputs = tuple(dict.fromkeys(row for row in read if row is not None))
        written, new_nbytes = self._written(func, args, kwargs, out, position, name)
        for row in inputs:
            self.rows[row].uses.append(position)
        flops = _count_flops(func, args, kwargs, out)
        touched = sum(self.rows[row].nbytes for row in (*inputs, *written))
        workspace_nbytes = max(0, workspace(new_nbytes))
        self.loose_nbytes.append(max(workspace_nbytes, touched_nbytes - new_nbytes))
        self.ops.append(
            Op(
                name=name,
                phase=phase,
                seconds=timing(flops, touched),
                inputs=inputs,
                outputs=written,
                flops=flops,
                touched_nbytes=touched,
                workspace_nbytes=workspace_nbytes,
                replayable=is_replayable(func),
                precision=_precision_of(args),
            )
        )
        self.funcs.append(func)

    def add_state(self, block: torch.UntypedStorage, label: str) -> int:
        """A storage that only the optimizer uses, and that may be let go until then; returns its place in the trace."""
        row = self._add(block, Kind.OPTIMIZER, [], label)
        self.rows[row].label = label
        self._state_rows.add(row)
        return row

    def add_states(self, optimizer: torch.optim.Optimizer, min_nbytes: int) -> None:
        """All storages of that size that are an optimizer's state."""
        for values in optimizer.state.values():
            for key, value in values.items():
                if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() >= min_nbytes:
                    self.add_state(value.untyped_storage(), f"optimizer {key}")

    def hand_over(self, block: torch.UntypedStorage) -> None:
        """From now on a storage is another's to count."""
        if (row := self._row_of.get(block._cdata)) is not None:
            self._block_died(block._cdata, row)

    def saved(self, saved: SavedStorage, tensor: torch.Tensor) -> None:
        """Autograd saved a storage; it may be let go from now on."""
        row = self._seen(tensor, self._phase())
        assert row is not None
        self.saved_rows.append(row)
        if self.rows[row].saved_at is None:
            self.rows[row].saved_at = self.position
        saved.label = self.rows[row].label

    def load(self, store: SavedTensors, handle: Handle | HeldTensor) -> torch.Tensor:
        """Backward reads a tensor, whose storage comes back for it."""
        if isinstance(handle, HeldTensor) or not store.is_of_this_step(handle.saved):
            return store.load(handle)
        saved, was_back = handle.saved, handle.saved.has_returned
        self._wanted(saved)
        tensor = store.load(handle)
        if saved.has_returned and not was_back:
            self._returned(saved)
        return tensor

    def _wanted(self, saved: SavedStorage) -> None:
        row = self.rows[self.saved_rows[saved.ordinal]]
        if row.wanted_at is None:
            row.wanted_at = self.position
        self._names.wanted = row.label

    def _returned(self, saved: SavedStorage) -> None:
        """A saved storage's bytes are in a new block."""
        assert saved.block is not None
        row = self.saved_rows[saved.ordinal]
        self.rows[row].num_blocks += 1
        self._watch(saved.block, row)

    def trace(self, *, measured: bool, device: str, first: bool = False) -> Trace:
        """The step as a trace.

        What the step made and left (gradients that were not cleared, optimizer state) counts as there from the start: in
        the next step it is. A later step swaps state in when it uses it; the `first` makes it, often all of it at once, and has
        it from then on.
        """
        last = len(self.ops) - 1
        storages = []
        for i, row in enumerate(self.rows):
            if i in self._state_rows and row.uses:
                wanted_at = min([row.uses[0], *row.writers[:1]]) if first else row.uses[0]
                row = replace(row, saved_at=0, idle_after=0, wanted_at=wanted_at)  # noqa: PLW2901
            stays = row.num_blocks > 0
            stays_on = stays and row.kind in (Kind.GRADIENT, Kind.OPTIMIZER)
            idle_after = row.idle_after
            movable = row.saved_at is not None and idle_after is not None and row.wanted_at is not None
            freed_after = None if stays else max(row.freed_after if row.freed_after is not None else last, row.wanted_at or 0)
            storages.append(
                Storage(
                    nbytes=row.nbytes,
                    kind=row.kind,
                    writers=() if stays_on else tuple(row.writers),
                    uses=tuple(row.uses),
                    freed_after=None if freed_after is None else min(freed_after, last),
                    saved_at=row.saved_at if movable else None,
                    idle_after=idle_after if movable else None,
                    wanted_at=min(row.wanted_at, last) if movable and row.wanted_at is not None else None,
                    label=row.label,
                )
            )
        there_nbytes = sum(row.nbytes for row in self.rows if row.was_there)
        return Trace(
            ops=tuple(self.ops),
            storages=tuple(storages),
            overhead_nbytes=self._start_nbytes - there_nbytes,
            device=device,
            measured=measured,
        ).check()

    # inside

    def _phase(self) -> Phase:
        if in_backward():
            self._backward_seen = True
            return Phase.BACKWARD
        return Phase.OPTIMIZER if self._backward_seen else Phase.FORWARD

    def _written(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, position: int, name: str
    ) -> tuple[tuple[int, ...], int]:
        written: list[int] = []
        new_nbytes = 0
        for tensor in (*mutated(func, args, kwargs), *tree_leaves(out)):
            block = self._block_of(tensor)
            if block is None:
                continue
            row = self._row_of.get(block._cdata)
            if row is None:
                phase = self._phase()
                kind = {Phase.BACKWARD: Kind.GRADIENT, Phase.OPTIMIZER: Kind.OPTIMIZER}.get(phase, Kind.ACTIVATION)
                row = self._add(block, kind, [position], name)
                new_nbytes += block.nbytes()
                written.append(row)
            elif func._schema.is_mutable and row not in written:
                if self.rows[row].writers[-1:] != [position]:
                    self.rows[row].writers.append(position)
                written.append(row)
        return tuple(written), new_nbytes

    def _seen(self, tensor: torch.Tensor, phase: Phase) -> int | None:
        block = self._block_of(tensor)
        if block is None:
            return None
        row = self._row_of.get(block._cdata)
        if row is None:
            kind = Kind.OPTIMIZER if phase is Phase.OPTIMIZER else Kind.GRADIENT if phase is Phase.BACKWARD else Kind.INPUT
            nbytes = _input_nbytes(tensor, block) if kind is Kind.INPUT else block.nbytes()
            row = self._add(block, kind, [], "input", nbytes)
            if kind is Kind.INPUT:
                self.inputs.append((block._cdata, nbytes))
        return row

    def _block_of(self, tensor: Any) -> torch.UntypedStorage | None:
        block = _block_of(tensor)
        return block if block is not None and self._holds(tensor) else None  # what is elsewhere takes nothing here

    def _add(self, block: torch.UntypedStorage, kind: Kind, writers: list[int], label: str, nbytes: int | None = None) -> int:
        if block._cdata in self._row_of:
            return self._row_of[block._cdata]
        self.rows.append(_Row(block.nbytes() if nbytes is None else nbytes, kind, writers, label, was_there=not writers))
        self._watch(block, len(self.rows) - 1)
        return len(self.rows) - 1

    def _watch(self, block: torch.UntypedStorage, row: int) -> None:
        address = block._cdata
        self._row_of[address] = row
        me = weakref.ref(self)  # the callback must not keep the recorder, and with it the graph, alive

        def died(_: Any) -> None:
            recorder = me()
            if recorder is not None:
                recorder._block_died(address, row)

        self._refs[address] = weakref.ref(block, died)

    def _block_died(self, address: int, index: int) -> None:
        if self._row_of.get(address) == index:
            del self._row_of[address], self._refs[address]
        row = self.rows[index]
        row.num_blocks -= 1
        last = max(self.position - 1, row.writers[0] if row.writers else 0, 0)
        if row.saved_at is not None and row.wanted_at is None:
            row.idle_after = last
        elif row.num_blocks == 0:
            row.freed_after = last


def mutated(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors among an op's arguments that it writes."""
    if not func._schema.is_mutable:
        return
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            yield from (tensor for tensor in tree_leaves(value) if isinstance(tensor, torch.Tensor))


def input_blocks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[int, int]]:
    """Address and bytes of each storage among the arguments of a call."""
    tensors = ((_block_of(value), value) for value in tree_leaves((args, kwargs)))
    return list({block._cdata: _input_nbytes(tensor, block) for block, tensor in tensors if block is not None}.items())


def is_replayable(func: Any) -> bool:
    """Whether running the op again on the same bytes gives the same bytes, and changes nothing but its first argument."""
    if func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags or torch.Tag.data_dependent_output in func.tags:
        return False
    writes = [i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return writes in ([], [0]) and bool(func._schema.returns)


def _block_of(tensor: Any) -> torch.UntypedStorage | None:
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # wrapper subclasses, functional tensors
        return None


def _input_nbytes(tensor: torch.Tensor, block: torch.UntypedStorage) -> int:
    """What of an input's storage is the step's: of a batch that is a slice of a data set, only the slice."""
    return min(tensor.numel() * tensor.element_size(), block.nbytes())


def _count_flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    # torch counts the fused attention of accelerators and not the CPU's, which has the same arithmetic
    if func is CPU_ATTENTION:
        return int(sdpa_flop_count(*(tensor.shape for tensor in args[:3])))
    if func is CPU_ATTENTION_BACKWARD:
        return int(sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4])))
    count = flop_registry.get(func._overloadpacket)
    return int(count(*args, **kwargs, out_val=out)) if count is not None else 0


def _precision_of(args: tuple[Any, ...]) -> str:
    tensors = (value for value in args if isinstance(value, torch.Tensor))
    return next((_PRECISIONS[tensor.dtype] for tensor in tensors if tensor.dtype in _PRECISIONS), "fp32")
