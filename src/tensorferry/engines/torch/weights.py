"""Weights, their gradients and the optimizer's state, of which only a window is resident at any time.

The rest waits on the tier. Tensors stay the user's own: as in `state.py` only their storage is emptied and filled again, so
autograd, the optimizer and views of them see what they always saw, bit for bit.

What a `state_dict` hands out may be read at any time and without an op, so it is held, window or not, until training goes on.
"""

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tensorferry.engines.core.movable import Residency
from tensorferry.engines.torch.compat import tree_leaves
from tensorferry.engines.torch.hooks import UncopiedHook
from tensorferry.engines.torch.record import mutated
from tensorferry.engines.torch.state import plain_tensors
from tensorferry.engines.torch.swap import SavedTensors
from tensorferry.engines.torch.weight_files import take_away
from tensorferry.engines.torch.window import StorageWindow
from tensorferry.errors import BadOption, BadUse, NotSupported
from tensorferry.frameworks import is_keras
from tensorferry.tiers import FileSlice


class WeightWindow(StorageWindow):
    """Of a model's weights, gradients and optimizer state."""

    def __init__(self, store: SavedTensors, model: torch.nn.Module, window_nbytes: int) -> None:
        super().__init__(store, window_nbytes)
        self._hand_over: Callable[[torch.UntypedStorage], None] | None = None
        self._model = model
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._is_updating = False  # an optimizer steps

    # what moves

    @contextmanager
    def moving(
        self, optimizers: Iterable[torch.optim.Optimizer], sources: Mapping[torch.nn.Parameter, FileSlice]
    ) -> Iterator[None]:
        """While inside, what there is of the model moves; `sources` says where the bytes of parameters are that have none yet."""
        with ExitStack() as stack:
            for parameter, source in sources.items():
                self._join_from(parameter, source)
            for name, parameter in self._model.named_parameters():
                self._join(parameter, name, ("weight", name))
                if parameter.requires_grad and parameter.is_leaf:
                    if parameter.grad is not None:
                        self._join(parameter.grad, f"{name} gradient", ("gradient", name))
                    stack.callback(parameter.register_post_accumulate_grad_hook(_GradientHook(self, name)).remove)
            for optimizer in optimizers:
                self.join_states(optimizer)
            stack.callback(register_optimizer_step_pre_hook(lambda *_: self._note_update(True)).remove)
            stack.callback(register_optimizer_step_post_hook(lambda *_: self._note_update(False)).remove)
            for module in self._model.modules():
                stack.callback(module.register_state_dict_pre_hook(UncopiedHook(self._before_state_dict)).remove)
            self._keep_within()
            yield

    def _join(self, tensor: torch.Tensor, label: str, key: Hashable) -> None:
        block = tensor.untyped_storage() if self._may_move(tensor) else None
        if block is None or self._find(tensor) is not None:
            return
        self.add(tensor, label, key)
        if self._hand_over is not None:
            self._hand_over(block)

    def _join_from(self, parameter: torch.nn.Parameter, source: FileSlice) -> None:
        name = self._names[id(parameter)]
        self._join(parameter, name, ("weight", name))
        member = self._find(parameter)
        assert member is not None
        self._swapper.leave(member, source)

    def _join_state(self, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor):
            self._join(tensor, "optimizer state", ("state", tensor.untyped_storage()._cdata))

    def join_gradient(self, parameter: torch.Tensor, name: str) -> None:
        """Autograd has added to a gradient, or made it."""
        if parameter.grad is not None:
            self._join(parameter.grad, f"{name} gradient", ("gradient", name))
            self._keep_within()

    def join_states(self, optimizer: torch.optim.Optimizer) -> None:
        """What an optimizer has moves from now on."""
        for tensor in tree_leaves(list(optimizer.state.values())):
            self._join_state(tensor)

    def hold_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Have all state of an optimizer in memory until training goes on."""
        self.hold(tree_leaves(list(optimizer.state.values())))

    def _before_state_dict(self, module: torch.nn.Module, *_: Any) -> None:
        own = list(module.parameters(recurse=False))
        if any(self._source_of(parameter) is not None for parameter in own):
            raise BadUse(
                "weights that were loaded onto the tier may not fit memory all at once; save them with big.save_weights(FILE)"
            )
        self.hold(own)

    @contextmanager
    def updating(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Iterator[None]:
        """While inside, one parameter is updated; what its optimizer makes for it moves afterwards."""
        yield
        for tensor in tree_leaves(optimizer.state.get(parameter)):
            self._join_state(tensor)
        self._keep_within()

    def _note_update(self, begins: bool) -> None:
        self.let_go_of_held()
        self._is_updating = begins

    def _may_move(self, tensor: torch.Tensor) -> bool:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            return False
        block = tensor.untyped_storage()
        return block.nbytes() >= self._store.min_nbytes and self._store.device.holds(tensor) and block.resizable()

    # a step, and an op of it

    def begin_step(self, hand_over: Callable[[torch.UntypedStorage], None] | None) -> None:
        """Uses from now on are another step's; `hand_over` is told of each storage that begins to move in it."""
        self._hand_over = hand_over
        self._is_updating = False
        self.let_go_of_held()
        self.begin_uses()

    def run_op(
        self, run: Callable[[], Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], also: Iterable[torch.Tensor] = ()
    ) -> Any:
        """What `run()` returns, which runs an op: all that the op uses is there. `also`: what it uses beside its arguments."""
        found = {id(m): m for t in plain_tensors((*args, *kwargs.values(), *also)) if (m := self._find(t)) is not None}
        used = list(found.values())
        self.use(used)
        out = run()
        if used and func._schema.is_mutable:
            for tensor in mutated(func, args, kwargs):
                if (member := self._members.get(tensor.untyped_storage()._cdata)) is not None:
                    member.note_change()
        if self._is_updating:
            self._join_made(out)
        if used:
            with self._store.lock, self._store.at_work():
                self._read_ahead(used)
        return out

    def _join_made(self, out: Any) -> None:
        """What an optimizer makes may be state, and if it is not it is gone soon."""
        for tensor in plain_tensors(tree_leaves(out)):
            if tensor._base is None:
                self._join_state(tensor)
        self._keep_within()

    # all of it

    def note_source(self, tensor: torch.Tensor, source: FileSlice) -> None:
        """A file has a tensor's bytes too."""
        if (member := self._find(tensor)) is not None:
            if member.residency is Residency.SWAPPED_OUT:
                self._swapper.departed.append((member.slot, None, None))
                member.slot = source
            elif member.residency is Residency.RESIDENT:
                member.note_change()
                member.unchanged = source

    def _sources(self) -> dict[int, FileSlice]:
        """The files that have the bytes of parameters, by the id of the parameter."""
        found = {id(parameter): self._source_of(parameter) for parameter in self._model.parameters()}
        return {key: source for key, source in found.items() if source is not None}

    def _source_of(self, parameter: torch.Tensor) -> FileSlice | None:
        member = self._find(parameter)
        slots = () if member is None else (member.unchanged, member.slot)
        return next((slot for slot in slots if isinstance(slot, FileSlice)), None)

    def close(self) -> None:
        """Have everything back for good that no file has, and nothing on the tier."""
        sources = self._sources()
        left = [parameter for parameter in self._model.parameters() if id(parameter) in sources]
        take_away(self._model, sources)
        with self._store.lock, self._store.at_work():
            for parameter in left:
                member = self._members.pop(parameter.untyped_storage()._cdata)
                if member.residency is Residency.SWAPPING_IN:
                    self._make_resident(member)
                parameter.data = torch.empty(0, dtype=parameter.dtype)  # an optimizer may hold it: nobody computes with it again
        try:
            self.make_all_resident()
        finally:
            for member in self._members.values():
                member.note_change()
                if member.is_gone:
                    self._swapper.forget(member)


def read_weights_option(weights: str | bool, model: torch.nn.Module) -> str | bool:
    """The `weights` that a user gave, where they can move; False for "auto" where they cannot."""
    if weights not in (True, False, "auto"):
        raise BadOption(f"expected weights to be True, False or 'auto', received {weights!r}")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        # gradients are exchanged below the dispatcher, where what is away would not be noticed
        reason = "in one of several processes; parallel='fsdp' shares them out instead"
    elif is_keras(model):
        reason = "in a Keras model, whose optimizer updates all of them at once"
    else:
        return weights
    if weights is True:
        raise NotSupported(f"weights cannot wait on a tier {reason}. Leave weights=True out.")
    return False


class _GradientHook:
    """Told by autograd that a gradient has been added to."""

    takes_gradient = False

    def __init__(self, window: WeightWindow, name: str) -> None:
        self._window = weakref.ref(window)
        self._name = name

    def __call__(self, parameter: torch.Tensor) -> None:
        window = self._window()
        if window is not None:
            window.join_gradient(parameter, self._name)
