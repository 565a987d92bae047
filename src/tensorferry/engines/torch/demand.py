"""What an op is about to allocate, told from its arguments before it runs.

Torch tells the shapes of an op's outputs by running it on tensors without bytes. Where it has not done so before, that would load
60 MiB of its own into the process, so then only ops whose outputs are as large as what they read are told.
"""

import sys
from typing import Any

import torch

from tensorferry.engines.torch.compat import disable_current_modes, tree_leaves, tree_map_only
from tensorferry.engines.torch.lean import estimate_workspace

# an op reads this many times less than it allocates at most, as a convolution that unfolds a volume does
_MOST_SHARE = 32
_MOST_FROM_NOTHING_NBYTES = 4 * 2**20
_LOADED_WITH_SHAPES = "torch.fx.experimental.symbolic_shapes"
_CAT = torch.ops.aten.cat.default


def may_allocate(nbytes: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an op could allocate that much; a quick answer that is mostly no."""
    return most_nbytes(args, kwargs) > nbytes


def most_nbytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """More than an op allocates, told in no time."""
    read_nbytes = sum(t.nbytes for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.layout is torch.strided)
    return _MOST_SHARE * read_nbytes + _MOST_FROM_NOTHING_NBYTES


def estimate_demand(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Bytes of the op's new outputs and of its kernel's workspace; 0 where they cannot be told."""
    if _LOADED_WITH_SHAPES not in sys.modules:
        return _guess_demand(func, args)
    with disable_current_modes():
        try:
            bare_args, bare_kwargs = tree_map_only(torch.Tensor, _without_bytes, (args, kwargs))
            if "device" in kwargs:
                bare_kwargs["device"] = "meta"
            out = func(*bare_args, **bare_kwargs)
            read, made = _blocks((bare_args, bare_kwargs)), _blocks(out)
            new_nbytes = sum(nbytes for address, nbytes in made.items() if address not in read)
            return new_nbytes + estimate_workspace(func, args, out)
        except Exception:  # an op of the user's may have no form without bytes, or fail in any way
            return 0


def _guess_demand(func: Any, args: tuple[Any, ...]) -> int:
    nbytes = [tensor.nbytes for tensor in tree_leaves(args) if isinstance(tensor, torch.Tensor)]
    if func is _CAT:
        return sum(nbytes)
    return max(nbytes, default=0) if torch.Tag.pointwise in func.tags and not func._schema.is_mutable else 0


def _blocks(values: Any) -> dict[int, int]:
    """Bytes of the storages among some values, by address."""
    blocks = [value.untyped_storage() for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
    return {block._cdata: block.nbytes() for block in blocks}


def _without_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
