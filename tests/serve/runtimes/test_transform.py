"""The steps around a model, without a server: what they make of images, texts and scores, and what they refuse."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.runtimes.runtime import LoadOptions, Runner
from tensorferry.serve.runtimes.table import load_runtime

IMAGE = {"kind": "image", "height": 4, "width": 4, "resize": "squash", "mean": [0, 0, 0], "std": [255, 255, 255]}


def load(folder: Path, description: object) -> Runner:
    (folder / "transform.json").write_text(json.dumps(description))
    return load_runtime("transform", LoadOptions(folder / "transform.json")).new_runner()


def save(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def as_bytes(*rows: bytes) -> np.ndarray:
    array = np.empty((len(rows), 1), np.object_)
    array[:, 0] = rows
    return array


@pytest.mark.parametrize(("layout", "shape"), [("NCHW", (2, 3, 4, 4)), ("NHWC", (2, 4, 4, 3))])
def test_images_of_any_size_become_one_batch(tmp_path: Path, layout: str, shape: tuple[int, ...]) -> None:
    runner = load(tmp_path, {**IMAGE, "layout": layout, "input": "x"})
    red = np.zeros((9, 5, 3), np.uint8)
    red[..., 0] = 255
    (made,) = runner.run({"IMAGE": as_bytes(save(red), save(np.zeros((4, 4), np.uint8)))}, ["x"])
    assert (made.shape, made.dtype) == (shape, np.float32)
    channels = made if layout == "NHWC" else made.transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(channels[0], np.broadcast_to(np.float32([1, 0, 0]), (4, 4, 3)))
    assert not channels[1].any()


def test_cropping_keeps_the_middle_and_squashing_keeps_all(tmp_path: Path) -> None:
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 255  # white in the middle third
    for resize, is_white in (("crop", True), ("squash", False)):
        runner = load(tmp_path, {**IMAGE, "resize": resize, "layout": "NHWC", "input": "x"})
        (made,) = runner.run({"IMAGE": as_bytes(save(wide))}, ["x"])
        assert bool((made[0, :, 1:3] == 1).all() and (made[0, :, 0] > 0.5).all()) is is_white


@pytest.mark.parametrize("data", [b"", b"no image", save(np.zeros((8, 8, 3), np.uint8))[:40]])
def test_bytes_that_are_no_image_are_the_clients_mistake(tmp_path: Path, data: bytes) -> None:
    runner = load(tmp_path, {**IMAGE, "layout": "NCHW", "input": "x"})
    with pytest.raises(InvalidRequest, match="no image that can be read"):
        runner.run({"IMAGE": as_bytes(data)}, ["x"])


def test_an_image_that_would_take_all_memory_is_refused_unread(tmp_path: Path) -> None:
    runner = load(tmp_path, {**IMAGE, "layout": "NCHW", "input": "x"})
    huge = save(np.zeros((1, 1), np.uint8), "BMP")
    huge = huge[:18] + (20_000).to_bytes(4, "little") + (8_000).to_bytes(4, "little") + huge[26:]
    with pytest.raises(InvalidRequest, match="pixels"):
        runner.run({"IMAGE": as_bytes(huge)}, ["x"])


def test_scores_become_labels(tmp_path: Path) -> None:
    runner = load(tmp_path, {"kind": "labels", "labels": ["cat", "dög"], "scores": "y"})
    (found,) = runner.run({"y": np.float32([[0.1, 0.2], [3, -1]])}, ["LABEL"])
    assert found.tolist() == [["dög".encode()], [b"cat"]]


@pytest.mark.parametrize(
    "description",
    [
        [],
        {"kind": "code"},
        {**IMAGE, "layout": "NCHW"},
        {**IMAGE, "layout": "NCHW", "input": "x", "mean": [0]},
        {"kind": "text", "tokenizer": "{", "max_length": 4, "ids": "a", "mask": "b"},
    ],
)
def test_a_description_that_makes_no_sense_is_refused_when_loaded(tmp_path: Path, description: object) -> None:
    with pytest.raises(BadModel):
        load(tmp_path, description)
