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
            keras.layers.Dropout(0.2),
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
    assert "could not be traced" not in str(big.report())
    print("equal", "Fits" in str(big.report()))
    try:
        train([ferry.LargeModel(budget="8GiB", leave=("conv*",), fetch_ahead=2)])
    except ferry.NotSupported as error:
        print(error)
"""

REFUSED = """
    import hashlib
    import keras, numpy as np, torch
    import tensorferry as ferry

    class Remembers(keras.layers.Layer):
        num_calls = 0

        def call(self, x):
            self.num_calls += 1
            self.last = keras.random.normal((4,))
            return x

    remembers = Remembers()
    dense = [keras.layers.Dense(2048, activation="relu"), keras.layers.Dropout(0.5), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((2048,)), *dense, remembers, keras.layers.Dense(1)])
    x = np.ones((8, 2048), "float32")

    def look():
        tensors = [*(v.value.detach() for v in (*model.variables, *model.optimizer.variables)), torch.get_rng_state()]
        digests = [hashlib.sha256(tensor.numpy()).hexdigest() for tensor in tensors]  # clones would take of the budget
        return digests, remembers.num_calls, id(remembers.last)

    class Before(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.seen = look()

    def fit(optimizer, budget):
        model.compile(optimizer, "mse")
        before = Before()
        try:
            model.fit(x, x[:, :1], batch_size=8, verbose=0, shuffle=False, callbacks=[before, ferry.LargeModel(budget=budget)])
        except ferry.BudgetTooSmall as error:
            assert str(error).startswith("one step needs at least"), error
            assert "\\n" not in str(error)
            assert error.smallest_nbytes > budget
            assert before.seen == look()
            return "refused"
        return "trained"

    fit("sgd", "1GiB")
    mib = 2**20
    # the weights are 16 MiB, so are the gradients; Adam has 32 MiB of state and takes up to 48 more while it runs
    print(fit("adam", 84 * mib), fit("sgd", 84 * mib), fit("adam", 160 * mib), fit("sgd", 4096))
"""

FUNCTIONAL = """
    import weakref
    import keras, numpy as np, torch
    import tensorferry as ferry

    class Makes(keras.layers.Layer):
        def call(self, x):
            made = x * 2.0
            self.made = weakref.ref(made)
            return made

    class Looks(keras.layers.Layer):
        def call(self, x, makes):
            self.seen = makes.made() is not None
            return x + 1.0

    def build():
        keras.utils.set_random_seed(0)
        inputs, makes, early, late = keras.Input((64,)), Makes(), Looks(), Looks()
        wide = keras.layers.Dense(256, activation="gelu")(makes(inputs))
        skipped = early(wide, makes=makes)
        inner = keras.Model(skipped, keras.layers.Dense(256, activation="gelu")(skipped))
        twice = keras.layers.Add()([inner(skipped), skipped, skipped])
        last = keras.layers.Dense(3)(late(twice, makes=makes))
        return keras.Model(inputs, {"last": last, "mean": keras.ops.mean(skipped, axis=1)}), early, late

    x = np.random.default_rng(1).random((512, 64), "float32")

    def fit(callbacks):
        model, *_ = build()
        model.compile(keras.optimizers.Adam(0.01), {"last": "mse", "mean": "mse"})
        model.fit(x, {"last": x[:, :3], "mean": x[:, 0]}, batch_size=128, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
        return [v.numpy().tobytes() for v in model.weights]

    class CountsGradients(keras.callbacks.Callback):
        def __init__(self):
            self.counts = []

        def on_train_begin(self, logs=None):
            def count(module, args):
                self.counts.append(sum(parameter.grad is not None for parameter in module.parameters()))
            self.hook = self.model.register_forward_pre_hook(count)

        def on_train_end(self, logs=None):
            self.hook.remove()

    model, early, late = build()
    told = []
    with torch.no_grad():
        with ferry.large_model(model, budget="1GiB"):
            inside = model(x[:2])
            told += [early.seen, late.seen]
        outside = model(x[:2])
        told += [early.seen, late.seen]
    assert all(torch.equal(inside[name], outside[name]) for name in ("last", "mean"))

    class Refuses(keras.layers.Layer):
        def call(self, x):
            raise ferry.BudgetTooSmall("too small in a layer", None)

    refuses = keras.Sequential([Refuses()])
    try:
        with ferry.large_model(refuses, budget="1GiB"):
            refuses(x)
    except ferry.BudgetTooSmall as error:
        told.append(str(error))
    inside, outside = CountsGradients(), CountsGradients()
    print(*told, fit([inside, ferry.LargeModel(budget="1GiB", min_nbytes=4096)]) == fit([outside]))
    print(*inside.counts, "|", *outside.counts)
"""

NOTED = """
    class LosesState(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            states = big._training._large._states
            def find_no_room():
                raise torch.OutOfMemoryError("no room")
            states.make_all_resident, states.move_to_host = find_no_room, lambda: 3

    big = ferry.LargeModel(budget="1GiB")
    try:
        train([big, LosesState()])
    except torch.OutOfMemoryError as error:
        print(*error.__notes__)
"""


@pytest.fixture(scope="module")
def told() -> list[str]:
    """A line of each program; one process runs all, since loading the frameworks takes longer than any."""
    done = subprocess.run(
        [sys.executable, "-c", "".join(map(textwrap.dedent, (TORCH, REFUSED, FUNCTIONAL, NOTED)))],
        env=os.environ | {"KERAS_BACKEND": "torch", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_on_the_torch_back_end_the_callback_drives_the_torch_engine(told: list[str]) -> None:
    assert told[0] == "equal True"


def test_what_only_the_tensorflow_back_end_can_do_is_refused(told: list[str]) -> None:
    assert told[1].startswith("fetch_ahead and leave work on Keras' TensorFlow back end")


def test_on_the_torch_back_end_a_budget_too_small_is_refused_before_the_first_step_in_our_words_and_not_in_keras(
    told: list[str],
) -> None:
    assert told[2] == "refused trained trained refused"


def test_a_functional_model_lets_go_of_an_output_after_its_last_reader_and_only_inside(told: list[str]) -> None:
    assert told[3].startswith("False False True True ")
    assert told[3].endswith(" True")


def test_a_step_of_keras_own_has_no_gradients_of_the_step_before_in_its_forward_pass_and_only_inside(told: list[str]) -> None:
    inside, outside = told[4].split(" | ")
    assert set(inside.split()) == {"0"}
    assert set(outside.split()) == {"0", "6"}


def test_an_error_of_ours_leaves_the_context_as_it_was_raised_and_not_as_keras_words_it(told: list[str]) -> None:
    assert " too small in a layer " in told[3]


def test_what_there_is_to_say_of_the_end_of_a_failed_training_is_on_the_error_that_ended_it(told: list[str]) -> None:
    assert told[5].startswith("3 tensors of the optimizer's state found no room on the device")
