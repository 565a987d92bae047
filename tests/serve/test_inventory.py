"""`ferry models`: what a repository holds, what is wrong with it, what is old."""

import json
from pathlib import Path

import pytest
from models import save_scale, write_config

from tensorferry.cli import main
from tensorferry.files import list_checksums

ENSEMBLE = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling {
  step { model_name: "net" model_version: 1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }
}
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["models", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def read_lines(capsys: pytest.CaptureFixture[str], root: Path, *arguments: str) -> dict[tuple[str, int | None], dict]:
    _, out, _ = run(capsys, str(root), "--json", *arguments)
    return {(line["name"], line["version"]): line for line in json.loads(out)}


def write_card(folder: Path, **more: object) -> None:
    card = {
        "made": "2026-01-02T03:04:05+00:00",
        "from": {"model": "MiniLM"},
        "engine": {"precision": "int8"},
        "files": list_checksums(folder),
        **more,
    }
    (folder / "card.json").write_text(json.dumps(card))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for version in (1, 2, 3, 4):
        save_scale(tmp_path, "net", float(version), version=version)
    write_card(tmp_path / "net" / "4")
    write_config(tmp_path, "chain", ENSEMBLE)
    return tmp_path


def test_a_repository_is_listed_with_what_its_cards_say(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = read_lines(capsys, root)
    assert set(lines) == {("chain", None), ("net", 1), ("net", 2), ("net", 3), ("net", 4)}
    newest = lines["net", 4]
    assert (newest["format"], newest["precision"], newest["made"], newest["made_from"]) == (
        "onnxruntime",
        "int8",
        "2026-01-02",
        "MiniLM",
    )
    assert newest["nbytes"] == sum(path.stat().st_size for path in (root / "net" / "4").iterdir())
    assert [line["is_served"] for line in lines.values()] == [True, False, False, False, True]
    code, out, _ = run(capsys, str(root))
    assert code == 0
    assert "MiniLM" in out
    assert "2 models, 5 versions" in out


def test_a_sound_repository_passes_the_check(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_lines(capsys, root, "--check")["chain", None]["problem"]  # it names a version that is not served
    write_config(root, "net", "version_policy { all {} }")
    code, out, _ = run(capsys, str(root), "--check")
    assert code == 0
    assert out.count("sound") == 5


def test_the_check_finds_what_does_not_load_or_is_not_as_the_card_says(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "net" / "3" / "model.onnx").write_bytes(b"not a model")
    for version in (1, 2):
        write_card(root / "net" / str(version))
    save_scale(root, "net", 9.0, version=2)
    (root / "net" / "1" / "more.bin").write_bytes(b"")
    (root / "empty").mkdir()
    write_config(root, "chain", ENSEMBLE.replace('"net" model_version: 1', '"missing"'))
    save_scale(root, "odd", 1.0)
    write_card(root / "odd" / "1", files={"../../../outside": "sha256:00"})
    save_scale(root, "damaged", 1.0)
    (root / "damaged" / "1" / "card.json").write_text("{")
    lines = read_lines(capsys, root, "--check")
    expected = {
        ("chain", None): "'missing' is not in the repository",
        ("net", 1): "'more.bin' is not on its card",
        ("net", 2): "the checksums differ",
        ("net", 3): "cannot load",
        ("net", 4): "",
        ("empty", None): "it has no version",
        ("odd", 1): "outside of the repository",
        ("damaged", 1): "its card cannot be read",
    }
    assert lines.keys() == expected.keys()
    for key, words in expected.items():
        assert words in lines[key]["problem"], key
        assert bool(words) == bool(lines[key]["problem"]), key
    assert run(capsys, str(root), "--check")[0] == 1


def test_pruning_keeps_the_newest_and_what_is_served_or_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, str(root), "--prune", "1")
    assert code == 2
    assert "say --yes" in err
    code, out, _ = run(capsys, str(root), "--prune", "1", "--yes")
    assert code == 0
    assert "removed 2 old versions" in out
    assert sorted(path.name for path in (root / "net").iterdir()) == ["1", "4"]  # the ensemble names 1
    assert sorted(path.name for path in root.iterdir()) == ["chain", "net"]
    assert "nothing is old enough" in run(capsys, str(root), "--prune", "1", "--yes")[1]


def test_pruning_asks_and_takes_no_for_an_answer(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert "nothing was removed" in run(capsys, str(root), "--prune", "2")[1]
    assert len(list((root / "net").iterdir())) == 4
    monkeypatch.setattr("builtins.input", lambda _: "y")
    run(capsys, str(root), "--prune", "2")
    assert sorted(path.name for path in (root / "net").iterdir()) == ["1", "3", "4"]


@pytest.mark.parametrize(("arguments", "reason"), [(["missing"], "no folder missing"), ([".", "--prune", "0"], "above zero")])
def test_a_wrong_use_is_one_line(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["models", *arguments])
    except SystemExit as error:
        code = error.code
    assert code == 2
    err = capsys.readouterr().err
    assert reason in err
    assert err.count("\n") == 1
