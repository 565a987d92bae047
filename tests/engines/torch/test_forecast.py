"""A budget that the whole step cannot run in, optimizer included, is refused before the first step, and nothing has changed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from adversary import Adversary, adversary_opener
from cases import Residual, Tied, classify, images, tokens
from programs import run_program
from torch import nn
from torch.nn import functional

from tensorferry.engines.forked import NoAnswer
from tensorferry.engines.torch import LargeTraining
from tensorferry.engines.torch.forecast import Forecast, forecast
from tensorferry.engines.torch.model_memory import find_optimizers
from tensorferry.errors import BudgetTooSmall, NotTraceable
from tensorferry.plan import find_floor
from tensorferry.trace import Kind, Phase

WIDTH = 256


class _Wide(nn.Module):
    """Nearly all of its memory is weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(self.layers(x))


def _forecast(model: nn.Module, optimizers: list[torch.optim.Optimizer], x: torch.Tensor | None = None) -> Forecast:
    return forecast(model, (torch.ones(4, WIDTH) if x is None else x,), {}, optimizers, min_nbytes=512)


def _above_nbytes(expected: Forecast) -> int:
    """What the step needs above what is there."""
    return find_floor(expected.on_top_of(0)).nbytes


def _train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    functional.mse_loss(model(torch.ones(4, WIDTH)), torch.zeros(4, WIDTH)).backward()
    optimizer.step()
    optimizer.zero_grad()


def _trained_nbytes(model: nn.Module) -> int:
    return sum(p.nbytes for p in model.parameters() if p.requires_grad)


class _Counting(Adversary):
    """Has on its books what a model and its optimizer hold, and not what a process does besides."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        super().__init__(seed=0)
        self._model = model
        self._optimizer = optimizer

    def resident_nbytes(self) -> int:
        parameters = list(self._model.parameters())
        states = self._optimizer.state.values() if self._optimizer is not None else ()
        held = [*parameters, *(p.grad for p in parameters if p.grad is not None), *(v for s in states for v in s.values())]
        return sum(tensor.untyped_storage().nbytes() for tensor in held)


def _large(model: nn.Module, optimizer: torch.optim.Optimizer | None, budget_nbytes: int) -> LargeTraining:
    return LargeTraining(
        model, budget_nbytes, "auto", True, 512, 10.0, adversary_opener(_Counting(model, optimizer)), weights=False
    )


def _between(model: nn.Module) -> int:
    """A budget that weights and gradients fit in, and Adam's state does not."""
    return sum(p.nbytes for p in model.parameters()) + 2 * _trained_nbytes(model) + 6 * 2**20


def _bits(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]


@pytest.mark.parametrize("made", ["before entering", "after entering"])
def test_a_budget_that_the_optimizers_state_does_not_fit_in_is_refused_before_the_step(made: str) -> None:
    model, ran, stepped = _Wide(), [], []
    model.layers[0].register_forward_hook(lambda *_: ran.append(1))
    optimizer = torch.optim.AdamW(model.parameters()) if made == "before entering" else None
    large, before, random = _large(model, optimizer, _between(model)), _bits(model), torch.get_rng_state()
    with pytest.raises(BudgetTooSmall, match="The optimizer needs all weights, gradients and its state at once") as caught, large:
        optimizer = optimizer or torch.optim.AdamW(model.parameters())
        optimizer.register_step_pre_hook(lambda *_: stepped.append(1))
        _train(model, optimizer)
    assert caught.value.smallest_nbytes > _between(model)
    assert ran == stepped == []
    assert all(map(torch.equal, before, _bits(model)))
    assert torch.equal(random, torch.get_rng_state())
    assert optimizer is not None
    assert optimizer.state == {}
    assert all(p.grad is None for p in model.parameters())


def test_the_same_budget_trains_with_an_optimizer_that_has_no_state() -> None:
    model = _Wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = _bits(model)
    with _large(model, optimizer, _between(model)) as big:
        for _ in range(3):
            _train(model, optimizer)
    assert big.report().num_steps == 3
    assert not all(map(torch.equal, before, _bits(model)))


def test_what_was_freed_before_the_step_is_not_held_against_the_budget() -> None:
    class Trimmed(_Counting):
        """Keeps freed memory on its books until it is told to give it back."""

        kept_nbytes = 0

        def resident_nbytes(self) -> int:
            return super().resident_nbytes() + self.kept_nbytes

        def trim(self) -> None:
            self.kept_nbytes = 0

    model = _Wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    device = Trimmed(model, optimizer)
    with LargeTraining(model, _between(model), "auto", True, 512, 10.0, adversary_opener(device)) as big:
        device.kept_nbytes = 2**24
        _train(model, optimizer)
    assert big.report().num_steps == 1


