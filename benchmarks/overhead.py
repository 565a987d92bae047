"""What a budget costs in time beside the copies: microseconds of CPU an op.

    python benchmarks/overhead.py                     10,000 tiny ops a step, and transformers at half of plain's memory
    python benchmarks/overhead.py --ops 2000          fewer of them
    python benchmarks/overhead.py --models ""         no transformers, which come from a package of their own
    python benchmarks/overhead.py --save              all of it, and its result file

The tiny ops are on 64 numbers; between them are wide layers, so that there is something to plan, and what those and their copies
take is not counted: an op's time is what a step takes longer than one with a tenth of the tiny ops. "Hooks alone" is what torch
takes to show every op and every saved tensor to Python, where nothing is done. A recorded step measures every op; the steps
after that follow a plan, which is settled when it is no longer made anew. The transformers train for 12 steps in fresh
processes, plain and with ferry at half of plain's peak in turns: all steps, with those that are recorded, and the settled ones
by themselves. Figures are CPU seconds of all threads.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

import tensorferry as ferry
from results import FigureTable, format_ratios, parse_options, save_result
from tensorferry.engines.resident import ResidentMeter
from tensorferry.engines.torch.record import OpMode
from tensorferry.units import format_bytes

NUM_OPS = 10_000
TARGET_MICROSECONDS = 12.0  # a planned op over plain's
TARGET_RATIO = 1.15  # settled steps over plain's
_TINY, _WIDE, _NUM_WIDE = 64, 2**20, 10
_SPARE_NBYTES = 32 * 2**20  # weights, gradients, and what is in hand
_NUM_RECORDED = 2
_NUM_SETTLED = 5
_NUM_STEPS = 12
_NUM_TURNS = 3
MODELS = ("bert", "llama", "vit")


class ManySmallOps(nn.Module):
    """A chain of tiny ops with a wide layer now and then."""

    def __init__(self, num_ops: int) -> None:
        super().__init__()
        self.tiny = nn.Parameter(torch.ones(_TINY))
        self.wide = nn.Parameter(torch.ones(_WIDE))
        self.num_tiny = num_ops // 2 // _NUM_WIDE  # each has one more in backward

    def forward(self) -> Tensor:
        """The sum of what comes out at the end."""
        tiny: Tensor = self.tiny
        wide: Tensor = self.wide
        for _ in range(_NUM_WIDE):
            for _ in range(self.num_tiny):
                tiny = tiny.neg()
            wide = wide.sin()
        return tiny.sum() + wide.sum()


@dataclass(frozen=True)
class OpCosts:
    """CPU time of an op or of a step, by how the step ran."""

    num_ops: int
    plain: float
    hooks: float
    recorded: float
    planned: float  # settled


@dataclass(frozen=True)
class ModelCost:
    """A model's training in its budget beside plain training, turn for turn."""

    name: str
    plain_nbytes: int
    budget_nbytes: int
    peak_nbytes: int
    all_ratios: Sequence[float]  # CPU seconds of all steps over plain's
    settled_ratios: Sequence[float]


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write; 0 when the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, default=NUM_OPS, help="tiny ops a step")
    parser.add_argument("--models", default=",".join(MODELS), help="comma separated; needs transformers")
    parser.add_argument("--turns", type=int, default=_NUM_TURNS, help="how often each model is trained")
    parser.add_argument("--once", nargs=2, metavar=("MODEL", "BUDGET"), help=argparse.SUPPRESS)  # what it starts itself with
    options = parse_options(parser, __file__, argv)
    if options.once:
        print(json.dumps(train_once(options.once[0], int(options.once[1]))))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 120)
    costs = measure_ops(options.ops)
    tables, models = [make_op_table(costs)], []
    console.print(tables[0])
    names = [name for name in options.models.split(",") if name]
    if names and find_spec("transformers") is None:
        console.print("no transformers here: pip install transformers, or --models ''")
    elif names:
        models = [measure_model(name, options.turns) for name in names]
        tables.append(make_model_table(models))
        console.print(tables[1])
    figures = {"ops": asdict(costs), "models": [asdict(model) for model in models]}
    save_result(options, "overhead", tables, figures, ["torch", "transformers"])
    over = costs.planned - costs.plain
    console.print(f"a planned op over plain's: {over:.1f} µs, to be at most {TARGET_MICROSECONDS:.0f} µs")
    is_cheap = all(median(model.settled_ratios) <= TARGET_RATIO for model in models)
    return 0 if over <= TARGET_MICROSECONDS and is_cheap else 1


