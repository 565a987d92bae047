"""Trains wide & deep a little on the back end that KERAS_BACKEND names, and prints what came of it as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tensorferry.recipes.wide_deep import WideDeep, WideDeepSettings


def main(folder: Path) -> None:
    """Print the answers to everything that the tests ask."""
    answers = {
        "backend": keras.backend.backend(),
        "both": _train(folder),
        "numbers only": _train(folder, ignore="colour,shape"),
        "words only": _train(folder, ignore="price,weight"),
        "without crosses": _train(folder, ignore="price,weight", crosses="none"),
        "wide alone": _train(folder, ignore="price,weight", crosses="shape*colour", hidden=""),
    }
    print(json.dumps(answers))


def _train(folder: Path, **settings: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    recipe = WideDeep(WideDeepSettings(target="sold", learning_rate=0.03, **settings))
    data = recipe.load_data(folder / "goods.csv")
    model = recipe.build_model(data)
    batch = recipe.collate([data.train.read(number, np.random.default_rng(0)) for number in range(len(data.train))])
    classes = batch.pop("classes")
    losses = [float(model.train_on_batch(batch, classes)) for _ in range(30)]
    path = folder / "model.keras"
    model.save(path)
    again = keras.models.load_model(path)
    scores, scores_again = (keras.ops.convert_to_numpy(each(batch)) for each in (model, again))
    metrics = recipe.evaluate(lambda inputs: keras.ops.convert_to_numpy(model(inputs)), data.held_out)
    return {"losses": losses, "metrics": metrics, "saved": bool(np.array_equal(scores, scores_again)), "labels": data.labels}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
