"""A sharded model and its optimizer in files, one from each rank; any number of ranks, one too, reads what it needs of them.

Nobody ever holds the whole model: a rank writes the part that it has, and reads the part that it will have. A part says where in
the whole it lies. The files hold tensors and numbers and are read as such, so they run no code of whoever wrote them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tensorferry.scaling.torch_compat import compute_local_shape_and_global_offset

_PATTERN = "shard-*-of-*.pt"


def name_file(rank: int, size: int) -> str:
    """The file of a rank."""
    return f"shard-{rank:05d}-of-{size:05d}.pt"


def find_files(folder: Path) -> list[Path]:
    """The files of all ranks; empty where a checkpoint is not of shards."""
    return sorted(folder.glob(_PATTERN))


def take_part(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, is_leader: bool) -> dict[str, Any]:
    """What a rank has of a model and its optimizer; what all have is in the leader's part alone."""
    state = optimizer.state_dict()
    return {
        "model": _take(model.state_dict(), is_leader),
        "optimizer": {number: _take(each, is_leader) for number, each in state["state"].items()},
        "groups": state["param_groups"],
    }


def _take(values: Mapping[str, Any], is_leader: bool) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name, value in values.items():
        if not isinstance(value, DTensor):
            if is_leader:
                parts[name] = {"whole": value}
        elif _is_first_copy(value):
            _, at = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
            parts[name] = {"part": value.to_local().detach(), "at": list(at), "shape": list(value.shape)}
    return parts


def _is_first_copy(value: DTensor) -> bool:
    """Of ranks that have the same part, one writes it."""
    place = value.device_mesh.get_coordinate()
    return place is not None and all(at == 0 for at, kind in zip(place, value.placements, strict=True) if kind.is_replicate())


class ShardFiles:
    """The parts in a checkpoint's folder; raises ValueError where they do not make a whole."""

    def __init__(self, folder: Path) -> None:
        paths = find_files(folder)
        num_ranks = int(paths[0].stem.rpartition("-")[2])
        if [path.name for path in paths] != [name_file(rank, num_ranks) for rank in range(num_ranks)]:
            raise ValueError(f"it has {len(paths)} of the files of {num_ranks} ranks")
        # mapped, so that of each file only what is needed is read
        self._files = [torch.load(path, map_location="cpu", weights_only=True, mmap=True) for path in paths]

    def read_weights(self, model: torch.nn.Module, *, whole: bool) -> dict[str, Any]:
        """What `load_state_dict` takes: all of every weight, or this rank's shards."""
        own = model.state_dict()
        named = _gather(file["model"] for file in self._files)
        return {name: _put_together(name, parts, own.get(name), whole) for name, parts in named}

    def read_optimizer(self, optimizer: torch.optim.Optimizer, *, whole: bool) -> dict[str, Any]:
        """The same for an optimizer."""
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        state = {}
        for number, states in _gather(file["optimizer"] for file in self._files):
            if number >= len(weights):
                raise ValueError(f"the optimizer has {len(weights)} weights, and there is state of number {number}")
            named = _gather(iter(states))
            state[number] = {name: _put_together(name, parts, weights[number], whole) for name, parts in named}
        return {"state": state, "param_groups": self._files[0]["groups"]}

    @property
    def more(self) -> Any:
        """What the leader has put beside them."""
        return self._files[0]["more"]


def _gather(files: Iterator[Mapping[Any, Any]]) -> Iterator[tuple[Any, list[Any]]]:
    """By name, in the order of names of whoever has it first, what each file has of it."""
    found: dict[Any, list[Any]] = {}
    for file in files:
        for name, part in file.items():
            found.setdefault(name, []).append(part)
    return iter(found.items())


def _put_together(name: str, parts: list[Any], like: Any, whole: bool) -> Any:
    """All of it, or this rank's part where `like` is a shard."""
    if "whole" in parts[0]:
        value = parts[0]["whole"]
        return value.clone() if isinstance(value, torch.Tensor) else value
    shape = tuple(parts[0]["shape"])
    if like is None or tuple(like.shape) != shape:
        raise ValueError(f"{name} has the shape {shape}, and the model's {None if like is None else tuple(like.shape)}")
    if whole or not isinstance(like, DTensor):
        return _fill(name, parts, shape, (0,) * len(shape))
    size, at = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    local = _fill(name, parts, tuple(size), tuple(at)).to(like.device)
    return DTensor.from_local(local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())


def _fill(name: str, parts: list[Any], size: tuple[int, ...], at: tuple[int, ...]) -> torch.Tensor:
    """A box of the whole, out of the parts that reach into it."""
    if len({tuple(part["at"]) for part in parts}) != len(parts):
        raise ValueError(f"of {name} a part is there twice")
    box = torch.zeros(size, dtype=parts[0]["part"].dtype)
    num_filled = 0
    for part in parts:
        tensor, begin = part["part"], part["at"]
        low = [max(mine, other) for mine, other in zip(at, begin, strict=True)]
        high = [min(m + s, o + t) for m, s, o, t in zip(at, size, begin, tensor.shape, strict=True)]
        if all(one < two for one, two in zip(low, high, strict=True)):
            to = tuple(slice(one - m, two - m) for one, two, m in zip(low, high, at, strict=True))
            of = tuple(slice(one - o, two - o) for one, two, o in zip(low, high, begin, strict=True))
            box[to] = tensor[of]
            num_filled += box[to].numel()
    if num_filled != box.numel():
        raise ValueError(f"of {name} {num_filled:,} of {box.numel():,} numbers are there")
    return box
