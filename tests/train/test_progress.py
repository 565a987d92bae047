"""What a run shows, by where it is shown; and what it writes for TensorBoard."""

import struct
from pathlib import Path
from typing import Any

import pytest

from tensorferry import RunFailed
from tensorferry.train.config import Config
from tensorferry.train.progress import Events, LineProgress, LiveProgress, make_progress
from tensorferry.train.trainer import Terms

CONFIG = Config("unet3d", {"batch": 2, "steps": 40}, "scratch", None, "dice", 10, Terms(seed=5, budget="1GiB"))
SUMMARY: dict[str, Any] = {
    "folder": "runs/brain",
    "step": 40,
    "metrics": {"dice": 0.8123},
    "best_step": 30,
    "best_value": 0.9,
    "stopped_by": None,
    "page": "runs/brain/report.html",
}


def _row(step: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "loss": 0.5, "seconds": 0.25, "wait_seconds": 0.0, "peak_nbytes": 700 * 2**20} | more


def test_a_log_has_a_line_for_the_first_step_and_for_every_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    progress = LineProgress()
    progress.begin(CONFIG, 0)
    for step in range(1, 21):
        progress.step(_row(step, **({"held_out": {"dice": 0.7}} if step % 10 == 0 else {})))
    progress.end(SUMMARY)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "unet3d: 40 steps of 2, fp32, budget 1GiB, seed 5"
    assert lines[1].startswith("step 1 of 40  loss 0.5  8 samples/s  memory 700 MiB of 1 GiB")
    assert lines[2].startswith("step 10 of 40  loss 0.5  dice 0.7  8 samples/s")
    assert lines[3].endswith("0:00:00 left")
    assert lines[4:] == ["done: 40 steps, dice 0.8123 (best 0.9 at step 30)", "report: runs/brain/report.html"]


def test_a_step_that_was_left_out_is_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    progress = LineProgress()
    progress.begin(CONFIG, 8)
    progress.step(_row(9, loss=None, seconds=0.0))
    assert "step 9 of 40  left out" in capsys.readouterr().out


def test_a_bar_ends_with_the_same_words_and_gives_the_terminal_back(capsys: pytest.CaptureFixture[str]) -> None:
    progress = LiveProgress()
    progress.begin(CONFIG, 0)
    progress.step(_row(1))
    progress.say("[note] that looks like markup")
    progress.step(_row(2, held_out={"dice": 0.7}))
    progress.leave()
    progress.end(SUMMARY)
    shown = capsys.readouterr().out
    assert "[note] that looks like markup" in shown
    assert "step 2  loss 0.5  dice 0.7" in shown
    assert shown.endswith("report: runs/brain/report.html\n")


def test_what_is_no_terminal_gets_lines() -> None:
    assert isinstance(make_progress(as_json=False), LineProgress)


def test_events_hold_every_figure_of_a_step(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    with Events(tmp_path, 0) as events:
        events.add(_row(1, held_out={"dice": 0.5}))
        events.add(_row(2, loss=None))
    (path,) = (tmp_path / "events").iterdir()
    data, found = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    figures = [{value.tag: value.simple_value for value in event.summary.value} for event in found]
    assert figures[2]["loss"] == figures[2]["held_out/dice"] == 0.5
    assert "loss" not in figures[3]
    assert [event.step for event in found[2:]] == [1, 2]


def test_events_that_find_no_room_name_the_cause(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"cannot save events under .*: the disk is full"), Events(tmp_path, 0) as events:
        events._writer.close()
        events._writer._writer = open("/dev/full", "wb")  # noqa: SIM115
        events.add(_row(1))