def measure_ops(num_ops: int) -> OpCosts:
    """Steps of `ManySmallOps` in each way: what a step takes longer than one with a tenth of the tiny ops is theirs."""
    torch.set_num_threads(1)
    few, many = (_measure_steps(ManySmallOps(number)) for number in (num_ops // 10, num_ops))
    num_more = many.num_ops - few.num_ops
    ways = zip(
        (few.plain, few.hooks, few.recorded, few.planned), (many.plain, many.hooks, many.recorded, many.planned), strict=True
    )
    return OpCosts(many.num_ops, *((seconds - base) / num_more * 1e6 for base, seconds in ways))


def _measure_steps(model: ManySmallOps) -> OpCosts:
    """The same, in seconds of a whole step."""

    def step() -> None:
        model.zero_grad()
        model().backward()

    step()
    plain = _time_steps(step, _NUM_SETTLED)
    with _hooks_alone() as count:
        step()
        num_seen = count()
        hooks = _time_steps(step, _NUM_SETTLED)
    with ferry.large_model(model):
        step()  # loads what ferry needs
    with ferry.large_model(model, budget=_NUM_WIDE // 2 * model.wide.nbytes + _SPARE_NBYTES) as big:
        recorded = _time_steps(step, _NUM_RECORDED)
        planned = _time_steps(step, _NUM_STEPS)[-_NUM_SETTLED:]
    assert big.report().moved.swapped_nbytes + big.report().moved.recomputed_nbytes, "there was nothing to do"
    return OpCosts(num_seen, *(median(seconds) for seconds in (plain, hooks, recorded, planned)))


def _time_steps(step: Callable[[], object], num_steps: int) -> list[float]:
    seconds = []
    for _ in range(num_steps):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    return seconds


@contextmanager
def _hooks_alone() -> Iterator[Callable[[], int]]:
    num_ops = 0

    def run_op(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal num_ops
        num_ops += 1
        return func(*args, **kwargs)

    with OpMode(run_op), torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        yield lambda: num_ops


def measure_model(name: str, num_turns: int) -> ModelCost:
    """A model in fresh processes, plain and at half of plain's peak in turns."""
    plain_nbytes = _start_once(name, 0)["peak_nbytes"]
    budget_nbytes = plain_nbytes // 2
    turns = [(_start_once(name, 0), _start_once(name, budget_nbytes)) for _ in range(num_turns)]
    return ModelCost(
        name,
        plain_nbytes,
        budget_nbytes,
        max(large["peak_nbytes"] for _, large in turns),
        [sum(large["seconds"]) / sum(plain["seconds"]) for plain, large in turns],
        [median(large["seconds"][-_NUM_SETTLED:]) / median(plain["seconds"][-_NUM_SETTLED:]) for plain, large in turns],
    )


def _start_once(name: str, budget_nbytes: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--once", name, str(budget_nbytes)]
    answer: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return answer


def train_once(name: str, budget_nbytes: int) -> dict[str, Any]:
    """Train a model here; a budget of 0 is for plain training."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    with closing(ResidentMeter()) as meter:
        before_nbytes = meter.now_nbytes()
        model, compute_loss = _MAKERS[name]()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step() -> None:
            optimizer.zero_grad()
            compute_loss().backward()
            optimizer.step()

        if budget_nbytes:
            with ferry.large_model(model, budget=budget_nbytes) as big:
                seconds = _time_steps(step, _NUM_STEPS)
            return {"seconds": seconds, "peak_nbytes": big.peak_nbytes}
        seconds = _time_steps(step, _NUM_STEPS)
        return {"seconds": seconds, "peak_nbytes": meter.highest_nbytes() - before_nbytes}


def _make_bert() -> tuple[nn.Module, Callable[[], Tensor]]:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=8000, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    model = BertForSequenceClassification(config)
    words, labels = torch.randint(0, 8000, (16, 128)), torch.randint(0, 2, (16,))
    return model, lambda: model(input_ids=words, labels=labels).loss


def _make_llama() -> tuple[nn.Module, Callable[[], Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config)
    words = torch.randint(0, 8000, (8, 128))
    return model, lambda: model(input_ids=words, labels=words, use_cache=False).loss


def _make_vit() -> tuple[nn.Module, Callable[[], Tensor]]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536, image_size=160)
    model = ViTForImageClassification(config)
    images, labels = torch.randn(16, 3, 160, 160), torch.randint(0, 2, (16,))
    return model, lambda: model(pixel_values=images, labels=labels).loss


_MAKERS = {"bert": _make_bert, "llama": _make_llama, "vit": _make_vit}


def make_op_table(costs: OpCosts) -> FigureTable:
    """Microseconds for people."""
    rows = [
        (step, f"{microseconds:.1f} µs", f"{microseconds - costs.plain:+.1f} µs")
        for step, microseconds in (
            ("plain", costs.plain),
            ("hooks alone", costs.hooks),
            ("recorded", costs.recorded),
            ("planned, settled", costs.planned),
        )
    ]
    return FigureTable(f"CPU time of a tiny op, {costs.num_ops:,} a step", ("step", "an op", "over plain"), rows)


def make_model_table(models: Sequence[ModelCost]) -> FigureTable:
    """Whole models for people."""
    columns = ("model", "plain", "budget", "peak", f"CPU over plain, {_NUM_STEPS} steps", "CPU over plain, settled")
    rows = [
        (
            model.name,
            format_bytes(model.plain_nbytes),
            format_bytes(model.budget_nbytes),
            format_bytes(model.peak_nbytes),
            format_ratios(model.all_ratios),
            format_ratios(model.settled_ratios),
        )
        for model in models
    ]
    return FigureTable("Transformers at half of plain's memory", columns, rows)


if __name__ == "__main__":
    sys.exit(main())
