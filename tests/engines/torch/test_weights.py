"""Weights, gradients and optimizer state that wait on the tier outside of their use, bit for bit the same."""

import copy
import io
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from adversary import Adversary, adversary_opener
from narrow_window import InANarrowWindow
from programs import run_program
from safetensors.torch import load_file, save_model
from torch import nn

import tensorferry as ferry
from tensorferry.engines.torch import LargeTraining

WIDTH, NUM_LAYERS = 64, 6
NUM_STEPS = 6
BUDGET_NBYTES = 2**20 * 7  # 6 MiB of it are a margin; the model has 200 KiB with its state, the window what is asked for


class Tied(nn.Module):
    """Layers in a row, the first one's weight used again in the last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS))
        self.last = nn.Linear(WIDTH, WIDTH)
        self.last.weight = self.layers[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        return self.last(x)


def tree_leaves(value: Any) -> list[Any]:
    """In an order that is that of names, since a file may have another one."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value, key=str)]
    return [leaf for part in value for leaf in tree_leaves(part)] if isinstance(value, list | tuple) else [value]


Step = Callable[[nn.Module, torch.optim.Optimizer, int], torch.Tensor]


def _rows(i: int) -> torch.Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(i))


def _plainly(model: nn.Module, optimizer: torch.optim.Optimizer, i: int) -> torch.Tensor:
    loss = model(_rows(i)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def _clipped(model: nn.Module, optimizer: torch.optim.Optimizer, i: int) -> torch.Tensor:
    loss = model(_rows(i)).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return loss.detach()


def _adding_up(model: nn.Module, optimizer: torch.optim.Optimizer, i: int) -> torch.Tensor:
    for part in _rows(i).chunk(2):
        loss = model(part).square().mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def _looked_at(model: nn.Module, optimizer: torch.optim.Optimizer, i: int) -> torch.Tensor:
    loss = model(_rows(i)).square().mean()
    # what a checkpoint writes: the bytes themselves, without an op
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    seen = [value.sum() for value in torch.load(file).values()]
    twin = copy.deepcopy(model)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach() + sum(seen) + sum(parameter.sum() for parameter in twin.parameters()).detach()


def _frozen(model: nn.Module, optimizer: torch.optim.Optimizer, i: int) -> torch.Tensor:
    for parameter in model.layers[2].parameters():
        parameter.requires_grad_(False)
    return _plainly(model, optimizer, i)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "Adam over lists": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=True),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def _train(
    step: Step, optimizer: str, around: Callable[[nn.Module], Any] | None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The losses, and what the model and its optimizer hold at the end."""
    torch.manual_seed(0)
    model = Tied()
    updates = OPTIMIZERS[optimizer](model.parameters())
    if around is None:
        losses = [step(model, updates, i) for i in range(NUM_STEPS)]
    else:
        with around(model):
            losses = [step(model, updates, i) for i in range(NUM_STEPS)]
    states = [value for values in updates.state.values() for value in values.values() if isinstance(value, torch.Tensor)]
    return losses, [*(p.detach() for p in model.parameters()), *states]


def _assert_equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> None:
    assert len(first) == len(second)
    assert all(map(torch.equal, first, second))


def _large(model: nn.Module, adversary: Adversary) -> LargeTraining:
    return LargeTraining(model, BUDGET_NBYTES, "auto", True, 512, 10.0, adversary_opener(adversary), weights=True)


def _in_a_narrow_window(model: nn.Module, adversary: Adversary) -> LargeTraining:
    how = adversary_opener(adversary)
    return InANarrowWindow(80 * 2**10, model, BUDGET_NBYTES, "auto", True, 512, 10.0, how, weights=True)


@pytest.mark.parametrize(
    ("step", "optimizer"),
    [
        (_plainly, "AdamW"),
        (_clipped, "AdamW"),
        (_adding_up, "SGD with momentum"),
        (_looked_at, "AdamW"),
        (_frozen, "SGD with momentum"),
        (_clipped, "Adam over lists"),
    ],
)
def test_weights_that_wait_elsewhere_train_to_the_same_bits(step: Step, optimizer: str) -> None:
    adversary = Adversary(seed=len(optimizer))
    losses, held = _train(step, optimizer, None)
    large_losses, large_held = _train(step, optimizer, lambda model: _in_a_narrow_window(model, adversary))
    _assert_equal(losses, large_losses)
    _assert_equal(held, large_held)
    assert adversary.num_copies_in > NUM_STEPS * NUM_LAYERS
    assert adversary.num_slots == 0


def _saved(value: Any) -> list[torch.Tensor]:
    """What is in a file of it."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    if isinstance(loaded, torch.optim.Optimizer):
        loaded = loaded.state_dict()
    return list(loaded.parameters()) if isinstance(loaded, nn.Module) else tree_leaves(loaded)


def _loaded(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    _plainly(model, optimizer, 10)
    model.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    _plainly(model, optimizer, 11)
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def _read_after_ops(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    states = (model.state_dict(), optimizer.state_dict())
    sums = [leaf.sum() for leaf in tree_leaves(states) if isinstance(leaf, torch.Tensor)]
    return [sums, _saved(states), copy.deepcopy(states)]


def _read_after_a_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    states = (model.state_dict(), optimizer.state_dict())
    _plainly(model, optimizer, 10)
    return [_saved(states), copy.deepcopy(states)]


def _read_gradients(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    model(_rows(10)).square().mean().backward()
    seen = [[torch.tensor(p.grad.tolist()), torch.tensor(p.grad.numpy())] for p in model.parameters() if p.grad is not None]
    optimizer.zero_grad()
    return seen


def _without_ties(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if name != "last.weight"}


READERS: dict[str, Callable[[nn.Module, torch.optim.Optimizer], Any]] = {
    "a file of the optimizer's state": lambda _, optimizer: _saved(optimizer.state_dict()),
    "a file of both states": lambda model, optimizer: _saved([model.state_dict(), optimizer.state_dict()]),
    "a file of the optimizer": lambda _, optimizer: _saved(optimizer),
    "a file of the model": lambda model, _: _saved(model),
    "a file of a part's state": lambda model, _: _saved(model.layers.state_dict()),
    "a safetensors file": lambda model, _: safetensors.torch.load(safetensors.torch.save(_without_ties(model))),
    "copies of both states": lambda model, optimizer: copy.deepcopy([model.state_dict(), optimizer.state_dict()]),
    "a copy of the optimizer": lambda _, optimizer: copy.deepcopy(optimizer).state_dict(),
    "copies of gradients": _read_gradients,
    "states loaded again": _loaded,
    "states read after other ops": _read_after_ops,
    "states read after a step": _read_after_a_step,
}


@pytest.mark.parametrize("name", READERS)
def test_whoever_reads_weights_or_state_without_an_op_finds_what_plain_training_has(name: str) -> None:
    def read(around: Callable[[nn.Module], Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Tied()
        optimizer = OPTIMIZERS["AdamW"](model.parameters())
        with around(model) as big:
            for i in range(3):
                _plainly(model, optimizer, i)
            seen = READERS[name](model, optimizer)
            last = _plainly(model, optimizer, 20)
            if big is not None:
                assert big._choice.window.resident_nbytes < big._choice.window.nbytes  # they go on moving
        return [*(leaf for leaf in tree_leaves(seen) if isinstance(leaf, torch.Tensor)), last]

    plain = read(lambda _: nullcontext())
    assert len(plain) > NUM_LAYERS
    _assert_equal(plain, read(lambda model: _in_a_narrow_window(model, Adversary(seed=len(name)))))


def test_a_training_resumed_from_files_written_inside_gives_the_bits_of_one_that_went_on() -> None:
    torch.manual_seed(0)
    model = Tied()
    optimizer, file = OPTIMIZERS["AdamW"](model.parameters()), io.BytesIO()
    with _in_a_narrow_window(model, Adversary(seed=3)):
        for i in range(3):
            _plainly(model, optimizer, i)
        states = {"optimizer": optimizer.state_dict(), "model": model.state_dict()}
        torch.save(states, file)
        losses = [_plainly(model, optimizer, i) for i in range(3, 6)]

    file.seek(0)
    saved, resumed = torch.load(file), Tied()
    resumed.load_state_dict(saved["model"])
    optimizer = OPTIMIZERS["AdamW"](resumed.parameters())
    with _in_a_narrow_window(resumed, Adversary(seed=4)):
        optimizer.load_state_dict(saved["optimizer"])
        _assert_equal(losses, [_plainly(resumed, optimizer, i) for i in range(3, 6)])
    _assert_equal(list(model.parameters()), list(resumed.parameters()))


def test_torch_reads_as_before_when_the_context_has_ended() -> None:
    before = [torch.Tensor.__deepcopy__, torch.nn.Parameter.__reduce_ex__, torch.Tensor.numpy, torch.Tensor.data_ptr]
    with _large(Tied(), Adversary(seed=0)):
        assert torch.Tensor.numpy is not before[2]
    assert before == [torch.Tensor.__deepcopy__, torch.nn.Parameter.__reduce_ex__, torch.Tensor.numpy, torch.Tensor.data_ptr]
    assert "numpy" not in vars(torch.Tensor)


def test_after_an_exception_every_weight_is_there() -> None:
    torch.manual_seed(0)
    model = Tied()
    optimizer, adversary = OPTIMIZERS["AdamW"](model.parameters()), Adversary(seed=1)
    with pytest.raises(ZeroDivisionError), _large(model, adversary) as big:
        _plainly(model, optimizer, 0)
        assert big._choice.window is not None
        big._choice.window.narrow(2**20)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        model(_rows(1))
        raise ZeroDivisionError
    _assert_equal(before, [parameter.detach() for parameter in model.parameters()])
    assert all(parameter.untyped_storage().nbytes() for parameter in model.parameters())


def test_a_weight_that_somebody_holds_as_an_array_stays() -> None:
    torch.manual_seed(0)
    model = Tied()
    optimizer, adversary = OPTIMIZERS["AdamW"](model.parameters()), Adversary(seed=0)
    with _large(model, adversary) as big:
        _plainly(model, optimizer, 0)
        array = model.state_dict()["layers.1.weight"].numpy()
        assert big._choice.window is not None
        big._choice.window.narrow(2**20)
        _plainly(model, optimizer, 1)
        assert (array == model.layers[1].weight.detach().numpy()).all()
        assert model.layers[1].weight.untyped_storage().nbytes() == array.nbytes


def test_weights_stay_where_the_budget_has_room_for_them() -> None:
    model = Tied()
    with ferry.large_model(model, "1GiB", min_nbytes=512) as big:
        _plainly(model, OPTIMIZERS["AdamW"](model.parameters()), 0)
    assert not any("weights" in note for note in big.report().notes)


def test_a_word_that_is_not_known_is_refused() -> None:
    with pytest.raises(ferry.BadOption, match="weights to be True, False or 'auto', received 'yes'"):
        ferry.large_model(Tied(), "1GiB", weights="yes")


def _make_on_meta() -> Tied:
    with torch.device("meta"):
        return Tied()


def _save(model: nn.Module, path: Path) -> None:
    save_model(model, str(path))


def test_weights_of_a_file_train_to_the_bits_of_weights_in_memory_and_are_saved_as_they_come(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = Tied()
    _save(plain, tmp_path / "before.safetensors")
    content = (tmp_path / "before.safetensors").read_bytes()
    optimizer = OPTIMIZERS["AdamW"](plain.parameters())
    losses = [_plainly(plain, optimizer, i) for i in range(3)]

    model = ferry.load_onto_tier(_make_on_meta(), tmp_path / "before.safetensors")
    with ferry.large_model(model, "64MiB", min_nbytes=512) as big:
        optimizer = OPTIMIZERS["AdamW"](model.parameters())
        assert not any(parameter.untyped_storage().nbytes() for parameter in model.parameters() if parameter.dim() > 1)
        assert losses == [_plainly(model, optimizer, i) for i in range(3)]
        big.save_weights(tmp_path / "after.safetensors")
    assert model.layers[0].weight is model.last.weight
    trained = load_file(tmp_path / "after.safetensors")
    for name, parameter in plain.named_parameters():
        assert torch.equal(trained[name], parameter)
    assert (tmp_path / "before.safetensors").read_bytes() == content

    # what the file has is not in memory any more, and comes back from it
    assert {parameter.device.type for parameter in model.parameters() if parameter.dim() > 1} == {"meta"}
    with ferry.large_model(model, "64MiB", min_nbytes=512):
        assert torch.equal(model(_rows(9)), plain(_rows(9)))


def test_frozen_weights_of_a_file_are_never_written_and_adapters_stay_in_memory(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = Tied()
    _save(plain, tmp_path / "base.safetensors")
    model = ferry.load_onto_tier(_make_on_meta(), tmp_path / "base.safetensors").requires_grad_(False)
    adapter = nn.Linear(WIDTH, 1)
    before = adapter.weight.detach().clone()
    with ferry.large_model(model, "64MiB", min_nbytes=512) as big:
        optimizer = torch.optim.SGD(adapter.parameters(), lr=0.1)
        for i in range(3):
            adapter(model(_rows(i))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert big._choice.window is not None
        assert big._choice.window.num_bytes_out == 0
    assert not torch.equal(before, adapter.weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda head: head.pop("layers.1.bias"), "has no tensor 'layers.1.bias'.*did you mean"),
        (lambda head: head["layers.1.bias"].update(shape=[WIDTH + 1]), "no safetensors file, or damaged: a tensor of 260 B"),
        (lambda head: head["layers.1.bias"].update(data_offsets=[2**40, 2**40 + 256]), "no safetensors file, or damaged"),
        (lambda head: head["layers.1.bias"].update(dtype="I32"), r"is torch.float32 \[64\] in the model and torch.int32"),
        (lambda head: head["layers.1.bias"].update(dtype="X"), "no safetensors file, or damaged"),
    ],
)
def test_a_file_that_is_not_the_models_is_refused(change: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    _save(Tied(), path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + length])
    change(head)
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(ferry.BadModel, match=message):
        ferry.load_onto_tier(_make_on_meta(), path)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 64, (8).to_bytes(8, "little") + b"[1, 2]  "])
def test_what_is_no_file_of_weights_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "net.safetensors").write_bytes(content)
    with pytest.raises(ferry.BadModel, match="is no safetensors file"):
        ferry.load_onto_tier(_make_on_meta(), tmp_path / "net.safetensors")


def test_a_model_without_bytes_is_refused_until_it_has_a_file(tmp_path: Path) -> None:
    with (
        pytest.raises(ferry.BadUse, match=r"call ferry.load_onto_tier\(model, FILE\) before"),
        ferry.large_model(_make_on_meta()),
    ):
        pass
    with pytest.raises(ferry.BadModel, match="cannot read"):
        ferry.load_onto_tier(_make_on_meta(), tmp_path / "none.safetensors")
    with pytest.raises(ferry.BadModel, match="is in memory already"):
        _save(Tied(), tmp_path / "net.safetensors")
        ferry.load_onto_tier(Tied(), tmp_path / "net.safetensors")


_PROGRAM = """
    import json, sys
    import torch
    import tensorferry as ferry
    from tensorferry.engines.resident import ResidentMeter

    def make():
        torch.manual_seed(0)
        layers = [part for _ in range(24) for part in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
        model = torch.nn.Sequential(*layers)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train(model, optimizer, num_steps):
        losses = []
        for i in range(num_steps):
            loss = model(torch.ones(16, 1024)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    plain = train(*make(), 5)
    model, optimizer = make()
    with ferry.large_model(model, sys.argv[1], weights=json.loads(sys.argv[2])) as big:
        losses = train(model, optimizer, 2)
        meter, before = ResidentMeter(), big._device.before_nbytes
        losses += train(model, optimizer, 3)
        peak = meter.peak_nbytes() - before
    print(json.dumps([plain == losses, peak, big.peak_nbytes, big.report().notes]))
"""


def test_a_model_trains_in_a_third_of_what_its_weights_gradients_and_state_take() -> None:
    """Four times 96 MiB of them, in 128 MiB."""
    is_equal, peak_nbytes, reported_nbytes, notes = run_program(_PROGRAM, "128MiB", '"auto"')
    assert is_equal
    assert max(peak_nbytes, reported_nbytes) <= 128 * 2**20
    assert any("of them are resident at most" in note for note in notes)
