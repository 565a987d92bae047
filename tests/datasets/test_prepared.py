"""Folders that TFDS prepared, made here by TFDS itself from a builder of a few rows."""

from pathlib import Path

import numpy as np
import pytest

from tensorferry import BadData
from tensorferry.datasets import load

tfds = pytest.importorskip("tensorflow_datasets")

pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")  # of protobuf, in TFDS


class FewRows(tfds.core.GeneratorBasedBuilder):
    """Pictures with words, numbers and classes."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(4, 4, 3)),
            "word": tfds.features.Text(),
            "size": np.float32,
            "many": tfds.features.Tensor(shape=(2,), dtype=np.int64),
            "label": tfds.features.ClassLabel(names=["cat", "dog"]),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=("image", "label")
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(300), "test": self._generate_examples(5)}

    def _generate_examples(self, num_rows):
        for row in range(num_rows):
            image = np.full((4, 4, 3), row % 256, np.uint8)
            yield row, {"image": image, "word": f"row {row}", "size": row / 2, "many": [row, -row], "label": row % 2}


class NestedRows(FewRows):
    """A feature that no column holds."""

    def _info(self):
        features = {"boxes": tfds.features.Sequence({"place": np.int64})}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _generate_examples(self, num_rows):
        for row in range(num_rows):
            yield row, {"boxes": {"place": [row]}}


def prepare(builder: type, folder: Path) -> Path:
    made = builder(data_dir=str(folder))
    made.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
    return Path(made.data_path)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(FewRows, tmp_path_factory.mktemp("prepared"))


def test_a_prepared_folder_is_read_with_its_splits_and_classes(prepared: Path) -> None:
    train, test = load(prepared, "train"), load(prepared, "test")
    assert (len(train), len(test), train.target_name) == (300, 5, "label")
    kinds = {column.name: (column.kind, column.dtype, column.shape) for column in train.columns}
    assert kinds["image"] == ("image", "uint8", (4, 4, 3))
    assert kinds["word"] == ("text", "object", ())
    assert kinds["size"] == ("number", "float32", ())
    assert kinds["many"] == ("other", "int64", (2,))
    assert next(column for column in train.columns if column.name == "label").labels == ("cat", "dog")
    for dataset, num_rows in ((train, 300), (test, 5)):
        rows = dataset.numpy()
        numbers = (2 * rows["size"]).astype(int)
        assert sorted(numbers.tolist()) == list(range(num_rows))
        assert rows["word"].tolist() == [f"row {number}" for number in numbers]
        assert rows["label"].tolist() == (numbers % 2).tolist()
        assert rows["many"].tolist() == [[number, -number] for number in numbers]
        assert np.array_equal(rows["image"][:, 0, 0, 0], numbers % 256)


def test_batches_of_a_prepared_folder_repeat_and_can_be_a_part(prepared: Path) -> None:
    some = load(prepared, "train[10:290]", as_supervised=True)
    first, second = ([label.tolist() for _, label in some.batches(64, seed=3)] for _ in range(2))
    assert first == second
    assert sum(map(len, first)) == 280


def test_the_target_is_read_without_a_picture(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = load(prepared, "test")
    monkeypatch.setattr(tfds.features.Image, "decode_example", None)  # whoever decodes one fails
    assert sorted(dataset.target.tolist()) == [0, 0, 0, 1, 1]


def test_what_cannot_be_columns_is_told(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="the feature 'boxes' is nested"):
        load(prepare(NestedRows, tmp_path))
    (tmp_path / "features.json").write_text("{}")
    with pytest.raises(BadData, match="as a folder prepared by TFDS"):
        load(tmp_path)
