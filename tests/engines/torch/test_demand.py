"""What an op is about to allocate: by rule, by asking a copy of the process, and by what torch says itself."""

from typing import Any

import pytest
import torch
from programs import run_program

from tensorferry.engines.torch import demand
from tensorferry.engines.torch.demand import estimate_demand

ATEN: Any = torch.ops.aten
X, Y = torch.ones(6, 8), torch.ones(8, 5)
VOLUME, KERNEL = torch.ones(2, 16, 9, 9, 9), torch.ones(24, 16, 3, 3, 3)
STRIDED = ([2, 2, 2], [1, 1, 1], [1, 1, 1])
WIDENED = torch.ones(2, 24, 5, 5, 5)

BY_RULE = {
    "mm": (ATEN.mm.default, (X, Y)),
    "addmm": (ATEN.addmm.default, (torch.ones(5), X, Y)),
    "bmm": (ATEN.bmm.default, (torch.ones(3, 6, 8), torch.ones(3, 8, 5))),
    "baddbmm": (ATEN.baddbmm.default, (torch.ones(3, 6, 5), torch.ones(3, 6, 8), torch.ones(3, 8, 5))),
    "broadcast add": (ATEN.add.Tensor, (torch.ones(6, 1), torch.ones(1, 7))),
    "cat": (ATEN.cat.default, ([X, X],)),
    "embedding": (ATEN.embedding.default, (X, torch.ones(100, 3, dtype=torch.int64))),
    "its gradient": (ATEN.embedding_dense_backward.default, (torch.ones(3, 8), torch.ones(3, dtype=torch.int64), 60, -1, False)),
    "softmax": (ATEN._softmax.default, (X, -1, False)),
    "dropout": (ATEN.native_dropout.default, (X, 0.5, True)),
    "of a list": (ATEN._foreach_mul.Scalar, ([X, Y], 2.0)),
    "a view": (ATEN.t.default, (X,)),
    "in place": (ATEN.add_.Tensor, (X, X)),
    "convolution": (ATEN.convolution.default, (VOLUME, KERNEL, None, *STRIDED, False, [0, 0, 0], 1)),
    "transposed": (ATEN.convolution.default, (WIDENED, KERNEL, None, *STRIDED, True, [0, 0, 0], 1)),
    "gradients": (
        ATEN.convolution_backward.default,
        (WIDENED, VOLUME, KERNEL, [24], *STRIDED, False, [0, 0, 0], 1, [True, True, True]),
    ),
}


@pytest.mark.parametrize("name", BY_RULE)
def test_a_rule_tells_what_torch_tells(name: str) -> None:
    func, args = BY_RULE[name]
    assert demand._tell(func, args, {}) == demand._run_without_bytes(func, args, {})


LOADS = """
    import json, sys
    import torch
    from test_demand import BY_RULE
    from tensorferry.engines.torch import demand

    for func, args in BY_RULE.values():
        demand.estimate_demand(func, args, {})
    loaded = [name for name in sys.modules if name.startswith("sympy") or name == demand._LOADED_WITH_SHAPES]
    print(json.dumps({"loaded": loaded}))
"""


def test_no_rule_loads_what_tells_the_shapes_of_all_ops() -> None:
    assert run_program(LOADS) == {"loaded": []}


def test_an_op_without_a_rule_is_asked_of_a_copy_of_the_process_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight times what it reads: taken for nothing, it would pass a budget."""
    monkeypatch.setattr(demand, "_LOADED_WITH_SHAPES", "nowhere")
    asked: list[int] = []
    original = demand.call_in_fork
    monkeypatch.setattr(demand, "call_in_fork", lambda call: asked.append(1) or original(call))
    monkeypatch.setattr(demand, "_answers", {})
    volume = torch.ones(1, 2, 8, 8, 8)
    args = (volume, None, False, [2.0, 2.0, 2.0])
    assert estimate_demand(ATEN.upsample_trilinear3d.vec, args, {}, room_nbytes=2**20) == volume.nbytes  # fits anyway
    assert asked == []
    for _ in range(2):
        assert estimate_demand(ATEN.upsample_trilinear3d.vec, args, {}, room_nbytes=2 * volume.nbytes) == 8 * volume.nbytes
    assert asked == [1]


def test_what_nobody_can_tell_is_taken_for_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "_answers", {})
    monkeypatch.setattr(demand, "_LOADED_WITH_SHAPES", "nowhere")
    assert estimate_demand(ATEN.nonzero.default, (X,), {}, room_nbytes=0) == X.nbytes
