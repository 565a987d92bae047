"""Fine-tune a model of 3 billion weights in bf16 with LoRA in 2 GiB: one step, and the loss of an untouched run.

    python benchmarks/lora.py --save         writes 6 GB of weights to a temporary file; the plain run needs 8 GB of memory
    python benchmarks/lora.py --quick        a toy of the same shape

The weights are generated and written tensor by tensor. Each run has a fresh process. The plain one loads the file; ferry's
builds the model on the "meta" device, reads frozen weights from the file whenever an op uses them, and never writes to it. Peak:
resident memory over what the process held before the model was built, at the end of the step. Disk: what the kernel counts of
the process's reads and writes.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

import tensorferry as ferry
from results import FigureTable, parse_options, save_result
from tensorferry.engines.resident import ResidentMeter
from tensorferry.extras import load_extra
from tensorferry.recipes.models import gpt
from tensorferry.units import format_bytes, parse_bytes
from trainings import NUM_THREADS, SEED, StepClock

RANK = 8
_SIZES = {False: (32, 2816, 22, 128), True: (2, 256, 4, 32)}  # layers, width, heads, tokens


class LoraLinear(nn.Module):
    """A frozen layer and what is learnt beside it."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        like: dict[str, Any] = {"dtype": frozen.weight.dtype, "device": frozen.weight.device}
        self.down = nn.Linear(frozen.in_features, RANK, bias=False, **like)
        self.up = nn.Linear(RANK, frozen.out_features, bias=False, **like)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


@dataclass(frozen=True, slots=True)
class LoraRun:
    """What one process did."""

    mode: str
    loss: str  # its bits
    gradient: str  # the sum of all gradients' bits, as a number
    peak_nbytes: int
    disk_nbytes: int
    cpu_seconds: float
    wall_seconds: float
    num_parameters: int


def main(argv: list[str] | None = None) -> int:
    """Measure and show; 0 if the budget was held and the losses are equal."""
    options = _parse(argv)
    say = Console(stderr=True, highlight=False).print
    with tempfile.TemporaryDirectory(prefix="ferry-lora-", dir=options.folder) as folder:
        path = Path(folder, "base.safetensors")
        say("writing the weights ...")
        nbytes = write_generated(build(options.quick), path)
        runs = []
        for mode in ("plain", "ferry"):
            say(f"{mode}, {format_bytes(nbytes)} of weights ...")
            runs.append(_run_apart(mode, path, options))
    table = make_table(runs, options.budget)
    Console().print(table)
    save_result(options, "lora", [table], {"budget_nbytes": options.budget, "runs": [asdict(run) for run in runs]}, ["torch"])
    plain, moved = runs
    held = moved.peak_nbytes <= options.budget
    return 0 if held and (plain.loss, plain.gradient) == (moved.loss, moved.gradient) else 1


def build(quick: bool) -> gpt.GPT:
    """The model without bytes; adapters beside every layer of attention and of the networks behind it."""
    num_layers, width, num_heads, length = _SIZES[quick]
    with torch.device("meta"):
        model = gpt.GPT(num_layers=num_layers, width=width, num_heads=num_heads, max_length=length).bfloat16()
        model.requires_grad_(False)
        for block in model.blocks:
            for module in list(block.modules()):
                for name, child in list(module.named_children()):
                    if isinstance(child, nn.Linear):
                        setattr(module, name, LoraLinear(child))
    return model


def write_generated(model: nn.Module, path: Path) -> int:
    """Write random weights for a model to a file, one tensor at a time; returns their bytes."""
    header: dict[str, Any] = {}
    end = 0
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        header[name] = {"dtype": "BF16", "shape": list(parameter.shape), "data_offsets": [end, end + parameter.nbytes]}
        end += parameter.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    generator = torch.Generator().manual_seed(SEED)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name, parameter in parameters.items():
            values = torch.empty(parameter.shape).normal_(std=0.02, generator=generator)
            if "norm" in name:
                values += 1
            file.write(values.bfloat16().view(torch.uint8).numpy().data)
    return end


