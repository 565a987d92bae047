"""What a model holds whether or not a step runs: parameters, buffers, gradients, optimizer state."""

import gc
import weakref

import torch

Blocks = dict[int, weakref.ref[torch.UntypedStorage]]  # by address


def persistent_blocks(model: torch.nn.Module) -> frozenset[int]:
    """Addresses of the storages of parameters and buffers; they never move."""
    return frozenset(tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers()))


def model_nbytes(model: torch.nn.Module) -> int:
    """Bytes that training the model holds already: parameters, buffers, gradients, optimizer state."""
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [p.grad for p in model.parameters() if p.grad is not None]
    owned = {id(p) for p in model.parameters()}
    # the user has no reason to tell us of the optimizer, so it is looked for
    # (isinstance would wake lazy proxies up)
    for optimizer in [o for o in gc.get_objects() if issubclass(type(o), torch.optim.Optimizer)]:
        for parameter, state in optimizer.state.items():
            if id(parameter) in owned:
                tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def live_blocks() -> Blocks:
    """The storages of every tensor alive now."""
    blocks: Blocks = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and thing.layout is torch.strided and thing.device.type == "cpu":
            block = thing.untyped_storage()
            blocks[block._cdata] = weakref.ref(block)
    return blocks
