"""The callback on Keras' torch back end; a back end is chosen once a process."""

import os
import subprocess
import sys
import textwrap

import pytest

TORCH = """
    import warnings
    import keras, numpy as np, torch
    import tensorferry as ferry

    def train(callbacks):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([
            keras.Input((16, 16, 3)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(5, activation="softmax"),
        ])
        model.compile("adam", "sparse_categorical_crossentropy")
        rng = np.random.default_rng(1)
        x, y = rng.random((8, 16, 16, 3), "float32"), rng.integers(5, size=8)
        model.fit(x, y, batch_size=4, epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
        return [w.detach().numpy().tobytes() for w in (v.value for v in model.weights)], model

    big = ferry.LargeModel(budget="8GiB", min_nbytes=4096)
    large, model = train([big])
    plain, _ = train([])
    assert large == plain
    assert big.report().num_steps >= 5
    assert torch.ones(3, requires_grad=True).square().sum().backward() is None
    print("equal", "Fits" in str(big.report()))
"""

REFUSED = """
    import keras
    import numpy as np
    import tensorferry as ferry

    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((2048, 64), "float32")
    try:
        model.fit(x, x[:, :1], batch_size=1024, epochs=2, verbose=0, callbacks=[ferry.LargeModel(budget=4096, min_nbytes=1)])
    except ferry.BudgetTooSmall as error:
        print(str(error).startswith("one step needs at least"), "\\n" in str(error), error.smallest_nbytes > 4096)
"""


@pytest.fixture(scope="module")
def told() -> list[str]:
    """A line of each program; one process runs both, since loading the frameworks takes longer than either."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TORCH) + textwrap.dedent(REFUSED)],
        env=os.environ | {"KERAS_BACKEND": "torch", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_on_the_torch_back_end_the_callback_drives_the_torch_engine(told: list[str]) -> None:
    assert told[0] == "equal True"


def test_on_the_torch_back_end_a_budget_too_small_is_said_in_our_words_and_not_in_keras(told: list[str]) -> None:
    assert told[1] == "True False True"