def make_table(runs: list[LoraRun], budget_nbytes: int) -> FigureTable:
    """One row a run."""
    cells = []
    for run in runs:
        same = "equal" if (run.loss, run.gradient) == (runs[0].loss, runs[0].gradient) else "differ"
        budget = format_bytes(budget_nbytes) if run.mode == "ferry" else ""
        sizes = (budget, format_bytes(run.peak_nbytes), format_bytes(run.disk_nbytes))
        cells.append((run.mode, *sizes, f"{run.cpu_seconds:.1f}", f"{run.wall_seconds:.1f}", same))
    title = f"One step of {runs[0].num_parameters / 1e9:.2f} billion weights in bf16 with LoRA of rank {RANK}"
    return FigureTable(title, ("mode", "budget", "peak", "disk", "CPU s", "wall s", "loss and gradients"), cells)


def _run_apart(mode: str, path: Path, options: argparse.Namespace) -> LoraRun:
    command = [sys.executable, __file__, "--run", mode, "--weights", str(path), "--budget", str(options.budget)]
    done = subprocess.run([*command, *(["--quick"] if options.quick else [])], check=True, stdout=subprocess.PIPE, text=True)
    return LoraRun(**json.loads(done.stdout.splitlines()[-1]))


def _run(mode: str, path: Path, budget_nbytes: int, quick: bool) -> LoraRun:
    torch.set_num_threads(NUM_THREADS)
    _warm_up()
    length = _SIZES[quick][-1]
    model, batch = build(quick), gpt.make_batch(1, length=length, seed=SEED)
    meter = ResidentMeter()
    before_nbytes = meter.now_nbytes()
    if mode == "plain":
        model = model.to_empty(device="cpu")
        model.score.weight = model.tokens.weight  # which `to_empty` has parted
        load_extra("safetensors.torch", "loading the weights").load_model(model, str(path))
        return _step(mode, model, batch, lambda: meter.highest_nbytes() - before_nbytes)
    ferry.load_onto_tier(model, path)
    with ferry.large_model(model, budget_nbytes, weights=True) as big:
        run = _step(mode, model, batch, lambda: meter.highest_nbytes() - before_nbytes)
        assert big.peak_nbytes <= budget_nbytes
    return run


def _step(mode: str, model: nn.Module, batch: tuple[Tensor, Tensor], find_peak: Callable[[], int]) -> LoraRun:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    clock = StepClock(find_peak=find_peak)
    started = (process_time(), perf_counter())
    clock.start()
    loss = gpt.compute_loss(model, *batch)
    loss.backward()
    gradient = math.fsum(parameter.grad.double().sum().item() for parameter in trained if parameter.grad is not None)
    optimizer.step()
    clock.stop(loss.item())
    return LoraRun(
        mode,
        float(loss.item()).hex(),
        gradient.hex(),
        clock.peak_nbytes,
        clock.disk_nbytes[0],
        process_time() - started[0],
        perf_counter() - started[1],
        sum(parameter.numel() for parameter in model.parameters()),
    )


def _warm_up() -> None:
    """Start threads and load everything that either run loads."""
    _ = ferry.large_model
    model = nn.Linear(8, 8).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    nn.functional.cross_entropy(model(torch.zeros(2, 8, dtype=torch.bfloat16)), torch.zeros(2, dtype=torch.long)).backward()
    optimizer.step()


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=parse_bytes, default="2GiB", help="ferry's (default %(default)s)")
    parser.add_argument("--folder", help="where the weights are written (default: where temporary files go)")
    parser.add_argument("--quick", action="store_true", help="a toy")
    return parse_options(parser, __file__, argv)


def _run_alone(argv: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--budget", type=int)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(argv)
    print(json.dumps(asdict(_run(options.run, options.weights, options.budget, options.quick))))


if __name__ == "__main__":
    if "--run" in sys.argv:
        _run_alone(sys.argv[1:])
    else:
        sys.exit(main())
