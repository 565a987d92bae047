"""Forward passes without gradients, outside of a training step: an evaluation, a validation, predictions.

Nothing is saved for backward in them, so there is nothing to plan. What is in their way is what a training holds from step to
step: of that the optimizer's state can wait elsewhere, since nobody reads it before the next update. An op that does not fit
even then is refused before it runs.
"""

from collections.abc import Callable
from typing import Any

import torch

from tensorferry.engines.torch.demand import estimate_demand, most_nbytes
from tensorferry.engines.torch.state import OptimizerStates, StateStorage, plain_tensors
from tensorferry.engines.torch.swap import Handle, HeldTensor, SavedTensors


class Evaluation:
    """Runs ops that belong to no training step, each when there is room for it."""

    def __init__(
        self,
        store: SavedTensors,
        states: OptimizerStates,
        limit_nbytes: int,
        refuse: Callable[[Any, tuple[Any, ...], dict[str, Any], int], None],
    ) -> None:
        """`refuse` is told of an op for which there is no room, with the bytes held, and raises if it cannot make any."""
        self._store = store
        self._states = states
        self._limit_nbytes = limit_nbytes
        self._refuse = refuse

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op when there is room for it."""
        self._states.make_touched_resident(args, kwargs)
        held_nbytes = self._store.swapper.held_nbytes()
        if held_nbytes + most_nbytes(args, kwargs) <= self._limit_nbytes:
            return self._store.run_op(func, args, kwargs)
        with self._store.lock, self._store.at_work():
            self._ensure_room(func, args, kwargs, held_nbytes)
        with self._store.device.free_at_once():
            return self._store.run_op(func, args, kwargs, self._between_kernels)

    def pack(self, tensor: torch.Tensor) -> Handle | HeldTensor:
        """Autograd saves a tensor all the same: it stays."""
        with self._store.lock, self._store.at_work():
            return self._store.save(tensor)[0]

    def unpack(self, handle: Handle | HeldTensor) -> torch.Tensor:
        """The tensor behind a handle."""
        with self._store.lock, self._store.at_work():
            return self._store.load(handle)

    def swap_out_all(self) -> None:
        """Swap out everything that can be elsewhere."""
        for state in self._resident_states():
            self._states.swap_out(state)

    # inside

    def _ensure_room(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], held_nbytes: int) -> None:
        demand_nbytes = estimate_demand(func, args, kwargs, self._limit_nbytes - held_nbytes)
        if held_nbytes + demand_nbytes <= self._limit_nbytes:
            return
        swapper = self._store.swapper
        self._store.device.trim()
        if swapper.make_room(demand_nbytes, self._limit_nbytes):
            return
        touched = {tensor.untyped_storage()._cdata for tensor in plain_tensors((*args, *kwargs.values()))}
        for state in self._resident_states():
            if state.address not in touched:
                self._states.swap_out(state)
                if swapper.make_room(demand_nbytes, self._limit_nbytes):
                    return
        self._refuse(func, args, kwargs, swapper.held_nbytes())

    def _between_kernels(self) -> None:
        self._store.device.trim()

    def _resident_states(self) -> list[StateStorage]:
        # to look for new ones brings back what is away
        states = self._states.known if self._states.moved else self._states.find()
        return [state for state in states if state.resident and not state.is_gone]