def test_state_that_is_made_at_once_counts_at_once() -> None:
    model = _Wide()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    to_come = _forecast(model, [optimizer]).trace
    states = [s for s in to_come.storages if s.label.startswith("optimizer exp_avg") and s.movable]
    first_update = next(i for i, op in enumerate(to_come.ops) if op.name.startswith("lerp_"))
    assert len(states) == 2 * sum(p.requires_grad for p in model.parameters())
    assert all(state.wanted_at is not None and state.wanted_at < first_update for state in states)


def test_the_smallest_budget_that_is_named_trains() -> None:
    model = _Wide()
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(BudgetTooSmall) as caught, _large(model, optimizer, _between(model)):
        _train(model, optimizer)
    with _large(model, optimizer, caught.value.smallest_nbytes) as big:
        for _ in range(4):
            _train(model, optimizer)
    assert big.report().num_steps == 4


OPTIMIZERS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], int]] = {  # with the number of its states a parameter
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.1), 0),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
    "adamw": (torch.optim.AdamW, 2),
    "amsgrad": (lambda p: torch.optim.AdamW(p, amsgrad=True), 3),
    "foreach": (lambda p: torch.optim.AdamW(p, foreach=True), 2),
    "fused": (lambda p: torch.optim.AdamW(p, fused=True), 2),
    "a rate that is a tensor": (lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)), 2),
    "groups": (lambda p: torch.optim.AdamW([{"params": [q], "lr": 0.1 * i} for i, q in enumerate(p)]), 2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_counts_whether_it_is_still_to_come_or_is_there(name: str) -> None:
    make, num_states = OPTIMIZERS[name]
    model = _Wide()
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # puts a step of its own into the optimizer
    to_come = _forecast(model, find_optimizers(model))
    assert to_come.optimizers == [optimizer]
    assert optimizer.state == {}
    _train(model, optimizer)
    scheduler.step()
    there = _forecast(model, find_optimizers(model))
    state_nbytes = sum(value.nbytes for values in optimizer.state.values() for value in values.values() if value is not None)
    assert num_states * _trained_nbytes(model) <= state_nbytes < num_states * _trained_nbytes(model) + 1024
    # a step that finds its state fetches it one by one; some optimizers make all of it before they use any
    assert -1024 < _above_nbytes(to_come) - (_above_nbytes(there) + state_nbytes) <= state_nbytes
    movable = {there.trace.storages[s].kind for s in there.trace.movable}
    assert (Kind.OPTIMIZER in movable) == (num_states > 0)


def test_two_optimizers_of_one_model_are_both_in_the_forecast() -> None:
    model = _Wide()
    halves = [torch.optim.AdamW(model.layers[:2].parameters()), torch.optim.AdamW(model.layers[2:].parameters())]
    whole = _above_nbytes(_forecast(model, [torch.optim.AdamW(model.parameters())]))
    assert abs(_above_nbytes(_forecast(model, halves)) - whole) < 1024


@pytest.fixture
def one_process() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_a_model_for_data_parallel_training_is_followed(one_process: None) -> None:
    model = _Wide()
    alone = _forecast(model, [torch.optim.AdamW(model.parameters())]).trace
    wrapped = nn.parallel.DistributedDataParallel(model)
    assert _forecast(wrapped, [torch.optim.AdamW(wrapped.parameters())]).trace == alone


def test_gradients_that_are_there_are_not_counted_twice() -> None:
    model = _Wide()
    without = _above_nbytes(_forecast(model, []))
    model(torch.ones(4, WIDTH)).sum().backward()
    grads_nbytes = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    assert _above_nbytes(_forecast(model, [])) <= without - grads_nbytes // 2


class _Strict(torch.optim.AdamW):
    def step(self, closure: Any = None) -> Any:
        raise RuntimeError("not in this process")


@pytest.mark.parametrize(
    "make",
    [
        lambda p: [torch.optim.LBFGS(p)],
        lambda p: [_Strict(p)],
        lambda p: [torch.optim.AdamW(p), torch.optim.SGD(p, lr=0.1)],
    ],
    ids=["wants a closure", "cannot step", "two for the same parameters"],
)
def test_an_optimizer_that_cannot_be_followed_is_left_out(make: Any) -> None:
    model = _Wide()
    plain = _above_nbytes(_forecast(model, []))
    expected = _forecast(model, make(list(model.parameters())))
    assert not expected.optimizers
    assert _above_nbytes(expected) == plain
    assert all(op.phase is not Phase.OPTIMIZER for op in expected.trace.ops)


def test_gradients_that_a_hook_takes_in_backward_do_not_add_up() -> None:
    model = _Wide()
    plain = _above_nbytes(_forecast(model, []))

    def step_and_free(parameter: torch.Tensor) -> None:
        parameter.grad = None

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(step_and_free)
    expected = _forecast(model, [torch.optim.AdamW(model.parameters())])
    assert not expected.optimizers
    assert _above_nbytes(expected) < plain - _trained_nbytes(model) // 2


_FORK = "tensorferry.engines.torch.forecast.call_in_fork"
_LOADED = "tensorferry.engines.torch.forecast.compiler_is_loaded"


def test_a_copy_of_the_process_that_hangs_is_tried_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def hang_at_first(call: Callable[[], Any]) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise NoAnswer("it hung")
        return call()

    monkeypatch.setattr(_LOADED, lambda: False)
    monkeypatch.setattr(_FORK, hang_at_first)
    assert _forecast(_Wide(), []).note == ""
    assert len(tries) == 2


@pytest.mark.parametrize(
    "reason",
    [
        "no room for a copy",
        "RuntimeError: Unable to handle autograd's threading in combination with fork-based multiprocessing.",
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess.",
    ],
)
def test_a_step_that_no_copy_of_the_process_can_follow_is_followed_here_and_the_report_says_so(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Callable[[], Any]) -> NotTraceable:
        if reason.startswith("no room"):
            raise NoAnswer(reason)
        return NotTraceable(reason)

    monkeypatch.setattr(_LOADED, lambda: False)
    monkeypatch.setattr(_FORK, fail)
    model = _Wide()
    with _large(model, None, 2**30) as big:
        model(torch.ones(4, WIDTH))
        notes = big.report().notes
    assert any("followed in this process" in note and reason in note for note in notes)
    assert not any("could not be traced" in note for note in notes)


def test_weights_that_autocast_has_cast_do_not_outlive_a_forecast() -> None:
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = _forecast(model, [optimizer], *tokens(0))
    assert any(op.precision == "bf16" for op in cast.trace.ops)
    there = [storage for storage in cast.trace.storages if storage.freed_after is None]
    assert {storage.kind for storage in there} <= {Kind.PARAMETER, Kind.BUFFER, Kind.INPUT, Kind.OPTIMIZER}


def test_weights_above_the_budget_are_refused_though_the_model_cannot_be_followed() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = _Wide()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ran.append(type(x))
            return self.wide(x) if x.sum() > 0 else x

    ran: list[type] = []
    model = Branches()
    weights_nbytes = sum(p.nbytes for p in model.parameters())
    with (
        pytest.raises(BudgetTooSmall, match="held before the first step begins") as caught,
        _large(model, None, 6 * 2**20 + weights_nbytes // 2),
    ):
        model(torch.ones(4, WIDTH))
    assert caught.value.smallest_nbytes is None  # nobody knows
    assert torch.Tensor not in ran  # only the forecast's own, which found that it cannot follow
    with pytest.raises(BudgetTooSmall), _large(model, None, 6 * 2**20 + weights_nbytes // 2):
        model.wide.layers(torch.ones(4, WIDTH))


def test_a_part_that_nobody_trains_is_not_refused_for_a_backward_pass_it_may_not_have() -> None:
    model = nn.ModuleDict({"first": _Wide(), "second": _Wide()})
    weights_nbytes = sum(p.nbytes for p in model.parameters())
    with _large(model, None, 6 * 2**20 + weights_nbytes + weights_nbytes // 4):
        model["first"](torch.ones(4, WIDTH)).detach()


def test_a_forecast_that_is_lower_than_the_step_is_made_good_before_the_second_step() -> None:
    """What the user does with the output is not in the forecast; the first step shows it."""
    model = Residual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    adversary = _Counting(model, optimizer)
    adversary.peak_nbytes = lambda: adversary.resident_nbytes() + 2**30  # type: ignore[method-assign]
    large = LargeTraining(model, 2**28, "auto", True, 512, 10.0, adversary_opener(adversary))
    with large:
        classify(model, images(0), optimizer)
        weights = _bits(model)
        with pytest.raises(BudgetTooSmall, match="one step needs at least 1"):
            classify(model, images(1), optimizer)
        assert all(map(torch.equal, weights, _bits(model)))


def test_what_was_measured_inside_the_budget_is_not_refused_for_the_margin() -> None:
    """A floor above the plan's limit and below the budget: the step that was recorded has shown that it can be."""
    model = Residual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    adversary = _Counting(model, optimizer)
    budget_nbytes, margin_nbytes = 2**28, 6 * 2**20
    adversary.peak_nbytes = lambda: budget_nbytes - margin_nbytes // 2  # type: ignore[method-assign]
    with LargeTraining(model, budget_nbytes, "auto", True, 512, 10.0, adversary_opener(adversary)) as big:
        for seed in range(4):
            classify(model, images(seed), optimizer)
    plan = big.report().plan
    assert plan is not None
    assert budget_nbytes - margin_nbytes < plan.floor_nbytes <= budget_nbytes


def test_a_model_of_which_only_parts_are_called_is_refused_before_they_run() -> None:
    model, ran = _Wide(), []
    optimizer = torch.optim.AdamW(model.parameters())
    model.layers[0].register_forward_hook(lambda *_: ran.append(1))

    def train() -> None:
        functional.mse_loss(model.frozen(model.layers(torch.ones(4, WIDTH))), torch.zeros(4, WIDTH)).backward()
        optimizer.step()
        optimizer.zero_grad()

    with pytest.raises(BudgetTooSmall, match="Only a part of the model") as caught, _large(model, optimizer, _between(model)):
        train()
    assert ran == []
    assert caught.value.smallest_nbytes is None  # nobody knows what the other parts need
    with _large(model, optimizer, 2**30) as big:
        for _ in range(3):
            train()
    assert big.report().num_steps == 3
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_part_is_followed_from_an_input_that_another_part_made() -> None:
    first, second = _Wide(), _Wide()
    made = first(torch.ones(4, WIDTH))
    assert made.grad_fn is not None
    expected = _forecast(second, [], made)
    assert any(op.phase is Phase.BACKWARD for op in expected.trace.ops)
    assert made.grad_fn is not None


def test_a_step_that_cannot_be_followed_is_stopped_before_it_passes_the_budget() -> None:
    class Doubling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2**20))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:  # what fake tensors cannot tell
                for _ in range(6):
                    x = torch.cat([x, x])
                    sizes.append(x.nbytes)
            return x * self.scale[0]

    sizes: list[int] = []
    model, budget_nbytes = Doubling(), 96 * 2**20
    with LargeTraining(model, budget_nbytes, "auto", True, 2**20, 10.0) as big:
        with pytest.raises(BudgetTooSmall, match="was stopped at 'aten::cat'") as caught:
            model(torch.ones(2**20) * model.scale[:1]).sum().backward()
        assert caught.value.smallest_nbytes is None
        assert 16 * 2**20 <= max(sizes) <= 64 * 2**20
    assert big.peak_nbytes <= budget_nbytes


PROGRAM = """
    import json, sys
    import torch
    from torch import nn
    import tensorferry as ferry
    from tensorferry.engines.resident import ResidentMeter

    def make(width, num_layers):
        def make_layer(width):
            return nn.Linear(width, width) if kind == "wide layers" else nn.Conv3d(width, width, 3, padding=1)

        model = nn.Sequential(*(layer for _ in range(num_layers) for layer in (make_layer(width), nn.GELU())))
        return model, torch.optim.AdamW(model.parameters())

    def train(model, optimizer, x):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    kind = sys.argv[2]
    width, num_layers, shape = (1536, 5, (2048, 1536)) if kind == "wide layers" else (2, 3, (2, 2, 64, 64, 64))
    warm = make(8, 2)
    with ferry.large_model(warm[0], budget="1GiB"):
        train(*warm, torch.ones(8, 8) if kind == "wide layers" else torch.ones(2, 8, 16, 16, 16))
    x = torch.ones(shape)
    meter = ResidentMeter()
    before = meter.now_nbytes()
    meter.reset_peak()
    model, optimizer = make(width, num_layers)
    budget = int(sys.argv[1])
    try:
        with ferry.large_model(model, budget=budget, weights=False) as big:
            for _ in range(2):
                train(model, optimizer, x)
        peak = max(meter.highest_nbytes() - before, big.report().measured_peak_nbytes)
        print(json.dumps({"peak": peak, "refused": False}))
    except ferry.BudgetTooSmall as error:
        print(json.dumps({"smallest": error.smallest_nbytes, "refused": True, "num_states": len(optimizer.state)}))
"""


@pytest.mark.slow
def test_the_first_steps_stay_within_the_smallest_budget() -> None:
    weights_nbytes = 5 * 1537 * 1536 * 4
    refused = run_program(PROGRAM, 3 * weights_nbytes, "wide layers")
    assert refused["refused"]
    assert refused["num_states"] == 0
    assert refused["smallest"] > 4 * weights_nbytes
    trained = run_program(PROGRAM, refused["smallest"], "wide layers")
    assert not trained["refused"]
    assert trained["peak"] <= refused["smallest"]


def test_the_first_steps_stay_within_the_smallest_budget_where_channels_are_few() -> None:
    """oneDNN fills them up to whole blocks, which takes far more than the tensors themselves."""
    refused = run_program(PROGRAM, 16 * 2**20, "few channels")
    assert refused["refused"]
    trained = run_program(PROGRAM, refused["smallest"], "few channels")
    assert not trained["refused"]
    assert trained["peak"] <= refused["smallest"]
