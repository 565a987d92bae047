"""Budgets that hold, measured from outside the engine in fresh processes."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import json, os, sys, warnings
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers
    import tensorferry as ferry
    from tensorferry.engines.resident import ResidentMeter

    tf.config.experimental.enable_op_determinism()

    def build(edge, base):
        def block(x, filters):
            for _ in range(2):
                x = layers.Conv3D(filters, 3, padding="same", use_bias=False)(x)
                x = layers.ReLU()(layers.BatchNormalization()(x))
            return x

        inputs = keras.Input((edge, edge, edge, 1))
        skip = block(inputs, base)
        middle = block(layers.MaxPooling3D()(skip), 2 * base)
        x = block(layers.Concatenate()([skip, layers.Conv3DTranspose(base, 2, strides=2)(middle)]), base)
        model = keras.Model(inputs, layers.Conv3D(1, 1, activation="sigmoid")(x))
        model.compile("adam", "binary_crossentropy", jit_compile=False)
        return model

    def data(edge):
        x = np.random.default_rng(0).random((1, edge, edge, edge, 1), "float32")
        return tf.data.Dataset.from_tensors((x, (x > 0.5).astype("float32")))

    warnings.simplefilter("ignore")
    build(16, 2).fit(data(16), verbose=0)
    _ = ferry.LargeModel
    meter = ResidentMeter()
    meter.reset_peak()
    before = meter.now_nbytes()
    keras.utils.set_random_seed(0)
    model, budget = build(64, 16), int(sys.argv[1])
    big = ferry.LargeModel(budget=budget)
    with ferry.tensorflow.same_rewrites():
        history = model.fit(data(64).repeat(5), verbose=0, callbacks=[big] if budget else [])
    peak = meter.peak_nbytes() - before
    report = big.report() if budget else None
    weights = b"".join(np.asarray(v).tobytes() for v in model.weights)
    import hashlib
    print(json.dumps({"loss": history.history["loss"], "weights": hashlib.sha256(weights).hexdigest(), "peak": peak,
                      "moved": report.moved.swapped_nbytes + report.moved.recomputed_nbytes if report else 0}))
    sys.stdout.flush()
    os._exit(0)
"""


def _run(program: str, budget_nbytes: int, onednn: str = "1") -> dict:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(budget_nbytes)],
        env=os.environ | {"TF_ENABLE_ONEDNN_OPTS": onednn},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("onednn", "share"), [("1", 0.8), ("0", 0.75)], ids=["oneDNN's allocator", "malloc"])
def test_the_measured_peak_stays_within_a_tight_budget_with_the_same_bits(onednn: str, share: float) -> None:
    plain = _run(PROGRAM, 0, onednn)
    tight = _run(PROGRAM, int(share * plain["peak"]), onednn)
    # freed blocks stay with malloc in a plain run: returning them may be all that it takes
    assert tight["moved"] > 0 or onednn == "0"
    assert tight["peak"] <= share * plain["peak"]
    assert tight["loss"] == plain["loss"]
    assert tight["weights"] == plain["weights"]


