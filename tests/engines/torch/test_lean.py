"""Lean kernels give the bits of the plain ones."""

import pytest
import torch
from programs import run_program

from tensorferry.engines.torch.lean import estimate_workspace, run_op

FORWARD = torch.ops.aten.convolution.default
BACKWARD = torch.ops.aten.convolution_backward.default


def _arguments(
    shape: tuple[int, ...], num_out: int, edge: int, stride: int, bias: bool, dtype: torch.dtype, *, is_last: bool = False
) -> tuple[object, ...]:
    torch.manual_seed(0)
    num_dims = len(shape) - 2
    x = torch.randn(shape).to(dtype)
    weight = torch.randn(num_out, shape[1], *[edge] * num_dims).to(dtype)
    if is_last:
        layout = torch.channels_last if num_dims == 2 else torch.channels_last_3d
        x, weight = x.to(memory_format=layout), weight.to(memory_format=layout)
    rest = ([stride] * num_dims, [edge // 2] * num_dims, [1] * num_dims, False, [0] * num_dims, 1)
    y = FORWARD(x, weight, None, *rest)
    return (torch.randn_like(y), x, weight, [num_out] if bias else None, *rest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize(
    ("shape", "num_out", "edge", "stride"),
    [((4, 8, 20, 20), 16, 3, 1), ((4, 32, 14, 14), 8, 1, 1), ((4, 16, 15, 15), 24, 1, 2), ((1, 8, 12, 12, 12), 4, 3, 1)],
)
def test_split_convolution_gradients_are_identical(
    shape: tuple[int, ...], num_out: int, edge: int, stride: int, is_last: bool, bias: bool, dtype: torch.dtype
) -> None:
    arguments = _arguments(shape, num_out, edge, stride, bias, dtype, is_last=is_last)
    for mask in ([True, True, bias], [False, True, bias], [True, False, False]):
        plain, lean = BACKWARD(*arguments, mask), run_op(BACKWARD, (*arguments, mask), {})
        for expected, received in zip(plain, lean, strict=True):
            assert (expected is None) == (received is None)
            assert expected is None or torch.equal(expected, received)


def test_other_ops_run_as_they_are() -> None:
    x = torch.arange(3.0)
    assert torch.equal(run_op(torch.ops.aten.add.Tensor, (x, x), {"alpha": 2}), x * 3)


def test_a_volume_too_small_for_onednn_is_unfolded() -> None:
    small = _arguments((1, 16, 32, 32, 32), 8, 3, 1, False, torch.float32)
    unfolded_nbytes = 16 * 27 * 32**3 * 4
    assert estimate_workspace(FORWARD, (*small[1:3], None, *small[4:]), small[0]) == unfolded_nbytes
    assert estimate_workspace(BACKWARD, (*small, [True, True, False]), None) == unfolded_nbytes


def test_a_strided_convolution_that_torch_runs_itself_is_unfolded_at_fewer_places() -> None:
    y, x, weight, _, *how = _arguments((1, 16, 16, 16, 16), 8, 3, 2, False, torch.float32)
    assert estimate_workspace(FORWARD, (x, weight, None, *how), y) == 16 * 27 * 8**3 * 4


def test_a_larger_volume_is_reordered_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    y, x, weight, _, *how = _arguments((1, 16, 40, 40, 40), 16, 3, 1, False, torch.float32)
    assert isinstance(x, torch.Tensor)
    assert isinstance(weight, torch.Tensor)
    assert estimate_workspace(FORWARD, (x, weight, None, *how), y) == x.nbytes + weight.nbytes


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])
def test_a_gradient_that_is_spread_out_over_a_stride_is_made_three_times(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
    y, x, weight, _, *how = _arguments((4, 32, 32, 32), 64, 3, 2, False, torch.float32)
    assert isinstance(x, torch.Tensor)
    assert estimate_workspace(BACKWARD, (y, x, weight, None, *how, [True, True, False]), None) == 2 * x.nbytes
    assert isinstance(weight, torch.Tensor)
    how[3] = True
    narrow = torch.randn(4, 64, 16, 16)
    assert estimate_workspace(FORWARD, (narrow, weight, None, *how), x) == 2 * x.nbytes


def test_a_convolution_whose_weight_is_most_of_it_copies_the_weight() -> None:
    y, x, weight, _, *how = _arguments((2, 256, 4, 4), 256, 3, 1, False, torch.float32)
    assert isinstance(weight, torch.Tensor)
    assert weight.nbytes <= estimate_workspace(FORWARD, (x, weight, None, *how), y) < 1.2 * weight.nbytes
    assert weight.nbytes <= estimate_workspace(BACKWARD, (y, x, weight, None, *how, [True, True, False]), None)


@pytest.mark.parametrize("isa", ["avx2", "AVX2_VNNI"])
def test_channels_are_filled_up_to_what_the_widest_allowed_register_holds(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
    gradient, x, weight, _, *how = _arguments((2, 2, 40, 40, 40), 2, 3, 1, False, torch.float32)
    assert isinstance(x, torch.Tensor)
    filled_nbytes = x.nbytes // 2 * 8
    # an image's channels are read as they lie; its gradient is made in whole blocks, from whole blocks
    assert isinstance(weight, torch.Tensor)
    made_nbytes = filled_nbytes - x.nbytes + weight.nbytes
    assert estimate_workspace(FORWARD, (x, weight, None, *how), gradient) == filled_nbytes
    assert (
        estimate_workspace(BACKWARD, (gradient, x, weight, None, *how, [True, True, False]), None) == filled_nbytes + made_nbytes
    )
    assert estimate_workspace(BACKWARD, (gradient, x, weight, None, *how, [False, True, False]), None) == filled_nbytes


MEASURE = """
    import json, sys
    import torch
    from tensorferry.engines.resident import Heap, ResidentMeter, SmallPages
    from tensorferry.engines.torch.lean import estimate_workspace, run_op

    aten = torch.ops.aten
    torch.set_num_threads(2)
    meter, heap = ResidentMeter(), Heap()
    heap.return_at_once()
    SmallPages().turn(True)
    found = []
    volumes = ((2, 2, 48, 48, 48), 2, 3, 1, False), ((2, 16, 48, 48, 48), 3, 1, 1, False)
    images = ((4, 20, 96, 96), 20, 3, 1, False), ((4, 3, 96, 96), 48, 7, 1, False)
    strided = ((4, 32, 96, 96), 64, 3, 2, False), ((2, 64, 32, 32), 64, 4, 2, True), ((2, 16, 48, 48, 48), 16, 3, 2, False)
    weighty = ((2, 512, 4, 4), 512, 3, 1, False), ((2, 512, 4, 4), 256, 4, 2, True)
    sounds = ((2, 64, 16_000), 64, 8, 4, False),
    for shape, num_out, edge, stride, transposed in (*volumes, *images, *strided, *weighty, *sounds):
        num_dims = len(shape) - 2
        channels = (shape[1], num_out) if transposed else (num_out, shape[1])
        x, weight = torch.randn(shape), torch.randn(*channels, *[edge] * num_dims)
        how = ([stride] * num_dims, [edge // 2] * num_dims, [1] * num_dims, transposed, [0] * num_dims, 1)
        gradient = torch.randn_like(aten.convolution.default(x, weight, None, *how))
        forward = (aten.convolution.default, (x, weight, None, *how))
        backward = (aten.convolution_backward.default, (gradient, x, weight, [num_out], *how, [True, True, True]))
        for func, args in (forward, backward):
            out = run_op(func, args, {})  # what is loaded and compiled once is no workspace
            del out
            heap.trim()
            with heap.free_at_once():
                meter.reset_peak()
                before = meter.now_nbytes()
                out = run_op(func, args, {})
                rise = meter.peak_nbytes() - before
            made = sum(tensor.nbytes for tensor in (out if isinstance(out, tuple) else (out,)))
            found.append((func.name(), shape, rise - made, estimate_workspace(func, args, out)))
            del out
    print(json.dumps({"found": found}))
"""


def test_no_kernel_takes_more_than_was_estimated() -> None:
    for name, shape, taken_nbytes, estimated_nbytes in run_program(MEASURE)["found"]:
        assert taken_nbytes <= estimated_nbytes + 2**20, (name, shape)
