"""A streamed step stays within its budget or ends before an op that would not, measured from outside."""

import pytest
from programs import run_program

PROGRAM = """
    import json, sys
    import torch
    from torch import nn
    import tensorferry as ferry
    from tensorferry.engines.resident import ResidentMeter
    from tensorferry.recipes.models.unet3d import UNet3d, compute_loss, make_batch

    class Shortcut(nn.Module):
        def __init__(self, num_in, num_out, stride):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False), nn.BatchNorm2d(num_out), nn.ReLU(),
                nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False), nn.BatchNorm2d(num_out),
            )
            self.short = nn.Sequential(nn.Conv2d(num_in, num_out, 1, stride, bias=False), nn.BatchNorm2d(num_out))

        def forward(self, x):
            return torch.relu(self.body(x) + self.short(x))

    def build(name):
        if name == "volumes":
            layers = [nn.Sequential(nn.Conv3d(n, m, 3, padding=1), nn.SiLU()) for n, m in ((1, 24), (24, 24), (24, 8))]
            return nn.Sequential(*layers), torch.randn(1, 1, 48, 48, 48)
        if name == "images":
            sizes = ((3, 32), (32, 48), (48, 16))
            layers = [nn.Sequential(nn.Conv2d(n, m, 3, padding=1), nn.GroupNorm(4, m), nn.GELU()) for n, m in sizes]
            return nn.Sequential(*layers), torch.randn(2, 3, 200, 180)
        if name == "shortcuts":
            layers = [nn.Conv2d(3, 24, 7, 2, 3, bias=False), nn.BatchNorm2d(24), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
            return nn.Sequential(*layers, Shortcut(24, 48, 1), Shortcut(48, 96, 2)), torch.randn(12, 3, 160, 160)
        if name == "tokens":
            return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 24000)), torch.randn(2, 512, 64)
        return UNet3d(base=12, num_levels=3), torch.randn(1, 1, 48, 48, 48)

    torch.set_num_threads(2)
    warm = UNet3d(base=2)
    compute_loss(warm, *make_batch(edge=16)).backward()
    torch.optim.SGD(warm.parameters(), lr=0.1, momentum=0.9).step()
    _ = ferry.large_model
    meter = ResidentMeter()
    before = meter.now_nbytes()
    torch.manual_seed(0)
    model, x = build(sys.argv[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses, refused = [], ""
    try:
        with ferry.large_model(model, budget=int(sys.argv[2]), stream=True) as big:
            for step in range(2):
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
    except ferry.BudgetTooSmall as error:
        refused = str(error)
    print(json.dumps({"losses": losses, "refused": refused, "peak": meter.highest_nbytes() - before}))
"""
MIB = 2**20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "budget_mib"), [("volumes", 92), ("images", 84), ("shortcuts", 84), ("unet", 96), ("tokens", 200)]
)
def test_a_streamed_step_stays_within_its_budget(network: str, budget_mib: int) -> None:
    told = run_program(PROGRAM, network, budget_mib * MIB)
    assert told["refused"] == ""
    assert len(told["losses"]) == 2
    assert told["peak"] <= budget_mib * MIB


def test_a_streamed_step_ends_before_the_op_that_cannot_fit() -> None:
    told = run_program(PROGRAM, "images", 20 * MIB)
    assert "a streamed step was stopped at '" in told["refused"]
    assert "Raise the budget" in told["refused"]
    assert told["peak"] <= 20 * MIB
