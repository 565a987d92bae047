"""Folders of pictures: read as they are laid out, split the same way every time, and refused in words that name the file."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tensorferry.errors import BadData
from tensorferry.recipes.data.images import ImageSamples, Pictures, PixelScale, fit_image, load_digits, read_folder

SCALE = PixelScale(mean=(0.0, 0.0, 0.0), std=(255.0, 255.0, 255.0))


def _save(path: Path, colour: tuple[int, int, int] = (255, 0, 0), size: tuple[int, int] = (10, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(6):
        _save(tmp_path / "red" / f"{number}.png")
        _save(tmp_path / "blue" / f"{number}.jpg", (0, 0, 255))
    return tmp_path


def _read(folder: Path, *, varied: bool = False):
    return read_folder(folder, 4, SCALE, varied=varied)


def test_classes_are_the_folders_in_order_and_a_fifth_is_held_out(photos: Path) -> None:
    data = _read(photos)
    assert data.labels == ("blue", "red")
    assert (len(data.train), len(data.held_out)) == (10, 2)
    assert {int(data.held_out.read(i, np.random.default_rng(0))["classes"]) for i in range(2)} == {0, 1}


def test_no_picture_is_both_trained_on_and_held_out(photos: Path) -> None:
    data = _read(photos)
    train, held_out = (set(samples.source.pictures) for samples in (data.train, data.held_out))
    assert not train & held_out
    assert len(train | held_out) == 12


def test_a_sample_is_scaled_and_has_its_channels_first(photos: Path) -> None:
    sample = _read(photos).held_out.read(1, np.random.default_rng(0))
    assert sample["images"].shape == (3, 4, 4)
    assert sample["images"].dtype == np.float32
    assert sample["images"].mean(axis=(1, 2)).tolist() == [1.0, 0.0, 0.0]
    assert sample["classes"] == 1


def test_a_folder_with_train_and_val_is_taken_as_it_is(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        _save(tmp_path / "train" / name)
    _save(tmp_path / "val" / "b" / "9.png")
    _save(tmp_path / "val" / "a" / "8.png")
    data = _read(tmp_path)
    assert (len(data.train), len(data.held_out)) == (3, 2)
    assert data.held_out.source.classes == [0, 1]


def test_the_middle_of_an_oblong_picture_is_kept_without_squashing() -> None:
    pixels = np.zeros((4, 12, 3), np.uint8)
    pixels[:, 4:8] = 200  # a bright square in the middle
    assert fit_image(Image.fromarray(pixels), 4, 4).min() == 200


def test_a_varied_picture_depends_on_the_generator_alone() -> None:
    pixels = np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3)
    samples = ImageSamples(Pictures([pixels], [0]), 16, SCALE, varied=True)
    first, again, other = (samples.read(0, np.random.default_rng(seed))["images"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_grey_and_transparent_pictures_become_coloured(tmp_path: Path) -> None:
    for mode, colour in (("L", 7), ("RGBA", (1, 2, 3, 4)), ("P", 3), ("1", 1)):
        path = tmp_path / mode / "1.png"
        path.parent.mkdir()
        for number in (1, 2):
            Image.new(mode, (5, 5), colour).save(path.with_stem(str(number)))
    data = _read(tmp_path)
    assert all(data.train.read(i, np.random.default_rng(0))["images"].shape == (3, 4, 4) for i in range(4))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "holds 0 folders; expected at least two, one per class"),
        (["a/1.png", "a/2.png"], "holds 1 folders; expected at least two"),
        (["a/1.png", "a/2.png", "b/1.png", "b/2.png", "loose.png"], "loose.png' is not in a class folder"),
        (["a/1.png", "a/2.png", "b/notes.txt"], "b' holds no picture"),
        (["a/1.png", "a/2.png", "b/1.png"], "class 'b' has 1 picture; it needs two"),
        (["train/a/1.png", "train/b/1.png", "val/a/1.png", "val/c/1.png"], "c' is a class without training pictures"),
    ],
)
def test_a_folder_that_cannot_be_used_says_why(files: list[str], message: str, tmp_path: Path) -> None:
    for name in files:
        if name.endswith(".png"):
            _save(tmp_path / name)
        else:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("no picture")
    with pytest.raises(BadData, match=message):
        _read(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"there is no folder '.*nowhere'"):
        _read(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [b"", b"no picture at all", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"])
def test_a_broken_picture_is_named_when_it_is_read(content: bytes, photos: Path) -> None:
    (photos / "red" / "0.png").write_bytes(content)
    data = _read(photos)
    place = data.train.source.pictures.index(photos / "red" / "0.png")
    with pytest.raises(BadData, match=r"cannot read '.*red/0\.png' as a picture"):
        data.train.read(place, np.random.default_rng(0))


def test_a_cut_off_picture_is_named_when_it_is_read(photos: Path) -> None:
    path = photos / "blue" / "0.jpg"
    _save(path, size=(200, 200))
    path.write_bytes(path.read_bytes()[:400])
    data = _read(photos)
    with pytest.raises(BadData, match=r"blue/0\.jpg"):
        data.train.read(0, np.random.default_rng(0))


def test_the_digits_are_real_balanced_and_never_varied() -> None:
    data = load_digits(32, SCALE)
    assert (len(data.train), len(data.held_out), data.labels) == (1442, 355, tuple("0123456789"))
    assert not data.train.varied
    assert np.bincount(data.held_out.source.classes).min() >= 34
