"""Wide & deep: tables as people have them, learnt on either back end, and errors that name the column."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorferry import BadData, BadRecipe
from tensorferry.recipes.recipe import Data
from tensorferry.recipes.wide_deep import WideDeep, WideDeepSettings, measure_auc

TRIAL = Path(__file__).with_name("wide_deep_trial.py")
HEADER = "price,weight,colour,shape,sold"


def _goods() -> str:
    """What sells: red round things and blue square ones, so that neither colour nor shape alone tells."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(200):
        colour, shape = rng.choice(["red", "blue"]), rng.choice(["round", "square"])
        sold = "yes" if (colour == "red") == (shape == "round") else "no"
        price = "NA" if rng.random() < 0.05 else f"{rng.uniform(1, 9):.2f}"
        lines.append(f"{price},{rng.integers(100, 5000)},{colour},{shape},{sold}")
    return "\n".join([HEADER, *lines])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("goods")
    (folder / "goods.csv").write_text(_goods())
    return folder


@pytest.fixture(scope="module", params=["tensorflow", "torch"])
def answers(request: pytest.FixtureRequest, folder: Path, keras_python: Callable[[str], str]) -> dict[str, Any]:
    done = subprocess.run(
        [keras_python(request.param), "-W", "error::UserWarning", TRIAL, folder], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers["backend"] == request.param
    return answers


@pytest.mark.parametrize("case", ["both", "numbers only", "words only", "without crosses", "wide alone"])
def test_losses_fall_and_a_saved_model_gives_the_same_scores(answers: dict[str, Any], case: str) -> None:
    found = answers[case]
    assert found["losses"][-1] < found["losses"][0]
    assert found["saved"]
    assert found["labels"] == ["no", "yes"]
    assert set(found["metrics"]) == {"accuracy", "auc"}


def test_what_goes_together_is_found_by_crossing_alone(answers: dict[str, Any]) -> None:
    assert answers["words only"]["metrics"]["accuracy"] == 1.0
    assert answers["wide alone"]["metrics"]["accuracy"] == 1.0
    assert answers["numbers only"]["metrics"]["accuracy"] < 0.8


def test_the_penguins_are_there_and_their_gaps_are_filled() -> None:
    data = WideDeep().load_data(None)
    assert data.labels == ("Adelie", "Chinstrap", "Gentoo")
    assert len(data.train) + len(data.held_out) == 344
    assert [column.name for column in data.train.category_columns] == ["island", "sex"]
    assert not np.isnan(data.train.numbers).any()
    assert (data.train.categories[:, 1] == 0).sum() > 0  # some have no known sex
    by_sex = WideDeep(WideDeepSettings(target="sex", categories="year")).load_data(None)
    assert len(by_sex.train) + len(by_sex.held_out) == 333
    assert "11 left out without sex" in by_sex.source
    assert by_sex.train.category_columns[-1].values == ("2007", "2008", "2009")


def test_columns_are_learnt_from_the_rows_to_train_on_alone(folder: Path) -> None:
    data = WideDeep(WideDeepSettings(target="sold")).load_data(folder / "goods.csv")
    weight = data.train.number_columns[1]
    assert weight.mean == pytest.approx(data.train.numbers[:, 1].mean(), rel=1e-4)
    assert weight.mean != pytest.approx(np.concatenate([data.train.numbers, data.held_out.numbers])[:, 1].mean(), rel=1e-6)
    assert len(weight.boundaries) == 9


def test_a_word_that_was_never_trained_on_is_an_unknown_one(tmp_path: Path) -> None:
    path = tmp_path / "rare.csv"
    path.write_text("\n".join(["letter,name", *(f"{'ab'[number % 2]},w{number}" for number in range(40))]))
    data: Data = WideDeep(WideDeepSettings(target="letter")).load_data(path)
    assert (data.held_out.categories == 0).all()
    assert (data.train.categories > 0).all()


def test_the_area_under_the_curve_is_one_for_a_perfect_order_and_half_for_none() -> None:
    positive = np.array([False, False, True, True])
    assert measure_auc(np.array([1.0, 2.0, 3.0, 4.0]), positive) == 1.0
    assert measure_auc(np.array([4.0, 3.0, 2.0, 1.0]), positive) == 0.0
    assert measure_auc(np.zeros(4), positive) == 0.5


@pytest.mark.parametrize(
    ("changes", "text", "says"),
    [
        (
            {"target": "sol"},
            _goods(),
            "there is no column 'sol' (did you mean 'sold'?); there are price, weight, colour, shape, sold",
        ),
        ({"ignore": "wait"}, _goods(), "there is no column 'wait'"),
        ({"ignore": "price,weight,colour,shape"}, _goods(), "no column is left to predict 'sold' from"),
        ({"target": "weight"}, _goods(), "the column 'weight' of"),
        ({}, f"{HEADER}\n" + "1,2,red,round,yes\n" * 30, "the column 'sold' of"),
        ({}, f"{HEADER}\n" + "1,2,red,round,yes\n" * 3, "has 3 rows with a 'sold'; at least 20"),
        ({}, f"{HEADER}\n1,2,red,yes", "row 2: expected 5 values as in the first line, received 4"),
        ({}, "sold,sold\nyes,no", "has the column 'sold' more than once"),
        ({}, HEADER, "holds no rows"),
        ({}, f'{HEADER}\n1,2,"red,round', "as a CSV table: unexpected end of data"),
        ({}, f"{HEADER}\n" + ",2,red,round,yes\n,3,red,square,no\n" * 20, "the column 'price' is empty in every row to train on"),
        (
            {},
            f"{HEADER}\n" + "\n".join(f"1,2,c{n},round,{n % 2}" for n in range(2000)),
            "the column 'colour' has 1,600 different values",
        ),
    ],
)
def test_a_table_that_cannot_be_used_names_the_column(tmp_path: Path, changes: dict[str, str], text: str, says: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(BadData, match=re.escape(says)):
        WideDeep(WideDeepSettings(**{"target": "sold"} | changes)).load_data(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"gone\.csv' as a CSV table: No such file"):
        WideDeep().load_data(tmp_path / "gone.csv")


def test_a_setting_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(BadRecipe, match="widths such as 64,32, received '64,many'"):
        WideDeepSettings(hidden="64,many")


@pytest.mark.parametrize("crosses", ["colour", "colour*price", "colour*shape*sold"])
def test_only_two_columns_of_words_can_be_crossed(folder: Path, crosses: str) -> None:
    recipe = WideDeep(WideDeepSettings(target="sold", crosses=crosses))
    data = recipe.load_data(folder / "goods.csv")
    with pytest.raises(BadRecipe, match=r"cannot cross .*: colour, shape"):
        recipe.build_model(data)


def test_the_columns_tell_a_client_what_to_send(folder: Path) -> None:
    recipe = WideDeep(WideDeepSettings(target="sold"))
    data = recipe.load_data(folder / "goods.csv")
    told = recipe.describe_columns(data)
    assert [column["column"] for column in told["numbers"]] == ["price", "weight"]
    assert told["categories"] == [
        {"column": "colour", "missing": 0, "codes": {"blue": 1, "red": 2}},
        {"column": "shape", "missing": 0, "codes": {"round": 1, "square": 2}},
    ]
    prices = [float(price) for line in _goods().splitlines()[1:] if (price := line.partition(",")[0]) != "NA"]
    assert min(prices) < told["numbers"][0]["missing"] < max(prices)