ADVERSARIES = """
    import json, os, sys, warnings
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers
    import tensorferry as ferry
    from tensorferry.engines.resident import ResidentMeter

    class Adversaries(keras.Model):
        def __init__(self):
            super().__init__()
            self.judge = keras.Sequential([
                keras.Input((64, 64, 3)), layers.Conv2D(32, 4, 2, padding="same"), layers.LeakyReLU(),
                layers.Conv2D(64, 4, 2, padding="same"), layers.LeakyReLU(), layers.Flatten(), layers.Dense(1),
            ])
            self.maker = keras.Sequential([
                keras.Input((64,)), layers.Dense(16 * 16 * 64), layers.Reshape((16, 16, 64)),
                layers.Conv2DTranspose(64, 4, 2, padding="same"), layers.BatchNormalization(), layers.LeakyReLU(),
                layers.Conv2DTranspose(32, 4, 2, padding="same"), layers.LeakyReLU(),
                layers.Conv2D(3, 5, padding="same", activation="tanh"),
            ])
            self.makers_optimizer = keras.optimizers.Adam(1e-4)
            self.makers_optimizer.build(self.maker.trainable_variables)

        def train_step(self, images):
            noise = tf.random.stateless_normal((32, 64), (1, 2))
            with tf.GradientTape() as tape:
                doubts = self.judge(self.maker(noise, training=True), training=True)
                loss = tf.reduce_mean(tf.nn.softplus(-self.judge(images, training=True)) + tf.nn.softplus(doubts))
            weights = self.judge.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            with tf.GradientTape() as tape:
                fooled = tf.reduce_mean(tf.nn.softplus(-self.judge(self.maker(noise, training=True), training=True)))
            weights = self.maker.trainable_variables
            self.makers_optimizer.apply_gradients(zip(tape.gradient(fooled, weights), weights))
            return {"loss": loss, "fooled": fooled}

    warnings.simplefilter("ignore")
    data = tf.data.Dataset.from_tensors(np.random.default_rng(0).random((32, 64, 64, 3), "float32"))

    meter = ResidentMeter()
    meter.reset_peak()
    before, named = meter.now_nbytes(), 0
    keras.utils.set_random_seed(0)
    model = Adversaries()
    model.compile(keras.optimizers.Adam(1e-4), jit_compile=False)
    model.optimizer.build(model.judge.trainable_variables)
    try:
        model.fit(data.repeat(4), verbose=0, callbacks=[ferry.LargeModel(budget=int(sys.argv[1]))])
    except ferry.BudgetTooSmall as error:
        named = error.smallest_nbytes
    print(json.dumps({"named": named, "peak": meter.peak_nbytes() - before}))
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.mark.slow
def test_a_training_with_two_optimizers_runs_in_the_budget_that_was_named() -> None:
    budget_nbytes = _run(ADVERSARIES, 2**20)["named"]
    seen = _run(ADVERSARIES, budget_nbytes)
    assert seen["named"] == 0
    assert seen["peak"] <= budget_nbytes


GROUPED = """
    import json, os, sys, warnings
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers
    import tensorferry as ferry
    from tensorferry.engines.resident import ResidentMeter

    def fit(budget):
        return model.fit(data.repeat(3), verbose=0, callbacks=[ferry.LargeModel(budget=budget)])

    warnings.simplefilter("ignore")
    keras.utils.set_random_seed(0)
    meter = ResidentMeter()
    before = meter.now_nbytes()
    model = keras.Sequential([
        keras.Input((32, 32, 64)), layers.Conv2D(64, 5, padding="same", groups=64, activation="relu"),
        layers.Conv2D(64, 5, padding="same", groups=64), layers.GlobalAveragePooling2D(), layers.Dense(1),
    ])
    model.compile("sgd", "mse", jit_compile=False)
    data = tf.data.Dataset.from_tensors((np.random.default_rng(0).random((16, 32, 32, 64), "float32"), np.zeros((16, 1))))
    try:
        fit(int(sys.argv[1]))
    except ferry.BudgetTooSmall as error:
        named = error.smallest_nbytes
    meter.reset_peak()
    fit(named)
    print(json.dumps({"named": named, "peak": meter.peak_nbytes() - before}))
    sys.stdout.flush()
    os._exit(0)
"""


def test_functions_that_xla_compiles_inside_of_a_step_are_in_the_budget_that_is_named() -> None:
    seen = _run(GROUPED, 2**20)
    assert seen["peak"] <= seen["named"]


HOARDER = """
    import json, os, sys, warnings
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers
    import tensorferry as ferry

    hoard, num_read = [], []

    class Hoarder(layers.Layer):
        def call(self, x):
            def hold(values):
                hoard.append(np.ones(int(sys.argv[1]), "uint8"))  # nothing of the graph tells of it
                return values

            def backward(gradient):
                def read(values):
                    num_read.append(1)
                    return values

                return tf.ensure_shape(tf.numpy_function(read, [gradient], tf.float32), x.shape)

            def held(x):
                return tf.ensure_shape(tf.numpy_function(hold, [x], tf.float32), x.shape), backward

            return tf.custom_gradient(held)(x)

    warnings.simplefilter("ignore")
    keras.utils.set_random_seed(0)
    convolutions = [layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(8)]
    model = keras.Sequential([keras.Input((96, 96, 16), 8), *convolutions[:2], Hoarder(), *convolutions[2:]])
    model.compile("sgd", "mse", jit_compile=False)
    x = np.random.default_rng(0).random((8, 96, 96, 16), "float32")
    told, budget = [], 2**20
    for _ in range(2):
        try:
            model.fit(tf.data.Dataset.from_tensors((x, x)), verbose=0, callbacks=[ferry.LargeModel(budget=budget)])
        except ferry.BudgetTooSmall as error:
            budget = error.smallest_nbytes
            told.append(str(error))
    print(json.dumps({"told": told[-1], "num_held": len(hoard), "num_read": len(num_read)}))
    sys.stdout.flush()
    os._exit(0)
"""


def test_a_first_step_that_grows_above_its_budget_is_stopped_in_its_forward_pass() -> None:
    seen = _run(HOARDER, 2**30)
    assert "the first step was stopped at" in seen["told"]
    assert (seen["num_held"], seen["num_read"]) == (1, 0)
