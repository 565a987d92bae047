"""What is copied beside a step is what there was before it."""

from typing import Any

import pytest
import torch

from tensorferry.train.late_copy import LateCopy, list_late


def _make() -> tuple[torch.nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    model[0].weight = torch.nn.Parameter(model[0].weight.t())  # lies in memory in another order
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    return model, optimizer, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "more": [1, (2, "a")]}


def test_weights_state_and_statistics_are_those_of_the_moment() -> None:
    model, optimizer, contents = _make()
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    means = [state["exp_avg"].clone() for state in optimizer.state.values()]
    copy = LateCopy(contents, list_late(model, optimizer))
    model(torch.randn(4, 3)).square().sum().backward()  # new statistics
    copy.wait()
    optimizer.step()
    found = copy.take()
    assert all(torch.equal(found["model"][name], tensor) for name, tensor in expected.items())
    assert found["model"]["0.weight"].stride() == contents["model"]["0.weight"].stride()
    assert not torch.equal(found["model"]["1.running_mean"], model.state_dict()["1.running_mean"])
    assert all(torch.equal(found["optimizer"]["state"][place]["exp_avg"], mean) for place, mean in enumerate(means))
    assert found["more"] == [1, (2, "a")]


def test_weights_that_change_before_they_are_copied_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, contents = _make()
    late = LateCopy._copy_late

    def change_first(self: LateCopy) -> None:
        with torch.no_grad():
            model[0].weight.add_(1)
        late(self)

    monkeypatch.setattr(LateCopy, "_copy_late", change_first)
    copy = LateCopy(contents, list_late(model, optimizer))
    copy.wait()
    with pytest.raises(RuntimeError, match="weights changed before the optimizer's step"):
        copy.take()
