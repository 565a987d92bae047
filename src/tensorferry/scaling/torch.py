"""torch's own distributed engines: a process group, DDP, FSDP2, tensor and pipeline parallelism.

Where there is an accelerator a second group, on gloo, carries what ranks tell each other, so that no word waits for a kernel.
None of it has been run on an accelerator.
"""

import atexit
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tensorferry.errors import NotSupported
from tensorferry.machine import count_cores
from tensorferry.scaling.parallel import Parallel, Pipelining, find_parallel
from tensorferry.scaling.pipeline import PipelinedModel, check_chain
from tensorferry.scaling.sync_norm import synchronise_norms
from tensorferry.scaling.team import WAIT_SECONDS, Team
from tensorferry.scaling.tensor_parallel import split_layers
from tensorferry.scaling.torch_compat import set_group_timeout
from tensorferry.scaling.watch import Watch
from tensorferry.scaling.world import World, find_world

_FOREVER = timedelta(days=7)  # for a word: who hangs is found out in another way
_LATER = 1.5  # than the time that is waited: torch's own time-out comes when it is known who hangs
_ROUNDING = 1e-3  # of an average, in whatever order and precision its sum was made
_TINY = 1e-6  # as in torch's own clipping


class TorchTeam(Team):
    """The ranks of torch's process group."""

    def __init__(self, world: World, parallel: Parallel, device: torch.device, words: Any, watch: Watch) -> None:
        self.rank, self.size = world.rank, world.size
        self.num_row_ranks, self.row_leaders = parallel.num_row_ranks, parallel.row_leaders
        self.draw_rank = world.rank // parallel.tensor
        self.row_rank = self.draw_rank % self.num_row_ranks
        self.device, self.wait_seconds = device, watch.seconds
        self._words = words  # the group that carries them
        self._watch = watch

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        with self._watch.word():
            dist.all_gather_object(found, value, group=self._words)
        return found

    def share(self, value: Any) -> Any:
        box = [value]
        with self._watch.word():
            dist.broadcast_object_list(box, src=0, group=self._words)
        return box[0]

    def busy(self, what: str) -> AbstractContextManager[None]:
        return self._watch.busy(what)

    def explain(self, error: Exception) -> str:
        text = str(error).lower()
        if "timed out" in text or "timeout" in text:
            return f"rank {self.rank} waited {self._watch.seconds:.0f} s inside a step; {self._watch.describe_others()}"
        return ""

    def close(self) -> None:
        self._watch.stop()
        _leave()


def join(world: World, parallel: Parallel, end: Callable[[str], None], seconds: float = WAIT_SECONDS) -> TorchTeam:
    """Meet the other ranks; one that waits so long for another, which is not busy, tells `end` which one, and ends with that."""
    device = _meet(world)
    to_begin = timedelta(seconds=max(seconds, WAIT_SECONDS))  # machines take their time to start
    words = dist.new_group(backend="gloo", timeout=_FOREVER)
    of_this_round = [uuid4().hex]
    dist.broadcast_object_list(of_this_round, src=0, group=words)
    # a connection of its own: another one is taken by whoever waits for a key
    stores: Any = dist  # torch does not declare them
    store = stores.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=to_begin)
    watch = Watch(world.rank, world.size, stores.PrefixStore(of_this_round[0], store), seconds, end)
    watch.start(to_begin.total_seconds())
    set_group_timeout(timedelta(seconds=_LATER * seconds))
    return TorchTeam(world, parallel, device, words, watch)


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
        dist.init_process_group(dist.get_default_backend_for_device(device), timeout=timedelta(seconds=WAIT_SECONDS))
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
    if ways.pipeline > 1:
        raise NotSupported("a pipeline takes whole steps, not calls of a model: make yours a recipe, and use `ferry train`")
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
    expected = (world.size - 1) / 2  # and what was summed is at least twice that
    shard = torch.empty(1, device=device)
    reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # its name before 2.13
    reduce_scatter(shard, mine.clone(), op=dist.ReduceOp.AVG)
    dist.all_reduce(mine, op=dist.ReduceOp.AVG)
    if not all(math.isclose(float(found[0]), expected, rel_tol=_ROUNDING) for found in (mine, shard)):
        raise NotSupported(
            f"torch {torch.__version__} averages over {world.size} ranks to {float(mine[0])} and {float(shard[0])} "
            f"instead of {expected}; use torch 2.13"
        )


def spread(
    model: torch.nn.Module,
    parallel: Parallel,
    device: torch.device,
    *,
    sync_norm: bool = False,
    wait_seconds: float = WAIT_SECONDS,
) -> torch.nn.Module:
    """What to call in the model's place. Its weights become the leader's; with `fsdp` or `tensor` they are shards from now on."""
    if sync_norm:
        synchronise_norms(model, parallel.tensor)
    if parallel.fsdp == 1 and parallel.tensor == 1:
        return Replicated(model)
    mesh = _begin_split(model, parallel, device, wait_seconds)
    if parallel.num_row_ranks == 1:
        return model
    settings: dict[str, Any] = {"mesh": mesh["data", "fsdp"] if parallel.data > 1 else mesh["fsdp"]}
    for block in _find_blocks(model):
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    return model


def make_pipeline(
    model: torch.nn.Module,
    parallel: Parallel,
    device: torch.device,
    pipelining: Pipelining,
    inputs: Sequence[str],
    precision: AbstractContextManager[Any],
    wait_seconds: float = WAIT_SECONDS,
) -> PipelinedModel:
    """This rank's stages of a model; those of others have no memory in it from now on. `inputs` are what a batch has for it."""
    check_chain(model, parallel.pipeline * pipelining.interleave)  # layers have their usual kind until they are split
    mesh = _begin_split(model, parallel, device, wait_seconds)
    apart = parallel.num_ranks // parallel.pipeline
    # messages between two ranks wait as long as their group was made to, whatever is set later
    group, _ = dist.new_subgroups_by_enumeration(
        [list(range(first, parallel.num_ranks, apart)) for first in range(apart)],
        timeout=timedelta(seconds=_LATER * wait_seconds),
    )
    return PipelinedModel(model, parallel, mesh, group, pipelining, inputs, precision)


def _begin_split(model: torch.nn.Module, parallel: Parallel, device: torch.device, wait_seconds: float) -> DeviceMesh:
    """The mesh of all ranks, which have the leader's weights, and their share of layers."""
    share_tensors((*model.parameters(), *model.buffers()))
    sizes = {"pipeline": parallel.pipeline, "data": parallel.data, "fsdp": parallel.fsdp, "tensor": parallel.tensor}
    mesh = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    for way in sizes:  # torch would wait for half an hour
        set_group_timeout(timedelta(seconds=_LATER * wait_seconds), mesh[way].get_group())
    if parallel.tensor > 1:
        split_layers(model, mesh["tensor"])
    return mesh


def share_tensors(tensors: Iterable[torch.Tensor]) -> None:
    """Give all ranks the leader's numbers, as of running statistics; what ranks have shares of stays."""
    for tensor in tensors:
        if not isinstance(tensor, DTensor):
            dist.broadcast(tensor.detach(), src=0)


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
