"""From a folder to a loaded model: what is too much is refused, and what fails half-way leaves nothing open."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import save_scale

from tensorferry.errors import BadModel
from tensorferry.serve.core import loading
from tensorferry.serve.core.config import read_config
from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.loading import load_model
from tensorferry.serve.core.workshop import Workshop


def _load(repository: Path, text: str) -> None:
    save_scale(repository, "net", 2.0)
    (repository / "net" / "config.pbtxt").write_text(text)
    load_model(Workshop(), repository / "net", 1, read_config(repository / "net")).close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("instance_group { count: 5000 }", r"asks for 5,000 instances; at most 64"),
        ('parameters { key: "intra_op_thread_count" value { string_value: "5000" } }', "at most 1024 threads"),
        ("max_batch_size: 2000000000", "max_batch_size of 2,000,000,000"),
        ("dynamic_batching { priority_levels: 4000000000 }", "priority_levels of 4,000,000,000"),
        ("sequence_batching { oldest { max_candidate_sequences: 2000000000 } }", "max_candidate_sequences of 2"),
        ('sequence_batching { state { input_name: "a" dims: 1000000000 } }', "state of a sequence of 7"),
        ("model_warmup { count: 4000000000 }", "count of a warm-up of 4,000,000,000; expected 0 to 1,000"),
        ('model_warmup { inputs { key: "x" value { dims: [100000, 100000] zero_data: true } } }', "warm-up of 74"),
        ('model_warmup { batch_size: 4000000000 inputs { key: "x" value { dims: 4 zero_data: true } } }', "warm-up of 1"),
        ('parameters { key: "inter_op_thread_count" value { string_value: "many" } }', "whole number"),
    ],
)
def test_a_configuration_that_asks_for_too_much_is_refused_at_once(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadModel, match=says):
        _load(tmp_path, text)


def test_a_load_that_fails_at_its_end_closes_all_that_it_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    closed: list[Any] = []
    load_runtime = loading.load_runtime

    def load_counted(*args: Any) -> Any:
        runtime = load_runtime(*args)
        new_runner, close = runtime.new_runner, runtime.close

        def counted() -> Any:
            runner = new_runner()
            opened.append(runner)
            end = runner.close
            monkeypatch.setattr(runner, "close", lambda: (closed.append(runner), end()))
            return runner

        monkeypatch.setattr(runtime, "new_runner", counted)
        monkeypatch.setattr(runtime, "close", lambda: (closed.append(runtime), close()))
        opened.append(runtime)
        return runtime

    def fail(*_: Any, **__: Any) -> None:
        raise BadModel("no scheduler for this one")

    monkeypatch.setattr(loading, "load_runtime", load_counted)
    monkeypatch.setattr(loading, "Scheduler", fail)
    with pytest.raises(BadModel, match="no scheduler"):
        _load(tmp_path, "")
    assert len(opened) >= 2
    assert sorted(map(id, opened)) == sorted(map(id, closed))


def test_texts_of_very_different_lengths_are_refused_where_each_would_take_the_room_of_the_longest() -> None:
    openvino = pytest.importorskip("tensorferry.serve.runtimes.openvino")
    texts = np.full(20_000, b"x", np.object_)
    texts[0] = b"x" * 10_000
    with pytest.raises(InvalidRequest, match=r"20,000 texts of up to .* at most 64 MiB"):
        openvino._to_tensor(texts, "words")
