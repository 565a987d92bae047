"""The ops that exported programs may call: all that ordinary models need, none that reads memory which is not its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from program_files import Program, call, change, rewrite, save
from torch import nn
from torch.nn import functional

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.runtimes.exported_program import load_program
from tensorferry.serve.runtimes.runtime import LoadOptions
from tensorferry.serve.runtimes.table import load_runtime

Tensors = tuple[torch.Tensor, ...]


class Call(nn.Module):
    """A model that is one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def attend(x: torch.Tensor) -> torch.Tensor:
    """Attention, with positions that rotate."""
    halves = torch.view_as_real(torch.view_as_complex(x.reshape(1, 2, 4, 2, 2)) * torch.polar(torch.ones(2), torch.ones(2)))
    return functional.scaled_dot_product_attention(halves.flatten(3), x, x, is_causal=True)


def find_boxes(x: torch.Tensor) -> Any:
    """What is done with what a detector finds."""
    best, at = x.flatten(1).topk(3, 1)
    kept = x.new_zeros(x.shape)
    kept[:, 0] = x[:, 1]
    kept[kept > 0] = 1
    return best, at, kept, x.gather(1, x.argmax(1, keepdim=True)), torch.where(x > 0, x, -x), x[..., None].sort(1).values


def resize(x: torch.Tensor) -> Any:
    """Images of other sizes."""
    found = [functional.interpolate(x, scale_factor=2, mode=mode) for mode in ("nearest", "bilinear", "bicubic", "area")]
    grid = functional.affine_grid(torch.eye(2, 3)[None], (1, 2, 4, 4), align_corners=False)
    return [*found, functional.pad(x, (1, 1, 1, 1), "reflect"), functional.grid_sample(x, grid, align_corners=False)]


def analyse(x: torch.Tensor) -> Any:
    """Sound."""
    spectrum = torch.stft(x.flatten(), 16, 4, window=torch.hann_window(16), return_complex=True)
    return spectrum.abs().clamp_min(1e-5).log10(), torch.fft.irfft(torch.fft.rfft(x))


