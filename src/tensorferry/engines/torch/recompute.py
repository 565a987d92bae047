"""Make a storage again by running the ops that made it, from storages that are saved anyway.

During the forward pass the ops that the plan wants to run again are noted: the function, and for every tensor argument a
reference that holds no bytes of its own: a saved storage, a parameter, or the result of another noted op. Running them
again below autograd gives the same bits. Random ops and collectives are never noted (see `record.is_replayable`).
"""

import weakref
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tensorferry.engines.torch.compat import below_autograd, block_from_weak, tree_leaves, tree_map
from tensorferry.engines.torch.record import mutated
from tensorferry.engines.torch.swap import SavedStorage, SavedTensors, is_lazy
from tensorferry.errors import SavedTensorModified

# the positions of running statistics: they were updated once already, and a training-mode result does not depend on them
_RUNNING_STATISTICS = {"aten::native_batch_norm": (3, 4), "aten::cudnn_batch_norm": (3, 4), "aten::miopen_batch_norm": (3, 4)}
_TRAINING_FLAG = 5


@dataclass(eq=False, slots=True)
class _Made:
    """A storage that noted ops made or wrote."""

    original: StorageWeakRef
    version: int = 0  # after the last noted op
    calls: list["_Call"] = field(default_factory=list)


@dataclass(frozen=True, eq=False, slots=True)
class _Call:
    """One noted op; `makes` pairs each result it wrote with that result's place among the op's outputs."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    demand_nbytes: int  # what it allocates
    grad_enabled: bool  # some kernels make other results without
    makes: list[tuple[_Made, int]]


@dataclass(frozen=True, slots=True)
class _FromMade:
    made: _Made
    version: int
    geometry: tuple[torch.dtype, torch.Size, tuple[int, ...], int]


@dataclass(frozen=True, slots=True)
class _FromSaved:
    saved: SavedStorage
    geometry: tuple[torch.dtype, torch.Size, tuple[int, ...], int]


@dataclass(frozen=True, slots=True)
class _FromTensor:
    tensor: torch.Tensor
    version: int


@dataclass(frozen=True, slots=True)
class _Expected:
    """A storage that is saved, or may be by the time the replay is put together; held weakly, or notes would keep it alive."""

    block: StorageWeakRef
    version: int
    geometry: tuple[torch.dtype, torch.Size, tuple[int, ...], int]
    saved: weakref.ref[SavedStorage] | None


_References = _FromMade | _FromSaved | _FromTensor | _Expected


class ReplayNotes:
    """The noted ops of one step."""

    def __init__(self, store: SavedTensors) -> None:
        self._store = store
        self._made: dict[int, _Made] = {}

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, demand_nbytes: int) -> None:
        """An op that may have to run again has run; it allocates that much."""
        if any(self._is_held(tensor) for tensor in mutated(func, args, kwargs)):
            return  # running it again would change a tensor that others read as it is now
        if any(isinstance(value, torch.Tensor) and is_lazy(value) for value in tree_leaves((args, kwargs, out))):
            return  # a reference to bytes does not tell what they stand for
        args = _without_running_statistics(func, args)
        referred = tree_map(self._refer, (args, kwargs))
        call = _Call(func, referred[0], referred[1], demand_nbytes, torch.is_grad_enabled(), [])
        for i, tensor in enumerate(tree_leaves(out)):
            if isinstance(tensor, torch.Tensor):
                made = self._made_at(tensor.untyped_storage())
                # the version of what an in-place op wrote is raised only after the dispatch mode has seen it
                made.version = tensor._version + func._schema.is_mutable
                made.calls.append(call)
                call.makes.append((made, i))

    def replay_for(self, saved: SavedStorage) -> "OpReplay | None":
        """How to make a saved storage again; None if something it needs is not saved."""
        made = self._made.get(saved.original.cdata)
        if made is None or made.version != saved.version:
            return None
        calls: list[_Call] = []
        return OpReplay(made, calls) if self._collect(made, saved, calls) else None

    def _collect(self, made: _Made, target: SavedStorage, calls: list[_Call]) -> bool:
        for call in made.calls:
            if call in calls:
                continue
            resolved = tree_map(partial(self._resolve, made), (call.args, call.kwargs), is_leaf=_is_reference)
            for reference in tree_leaves(resolved, is_leaf=_is_reference):
                if isinstance(reference, _Expected) or (isinstance(reference, _FromSaved) and reference.saved is target):
                    return False
                if isinstance(reference, _FromMade) and reference.made is not made:
                    later_written = reference.version != reference.made.version
                    if later_written or not self._collect(reference.made, target, calls):
                        return False
            calls.append(replace(call, args=resolved[0], kwargs=resolved[1]))
        return True

    def _refer(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        block = value.untyped_storage()
        geometry = (value.dtype, value.size(), value.stride(), int(value.storage_offset()))
        if self._is_held(value):
            held = value.detach()
            return _FromTensor(held, held._version)
        saved = self._store.find(block, value._version)
        made = self._made.get(block._cdata)
        if saved is None and made is not None and not made.original.expired() and made.version == value._version:
            return _FromMade(made, value._version, geometry)
        return _Expected(StorageWeakRef(block), value._version, geometry, weakref.ref(saved) if saved is not None else None)

    def _is_held(self, tensor: torch.Tensor) -> bool:
        """Whether replays refer to the tensor itself, since it stays where it is."""
        block = tensor.untyped_storage()
        return block._cdata in self._store.persistent or block.nbytes() < self._store.min_nbytes

    def _resolve(self, made: _Made, reference: Any) -> Any:
        """The saved storage that a reference stands for, where there is one; what `made` itself is made of stays as it is."""
        saved = None
        if isinstance(reference, _Expected):
            saved = reference.saved() if reference.saved is not None else self._find(reference.block, reference.version)
        elif isinstance(reference, _FromMade) and reference.made is not made:
            saved = self._find(reference.made.original, reference.version)
        return reference if saved is None else _FromSaved(saved, reference.geometry)

    def _find(self, original: StorageWeakRef, version: int) -> SavedStorage | None:
        block = None if original.expired() else block_from_weak(original.cdata)
        return None if block is None else self._store.find(block, version)

    def _made_at(self, block: torch.UntypedStorage) -> _Made:
        made = self._made.get(block._cdata)
        if made is None or made.original.expired():
            made = self._made[block._cdata] = _Made(StorageWeakRef(block))
        return made


@dataclass(frozen=True, slots=True)
class OpReplay:
    """The ops that make one storage again, in order."""

    target: _Made
    calls: list[_Call]

    def run(self, store: SavedTensors) -> torch.UntypedStorage:
        """Run the ops and return the block they make. Intermediates die when it returns."""
        blocks: dict[int, torch.UntypedStorage] = {}

        def resolve(reference: Any) -> Any:
            if isinstance(reference, _FromTensor):
                if reference.tensor._version != reference.version:
                    raise SavedTensorModified(
                        "a parameter or small tensor that a recomputed op reads was modified in place between forward and "
                        "backward. Modify it after backward, or turn recompute off."
                    )
                return reference.tensor
            if isinstance(reference, _FromSaved):
                return store.device.view(store.make_resident(reference.saved), *reference.geometry)
            if isinstance(reference, _FromMade):
                return store.device.view(blocks[id(reference.made)], *reference.geometry)
            return reference

        # the noted ops already contain the casts that autocast made
        with below_autograd(), torch.autocast(store.device.type, enabled=False):
            for call in self.calls:
                args, kwargs = tree_map(resolve, (call.args, call.kwargs), is_leaf=_is_reference)
                store.ensure_room(call.demand_nbytes)
                with torch.set_grad_enabled(call.grad_enabled):
                    results = tree_leaves(call.func(*args, **kwargs))
                for made, i in call.makes:
                    blocks[id(made)] = results[i].untyped_storage()
        return blocks[id(self.target)]


def _is_reference(value: Any) -> bool:
    return isinstance(value, _References)


def _without_running_statistics(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    positions = _RUNNING_STATISTICS.get(func.name(), ())
    if not positions or not args[_TRAINING_FLAG]:
        return args
    return tuple(None if i in positions else arg for i, arg in enumerate(args))
