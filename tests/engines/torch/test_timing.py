"""Calls that are put down without running them, and made again with real tensors to be timed."""

import os
import pickle
import pickletools
import random
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tensorferry.engines.torch.calls import Like, OpCall, RealCalls, note_call
from tensorferry.engines.torch.fake_model import FakeModel, StepOptions
from tensorferry.engines.torch.timing import TimingJob, _pack, time_calls, time_job
from tensorferry.machine.timed_ops import Sample

ADD = OpCall("aten::add", "Tensor", (Like((8, 8), (8, 1), torch.float32), Like((8,), (1,), torch.float32)), ())


class Net(nn.Module):
    """Words, a convolution that reads a transposed tensor, a norm, a pool and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm1d(16)
        self.classify = nn.Linear(16, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norm(self.conv(self.words(words).transpose(1, 2))))
        return self.classify(functional.dropout(functional.max_pool1d(x, 2).mean(2), 0.1))


class _Deadly:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.abort, ()


def _note_step() -> list[OpCall | None]:
    calls: list[OpCall | None] = []
    step = StepOptions((((4, 16), "int64"),), loss="cross_entropy", optimizer="adamw", kernels="cpu")
    trace = FakeModel(Net).capture(step, calls)
    assert len(calls) == len(trace.ops)
    return [call for call, op in zip(calls, trace.ops, strict=True) if op.outputs]


def test_every_call_of_a_step_can_be_made_again() -> None:
    calls, real = _note_step(), RealCalls()
    assert None not in calls
    for call in calls:
        func, args, kwargs = real.prepare(call)
        assert note_call(func, args, kwargs) == call
        func(*args, **kwargs)


def test_equal_calls_are_one_and_what_cannot_be_put_down_is_none() -> None:
    add = torch.ops.aten.add.Tensor
    first, second = note_call(add, (torch.ones(8, 8), torch.ones(8)), {}), note_call(add, (torch.zeros(8, 8), torch.zeros(8)), {})
    assert first == second == ADD
    assert note_call(add, (torch.ones(8, 8).t(), torch.ones(8)), {}) != ADD
    assert note_call(add, (torch.ones(8), torch.ones(8).to_sparse()), {}) is None
    assert note_call(torch.ops.aten.rand.generator, ([2],), {"generator": torch.Generator()}) is None


def test_rows_are_looked_up_all_over_the_table() -> None:
    lookup = OpCall("aten::embedding", "default", (Like((99, 2), (2, 1), torch.float32), Like((500,), (1,), torch.int64)), ())
    _, args, _ = RealCalls().prepare(lookup)
    assert 0 <= args[1].min() < 20 < 80 < args[1].max() < 99


def test_timing_is_done_elsewhere_and_leaves_nothing_behind() -> None:
    calls = [call for call in dict.fromkeys(_note_step()) if call is not None]
    # each of a kind of its own and expected to take long, so that none is left out, however slow this machine is now
    samples = [Sample(f"{i}", 1, 0.1) for i in range(len(calls))]
    before = torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    timed = time_calls(calls, samples)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), torch.get_num_threads()) == before[1:]
    assert all(sample.seconds is not None and 0 < sample.seconds < 60 for sample in timed)
    assert [(sample.kind, sample.num_times) for sample in timed] == [(sample.kind, 1) for sample in samples]


def test_the_job_names_no_module_but_ours_and_torch() -> None:
    calls = tuple(call for call in _note_step() if call is not None)
    packed = _pack(TimingJob(calls, tuple(Sample(call.name, 1, 1.0) for call in calls), num_threads=1))
    names = [argument for code, argument, _ in pickletools.genops(packed) if "UNICODE" in code.name]
    # this file imports torch too, so pickle by itself may take it for the home of torch.float32
    assert not [name for name in names if "test_timing" in name or "torch." in name.removeprefix("tensorferry.engines.torch.")]
    assert pickle.loads(packed).calls == calls


def test_a_call_that_fails_is_left_out() -> None:
    strange = OpCall("no_such_package::op", "default", (), ())
    wrong = OpCall("aten::mm", "default", ADD.args, ())
    samples = tuple(Sample(call.name, 1, 1.0) for call in (strange, wrong, ADD))
    assert [index for index, _ in time_job(TimingJob((strange, wrong, ADD), samples, 1))] == [2]


def test_a_process_that_dies_leaves_the_roofline() -> None:
    samples = [Sample("a", 1, 1.0), Sample("b", 1, 1.0)]
    assert time_calls([OpCall("aten::add", "Tensor", (_Deadly(),), ()), ADD], samples) == samples
