"""Rows of a table into classes: wide & deep over numbers, buckets, categories and crossed categories."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorferry.errors import BadData, BadRecipe
from tensorferry.extras import find_package
from tensorferry.recipes.data import tables
from tensorferry.recipes.recipe import (
    Arrays,
    Data,
    KerasRecipe,
    PositiveFloat,
    PositiveInt,
    Predict,
    RecipeSettings,
    Samples,
    read_batches,
)

if TYPE_CHECKING:
    import keras

_HELD_OUT_SHARE = 0.2
_MIN_ROWS = 20
_MAX_CLASSES = 100


@dataclass(frozen=True)
class WideDeepSettings(RecipeSettings):
    """What `--set` changes; several columns are separated by commas."""

    batch: PositiveInt = 32
    steps: PositiveInt = 300
    target: str = "species"  # the column to find
    ignore: str = ""  # columns to leave out
    categories: str = ""  # columns of numbers that are names of something
    crosses: str = "all"  # pairs of categories that may matter together, as island*sex; all, or none
    buckets: PositiveInt = 10  # that a column of numbers is cut into for the wide part
    hidden: str = "64,32"  # widths of the deep part's layers
    embedding: PositiveInt = 8  # numbers that stand for a word in the deep part
    learning_rate: PositiveFloat = 0.003

    def __post_init__(self) -> None:
        if not all(width.isdecimal() and int(width) for width in _split(self.hidden)):
            raise BadRecipe(f"expected hidden to be widths such as 64,32, received {self.hidden!r}")


@dataclass(frozen=True)
class TableRows:
    """Rows of a table, and what its columns are."""

    numbers: NDArray[np.float32]
    categories: NDArray[np.int32]
    classes: NDArray[np.int32]
    number_columns: tuple[tables.Number, ...]
    category_columns: tuple[tables.Category, ...]

    def __len__(self) -> int:
        return len(self.classes)

    def read(self, index: int, rng: np.random.Generator) -> Arrays:  # noqa: ARG002
        """Nothing is varied."""
        return {"numbers": self.numbers[index], "categories": self.categories[index], "classes": self.classes[index]}


class WideDeep(KerasRecipe):
    """A row's class."""

    Settings = WideDeepSettings
    inputs = ("categories", "numbers")
    metric = "accuracy"
    higher_is_better = True

    def load_data(self, source: Path | None) -> Data:
        """The rows of a CSV file; without one, 344 penguins. A fifth is held out."""
        path = source or find_package("palmerpenguins", "the table that this recipe brings") / "data" / "penguins.csv"
        table = tables.read_table(path)
        target = tables.pick_column(table, self.settings.target, "target")
        known = [number for number, value in enumerate(target) if not tables.is_missing(value)]
        labels = self._list_labels([target[number] for number in known], path)
        order = np.random.default_rng(0).permutation(known)
        num_held_out = max(1, round(_HELD_OUT_SHARE * len(known)))
        columns = {name: values for name, values in table.items() if name in self._choose_columns(table)}
        train, held_out = self._encode(columns, target, labels, (order[num_held_out:], order[:num_held_out]))
        lost = f", {len(target) - len(known)} left out without {self.settings.target}" if len(known) < len(target) else ""
        origin = str(source) if source else "the Palmer penguins"
        return Data(train, held_out, labels, f"{len(train):,} rows and {num_held_out:,} held out{lost}, from {origin}")

    def _list_labels(self, values: Sequence[str], path: Path) -> tuple[str, ...]:
        labels = tuple(sorted({value.strip() for value in values}))
        name = self.settings.target
        if len(values) < _MIN_ROWS:
            raise BadData(f"{path} has {len(values)} rows with a {name!r}; at least {_MIN_ROWS} are needed to train and evaluate")
        if len(labels) == 1:
            raise BadData(f"the column {name!r} of {path} is {labels[0]!r} in every row; choose another with --set target=...")
        if len(labels) > _MAX_CLASSES:
            raise BadData(
                f"the column {name!r} of {path} has {len(labels):,} different values; this recipe takes at most {_MAX_CLASSES} "
                "classes. Choose another with --set target=..., or group its values"
            )
        return labels

    def _choose_columns(self, table: tables.Columns) -> list[str]:
        for setting in ("ignore", "categories"):
            for name in _split(getattr(self.settings, setting)):
                tables.pick_column(table, name, setting)
        chosen = [name for name in table if name not in (self.settings.target, *_split(self.settings.ignore))]
        if not chosen:
            raise BadData(f"no column is left to predict {self.settings.target!r} from; ignore fewer of {', '.join(table)}")
        return chosen

    def _encode(
        self, columns: tables.Columns, target: Sequence[str], labels: tuple[str, ...], parts: tuple[NDArray[np.int64], ...]
    ) -> list[TableRows]:
        """The rows of each part; what columns hold is learnt from the first part alone."""
        words = _split(self.settings.categories)
        numeric = [name for name in columns if name not in words and tables.is_numeric(columns[name])]
        raw = {name: tables.read_numbers(name, columns[name]) for name in numeric}
        numbers = tuple(tables.measure_number(name, raw[name][parts[0]], self.settings.buckets) for name in numeric)
        categories = tuple(
            tables.list_categories(name, [values[number] for number in parts[0]])
            for name, values in columns.items()
            if name not in numeric
        )
        # a missing number becomes the usual one
        filled = [np.where(np.isnan(raw[number.name]), np.float32(number.mean), raw[number.name]) for number in numbers]
        numbered = [tables.number_categories(category, columns[category.name]) for category in categories]
        classes = np.asarray([labels.index(value.strip()) if value.strip() in labels else 0 for value in target], np.int32)
        return [
            TableRows(_stack(filled, part, np.float32), _stack(numbered, part, np.int32), classes[part], numbers, categories)
            for part in parts
        ]

    def build_model(self, data: Data) -> "keras.Model":
        """The wide and the deep part with one output, compiled."""
        import keras

        from tensorferry.recipes.models.keras.wide_deep import wide_deep

        assert isinstance(data.train, TableRows)
        rows, settings = data.train, self.settings
        model = wide_deep(
            rows.number_columns,
            rows.category_columns,
            self._pair_columns([category.name for category in rows.category_columns]),
            len(data.labels),
            [int(width) for width in _split(settings.hidden)],
            settings.embedding,
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(settings.learning_rate), loss, jit_compile=False)
        return model

    def _pair_columns(self, names: list[str]) -> list[tuple[int, int]]:
        if self.settings.crosses == "all":
            return list(combinations(range(len(names)), 2))
        if self.settings.crosses == "none":
            return []
        pairs = [tuple(part.strip() for part in pair.split("*")) for pair in _split(self.settings.crosses)]
        for pair in pairs:
            if len(pair) != 2 or not set(pair) <= set(names):
                known = ", ".join(names) or "there are none"
                raise BadRecipe(f"cannot cross {'*'.join(pair)!r}; write two categorical columns as one*other: {known}")
        return [(names.index(first), names.index(second)) for first, second in pairs]

    def evaluate(self, predict: Predict, samples: Samples) -> Mapping[str, float]:
        """The share of rows whose class was found; for two classes also the area under the ROC curve (auc)."""
        batches = list(read_batches(self, samples))
        scores = np.concatenate([predict({name: batch[name] for name in self.inputs}) for batch in batches])
        classes = np.concatenate([batch["classes"] for batch in batches])
        found = {"accuracy": float((scores.argmax(-1) == classes).mean())}
        if scores.shape[-1] == 2 and 0 < classes.sum() < len(classes):
            found["auc"] = measure_auc(scores[:, 1] - scores[:, 0], classes == 1)
        return found

    def describe_columns(self, data: Data) -> dict[str, list[dict[str, Any]]]:
        """The table's columns: what a missing number becomes, and the number that stands for each word; 0 for any other."""
        assert isinstance(data.train, TableRows)
        return {
            "numbers": [{"column": each.name, "missing": each.mean} for each in data.train.number_columns],
            "categories": [
                {"column": each.name, "missing": 0, "codes": {word: code for code, word in enumerate(each.values, 1)}}
                for each in data.train.category_columns
            ],
        }


def measure_auc(scores: NDArray[np.float32], positive: NDArray[np.bool_]) -> float:
    """How often a positive scores higher than a negative, ties half: the area under the ROC curve.

    >>> measure_auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True]))
    0.875
    """
    negatives = np.sort(scores[~positive])
    below, not_above = (np.searchsorted(negatives, scores[positive], side=side) for side in ("left", "right"))
    return float((below + not_above).mean() / (2 * len(negatives)))


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _stack(columns: list[NDArray], rows: NDArray[np.int64], kind: type) -> NDArray:
    return np.stack([column[rows] for column in columns], axis=1) if columns else np.zeros((len(rows), 0), kind)
