"""What a model holds whether or not a step runs: parameters, buffers, gradients, optimizer state."""

import gc
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from tensorferry.engines.torch.fake_copy import optimizer_variables
from tensorferry.trace import Kind

Blocks = dict[int, weakref.ref[torch.UntypedStorage]]  # by address


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What there was before a context was entered."""

    nbytes: int  # of parameters, buffers, gradients and optimizer state
    optimizers: list[torch.optim.Optimizer]  # those that train the model
    blocks: Blocks  # of every tensor then alive


def find_model_memory(model: torch.nn.Module) -> ModelMemory:
    """What training the model holds already, and which tensors there are.

    The user has no reason to tell us of the optimizer or of a batch made before, so they are looked for.
    """
    tensors = [*model.parameters(), *model.buffers(), *(variable.value for variable in optimizer_variables(model))]
    tensors += [p.grad for p in model.parameters() if p.grad is not None]
    owned = {id(p) for p in model.parameters()}
    optimizers: list[torch.optim.Optimizer] = []
    blocks: Blocks = {}
    for thing in _find_alive(torch.Tensor, torch.optim.Optimizer):
        if issubclass(type(thing), torch.Tensor):
            if thing.layout is torch.strided and thing.device.type == "cpu":
                with suppress(NotImplementedError, RuntimeError):  # wrappers, such as what a user has kept of torch.func.vmap
                    block = thing.untyped_storage()
                    blocks[block._cdata] = weakref.ref(block)
        elif _trains(thing, owned):
            optimizers.append(thing)
            trained = [state for parameter, state in thing.state.items() if id(parameter) in owned]
            tensors += [value for state in trained for value in state.values() if isinstance(value, torch.Tensor)]
    tensors = [tensor for tensor in tensors if tensor.device.type != "meta"]  # those hold nothing
    nbytes = sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())
    return ModelMemory(nbytes, optimizers, blocks)


def find_optimizers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """The optimizers alive that train parameters of the model."""
    owned = {id(p) for p in model.parameters()}
    return [optimizer for optimizer in _find_alive(torch.optim.Optimizer) if _trains(optimizer, owned)]


def _find_alive(*kinds: type) -> list[Any]:
    """The objects of these kinds, among the hundreds of thousands that Python's collector knows."""
    things = gc.get_objects()
    wanted = {kind for kind in set(map(type, things)) if issubclass(kind, kinds)}  # isinstance would wake lazy proxies up
    return [thing for thing in things if type(thing) in wanted]


def _trains(optimizer: torch.optim.Optimizer, parameters: set[int]) -> bool:
    groups = vars(optimizer).get("param_groups", ())  # one that wraps another has none of its own
    return any(id(parameter) in parameters for group in groups for parameter in group["params"])


def memory_by_kind(model: torch.nn.Module) -> dict[Kind, int]:
    """What the model itself holds of each kind."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return {
        Kind.PARAMETER: sum(parameter.nbytes for parameter in model.parameters()),
        Kind.BUFFER: sum(buffer.nbytes for buffer in model.buffers()),
        Kind.GRADIENT: sum(gradient.nbytes for gradient in gradients),
    }


def persistent_blocks(model: torch.nn.Module) -> frozenset[int]:
    """Addresses of the storages of parameters and buffers; they never move."""
    return frozenset(tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers()))
