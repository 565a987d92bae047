"""Folders of pictures, volumes and records, and what is said of those that hold none."""

import struct
from pathlib import Path

import numpy as np
import pytest
from nifti import save_ball
from PIL import Image

from tensorferry import BadData
from tensorferry.datasets import load


def save_pictures(folder: Path) -> None:
    for label, shade in (("cat", 50), ("dog", 200)):
        (folder / label).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (20 + number, 10), (shade, number, 0)).save(folder / label / f"{number}.png")


def test_pictures_have_the_class_of_their_folder(tmp_path: Path) -> None:
    save_pictures(tmp_path)
    pictures = load(tmp_path)
    assert (len(pictures), pictures.target_name, pictures.columns[1].labels) == (6, "label", ("cat", "dog"))
    batch = next(pictures.batches(2))
    assert [image.shape for image in batch["image"]] == [(10, 20, 3), (10, 21, 3)]
    assert pictures.target.tolist() == [0, 0, 0, 1, 1, 1]


def test_labels_are_told_without_opening_a_picture(tmp_path: Path) -> None:
    save_pictures(tmp_path / "train")
    save_pictures(tmp_path / "val")
    for path in tmp_path.rglob("*.png"):
        path.write_bytes(b"no picture")
    assert load(tmp_path).target.tolist() == [0, 0, 0, 1, 1, 1] * 2
    assert sorted(load(tmp_path).split(0.5, stratify=True)[0].target) == [0, 0, 0, 1, 1, 1]


def test_pictures_are_brought_to_one_size_for_batches(tmp_path: Path) -> None:
    save_pictures(tmp_path)
    images, labels = next(load(tmp_path, image_size=(8, 6), as_supervised=True).batches(6, seed=0))
    assert images.shape == (6, 8, 6, 3)
    assert sorted(labels.tolist()) == [0, 0, 0, 1, 1, 1]
    assert all((image[..., 0] == (50, 200)[label]).all() for image, label in zip(images, labels, strict=True))


def test_pictures_of_any_size_reach_tensorflow_row_by_row(tmp_path: Path) -> None:
    save_pictures(tmp_path)
    shapes = [tuple(row["image"].shape) for row in load(tmp_path).tf()]
    assert shapes[:2] == [(10, 20, 3), (10, 21, 3)]
    with pytest.raises(BadData, match="image_size"):
        load(tmp_path).tf(batch=2)


def test_folders_called_train_and_val_are_splits(tmp_path: Path) -> None:
    save_pictures(tmp_path / "train")
    save_pictures(tmp_path / "val")
    assert len(load(tmp_path, split="val")) == 6
    assert len(load(tmp_path)) == 12


def test_volumes_have_channels_and_a_class_a_voxel(tmp_path: Path) -> None:
    for name in ("ann", "bob"):
        save_ball(tmp_path, name, "t1", "t2", edge=8, radius=2.0)
    volumes = load(tmp_path)
    batch = next(volumes.batches(1))
    assert len(volumes) == 2
    assert batch["image"][0].shape == (8, 8, 8, 2)
    assert set(np.unique(batch["classes"][0])) == {0, 1}


def test_records_of_tensorflow_are_read_block_by_block(tmp_path: Path) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(tmp_path / "numbers.tfrecord")) as writer:
        for row in range(600):
            features = {
                "row": tf.train.Feature(int64_list=tf.train.Int64List(value=[row])),
                "pair": tf.train.Feature(float_list=tf.train.FloatList(value=[row, -row])),
                "name": tf.train.Feature(bytes_list=tf.train.BytesList(value=[str(row).encode()])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    records = load(tmp_path / "numbers.tfrecord")
    assert len(records.rows.block_sizes) == 3
    rows = records.numpy()
    assert rows["row"].tolist() == list(range(600))
    assert rows["pair"].shape == (600, 2)
    assert rows["name"][599] == b"599"


@pytest.mark.parametrize("content", [b"abc", struct.pack("<Q", 2**40) + b"x" * 100])
def test_a_damaged_file_of_records_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.tfrecord"
    path.write_bytes(content)
    with pytest.raises(BadData, match=r"broken.tfrecord', record 0.*damaged"):
        load(path)


def test_a_broken_picture_is_named_when_it_is_read(tmp_path: Path) -> None:
    save_pictures(tmp_path)
    (tmp_path / "cat" / "0.png").write_bytes(b"no picture")
    with pytest.raises(BadData, match=r"0.png"):
        next(load(tmp_path).batches(6))


def test_what_holds_nothing_is_told_what_it_could_hold(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="nothing that can be read; expected tables"):
        load(tmp_path)
    with pytest.raises(BadData, match="there is no file or folder"):
        load(tmp_path / "missing")
    (tmp_path / "a.xyz").write_text("?")
    with pytest.raises(BadData, match="cannot tell what"):
        load(tmp_path / "a.xyz")
