"""The benchmark of engines, on a toy."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import optimize
from held_cpu import CPUS, find_forbidden
from optimize_rows import MAX_DIFFERENCE, Row, TriedInt8, join_rows, list_verdicts, make_tables

TRIED = TriedInt8("OpenVINO int8 (NNCF), 2 threads", 0.002, 0.97, 0.95, 0.98, 100, "", passed=False)
ROW = Row(
    "net", "torch", 0.010, "OpenVINO", 0.006, int8="", int8_seconds=None, int8_kept=(), int8_agreement="", chosen="OpenVINO",
    chosen_seconds=0.006, wanted=2.0, difference=1e-6, regret=1.2, search_seconds=9.0, seconds=10.0, tried=(TRIED,),
)  # fmt: skip


def test_the_benchmark_prints_a_table_and_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "optimize.json"
    assert optimize.main(["--models", "toy", "--seconds", "20", "--save", str(path)]) in (0, 1)  # figures of a toy may miss
    shown = capsys.readouterr().out
    assert "default engine" in shown
    (row,) = json.loads(path.read_text())["figures"]["rows"]
    assert row["difference"] <= MAX_DIFFERENCE
    assert row["regret"] >= 1
    assert "--models toy" in row["command"]


def test_a_figure_that_misses_its_mark_is_said() -> None:
    assert [is_met for _, is_met in list_verdicts([ROW])] == [False, True, False, True]


def test_a_model_is_added_to_those_that_were_measured_in_the_same_circumstances(tmp_path: Path) -> None:
    path, here = tmp_path / "optimize.json", {"processor": "one", "held": "as it is"}
    old = [replace(ROW, model="other"), replace(ROW, wanted=9.0)]
    path.write_text(json.dumps({"figures": {"around": here, "rows": [asdict(each) for each in old]}}))
    assert join_rows(path, [ROW], here) == [old[0], ROW]
    assert join_rows(path, [ROW], {**here, "held": "to less"}) == [ROW]
    assert join_rows(tmp_path / "none.json", [ROW], here) == [ROW]


def test_every_int8_file_has_a_row_that_says_how_it_ended() -> None:
    models, files = make_tables([ROW])
    assert "none passed" in models.rows[0]
    assert files.rows[0][-1] == "does not pass, seen before the last 100 samples"


def test_kernels_that_the_other_cpu_has_not_are_found_where_the_model_reports_them() -> None:
    def report(*kernels: str) -> SimpleNamespace:
        ops = [
            SimpleNamespace(get_rt_info=lambda each=each: {"primitiveType": SimpleNamespace(astype=lambda _: each)})
            for each in kernels
        ]
        return SimpleNamespace(get_runtime_model=lambda: SimpleNamespace(get_ops=lambda: ops))

    compiled = report("brgconv_avx512_f32", "brgconv_avx512_1x1_BF16", "jit_avx512_I8")
    assert find_forbidden(CPUS["vnni"], compiled) == ["brgconv_avx512_1x1_bf16"]
    assert find_forbidden(CPUS["itself"], compiled) == []


def test_searches_are_repeated_and_their_choices_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "choices.json"
    assert optimize.main(["--models", "toy", "--seconds", "8", "--repeat", "2", "--save", str(path)]) in (0, 1)
    titles, ratios = json.loads(path.read_text())["figures"]["choices"]["toy"]
    assert len(titles) == len(ratios) == 2
    assert min(ratios) == 1.0
    assert titles[0] in capsys.readouterr().out
