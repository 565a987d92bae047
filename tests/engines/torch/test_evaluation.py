"""Forward passes without gradients hold the budget, and are no part of a training step."""

import pytest
import torch
from adversary import Adversary, adversary_opener
from programs import run_program
from torch import nn
from torch.nn import functional

from tensorferry.engines.torch import LargeTraining
from tensorferry.errors import BudgetTooSmall

MIB = 2**20
WIDTH = 512
BUDGET_NBYTES = 21 * MIB  # the optimizer's update holds 13 MiB, beside the margin
REFUSED = r"without gradients was stopped at 'aten::.*Evaluate in smaller batches"
ROWS = 3584  # 7 MiB a layer: too much beside the optimizer's state, which is 6 MiB


def _train(
    adversary: Adversary | None, num_rows: int = ROWS, *, has_evaluation: bool = True
) -> tuple[list[torch.Tensor], LargeTraining | None]:
    """Losses, and what the model answers after every step, at last with the weights."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    many, found = torch.randn(num_rows, WIDTH), []
    x = torch.randn(8, WIDTH)

    def train() -> None:
        for _ in range(5):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), x)
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
            if has_evaluation:
                optimizer.zero_grad()
                with torch.no_grad():
                    found.append(model(many).sum())

    if adversary is None:
        train()
        return [*found, *(p.detach() for p in model.parameters())], None
    opener = adversary_opener(adversary)
    with LargeTraining(model, BUDGET_NBYTES, "auto", True, 2**16, 10.0, opener, weights=False) as large:
        train()
    return [*found, *(p.detach() for p in model.parameters())], large


def test_the_optimizers_state_makes_room_for_an_evaluation_and_comes_back() -> None:
    plain, _ = _train(None)
    for seed in range(3):
        adversary = Adversary(seed)
        found, large = _train(adversary)
        assert all(map(torch.equal, found, plain))
        assert adversary.highest_nbytes() <= BUDGET_NBYTES
        assert large is not None
        assert large.report().num_plans > 0


def test_an_evaluation_that_cannot_fit_is_refused_before_it_does_and_training_goes_on() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    optimizer = torch.optim.AdamW(model.parameters())
    adversary = Adversary(0)
    with LargeTraining(model, BUDGET_NBYTES, "auto", True, 2**16, 10.0, adversary_opener(adversary), weights=False) as large:
        for _ in range(4):
            model(torch.ones(8, WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            with pytest.raises(BudgetTooSmall, match=REFUSED), torch.no_grad():
                model(torch.ones(16 * ROWS, 1).expand(-1, WIDTH))
    assert adversary.highest_nbytes() <= BUDGET_NBYTES
    assert large.report().num_steps == 4


def test_what_an_evaluation_runs_is_no_part_of_the_step_before_it() -> None:
    traces = []
    for has_evaluation in (False, True):
        _, large = _train(Adversary(0), num_rows=64, has_evaluation=has_evaluation)
        assert large is not None
        traces.append(large.report().trace)
    assert all(traces)
    without, between = ([op.name for op in trace.ops] for trace in traces if trace)
    # a view that the next step begins with is before the first tensor that it saves
    assert without in (between, [*between, "0 t"])


def test_a_metric_between_backward_and_update_is_a_part_of_the_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    opener = adversary_opener(Adversary(0))
    with LargeTraining(model, BUDGET_NBYTES, "auto", True, 2**10, 10.0, opener, weights=False) as large:
        for _ in range(5):
            model(torch.ones(64, 64)).sum().backward()
            with torch.no_grad():
                model(torch.ones(64, 64))
            optimizer.step()
            optimizer.zero_grad()
    trace = large.report().trace
    assert trace is not None
    assert any("addcmul" in op.name for op in trace.ops)  # of the update


def test_an_evaluation_before_and_after_training_holds_the_budget_of_this_process() -> None:
    found = run_program(
        """
        import json
        import torch
        import tensorferry as ferry

        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(2)))
        optimizer = torch.optim.AdamW(model.parameters())
        x, many = torch.randn(8, 2048), torch.randn(8192, 2048)
        with ferry.large_model(model, budget="208MiB", weights=False) as big:
            for step in range(5):
                with torch.no_grad():
                    model(many)
                model(x).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                model(many)
        print(json.dumps({"peak": big.peak_nbytes, "num_steps": big.report().num_steps}))
        """
    )
    assert found["num_steps"] == 5
    # 32 MiB of weights, 64 of rows and as much of each layer's answer leave no room for 64 of state
    assert found["peak"] <= 208 * MIB
