"""Pipeline parallelism for torch: some of a model's layers on each rank, and torch's own schedules between them.

A batch goes through in micro-batches: 1F1B (Narayanan et al. 2019, arXiv:1806.03377) keeps at most as many under way as there
are stages; with several stages a rank (interleaved, arXiv:2104.04473) ranks wait less and talk more. Gradients of micro-batches
add up in the order in which one process would add them, so a pipeline computes, bit for bit, what one process computes that takes
the same micro-batches one after the other. One thing is within rounding only: a weight that two stages share, as an embedding
that is the output layer too, whose gradients are added stage by stage.

Weights of other ranks' stages stay in the model without memory (on the meta device), so names and numbers are those of the whole.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor

from tensorferry.errors import NotSupported
from tensorferry.recipes.models.chain import Chain, ChainEnd
from tensorferry.scaling.averages import average_tensors
from tensorferry.scaling.parallel import Parallel, Pipelining
from tensorferry.scaling.sync_norm import NORMS

ComputeLoss = Callable[[Any, dict[str, torch.Tensor]], torch.Tensor]  # of something to call in a model's place, and a batch


class Stage(nn.Module):
    """A piece of a model: some layers, and what comes before the first or after the last one."""

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        first: ChainEnd | None,
        last: ChainEnd | None,
        inputs: Sequence[str],
        precision: AbstractContextManager[Any],
    ) -> None:
        super().__init__()
        ends = [module for link in (first, last) if link is not None for module in link.modules]
        self.blocks, self.ends = nn.ModuleList(blocks), nn.ModuleList(ends)
        self._first, self._last = first, last
        self._inputs = inputs
        self._precision = precision

    def forward(self, *args: torch.Tensor, **inputs: torch.Tensor) -> Any:
        """The first stage is given the model's inputs, and the last one besides what comes to it."""
        with self._precision:
            x: Any = args[0] if self._first is None else self._first.call(*args)
            for block in self.blocks:
                x = block(x)
            if self._last is None:
                return x.contiguous()
            return self._last.call(x, *(inputs[name] for name in self._inputs))


