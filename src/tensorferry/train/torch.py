"""The trainer of PyTorch recipes."""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor

from tensorferry.engines.torch.large_model import LargeTraining, large_model
from tensorferry.engines.torch.precision import make_precision
from tensorferry.errors import NotSupported
from tensorferry.files import force
from tensorferry.recipes.recipe import Arrays, Data, TorchRecipe
from tensorferry.report import Report
from tensorferry.scaling.parallel import Split, find_parallel
from tensorferry.scaling.shard_files import ShardFiles, find_files, name_file, take_part
from tensorferry.scaling.team import ALONE, Team
from tensorferry.train.batches import step_seed
from tensorferry.train.late_copy import LateCopy, list_late
from tensorferry.train.teamwork import average_loss
from tensorferry.train.trainer import PIPELINE_BUDGET, StepMeter, Terms, Trainer

if TYPE_CHECKING:
    from tensorferry.scaling.pipeline import PipelinedModel

_WEIGHTS = "model.pt"
_OPTIMIZER = "optimizer.pt"


class TorchTrainer(Trainer):
    """A PyTorch model on the accelerator, if there is one, else on the CPU."""

    def __init__(self, recipe: TorchRecipe, data: Data, terms: Terms) -> None:
        self._recipe = recipe
        self._terms = terms
        self._device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
        self.precision = make_precision(terms.precision, self._device)
        self._meter = StepMeter()
        self._team: Team = ALONE
        self._seed(0)
        self.model: torch.nn.Module = recipe.build_model(data).to(self._device)
        self._called = self.model  # in its place, where it is spread over ranks
        self._optimizer: torch.optim.Optimizer
        self._large: LargeTraining | None = None
        self._copy: LateCopy | None = None
        self._pipeline: PipelinedModel | None = None
        self._place: Mapping[str, int] = {}

    def prepare(self, team: Team = ALONE, split: Split = Split()) -> None:  # noqa: B008
        self._team = team
        if team.size > 1:
            self._spread(team, split)
        self._optimizer = self._recipe.make_optimizer(self.model)
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        self._large = None if self._terms.budget is None else large_model(self._called, self._terms.budget)

    def _spread(self, team: Team, split: Split) -> None:
        from tensorferry.scaling.shards import is_sharded
        from tensorferry.scaling.torch import make_pipeline, spread

        ways = find_parallel(split.parallel, team.size)
        self._place = ways.locate(team.rank)
        if ways.pipeline == 1:
            waits = team.wait_seconds
            self._called = spread(self.model, ways, self._device, sync_norm=split.sync_norm, wait_seconds=waits)
        else:
            if self._terms.budget is not None:
                raise NotSupported(PIPELINE_BUDGET)
            how = (split.pipelining, self._recipe.inputs, self.precision, team.wait_seconds)
            self._pipeline = make_pipeline(self.model, ways, self._device, *how)
        self.writes_parts = is_sharded(self.model)
        if self.writes_parts and self.precision.name == "fp16":
            raise NotSupported("fp16 needs one loss scale for all shards; use --precision bf16 with fsdp, tensor or pipeline")

    def step(self, number: int, batch: Arrays, share: float = 1.0) -> float:
        self._seed(number)
        if self._large is None:
            self._begin_peak()
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * self._recipe.scale_rate(number)
        self.model.train()
        tensors = {name: self._as_tensor(array) for name, array in batch.items()}
        value = self._find_gradients(tensors, share)
        if self._copy is not None:
            self._copy.wait()
            self._copy = None
        if math.isfinite(value):
            self.precision.step(self._optimizer)
        self._optimizer.zero_grad()
        return value

    def _find_gradients(self, batch: dict[str, torch.Tensor], share: float) -> float:
        """Return the loss of all rows; where that is no number there may be no gradients."""
        if self._pipeline is not None:
            return average_loss(self._team, self._pipeline.step(batch, self._recipe.compute_loss, share), 1.0)
        with self.precision:
            loss = self._recipe.compute_loss(self._called, batch)
        value = average_loss(self._team, float(loss.detach()), share)
        if math.isfinite(value):
            self.precision.backward(loss if share == 1.0 else loss * share)
        return value

    def is_finite(self) -> bool:
        own = (
            weight.to_local() if isinstance(weight, DTensor) else weight
            for weight in self.model.parameters()
            if weight.requires_grad and not weight.is_meta
        )
        trained = [weight.detach() for weight in own if weight.numel()]
        real = [torch.view_as_real(weight) if weight.is_complex() else weight for weight in trained]
        # the largest magnitude tells of every inf and NaN, overflows nowhere, and is read from the device once
        largest = float(torch.nn.utils.get_total_norm(real, math.inf)) if real else 0.0
        return all(self._team.gather(math.isfinite(largest)))

    def predict_batch(self, batch: Arrays) -> NDArray[Any]:
        self.model.eval()
        inputs = [self._as_tensor(batch[name]) for name in self._recipe.inputs]
        with torch.no_grad(), self.precision:
            out = self.model(*inputs) if self._pipeline is None else self._pipeline.predict(*inputs)
        if out is None:  # another rank of the pipeline has it
            return np.empty(0)
        return (out.float() if out.is_floating_point() else out).cpu().numpy()

    def align(self) -> None:
        if self._team.size > 1 and self._pipeline is None:  # whose stages have buffers of their own
            from tensorferry.scaling.torch import share_tensors

            share_tensors(self.model.buffers())

    def save(self, folder: Path) -> None:
        _write(folder, self._take_files())

    def snapshot(self) -> Callable[[Path], None]:
        copy = self._copy = LateCopy(self._take_files(), list_late(self.model, self._optimizer))
        return lambda folder: _write(folder, copy.take())

    def _take_files(self) -> dict[str, Any]:
        """What is written to which file."""
        scale = {"scale": self.precision.state_dict()}
        if self.writes_parts:
            copies = () if self._pipeline is None else self._pipeline.copies
            part = take_part(self.model, self._optimizer, self._place, copies)
            return {name_file(self._team.rank, self._team.size): part | {"more": scale}}
        return {_WEIGHTS: self.model.state_dict(), _OPTIMIZER: {"optimizer": self._optimizer.state_dict()} | scale}

    def load(self, folder: Path, *, weights_only: bool = False) -> None:
        try:
            if find_files(folder):
                self._load_parts(ShardFiles(folder), weights_only=weights_only)
                return
            weights = _read(folder / _WEIGHTS, self._device)
            state = None if weights_only else _read(folder / _OPTIMIZER, self._device)
            self._team.gather(None)  # some read faster, and sharing waits for all
            self._load_weights(weights)
            if state is not None:
                self._load_optimizer(state["optimizer"])
                self.precision.load_state_dict(state["scale"])
        except (RuntimeError, TypeError, AttributeError, IndexError, UnpicklingError) as error:
            # names or shapes differ, as torch says it, or a file is not what a checkpoint has
            raise ValueError(" ".join(str(error).split())) from error

    def _load_parts(self, files: ShardFiles, *, weights_only: bool) -> None:
        weights = files.read_weights(self.model)
        optimizer = None if weights_only else files.read_optimizer(self._optimizer, self.model)
        self._team.gather(None)
        self.model.load_state_dict(weights)
        if optimizer is not None:
            self._optimizer.load_state_dict(optimizer)
            self.precision.load_state_dict(files.more["scale"])

    def _load_weights(self, state: dict[str, Any]) -> None:
        if self.writes_parts:
            from tensorferry.scaling.shards import distribute_weights

            distribute_weights(self.model, state)
        else:
            self.model.load_state_dict(state)

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        if self.writes_parts:
            from tensorferry.scaling.shards import distribute_optimizer

            distribute_optimizer(self._optimizer, self.model, state)
        else:
            self._optimizer.load_state_dict(state)

    @contextmanager
    def training(self) -> Iterator[None]:
        with _repeatable_kernels(self._terms.repeatable):
            if self._large is None:
                yield
            else:
                with self._large:
                    yield

    def peak_nbytes(self) -> int:
        if self._large is not None:
            return self._large.peak_nbytes
        if self._device.type == "cpu":
            return self._meter.peak_nbytes()
        return torch.accelerator.max_memory_allocated(self._device)

    def report(self) -> Report | None:
        return None if self._large is None else self._large.report()

    def _begin_peak(self) -> None:
        if self._device.type == "cpu":
            self._meter.begin_step()
        else:
            torch.accelerator.reset_peak_memory_stats(self._device)

    def _as_tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(self._device)

    def _seed(self, number: int) -> None:
        seed = step_seed(self._terms.seed, number, self._team.draw_rank)
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)


def _write(folder: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        torch.save(content, folder / name)
        force(folder / name)  # here, as the leader may be on another machine


def _read(path: Path, device: torch.device) -> Any:
    return torch.load(path, map_location=device, weights_only=True)


@contextmanager
def _repeatable_kernels(wanted: bool) -> Iterator[None]:
    """While inside, torch takes the kernels that repeat bit for bit, and warns of ops that have none."""
    before = (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
    settings: Any = torch.utils.deterministic
    fill = settings.fill_uninitialized_memory
    try:
        if wanted:
            torch.use_deterministic_algorithms(True, warn_only=True)
            settings.fill_uninitialized_memory = False  # nothing here reads memory that it has not written
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        settings.fill_uninitialized_memory = fill
