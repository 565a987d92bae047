"""torch's own distributed engines: a process group, DDP, FSDP2 and tensor parallelism, and a whole model out of its shards.

Where there is an accelerator a second group, on gloo, carries what ranks tell each other, so that no word waits for a kernel.
None of it has been run on an accelerator.
"""

import atexit
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tensorferry.errors import NotSupported, RunFailed
from tensorferry.machine import count_cores
from tensorferry.messages import first_line
from tensorferry.scaling.parallel import Parallel, find_parallel
from tensorferry.scaling.sync_norm import synchronise_norms
from tensorferry.scaling.team import Team
from tensorferry.scaling.tensor_parallel import find_orders, split_layers
from tensorferry.scaling.world import World, find_world

WAIT_SECONDS = 300.0  # for a rank that does not come; a checkpoint is written meanwhile by one of them
_NAMING_SECONDS = 5.0
_WAIT = timedelta(seconds=WAIT_SECONDS)
_TINY = 1e-6  # as in torch's own clipping


class TorchTeam(Team):
    """The ranks of torch's process group."""

    def __init__(self, world: World, parallel: Parallel, device: torch.device, words: Any) -> None:
        self.rank, self.size = world.rank, world.size
        self.row_rank, self.num_row_ranks = world.rank // parallel.tensor, parallel.num_row_ranks
        self.device = device
        self._words = words  # the group that carries them

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        self._wait(lambda: dist.all_gather_object(found, value, group=self._words))
        return found

    def share(self, value: Any) -> Any:
        box = [value]
        self._wait(lambda: dist.broadcast_object_list(box, src=0, group=self._words))
        return box[0]

    def close(self) -> None:
        _leave()

    def _wait(self, collective: Any) -> None:
        """Run a collective; when it times out, find out who did not come."""
        try:
            collective()
        except RuntimeError as error:
            if "timed out" not in str(error).lower():
                raise
            raise RunFailed(f"rank {self.rank} waited {WAIT_SECONDS:.0f} s for another: {self._name_missing()}") from error

    def _name_missing(self) -> str:
        try:
            dist.monitored_barrier(self._words, timeout=timedelta(seconds=_NAMING_SECONDS), wait_all_ranks=True)
        except RuntimeError as error:
            return first_line(error)
        return "all answer now; one of them was late"


def join(world: World, parallel: Parallel) -> TorchTeam:
    """Meet the other ranks."""
    device = _meet(world)
    return TorchTeam(world, parallel, device, dist.new_group(backend="gloo", timeout=_WAIT))


