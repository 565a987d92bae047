"""The ops that exported programs may call: all that ordinary models need, none that reads memory which is not its own."""

from pathlib import Path

import numpy as np
import pytest
import torch
from program_files import Program, call, change, rewrite, save
from program_models import MODELS, Call

from tensorferry.errors import BadModel
from tensorferry.serve.runtimes.exported_program import load_program
from tensorferry.serve.runtimes.runtime import LoadOptions
from tensorferry.serve.runtimes.table import load_runtime


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