class PipelinedModel:
    """This rank's stages of a model, and the steps that it takes together with the other ranks."""

    def __init__(
        self,
        model: nn.Module,
        ways: Parallel,
        mesh: DeviceMesh,
        group: Any,
        pipelining: Pipelining,
        inputs: Sequence[str],
        precision: AbstractContextManager[Any],
    ) -> None:
        self._ways, self._pipelining, self._inputs = ways, pipelining, tuple(inputs)
        self._group, self._rank = group, dist.get_rank(group)
        self._row_group = mesh["data"].get_group()
        self._device = torch.device(mesh.device_type)
        num_stages = ways.pipeline * pipelining.interleave
        chain = check_chain(model, num_stages)
        stages = [Stage(*piece, inputs, precision) for piece in _cut(chain, num_stages)]
        self._num_stages = num_stages
        self._stages = {number: stage for number, stage in enumerate(stages) if number % ways.pipeline == self._rank}
        owners = _find_owners(model, stages, ways.pipeline)
        names = {name: id(weight) for name, weight in model.named_parameters(remove_duplicate=False)}
        if ways.fsdp > 1:
            self._shard(mesh["data", "fsdp"] if ways.data > 1 else mesh["fsdp"])
        _drop_others(model, self._stages.values(), names)
        weights = dict(model.named_parameters(remove_duplicate=False))
        # by number of the rank that has the first stage of them
        self._shared = {id(weights[name]): (weights[name], ranks) for name, key in names.items() if len(ranks := owners[key]) > 1}
        self._schedules: dict[tuple[Any, ...], Any] = {}
        self._step: tuple[dict[str, torch.Tensor], ComputeLoss, float] | None = None

    @property
    def copies(self) -> set[int]:
        """Weights that this rank has and an earlier stage as well."""
        return {key for key, (_, ranks) in self._shared.items() if self._rank in ranks[1:]}

    def step(self, batch: dict[str, torch.Tensor], compute_loss: ComputeLoss, share: float) -> float:
        """Add the gradients of a batch, each row counting for `share`; its loss, where this rank has the last stage, else 0."""
        inputs = tuple(batch[name] for name in self._inputs)
        num_rows = len(inputs[0])
        num = self._pipelining.count_micro_batches(num_rows, self._ways.pipeline)
        schedule = self._find_schedule(num, inputs)
        self._step = batch, compute_loss, share / num
        losses: list[torch.Tensor] = []
        given = dict(zip(self._inputs, inputs, strict=True)) if self._has_last else {}
        # what a micro-batch is judged by is found by its rows
        rows = torch.arange(num_rows, device=self._device) if self._has_last else None
        args = inputs if self._rank == 0 else ()
        schedule.step(*args, **given, target=rows, losses=losses, return_outputs=False)
        self._step = None
        self._sum_shared()
        if self._ways.fsdp == 1 and self._ways.data > 1:
            own = {id(weight): weight for stage in self._stages.values() for weight in stage.parameters()}
            average_tensors((weight.grad for weight in own.values()), self._row_group)
        return sum(float(loss.detach()) for loss in losses)

    def predict(self, *inputs: torch.Tensor) -> torch.Tensor | None:
        """The outputs where this rank has the last stage, else None; all ranks of the pipeline call it with the same inputs."""
        x: torch.Tensor | None = None
        named = dict(zip(self._inputs, inputs, strict=True))
        for number in range(self._num_stages):
            if number not in self._stages:
                continue
            if number:
                x = self._exchange(dist.recv_object_list, [None], number - 1).to(self._device)
            args = inputs if number == 0 else (x,)
            x = self._stages[number](*args, **(named if number == self._num_stages - 1 else {}))
            if number < self._num_stages - 1:
                self._exchange(dist.send_object_list, [x], number + 1)
        return x if self._has_last else None

    @property
    def _has_last(self) -> bool:
        return self._num_stages - 1 in self._stages

    def _exchange(self, how: Any, box: list[Any], stage: int) -> Any:
        # its shape is known to the sender alone
        how(box, dist.get_global_rank(self._group, stage % self._ways.pipeline), group=self._group)
        return box[0]

    def _find_schedule(self, num: int, inputs: tuple[torch.Tensor, ...]) -> Any:
        """That of so many micro-batches of such rows: memory for what comes from other stages is as large as that is."""
        key = (num, *((each.shape, each.dtype) for each in inputs))
        if key not in self._schedules:
            self._schedules.clear()
            stages = [
                PipelineStage(stage, number, self._num_stages, self._device, group=self._group)
                for number, stage in self._stages.items()
            ]
            settings: dict[str, Any] = {"n_microbatches": num, "loss_fn": self._compute_loss, "scale_grads": False}
            kind: Any = Schedule1F1B if self._pipelining.interleave == 1 else ScheduleInterleaved1F1B
            self._schedules[key] = kind(stages[0] if self._pipelining.interleave == 1 else stages, **settings)
        return self._schedules[key]

    def _compute_loss(self, outputs: Any, rows: torch.Tensor) -> torch.Tensor:
        assert self._step is not None
        batch, compute_loss, share = self._step
        first, last = int(rows[0]), int(rows[-1])
        return compute_loss(lambda *_: outputs, {name: each[first : last + 1] for name, each in batch.items()}) * share

    def _shard(self, mesh: DeviceMesh) -> None:
        for stage in self._stages.values():
            for block in stage.blocks:
                if any(True for _ in block.parameters()):
                    fully_shard(block, mesh=mesh)
            fully_shard(stage, mesh=mesh)

    def _sum_shared(self) -> None:
        """Add up the gradients of weights that several stages have, in the order of stages, on each rank that has one."""
        for weight, ranks in self._shared.values():
            if self._rank not in ranks or not weight.requires_grad:
                continue
            own = weight.grad if weight.grad is not None else torch.zeros_like(weight)
            local = own.to_local() if isinstance(own, DTensor) else own
            found = {rank: local if rank == self._rank else torch.empty_like(local) for rank in ranks}
            others = [(rank, dist.get_global_rank(self._group, rank)) for rank in ranks if rank != self._rank]
            sends = [dist.P2POp(dist.isend, local, peer, self._group) for _, peer in others]
            receives = [dist.P2POp(dist.irecv, found[rank], peer, self._group) for rank, peer in others]
            for work in dist.batch_isend_irecv(sends + receives):
                work.wait()
            local.copy_(torch.stack([found[rank] for rank in ranks]).sum(0))
            weight.grad = own


