"""How candidates are timed, by a clock that only the runners move."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tensorferry.optimization.agreement import Comparison, ReferenceAnswers, ReferenceBatch
from tensorferry.optimization.candidates import Candidate, CandidateResult
from tensorferry.optimization.measure import Speed, measure, time_in_turns
from tensorferry.optimization.search import _pick_finalists, _time_finalists
from tensorferry.serve.runtimes.runtime import Signature, TensorSignature

SIGNATURE = Signature((TensorSignature("x", "FP32", (-1, 4)),), (TensorSignature("y", "FP32", (-1, 4)),))
ROWS = {"x": np.zeros((8, 4), np.float32)}


class Machine:
    """Time, and which runner had the machine before the one that has it now."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.turns: list[str] = [""]


class Timed:
    """A runner that takes so many seconds a run, and longer right behind the one that it suffers from."""

    def __init__(self, machine: Machine, name: str, seconds: float, suffers_from: str = "") -> None:
        self.machine = machine
        self.name = name
        self.seconds = seconds
        self.suffers_from = suffers_from
        self.batches: list[int] = []

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        self.batches.append(len(inputs["x"]))
        if self.machine.turns[-1] != self.name:
            self.machine.turns.append(self.name)
        is_slowed = self.suffers_from and self.machine.turns[-2] == self.suffers_from
        self.machine.seconds += self.seconds * (1.3 if is_slowed else 1.0)
        return [inputs["x"]]

    def new_runner(self) -> "Timed":
        return self

    def close(self) -> None:
        pass


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr("tensorferry.optimization.measure.time.perf_counter", lambda: machine.seconds)
    return machine


def test_threads_that_spin_in_the_next_turn_do_not_always_meet_the_same_runner(machine: Machine) -> None:
    seconds = {"fast": 0.010, "slower": 0.011, "slowest": 0.012}
    runners = {name: Timed(machine, name, each, suffers_from="original") for name, each in seconds.items()}
    runners["original"] = Timed(machine, "original", 0.030)
    assert time_in_turns(runners, SIGNATURE, ROWS, 10.0) == pytest.approx({**seconds, "original": 0.030})


@dataclass(frozen=True)
class Ready(Candidate):
    """A candidate that is loaded already."""

    runner: Timed | None = None

    def load(self, signature: Signature) -> Timed:
        assert self.runner is not None
        return self.runner


def test_what_looked_slower_at_a_busy_moment_may_still_be_found_the_fastest(machine: Machine) -> None:
    looks = {"a": 0.010, "b": 0.011, "c": 0.024, "d": 0.030}
    true = {"a": 0.012, "b": 0.013, "c": 0.011, "d": 0.030}
    ready = {name: Ready("openvino", "fp32", Path(name), 1, runner=Timed(machine, name, each)) for name, each in true.items()}
    found = [
        CandidateResult(name, "fp32", "", "", Comparison(1.0, 0.0), Speed(look, 1 / look, 1), 0, ready[name])
        for name, look in looks.items()
    ]
    original = Timed(machine, "original", 0.030)
    baseline = CandidateResult("original", "fp32", "", "", Comparison(1.0, 0.0), Speed(0.030, 1 / 0.030, 1))
    reference = ReferenceAnswers(SIGNATURE, (ReferenceBatch(ROWS, (ROWS["x"],)),), (), "close")
    timed, _ = _time_finalists(found, baseline, original, reference, 10.0, lambda _: None)
    assert {each.title: each.speed.latency_seconds for each in timed} == pytest.approx({"a": 0.012, "b": 0.013, "c": 0.011})


def test_of_slow_candidates_no_more_are_timed_again_than_there_is_time_for() -> None:
    found = [CandidateResult(name, "fp32", "", "", None, Speed(0.5, 2.0, 1)) for name in "abcdef"]
    assert [each.title for each in _pick_finalists(found, 1.0, seconds=10.0)] == ["a", "b", "c"]
    assert [each.title for each in _pick_finalists(found, 1.0, seconds=0.0)] == ["a", "b"]
    assert len(_pick_finalists(found, 1.0, seconds=100.0)) == 6


def test_turns_end_with_the_round_in_which_the_time_is_up(machine: Machine) -> None:
    runners = {"a": Timed(machine, "a", 5.0), "b": Timed(machine, "b", 4.0)}
    assert time_in_turns(runners, SIGNATURE, ROWS, 0.0) == {"a": 5.0, "b": 4.0}
    assert [len(runner.batches) for runner in runners.values()] == [2, 2]


def test_larger_batches_are_not_begun_behind_the_deadline(machine: Machine) -> None:
    in_time, late = Timed(machine, "a", 0.1), Timed(machine, "b", 0.1)
    assert measure(in_time, SIGNATURE, ROWS).batch == 16
    assert measure(late, SIGNATURE, ROWS, deadline=machine.seconds).batch == 1
    assert set(late.batches) == {1}


def test_a_run_longer_than_a_look_warms_up_once(machine: Machine) -> None:
    runner = Timed(machine, "a", 30.0)
    assert measure(runner, SIGNATURE, ROWS).latency_seconds == 30.0
    assert len(runner.batches) == 3
