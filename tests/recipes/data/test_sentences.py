"""Sentences from users' files: four formats, one meaning, and errors that name the file and the line."""

import json
import re
from pathlib import Path

import pytest

from tensorferry import BadData
from tensorferry.recipes.data.sentences import read_sentences

SENTENCES = [(f"It was good, really, {number} times", "good") for number in range(8)] + [("Bad.", "bad")] * 4


def _write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def _csv(rows: list[str]) -> str:
    return "\n".join(["text,label", *rows, *(f"sentence {number},{'ab'[number % 2]}" for number in range(12))])


def test_every_format_says_the_same(tmp_path: Path) -> None:
    records = [{"text": text, "label": label, "other": 1} for text, label in SENTENCES]
    texts = {
        "a.csv": "\ufefflabel,text\r\n" + "\r\n".join(f'{label},"{text}"' for text, label in SENTENCES),
        "a.TSV": "text\tlabel\n" + "\n".join(f"{text}\t{label}" for text, label in SENTENCES),
        "a.jsonl": "\n\n".join(json.dumps(record) for record in records),
        "a.json": json.dumps(records),
    }
    for name, text in texts.items():
        assert read_sentences(_write(tmp_path, name, text), "text", "label") == SENTENCES


def test_columns_can_have_other_names_and_labels_can_be_numbers(tmp_path: Path) -> None:
    records = [{"review": text, "stars": len(label)} for text, label in SENTENCES]
    path = _write(tmp_path, "a.json", json.dumps(records))
    assert read_sentences(path, "review", "stars") == [(text, str(len(label))) for text, label in SENTENCES]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.txt", "hello", "give a file that ends with .csv, .tsv, .jsonl, .json"),
        ("a.csv", b"text,label\n\xff\xfe,a", "cannot read"),
        ("a.csv", "", "holds 0 sentences; at least 10"),
        ("a.csv", _csv(["good,a", ",b"]), "a.csv, line 3: 'text' is empty"),
        ("a.csv", _csv(["good"]), "a.csv, line 2: 'label' is empty"),
        ("a.csv", _csv(["well, good,a"]), "a.csv, line 2: more values than the first line has names"),
        ("a.csv", "txt,label\ngood,a", "a.csv, line 2 has no column 'text' (did you mean 'txt'?); it has txt, label"),
        ("a.csv", 'text,label\n"good,a', "a.csv, line 2: unexpected end of data"),
        ("a.csv", "text,label\n" + "fine,a\n" * 20, "labelled 'a'; at least two labels are needed"),
        ("a.csv", "text,label\n" + "\n".join(f"fine,{n}" for n in range(20)), "20 different labels for 20 sentences"),
        ("a.jsonl", '{"text": "good", "label": "a"}\n{"text"', "a.jsonl, line 2: not JSON"),
        ("a.jsonl", '["good", "a"]', "a.jsonl, line 1: expected an object"),
        ("a.json", '{"text": "good"}', "to hold a JSON array of objects, received dict"),
        ("a.json", '[{"text": "good", "label": null}]', "a.json, record 1: 'label' is empty"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_place(tmp_path: Path, name: str, text: str | bytes, says: str) -> None:
    with pytest.raises(BadData, match=re.escape(says)) as raised:
        read_sentences(_write(tmp_path, name, text), "text", "label")
    assert name in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"gone\.csv.*No such file"):
        read_sentences(tmp_path / "gone.csv", "text", "label")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(BadData, match=r"folder\.csv.*directory"):
        read_sentences(tmp_path / "folder.csv", "text", "label")
