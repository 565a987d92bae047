"""Into the model repository and out of a server again."""

import copy
import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from nets import answer, assert_answers, make_images, make_picture, make_sentence
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

import tensorferry as ferry
from tensorferry.optimization.engine import Engine
from tensorferry.serve.core.config import read_config
from tensorferry.serve.runtimes.transform import read_image

LABELS = ("cat", "dog", "ferry")


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _ask(client: triton.InferenceServerClient, model: str, name: str, array: np.ndarray, datatype: str = "FP32"):
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return client.infer(model, [tensor])


def test_a_saved_engine_answers_through_the_server(picture_engine, tmp_path: Path, serve: Callable) -> None:
    assert picture_engine.save(tmp_path / "models" / "pictures") == tmp_path / "models" / "pictures" / "1"
    client = serve(tmp_path / "models")
    images = make_images(3)
    given = _ask(client, "pictures", "image", images).as_numpy("output")
    assert_answers(picture_engine, given, answer(make_picture(), images))


def test_the_card_tells_what_was_made_and_its_checksums_are_true(picture_engine, tmp_path: Path) -> None:
    folder = picture_engine.save(tmp_path / "pictures")
    card = json.loads((folder / "card.json").read_text())
    assert card["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 8, 8]}]
    assert card["labels"] == list(LABELS)
    assert card["agreement"]["share"] == 1.0
    assert card["measured"]["latency_seconds"] > 0
    for name, checksum in card["files"].items():
        assert checksum == f"sha256:{hashlib.sha256((folder / name).read_bytes()).hexdigest()}"


def test_the_card_tells_what_stands_in_the_columns(picture_engine, tmp_path: Path) -> None:
    engine = copy.copy(picture_engine)
    columns = {"image": [{"column": "colour", "missing": 0, "codes": {"red": 1}}]}
    engine.source = replace(picture_engine.source, columns=columns)
    assert json.loads((engine.save(tmp_path / "pictures") / "card.json").read_text())["columns"] == columns


def test_every_model_of_a_pipeline_has_a_card_of_its_own(picture_engine, tmp_path: Path) -> None:
    transform = {"kind": "image", "height": 8, "width": 8, "resize": "crop", "mean": [0.0] * 3, "std": [1.0] * 3}
    transform |= {"layout": "NCHW", "input": "image"}
    _with_transform(picture_engine, transform, LABELS).save(tmp_path / "animals")
    ends = {
        "animals": (["IMAGE"], ["output", "LABEL"]),
        "animals_transform": (["IMAGE"], ["image"]),
        "animals_engine": (["image"], ["output"]),
        "animals_labels": (["output"], ["LABEL"]),
    }
    for name, (inputs, outputs) in ends.items():
        card = json.loads((tmp_path / name / "1" / "card.json").read_text())
        assert [[end["name"] for end in card[word]] for word in ("inputs", "outputs")] == [inputs, outputs]
        assert card["from"]["model"] == "Picture"
        assert card["files"]
        for file, checksum in card["files"].items():
            step, _, path = file.partition("/") if name == "animals" else (name, "", file)
            assert checksum == f"sha256:{hashlib.sha256((tmp_path / step / '1' / path).read_bytes()).hexdigest()}"


def test_versions_are_counted_on_and_never_written_over(picture_engine, tmp_path: Path) -> None:
    assert picture_engine.save(tmp_path / "pictures" / "4").name == "4"
    assert picture_engine.save(tmp_path / "pictures").name == "5"
    before = _names(tmp_path)
    with pytest.raises(ferry.BadModel, match="version 4 of 'pictures' is already"):
        picture_engine.save(tmp_path / "pictures" / "4")
    assert _names(tmp_path) == before


@pytest.mark.parametrize("version", ["0", "01"])
def test_a_version_that_no_server_would_write_so_is_refused(version: str, picture_engine, tmp_path: Path) -> None:
    with pytest.raises(ferry.BadModel, match="write repository/name, or repository/name/version"):
        picture_engine.save(tmp_path / "pictures" / version)
    assert _names(tmp_path) == []


def test_other_labels_under_the_same_name_are_refused_and_nothing_written(picture_engine, tmp_path: Path) -> None:
    picture_engine.save(tmp_path / "pictures")
    before = _names(tmp_path)
    other = copy.copy(picture_engine)
    other.source = replace(picture_engine.source, labels=("cat", "cow", "ferry"))
    with pytest.raises(ferry.BadModel, match=r"has other labels \('dog' for 'cow'\)"):
        other.save(tmp_path / "pictures")
    assert _names(tmp_path) == before
    assert (tmp_path / "pictures" / "labels.txt").read_text().split() == list(LABELS)


def test_what_people_wrote_into_the_configuration_stays(picture_engine, tmp_path: Path) -> None:
    picture_engine.save(tmp_path / "pictures")
    config = tmp_path / "pictures" / "config.pbtxt"
    config.write_text(config.read_text() + "version_policy { all {} }\n")
    picture_engine.save(tmp_path / "pictures")
    assert read_config(tmp_path / "pictures").version_policy.WhichOneof("policy_choice") == "all"


def test_another_model_of_the_same_name_is_refused_and_nothing_written(picture_engine, tmp_path: Path) -> None:
    (tmp_path / "pictures" / "1").mkdir(parents=True)
    (tmp_path / "pictures" / "config.pbtxt").write_text('input { name: "x" data_type: TYPE_FP32 dims: 4 }')
    with pytest.raises(ferry.BadModel, match=r"has other inputs \(x\)"):
        picture_engine.save(tmp_path / "pictures")
    assert _names(tmp_path) == ["pictures/config.pbtxt"]


def test_an_engine_whose_file_was_damaged_is_not_saved(tmp_path: Path) -> None:
    engine = ferry.optimize(make_picture(), make_images(), seconds=1)
    engine.candidate.path.write_bytes(engine.candidate.path.read_bytes()[:200])
    with pytest.raises(ferry.BadModel, match="nothing was saved"):
        engine.save(tmp_path / "pictures")
    assert _names(tmp_path) == []
    engine.close()


def _with_transform(engine: Engine, transform: dict, labels: tuple[str, ...]) -> Engine:
    """The engine as a run would give it, which knows its transform."""
    with_transform = copy.copy(engine)
    with_transform.source = replace(engine.source, transform=transform, labels=labels)
    return with_transform


def test_an_image_sent_to_the_pipeline_comes_back_as_a_label(picture_engine, tmp_path: Path, serve: Callable) -> None:
    mean, std = [120.0, 110.0, 100.0], [60.0, 61.0, 62.0]
    transform = {"kind": "image", "height": 8, "width": 8, "resize": "crop", "mean": mean, "std": std}
    transform |= {"layout": "NCHW", "input": "image"}
    _with_transform(picture_engine, transform, LABELS).save(tmp_path / "animals")
    client = serve(tmp_path)
    pixels = np.random.default_rng(1).integers(0, 256, (20, 31, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    done = _ask(client, "animals", "IMAGE", np.array([[file.getvalue()]], np.object_), "BYTES")

    rows = (read_image(file.getvalue(), 8, 8, "crop").astype(np.float32) - np.float32(mean)) / np.float32(std)
    scores = answer(make_picture(), rows.transpose(2, 0, 1)[None])
    assert_answers(picture_engine, done.as_numpy("output"), scores)
    assert done.as_numpy("LABEL").tolist() == [[LABELS[int(scores.argmax())].encode()]]
    with pytest.raises(triton.InferenceServerException, match="no image that can be read"):
        _ask(client, "animals", "IMAGE", np.array([[b"not an image"]], np.object_), "BYTES")


def test_sentences_sent_to_the_pipeline_come_back_as_labels(sentence_engine, tmp_path: Path, serve: Callable) -> None:
    words = {f"w{at}": at for at in range(1, 50)} | {"[UNK]": 0}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transform = {"kind": "text", "tokenizer": tokenizer.to_str(), "max_length": 6, "ids": "ids", "mask": "mask"}
    _with_transform(sentence_engine, transform, LABELS).save(tmp_path / "texts")
    client = serve(tmp_path)
    texts = np.array([[b"w3 w4 w5"], [b"w7 w9 w11 w13 w15 w17 w19 w21"]], np.object_)
    done = _ask(client, "texts", "TEXT", texts, "BYTES")

    ids = np.array([[3, 4, 5, 0, 0, 0], [7, 9, 11, 13, 15, 17]])  # the longer one was cut to six words
    scores = answer(make_sentence(), ids, np.array([[1, 1, 1, 0, 0, 0], [1] * 6]))
    assert_answers(sentence_engine, done.as_numpy("logits"), scores)
    assert done.as_numpy("LABEL").tolist() == [[LABELS[at].encode()] for at in scores.argmax(1)]
