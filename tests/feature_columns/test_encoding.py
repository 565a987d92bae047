"""Feature columns: what is learnt from training rows, and what rows become, known, unknown and missing ones alike."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorferry import BadData
from tensorferry import feature_columns as fc
from tensorferry.datasets import load
from tensorferry.feature_columns.encoding import FittedColumns, count_codes, encode
from tensorferry.feature_columns.table import read_table

TABLE = {
    "age": [17, 18, 30, None],
    "city": ["Rome", "Bern", None, "Rome"],
    "tags": ["a|b", "b", None, "c|a|b"],
    "weight": [1.0, 2.0, 3.0, None],
}


def codes(column: fc.FeatureColumn, table: dict = TABLE, *, fitted_on: dict = TABLE) -> list:
    fitted = fc.fit_columns([column], read_table(fitted_on))
    return encode(fitted.columns[0], read_table(table)).codes[:, 0].tolist()


def test_a_boundary_belongs_to_the_range_above_it() -> None:
    assert codes(fc.bucketized("age", [18, 27])) == [1, 2, 3, 0]


def test_buckets_without_boundaries_are_quantiles() -> None:
    rows = {"age": list(range(100))}
    counted = np.bincount(codes(fc.bucketized("age", num_buckets=4), rows, fitted_on=rows))
    assert counted.tolist() == [0, 25, 25, 25, 25]


def test_words_are_numbered_by_how_frequent_they_are_and_unknown_ones_are_0() -> None:
    assert codes(fc.vocabulary("city")) == [1, 2, 0, 1]
    assert codes(fc.vocabulary("city"), {**TABLE, "city": ["Oslo", "Bern", "", "Rome"]}) == [0, 2, 0, 1]
    assert codes(fc.vocabulary("city", ["Bern", "Rome"])) == [2, 1, 0, 2]


def test_a_vocabulary_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("Rome\nBern\n")
    assert codes(fc.vocabulary("city", tmp_path / "words.txt")) == [1, 2, 0, 1]
    with pytest.raises(BadData, match="cannot read the vocabulary"):
        fc.vocabulary("city", tmp_path / "none.txt")


def test_whole_numbers_stand_for_themselves_within_their_range() -> None:
    assert codes(fc.identity("n", 3), {"n": [0, 2, 3, -1, 1.5, None]}, fitted_on={"n": [0]}) == [1, 3, 0, 0, 0, 0]


def test_hashed_words_have_the_same_place_everywhere() -> None:
    assert codes(fc.hashed("city", 100)) == [54, 75, 0, 54]


def test_crossed_columns_tell_combinations_apart() -> None:
    rows = {"a": ["x", "x", "y", "y", None], "b": ["1", "2", "1", "2", "1"]}
    found = codes(fc.crossed(["a", "b"], 10_000), rows, fitted_on=rows)
    assert len(set(found[:4])) == 4
    assert found[4] == 0
    with_buckets = fc.crossed(["city", fc.bucketized("age", [18])], 1000)
    assert codes(with_buckets)[0] != codes(with_buckets)[1]


def test_a_sequence_is_the_average_of_its_words() -> None:
    fitted = fc.fit_columns([fc.sequence("tags")], read_table(TABLE))
    found = encode(fitted.columns[0], read_table(TABLE))
    assert found.codes.shape == (4, 3)
    assert found.weights is not None
    assert np.allclose(found.weights.sum(axis=1), [1, 1, 0, 1])
    assert count_codes(fitted.columns[0]) == 4


def test_a_weighted_column_counts_as_much_as_its_weight() -> None:
    fitted = fc.fit_columns([fc.weighted("city", "weight")], read_table(TABLE))
    found = encode(fitted.columns[0], read_table(TABLE))
    assert found.weights is not None
    assert found.weights[:, 0].tolist() == [1, 2, 3, 0]


def test_shared_embeddings_share() -> None:
    first, second = fc.shared_embeddings(["home", "away"], 4)
    assert first.shared == second.shared == "home+away"
    table = read_table({"home": ["Bern", "Rome", "Rome"], "away": ["Oslo", "Bern", "Oslo"]})
    fitted = fc.fit_columns([first, second], table)
    home, away = (encode(column.source, table).codes[:, 0].tolist() for column in fitted.columns)
    assert home[0] == away[1]
    assert len({*home, *away}) == 3
    with pytest.raises(BadData, match=r"cannot share an embedding: one has 4 codes, another 6"):
        fc.fit_columns(fc.shared_embeddings([fc.hashed("home", 3), fc.hashed("away", 5)], 2), table)


def test_columns_are_inferred_from_a_dataset_without_its_target() -> None:
    names = {fc.columns.name_of(column): type(column).__name__ for column in fc.infer(load("penguins"))}
    assert "species" not in names
    assert (names["island"], names["body_mass_g"]) == ("Vocabulary", "Numeric")


def test_unknown_words_are_what_their_column_declares() -> None:
    asked = {**TABLE, "city": ["Oslo", "Bern", None, ""]}
    assert codes(fc.vocabulary("city", unknown="other"), asked) == [3, 2, 0, 0]
    assert count_codes(fc.vocabulary("city", ["Bern"], unknown="other")) == 3
    with pytest.raises(BadData, match=r"'city' holds 'Berne', which is not in its vocabulary .did you mean 'Bern'"):
        codes(fc.vocabulary("city", unknown="refuse"), {**TABLE, "city": [None, "Berne", "Rome", "Rome"]})
    assert codes(fc.vocabulary("city", unknown="refuse"), {**TABLE, "city": [None] * 4}) == [0] * 4
    assert codes(fc.vocabulary("city", min_count=2, unknown="other")) == [1, 2, 0, 1]
    with pytest.raises(BadData, match="2 different words, of which 1 are learnt"):
        codes(fc.vocabulary("city", max_size=1, unknown="refuse"))


def test_a_missing_number_is_what_its_column_declares() -> None:
    fitted = fc.fit_columns([fc.numeric("age", missing=-1), fc.numeric("weight")], read_table(TABLE))
    numbers = fitted.encode_numbers(read_table(TABLE))
    assert numbers[:, 0].tolist() == [17, 18, 30, -1]
    assert np.isnan(numbers[3, 1])
    assert FittedColumns.from_json(json.loads(json.dumps(fitted.to_json()))) == fitted


@pytest.mark.parametrize(
    ("normalizer", "center", "scale"),
    [("robust", 4.0, 1.5), ("standard", 22.2, 38.938), ("minmax", 0.0, 100.0), ("none", 0.0, 1.0)],
)
def test_numbers_are_scaled_as_their_column_declares(normalizer: Any, center: float, scale: float) -> None:
    (found,) = fc.fit_columns([fc.numeric("x", normalizer=normalizer)], {"x": np.array([0.0, 2.0, 4.0, 5.0, 100.0])}).scales
    assert (found.center, found.scale) == (pytest.approx(center), pytest.approx(scale, rel=1e-3))


def test_names_and_notes_are_not_inferred() -> None:
    table = {"note": [f"row {row}" for row in range(50)], "kind": ["a", "b"] * 25, "flag": [True, False] * 25}
    assert [fc.columns.name_of(column) for column in fc.infer(table)] == ["kind", "flag"]


def test_true_and_false_and_codes_in_numbers_are_words_alike() -> None:
    assert codes(fc.vocabulary("n"), {"n": ["1", "2", None]}, fitted_on={"n": [1, 1, 2]}) == [1, 2, 0]
    assert codes(fc.vocabulary("n"), {"n": [1.0, float("nan")]}, fitted_on={"n": ["1", "1", "2"]}) == [1, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fc.bucketized("age", [3, 1]), "ascending order"),
        (lambda: fc.numeric("age", normalizer="robst"), "did you mean 'robust'"),  # type: ignore[arg-type]
        (lambda: fc.numeric("age", missing=float("nan")), "finite number for a missing 'age'"),
        (lambda: fc.vocabulary("city", unknown="others"), "did you mean 'other'"),  # type: ignore[arg-type]
        (lambda: fc.vocabulary("city", min_count=0), "min_count of 'city' to be at least 1"),
        (lambda: fc.hashed("city", 0), "at least 1, received 0"),
        (lambda: fc.crossed(["city"], 10), "at least two"),
        (lambda: fc.vocabulary("city", ["a", "a"]), "twice"),
        (lambda: fc.sequence("tags", separator=""), "separator"),
        (lambda: fc.fit_columns([], {}), "no feature column"),
        (lambda: fc.fit_columns([fc.numeric("aeg")], read_table(TABLE)), "did you mean 'age'"),
        (lambda: fc.fit_columns([fc.numeric("city")], read_table(TABLE)), "hold numbers, received 'Rome' in row 0"),
        (lambda: fc.fit_columns(["age"], read_table(TABLE)), "expected a feature column, received 'age'"),  # type: ignore[list-item]
        (lambda: fc.fit_columns([fc.numeric("x")], {"x": np.array([np.nan])}), "empty in every row"),
        (lambda: read_table({"a": [1], "b": [1, 2]}), "differ in length"),
        (lambda: read_table([1, 2, 3]), "rows and columns"),
        (lambda: read_table({}), "no columns"),
        (lambda: read_table({"a": [object()]}), "numbers and words"),
    ],
)
def test_what_cannot_be_used_is_told(make, message: str) -> None:
    with pytest.raises(BadData, match=message):
        make()


WORDS = st.lists(st.none() | st.text(max_size=6), min_size=1, max_size=30)


@given(seen=WORDS, asked=WORDS, numbers=st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_codes_stay_in_their_range_and_survive_json(seen: list, asked: list, numbers: list) -> None:
    if all(number is None for number in numbers):
        numbers = [0.0]
    train = {"w": (seen * 30)[:30], "n": (numbers * 30)[:30]}
    ask = {"w": asked, "n": (numbers * 30)[: len(asked)]}
    columns = [
        fc.numeric("n"),
        fc.bucketized("n"),
        fc.vocabulary("w"),
        fc.hashed("w", 7),
        fc.crossed(["w", fc.bucketized("n", [0])], 11),
        fc.embedding("w", 3),
        fc.indicator(fc.sequence("w")),
        fc.weighted("w", "n"),
    ]
    fitted = fc.fit_columns(columns, read_table(train))
    again = FittedColumns.from_json(json.loads(json.dumps(fitted.to_json())))
    assert again == fitted
    for column, found in zip(fitted.categorical, again.encode_codes(read_table(ask)), strict=True):
        assert found.codes.shape[0] == len(asked)
        assert found.codes.min() >= 0
        assert found.codes.max() < count_codes(column)


def test_damaged_json_is_refused() -> None:
    with pytest.raises(BadData, match="cannot be read"):
        FittedColumns.from_json({"columns": [{"kind": "Nonsense"}], "scales": []})