IMAGE = (torch.randn(1, 2, 4, 4),)
MODELS: dict[str, tuple[nn.Module, Tensors]] = {
    "convolutions": (
        nn.Sequential(
            *(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            *(nn.Conv2d(4, 4, 1, groups=4), nn.GroupNorm(2, 4), nn.SiLU(inplace=True), nn.ConvTranspose2d(4, 4, 2)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(4, 3), nn.Softmax(-1)),
        ),
        IMAGE,
    ),
    "transformer": (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False),
        (torch.randn(2, 3, 8),),
    ),
    "lstm": (nn.LSTM(4, 3, 2, bidirectional=True, batch_first=True, proj_size=2), (torch.randn(2, 5, 4),)),
    "lstm without bias": (nn.LSTM(4, 3, bias=False), (torch.randn(5, 2, 4),)),
    "gru": (nn.GRU(4, 3), (torch.randn(2, 5, 4),)),
    "bag": (nn.EmbeddingBag(10, 4), (torch.tensor([1, 2, 3]), torch.tensor([0, 2]))),
    "weights by norm": (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (torch.randn(2, 4),)),
    "attention": (Call(attend), (torch.randn(1, 2, 4, 4),)),
    "boxes": (Call(find_boxes), IMAGE),
    "resize": (Call(resize), IMAGE),
    "sound": (Call(analyse), (torch.randn(1, 64),)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_ordinary_models_need_no_trust(name: str, tmp_path: Path) -> None:
    model, example = MODELS[name]
    torch.export.save(torch.export.export(model.eval(), example), tmp_path / "model.pt2")
    vetted = load_runtime("pytorch", LoadOptions(tmp_path / "model.pt2"))
    trusted = load_runtime("pytorch", LoadOptions(tmp_path / "model.pt2", trust=True))
    names = [tensor.name for tensor in vetted.signature.inputs]
    inputs = {name: value.numpy() for name, value in zip(names, example, strict=True)}
    outputs = [tensor.name for tensor in vetted.signature.outputs]
    given, expected = (runtime.new_runner().run(inputs, outputs) for runtime in (vetted, trusted))
    assert all(np.array_equal(one, other) for one, other in zip(given, expected, strict=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["convolutions", "transformer", "gru"])
def test_models_in_core_aten_need_no_trust(name: str, tmp_path: Path) -> None:
    model, example = MODELS[name]
    torch.export.save(torch.export.export(model.eval(), example).run_decompositions(), tmp_path / "model.pt2")
    load_program(tmp_path / "model.pt2", trust=False)


@pytest.mark.parametrize(
    "target",
    [
        "_sparse_coo_tensor_unsafe.default",
        "_nested_view_from_buffer.default",
        "_scaled_dot_product_flash_attention_for_cpu.default",
        "as_strided.default",
        "ctc_loss.IntList",
        "empty.memory_format",
        "empty_like.default",
        "from_file.default",
        "lstm.data",
        "mkldnn_rnn_layer.default",
        "native_batch_norm.default",
        "new_empty.default",
        "add.out",
        "remainder.int",
        "resize_.default",
        "segment_reduce.default",
        "set_.source_Tensor",
        "to_sparse.default",
        "to.prim_dtype",
        "view.dtype",
    ],
)
def test_an_op_that_trusts_its_caller_needs_trust(target: str, tmp_path: Path) -> None:
    path = change(save(tmp_path / "model.pt2"), call(f"torch.ops.aten.{target}", {}))
    with pytest.raises(BadModel, match=rf"a call of 'torch.ops.aten.{target}'.*known to be safe.*--trust"):
        load_program(path, trust=False)


@pytest.mark.parametrize(
    ("argument", "value", "what"),
    [
        ("layout", {"as_layout": 2}, "not dense"),
        ("layout", {"as_int": 2}, "a number for the layout"),
        ("memory_format", {"as_int": 100}, "a number for the memory_format"),
        ("dtype", {"as_int": 100}, "a number for the dtype"),
    ],
)
def test_what_torch_does_not_check_of_a_call_needs_trust(argument: str, value: Program, what: str, tmp_path: Path) -> None:
    given = {"self": {"as_tensor": {"name": "x"}}, argument: value}
    path = change(save(tmp_path / "model.pt2"), call("torch.ops.aten.zeros_like.default", given))
    with pytest.raises(BadModel, match=f"{what}.*--trust"):
        load_program(path, trust=False)


def test_truth_values_are_zeros_and_ones(tmp_path: Path) -> None:
    """An op that counts and then fills would fill less than it counted."""
    model = Call(lambda x: x)
    model.register_buffer("mask", torch.ones(4, dtype=torch.bool))
    model.function = lambda x: x[model.mask]
    torch.export.save(torch.export.export(model, (torch.ones(4),)), tmp_path / "model.pt2")
    load_program(tmp_path / "model.pt2", trust=False)
    rewrite(tmp_path / "model.pt2", {"data/weights/weight_0": b"\xff" * 4})
    with pytest.raises(BadModel, match="neither true nor false"):
        load_program(tmp_path / "model.pt2", trust=False)


def reshape_weight(path: Path, name: str, shape: list[int]) -> None:
    """Let a program have fewer elements of a weight than its ops take for granted."""

    def edit(table: Program) -> None:
        meta = table["config"][name]["tensor_meta"]
        meta["sizes"] = [{"as_int": size} for size in shape]
        meta["strides"] = [{"as_int": 1} for _ in shape]

    change(path, edit, "data/weights/model_weights_config.json")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model", "weight"), [("lstm", "bias_hh_l1"), ("lstm", "weight_ih_l0"), ("convolutions", "1.weight")])
def test_weights_that_do_not_fit_are_an_error_and_not_read_beyond_their_end(model: str, weight: str, tmp_path: Path) -> None:
    program = torch.export.export(MODELS[model][0].eval(), MODELS[model][1])
    torch.export.save(program if model == "lstm" else program.run_decompositions(), tmp_path / "model.pt2")
    reshape_weight(tmp_path / "model.pt2", weight, [1])
    assert_refuses(tmp_path / "model.pt2", [tensor.numpy() for tensor in MODELS[model][1]])


def test_keys_and_values_of_different_lengths_are_an_error(tmp_path: Path) -> None:
    class Attention(nn.Module):
        def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(query, key, value)

    example = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 64, 4), torch.randn(1, 1, 64, 4)
    torch.export.save(torch.export.export(Attention(), example), tmp_path / "model.pt2")

    def shorten(program: Program) -> None:
        (node,) = program["graph_module"]["graph"]["nodes"]
        node["inputs"][2]["arg"] = node["inputs"][0]["arg"]  # the query for a value

    change(tmp_path / "model.pt2", shorten)
    assert_refuses(tmp_path / "model.pt2", [tensor.numpy() for tensor in example])


def test_bags_that_begin_before_the_first_element_are_an_error(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(*MODELS["bag"]), tmp_path / "model.pt2")
    assert_refuses(tmp_path / "model.pt2", [np.array([1, 2, 3]), np.array([0, -(10**6)])])


def assert_refuses(path: Path, inputs: list[Any]) -> None:
    """It loads, and says at the first run what does not fit."""
    runtime = load_runtime("pytorch", LoadOptions(path))
    assert runtime.signature is not None
    named = {tensor.name: value for tensor, value in zip(runtime.signature.inputs, inputs, strict=True)}
    with pytest.raises(InvalidRequest, match="the program calls"):
        runtime.new_runner().run(named, [tensor.name for tensor in runtime.signature.outputs])