def check_chain(model: nn.Module, num_stages: int) -> Chain:
    """The chain of a model that can be cut into so many stages; raises NotSupported where it cannot."""
    chain = _find_chain(model)
    name = type(model).__name__
    if chain is None:
        raise NotSupported(
            f"--parallel pipeline: {name} is no chain of layers, which are torch.nn.Sequential and models with a method `chain`, "
            "as the catalog's gpt and bert-pretrain; use fsdp"
        )
    if len(chain.blocks) < num_stages:
        raise NotSupported(f"--parallel pipeline: {name} has {len(chain.blocks)} layers, too few for {num_stages} stages")
    if any(isinstance(module, NORMS) for module in model.modules()):
        raise NotSupported(f"--parallel pipeline: batch norm in {name} would see a micro-batch only; use data or fsdp")
    return chain


def _find_chain(model: nn.Module) -> Chain | None:
    if callable(find := getattr(model, "chain", None)):
        chain = find()
        return chain if isinstance(chain, Chain) else None
    layers = list(_flatten(model))
    if not isinstance(model, nn.Sequential) or len(layers) < 3:
        return None
    first, *blocks, last = layers
    return Chain(ChainEnd(first, (first,)), tuple(blocks), ChainEnd(lambda x, *_: last(x), (last,)))


def _flatten(model: nn.Module) -> Iterator[nn.Module]:
    """The layers of sequences in sequences."""
    if type(model) is not nn.Sequential:
        yield model
        return
    for child in model:
        yield from _flatten(child)


def _cut(chain: Chain, num_stages: int) -> Iterator[tuple[Sequence[nn.Module], ChainEnd | None, ChainEnd | None]]:
    """As many layers for each, and one more for the first ones where that does not come out even: the output is dear, too."""
    few, more = divmod(len(chain.blocks), num_stages)
    begin = 0
    for number in range(num_stages):
        end = begin + few + (number < more)
        yield chain.blocks[begin:end], chain.first if number == 0 else None, chain.last if number == num_stages - 1 else None
        begin = end


def _find_owners(model: nn.Module, stages: Sequence[nn.Module], num_ranks: int) -> dict[int, list[int]]:
    """By weight the ranks that have it, that of the earliest stage first."""
    owners: dict[int, list[int]] = {}
    for number, stage in enumerate(stages):
        for weight in stage.parameters():
            ranks = owners.setdefault(id(weight), [])
            if number % num_ranks not in ranks:
                ranks.append(number % num_ranks)
    for name, weight in model.named_parameters():
        if id(weight) not in owners:
            raise NotSupported(f"--parallel pipeline: {type(model).__name__} has {name}, which is nowhere in its chain")
    return owners


def _drop_others(model: nn.Module, own: Any, names: dict[str, int]) -> None:
    """Free what this rank has no stage for; a weight with several names keeps all of them."""
    modules = {module for stage in own for module in stage.modules()}
    kept = dict[int, nn.Parameter]()
    for name, module in model.named_modules():
        if module in modules:
            for one, weight in module.named_parameters(prefix=name, recurse=False, remove_duplicate=False):
                kept.setdefault(names[one], weight)
    for name, module in model.named_modules():
        for one, weight in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            key = names[f"{name}.{one}" if name else one]
            if key not in kept:
                kept[key] = nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=weight.requires_grad)
            if kept[key] is not weight:
                setattr(module, one, kept[key])
        if module not in modules:
            for one, buffer in list(module.named_buffers(recurse=False)):
                setattr(module, one, torch.empty_like(buffer, device="meta"))