def _meet(world: World) -> torch.device:
    """Make torch's process group, and check that averages are averages: gloo summed instead in some releases of torch."""
    torch.set_num_threads(max(1, count_cores() // world.local_size))
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = torch.device("cpu")
    if accelerator is not None:
        if world.local_size > torch.accelerator.device_count():
            raise NotSupported(
                f"{world.local_size} workers were started on a node with {torch.accelerator.device_count()} accelerators; "
                "start one worker for each"
            )
        torch.accelerator.set_device_index(world.local_rank)
        device = torch.device(accelerator.type, world.local_rank)
    if not dist.is_initialized():
        dist.init_process_group(dist.get_default_backend_for_device(device), timeout=_WAIT)
        atexit.register(_leave)
        _check_averages(world, device)
    return device


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def scale(model: torch.nn.Module, parallel: str = "data", *, sync_norm: bool = False) -> Iterator[torch.nn.Module]:
    """For a loop of one's own under torchrun: what to call in the model's place; make the optimizer inside, of its parameters.

    Each rank brings its own rows, and the same as its neighbours where they split layers (`tensor`); gradients are the mean over
    rows. To limit their norm use `clip_gradients`. `sync_norm`: batch norm is over the rows of all ranks. A process that nobody
    started as one of several gets the model as it is. Ranks meet once, unless the program has made torch's process group itself,
    and part at its end.
    """
    world = find_world()
    if world is None:
        yield model
        return
    ways = find_parallel(parallel, world.size)
    device = _meet(world)
    yield spread(model.to(device), ways, device, sync_norm=sync_norm)


def clip_gradients(parameters: Iterable[torch.nn.Parameter], max_norm: float) -> float:
    """Scale gradients down to a norm over all of them, whatever share of them this rank has; return the norm they had.

    As `torch.nn.utils.clip_grad_norm_`, which refuses gradients that are split in several ways. All ranks call this.
    """
    gradients = [weight.grad for weight in parameters if weight.grad is not None]
    squares: dict[tuple[Any, ...], torch.Tensor] = {}  # by the groups of ranks that have the other shares
    for gradient in gradients:
        groups: tuple[Any, ...] = ()
        own = gradient
        if isinstance(gradient, DTensor):
            own, mesh = gradient.to_local(), gradient.device_mesh
            groups = tuple(mesh.get_group(place) for place, kind in enumerate(gradient.placements) if not kind.is_replicate())
        square = torch.linalg.vector_norm(own, dtype=torch.float32).square()
        squares[groups] = squares[groups] + square if groups in squares else square
    for groups, square in squares.items():
        for group in groups:
            dist.all_reduce(square, group=group)
    norm = float(sum(squares.values())) ** 0.5
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / (norm + _TINY))
    return norm


def _check_averages(world: World, device: torch.device) -> None:
    mine = torch.full((world.size,), float(world.rank), device=device)
    expected = (world.size - 1) / 2
    shard = torch.empty(1, device=device)
    reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # its name before 2.13
    reduce_scatter(shard, mine.clone(), op=dist.ReduceOp.AVG)
    dist.all_reduce(mine, op=dist.ReduceOp.AVG)
    if float(mine[0]) != expected or float(shard[0]) != expected:
        raise NotSupported(
            f"torch {torch.__version__} averages over {world.size} ranks to {float(mine[0])} and {float(shard[0])} "
            f"instead of {expected}; use torch 2.13"
        )


def spread(model: torch.nn.Module, parallel: Parallel, device: torch.device, *, sync_norm: bool = False) -> torch.nn.Module:
    """What to call in the model's place. Its weights become the leader's; with `fsdp` or `tensor` they are shards from now on."""
    if sync_norm:
        synchronise_norms(model, parallel.tensor)
    if parallel.fsdp == 1 and parallel.tensor == 1:
        return Replicated(model)
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    names = ("data", "fsdp", "tensor")
    mesh = init_device_mesh(device.type, (parallel.data, parallel.fsdp, parallel.tensor), mesh_dim_names=names)
    if parallel.tensor > 1:
        split_layers(model, mesh["tensor"])
    if parallel.num_row_ranks == 1:
        return model
    settings: dict[str, Any] = {"mesh": mesh["data", "fsdp"] if parallel.data > 1 else mesh["fsdp"]}
    for block in _find_blocks(model):
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    return model


class Replicated(DistributedDataParallel):
    """DDP through which the model's own attributes can be reached, as a loss may use them."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def _find_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of one kind that a model has in a row, outermost only: while one works, the others' weights can be away."""
    if isinstance(model, torch.nn.ModuleList | torch.nn.Sequential):
        kinds = Counter(type(child) for child in model if any(True for _ in child.parameters()))
        if kinds and (kind := kinds.most_common(1)[0])[1] > 1:
            return [child for child in model if type(child) is kind[0]]
    return [block for child in model.children() for block in _find_blocks(child)]


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether each rank has a share of the weights only."""
    return any(isinstance(weight, DTensor) for weight in model.parameters())


def collect_weights(model: torch.nn.Module) -> dict[str, Any]:
    """The whole state of a sharded model, in the leader's memory; empty on other ranks. All ranks call this."""
    orders = find_orders(model)
    with _quiet():
        state = {name: _collect(value) for name, value in model.state_dict().items()}
    return {name: _put_back(value, orders.get(name)) for name, value in state.items()} if dist.get_rank() == 0 else {}


def distribute_weights(model: torch.nn.Module, state: dict[str, Any]) -> None:
    """Give a sharded model its share of a whole state, which every rank has."""
    orders, own = find_orders(model), model.state_dict()
    model.load_state_dict({name: _distribute(value, own.get(name), orders.get(name)) for name, value in state.items()})


def collect_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, Any]:
    """The same for an optimizer, as its own `state_dict` has it."""
    orders, state = _find_orders_of(optimizer, model), optimizer.state_dict()
    with _quiet():
        whole = {
            number: {name: _put_back(_collect(value), orders[number]) for name, value in each.items()}
            for number, each in state["state"].items()
        }
    return state | {"state": whole}


def distribute_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module, state: dict[str, Any]) -> None:
    """The same for an optimizer of sharded weights."""
    orders, weights = _find_orders_of(optimizer, model), _list_weights(optimizer)
    shares = {
        number: {
            name: _distribute(value, weights[number], orders[number]) if _is_like(value, weights[number]) else value
            for name, value in each.items()
        }
        for number, each in state["state"].items()
    }
    optimizer.load_state_dict(state | {"state": shares})


@contextmanager
def _quiet() -> Iterator[None]:
    """While inside, torch does not tell that what is split twice takes two messages."""
    log = logging.getLogger("torch.distributed.tensor")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _list_weights(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _find_orders_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[torch.Tensor | None]:
    orders = find_orders(model)
    by_weight = {id(weight): orders.get(name) for name, weight in model.named_parameters()}
    return [by_weight.get(id(weight)) for weight in _list_weights(optimizer)]


def _is_like(value: Any, weight: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == weight.shape


def _collect(value: Any) -> Any:
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if not isinstance(value, torch.Tensor):
        return value
    return value.cpu() if dist.get_rank() == 0 else None


def _put_back(value: Any, order: torch.Tensor | None) -> Any:
    """A weight, or an optimizer's state of one, with its rows in the usual order."""
    if order is None or not isinstance(value, torch.Tensor) or not value.ndim:
        return value
    usual = torch.empty_like(value)
    usual[order] = value
    return usual


def _distribute(value: Any, weight: Any, order: torch.Tensor | None) -> Any:
    if not isinstance(value, torch.Tensor) or not isinstance(weight, DTensor):
        return value
    whole = value.to(weight.device)
    return distribute_tensor(whole if order is None else whole[order.to(whole.device)], weight.device_mesh, weight.placements)
