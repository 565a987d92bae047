"""Ops of exported programs that would read or write what is not theirs, or end the process, are errors of the request."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from program_files import Program, change
from program_models import MODELS
from torch import nn
from torch.nn import functional

from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.runtimes.program_calls import check_calls
from tensorferry.serve.runtimes.runtime import LoadOptions
from tensorferry.serve.runtimes.table import load_runtime

_aten = torch.ops.aten


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


def trace(operator: Any, *arguments: Any, **named: Any) -> Callable[[], Any]:
    """A program that is one call, checked as the server checks it."""
    graph = torch.fx.Graph()
    module = torch.fx.GraphModule(nn.Module(), graph)

    def constant(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        name = f"constant_{len(module._buffers)}"
        module.register_buffer(name, value)
        return graph.get_attr(name)

    found = {name: constant(value) for name, value in named.items()}
    graph.output(graph.call_function(operator, tuple(map(constant, arguments)), found))
    module.recompile()
    check_calls(module)
    return module


LOWEST, MOST = -(2**31), 2**63 - 1
IMAGE = torch.ones(1, 1, 20, 20)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (trace(_aten._weight_norm.default, torch.ones(3, 4), torch.ones(1)), "shapes do not fit"),
        (trace(_aten._weight_norm.default, torch.ones(3, 4), torch.ones(3, 1), 1), "shapes do not fit"),
        (trace(_aten._weight_norm.default, torch.ones(0, 3), torch.ones(0, 1)), "an empty tensor"),
        (trace(_aten._weight_norm.default, torch.ones(3, 4), torch.ones(3, 1).double()), "different types"),
        (trace(_aten.repeat_interleave.Tensor, torch.tensor([MOST, MOST, 5])), "more elements than any memory"),
        (trace(_aten.repeat_interleave.self_Tensor, torch.ones(3), torch.tensor([MOST, MOST, 5]), 0), "more elements"),
        (trace(_aten.repeat_interleave.self_Tensor, torch.ones(3), repeats=torch.tensor([MOST, MOST, 5])), "more elements"),
        (trace(_aten._upsample_bicubic2d_aa.default, IMAGE, [40, 40], False, 1e-12, 1e-12), "resizes 20 to 40 by 1e-12"),
        (trace(_aten._upsample_bilinear2d_aa.default, IMAGE, [40, 40], False, None, scales_w=1e-6), "resizes 20 to 40"),
        (trace(_aten.upsample_nearest2d.default, IMAGE, [40, 40], float("nan")), "resizes 20 to 40 by nan"),
        (trace(_aten.div.Tensor_mode, torch.tensor([LOWEST]).int(), torch.tensor(-1), rounding_mode="trunc"), "lowest int32"),
        (trace(_aten.div_.Scalar_mode, torch.tensor([LOWEST]).int(), -1, rounding_mode="trunc"), "lowest int32 by -1"),
    ],
)
def test_what_torch_takes_as_it_is_ends_no_process(call: Callable[[], Any], what: str) -> None:
    with pytest.raises(InvalidRequest, match=f"the program .*{what}"):
        call()


@pytest.mark.parametrize(
    ("operator", "arguments", "named"),
    [
        (_aten._weight_norm.default, (torch.randn(3, 4), torch.randn(3, 1)), {}),
        (_aten._weight_norm.default, (torch.randn(3, 4), torch.randn(1, 4), 1), {}),
        (_aten._weight_norm.default, (torch.randn(3, 4), torch.randn(1), -1), {}),
        (_aten.repeat_interleave.Tensor, (torch.tensor([2, 0, 3]),), {}),
        (_aten.repeat_interleave.self_Tensor, (torch.randn(2, 3), torch.tensor([2, 1, 0]), 1), {"output_size": 3}),
        (_aten.upsample_nearest2d.default, (torch.randn(1, 2, 5, 5), [7, 12], 1.5, 2.4), {}),
        (_aten._upsample_bilinear2d_aa.default, (torch.randn(1, 2, 9, 9), [4, 3], False, 0.5, None), {}),
        (_aten.upsample_linear1d.default, (torch.randn(1, 2, 5), [10], True), {"scales": 2.0}),
        (_aten.div.Tensor_mode, (torch.tensor([LOWEST, 7]), torch.tensor([-1, 2])), {"rounding_mode": "trunc"}),
        (_aten.div.Tensor_mode, (torch.tensor([LOWEST, 7]).int(), torch.tensor([2, -1])), {"rounding_mode": "trunc"}),
        (_aten.div.Scalar_mode, (torch.tensor([1.5, -7]), -1), {"rounding_mode": "trunc"}),
        (_aten.div.Scalar_mode, (torch.tensor([LOWEST]), -1), {"rounding_mode": "floor"}),
    ],
)
def test_what_fits_is_computed_as_by_torch(operator: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    assert torch.equal(trace(operator, *arguments, **named)(), operator(*arguments, **named))
