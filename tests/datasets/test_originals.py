"""Well-known datasets from their makers' files, here made small in the layout that the card names."""

import csv
import json
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tensorferry import BadData
from tensorferry.datasets import list_cards, load

ORIGINALS = [card for card in list_cards() if card.is_original]


def picture(path: Path, shade: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 8), (shade, 0, 0)).save(path, format="JPEG")


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def table(path: Path, rows: list[dict[str, object]], header: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        if header:
            writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize("card", ORIGINALS, ids=lambda card: card.name)
def test_without_its_files_a_dataset_says_which_to_put_where(card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORFERRY_DATASETS", str(tmp_path))
    with pytest.raises(BadData) as caught:
        load(card.name)
    message = str(caught.value)
    assert all(part in message for part in (*card.layout, str(tmp_path / card.name), card.stand_in))
    (tmp_path / card.name).mkdir()
    with pytest.raises(BadData, match=card.name):  # an empty folder is told what it lacks
        load(card.name)


def test_cifar10(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        rows = rng.integers(0, 256, (4, 3073), np.uint8)
        rows[:, 0] = [3, 1, 4, 1]
        rows[0, 1] = 77  # the first picture's upper left pixel: red
        rows.tofile(tmp_path / f"{name}.bin")
    train = load("cifar10", "train", folder=tmp_path).numpy()
    assert train["image"].shape == (20, 32, 32, 3)
    assert (train["label"][:4].tolist(), train["image"][0, 0, 0, 0]) == ([3, 1, 4, 1], 77)
    (tmp_path / "test_batch.bin").write_bytes(b"12345")
    with pytest.raises(BadData, match="no whole number of pictures"):
        load("cifar10", folder=tmp_path)


def test_imagenet2012(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for wnid in ("n01440764", "n01443537"):
            picture(tmp_path / split / wnid / "a.JPEG")
    dataset = load("imagenet2012", "validation", folder=tmp_path, image_size=(4, 4))
    assert dataset.columns[1].labels == ("n01440764", "n01443537")
    assert dataset.numpy()["image"].shape == (2, 4, 4, 3)


def test_coco2014(tmp_path: Path) -> None:
    for split in ("train2014", "val2014"):
        picture(tmp_path / split / "1.jpg")
        picture(tmp_path / split / "2.jpg")
        found = {
            "images": [{"id": 2, "file_name": "2.jpg"}, {"id": 1, "file_name": "1.jpg"}],
            "categories": [{"id": 90, "name": "cat"}, {"id": 7, "name": "dog"}],
            "annotations": [{"image_id": 1, "category_id": 90, "bbox": [1, 2, 3, 4]}],
        }
        text(tmp_path / "annotations" / f"instances_{split}.json", json.dumps(found))
    rows = load("coco2014", "train", folder=tmp_path).numpy()
    assert [len(boxes) for boxes in rows["boxes"]] == [1, 0]
    assert (rows["boxes"][0].tolist(), rows["classes"][0].tolist()) == ([[1, 2, 3, 4]], [1])


def test_open_images_v4(tmp_path: Path) -> None:
    table(tmp_path / "class-descriptions-boxable.csv", [{"a": "/m/1", "b": "Tree"}, {"a": "/m/2", "b": "Car"}], header=False)
    for split in ("train", "validation", "test"):
        picture(tmp_path / split / "abc.jpg")
        box = {"ImageID": "abc", "LabelName": "/m/2", "XMin": 0.25, "XMax": 0.75, "YMin": 0, "YMax": 1}
        table(tmp_path / f"{split}-annotations-bbox.csv", [box])
    rows = load("open_images_v4", "test", folder=tmp_path).numpy()
    assert (rows["boxes"][0].tolist(), rows["classes"][0].tolist()) == ([[0.25, 0, 0.5, 1]], [1])


def test_celeb_a(tmp_path: Path) -> None:
    names = [f"{number:06}.jpg" for number in range(3)]
    for name in names:
        picture(tmp_path / "img_align_celeba" / name)
    text(tmp_path / "list_attr_celeba.txt", "3\nBald Smiling\n" + "".join(f"{name} -1  1\n" for name in names))
    text(tmp_path / "list_eval_partition.txt", "".join(f"{name} {part}\n" for part, name in enumerate(names)))
    for split in ("train", "validation", "test"):
        rows = load("celeb_a", split, folder=tmp_path, target="Smiling").numpy()
        assert (rows["Bald"].tolist(), rows["Smiling"].tolist()) == ([False], [True])


def test_diabetic_retinopathy_detection(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "10_left.jpeg")
    table(tmp_path / "trainLabels.csv", [{"image": "10_left", "level": 4}])
    dataset = load("diabetic_retinopathy_detection", folder=tmp_path)
    assert dataset.columns[1].labels[int(dataset.target[0])] == "proliferative"


def test_squad(tmp_path: Path) -> None:
    question = {"id": "q1", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 4}]}
    article = {"title": "Computing", "paragraphs": [{"context": "Dr. Ada", "qas": [question]}]}
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        text(tmp_path / name, json.dumps({"data": [article]}))
    rows = load("squad", "validation", folder=tmp_path).numpy()
    start = rows["answer_start"][0]
    assert rows["context"][0][start : start + 3] == rows["answer"][0] == "Ada"
    text(tmp_path / "dev-v1.1.json", "{")
    with pytest.raises(BadData, match=r"dev-v1.1.json.*JSON"):
        load("squad", folder=tmp_path)


def test_imdb_reviews(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            text(tmp_path / split / label / "0_9.txt", f"{label} film")
    rows = load("imdb_reviews", "train", folder=tmp_path).numpy()
    assert (rows["text"].tolist(), rows["label"].tolist()) == (["neg film", "pos film"], [0, 1])


def test_lm1b_reads_lines_from_many_files(tmp_path: Path) -> None:
    lines = [f"sentence {number}" for number in range(10_000)]
    for part, name in (
        ("training", "news.en-00001-of-00100"),
        ("training", "news.en-00002-of-00100"),
        ("heldout", "news.en-00000"),
    ):
        text(tmp_path / f"{part}-monolingual.tokenized.shuffled" / name, "\n".join(lines))
    train = load("lm1b", "train", folder=tmp_path)
    assert len(train) == 20_000
    assert [batch["text"][0] for batch in train.select([0, 4095, 4096, 9999, 10_000, 19_999]).batches(1)] == [
        lines[number] for number in (0, 4095, 4096, 9999, 0, 9999)
    ]


def test_wmt_lines_belong_together(tmp_path: Path) -> None:
    text(tmp_path / "train.de", "eins\nzwei\n")
    text(tmp_path / "train.en", "one\ntwo\n")
    rows = load("wmt", "train", folder=tmp_path).numpy()
    assert (rows["de"].tolist(), rows["en"].tolist()) == (["eins", "zwei"], ["one", "two"])
    text(tmp_path / "train.en", "one\n")
    with pytest.raises(BadData, match=r"train.de has 2 lines and .*train.en 1"):
        len(load("wmt", "train", folder=tmp_path))


def test_nsynth(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        folder = tmp_path / f"nsynth-{split}"
        note = {"pitch": 60, "velocity": 100, "instrument": 7, "instrument_family_str": "organ"}
        text(folder / "examples.json", json.dumps({"organ_007": note}))
        (folder / "audio").mkdir()
        with wave.open(str(folder / "audio" / "organ_007.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes(np.array([0, 16384, -32768], "<i2").tobytes())
    rows = load("nsynth", "valid", folder=tmp_path).numpy()
    assert rows["audio"][0].tolist() == [0, 0.5, -1]
    assert (rows["pitch"].tolist(), rows["instrument_family"].tolist()) == ([60], ["organ"])


def test_videos_of_records(tmp_path: Path) -> None:
    import tensorflow as tf

    frames = [tf.train.Feature(bytes_list=tf.train.BytesList(value=[name])) for name in (b"png1", b"png2")]
    lists = tf.train.FeatureLists(feature_list={"rgb_screen": tf.train.FeatureList(feature=frames)})
    for name in ("train_0", "valid", "test"):
        with tf.io.TFRecordWriter(str(tmp_path / f"{name}.tfrecords")) as writer:
            writer.write(tf.train.SequenceExample(feature_lists=lists).SerializeToString())
    assert load("starcraft_video", "train", folder=tmp_path).numpy()["rgb_screen"].tolist() == [[b"png1", b"png2"]]
    feature = {"0/image_main/encoded": frames[0], "0/action": tf.train.Feature(float_list=tf.train.FloatList(value=[1, 2]))}
    for split in ("train", "test"):
        (tmp_path / "softmotion30_44k" / split).mkdir(parents=True)
        with tf.io.TFRecordWriter(str(tmp_path / "softmotion30_44k" / split / "traj_0.tfrecords")) as writer:
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    assert load("bair_robot_pushing_small", folder=tmp_path).numpy()["0/action"].tolist() == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("squad", {"train-v1.1.json": '{"data": [{}]}', "dev-v1.1.json": "[]"}),
        ("celeb_a", {"list_attr_celeba.txt": "1", "list_eval_partition.txt": "a.jpg 0"}),
        ("diabetic_retinopathy_detection", {"trainLabels.csv": "image,level\na,severe\n"}),
        ("coco2014", {"annotations/instances_train2014.json": "{}", "annotations/instances_val2014.json": "{}"}),
        ("imdb_reviews", {f"{split}/{kind}/1.txt": "fine" for split in ("train", "test") for kind in ("neg", "pos")}),
    ],
)
def test_files_of_another_content_are_told(name: str, files: dict[str, str], tmp_path: Path) -> None:
    for path, content in files.items():
        text(tmp_path / path, content)
    if name == "imdb_reviews":
        (tmp_path / "test" / "pos" / "1.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BadData, match=f"'{name}': a file in .*{tmp_path.name}.* is damaged or of another version"):
        load(name, folder=tmp_path)
