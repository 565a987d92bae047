"""Small Keras models that between them do what a training step may do, and the steps that train them under any decisions."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from contract import Outcome
from keras import layers

from tensorferry.engines.tensorflow.allocator import DeviceMemory
from tensorferry.engines.tensorflow.edit import Edit, same_rewrites
from tensorferry.engines.tensorflow.planned import carry_out
from tensorferry.engines.tensorflow.record import Recording, record
from tensorferry.engines.tensorflow.swap import GraphCopies
from tensorferry.machine import Machine, TierSpeed
from tensorferry.plan import Action, Decision
from tensorferry.tiers import open_tier

SMALLEST_NBYTES = 4096  # so that even the tensors of these little models move
MACHINE = Machine("any", 2**30, (TierSpeed("disk", 1e9, 1e9),), {"fp32": 1e11}, 1e10)


@dataclass(frozen=True)
class Network:
    name: str
    build: Callable[[], keras.Model]
    batch: Callable[[], tuple[np.ndarray, np.ndarray]]
    loss: str = "sparse_categorical_crossentropy"
    optimizer: str | keras.optimizers.Optimizer = "adam"


def images() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.random((4, 16, 16, 3), "float32"), rng.integers(5, size=4)


def more_images() -> tuple[np.ndarray, np.ndarray]:
    """So many that a sum over them may be rounded in more than one way."""
    rng = np.random.default_rng(1)
    return rng.random((31, 16, 16, 3), "float32"), rng.integers(5, size=31)


def volumes() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.random((1, 16, 16, 16, 1), "float32")
    return x, (x > 0.5).astype("float32")


def tokens() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.integers(32, size=(4, 24)), rng.integers(5, size=4)


def residual(dropout: float = 0.0) -> keras.Model:
    """Convolutions with and without bias, batch norm, a sum and pooling."""
    inputs = keras.Input((16, 16, 3))
    stem = layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
    y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same", use_bias=False)(stem)))
    y = layers.Dropout(dropout, seed=3)(y)
    y = layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same")(y))
    y = layers.MaxPooling2D()(layers.ReLU()(layers.Add()([y, stem])))
    return keras.Model(inputs, layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling2D()(y)))


def inception() -> keras.Model:
    """Pooling whose outputs convolutions read, and so do their gradients; a pooling op's own gradient reads it too."""
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
    for _ in range(2):
        pooled = layers.MaxPooling2D(3, strides=1, padding="same")(x)
        branches = [layers.Conv2D(8, size, padding="same", activation="relu")(y) for size, y in ((3, x), (1, pooled))]
        x = layers.Concatenate()(branches)
    x = layers.Conv2D(16, 1, activation="relu")(layers.AveragePooling2D(2)(x))
    return keras.Model(inputs, layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling2D()(x)))


def squeezing() -> keras.Model:
    """Convolutions whose weights are large and whose outputs are small, and a sum of several, whose gradients are one tensor."""
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(inputs)
    for _ in range(2):
        squeezed = layers.Conv2D(2, 1, activation="swish")(layers.GlobalAveragePooling2D(keepdims=True)(x))
        x = layers.Multiply()([x, layers.Conv2D(32, 1, activation="sigmoid")(squeezed)])
        x = layers.ReLU()(layers.Add()([layers.Conv2D(32, size, padding="same")(x) for size in (1, 3, 5)]))
    return keras.Model(inputs, layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling2D()(x)))


def frozen() -> keras.Model:
    """Layers without gradients, which TensorFlow fuses as it does for inference, below others that are trained."""
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(16, 3, use_bias=False)(layers.ZeroPadding2D()(inputs))
    x = layers.Conv2D(16, 3)(layers.ZeroPadding2D()(layers.ReLU()(layers.BatchNormalization()(x))))
    x = layers.Multiply()([x, layers.Activation("sigmoid")(x)])
    x = layers.ReLU()(layers.Add()([x, layers.Conv2D(16, 3, activation="relu")(layers.ZeroPadding2D()(x))]))
    body = keras.Model(inputs, x)
    body.trainable = False
    x = layers.Conv2D(16, 3, activation="relu")(layers.ZeroPadding2D()(body(inputs)))
    x = layers.Conv2D(16, 3, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling2D()(x)))


def unet() -> keras.Model:
    """A skip connection over the whole forward pass, and a concatenation."""
    inputs = keras.Input((16, 16, 16, 1))
    skip = layers.ReLU()(layers.BatchNormalization()(layers.Conv3D(8, 3, padding="same", use_bias=False)(inputs)))
    deep = layers.Conv3D(16, 3, padding="same", activation="relu")(layers.MaxPooling3D()(skip))
    joined = layers.Concatenate()([skip, layers.Conv3DTranspose(8, 2, strides=2)(deep)])
    return keras.Model(inputs, layers.Conv3D(1, 1, activation="sigmoid")(layers.Conv3D(8, 3, padding="same")(joined)))


def transformer() -> keras.Model:
    """Embedding, attention, layer norm, GELU and dropout."""
    inputs = keras.Input((24,), dtype="int32")
    h = layers.Embedding(32, 32)(inputs)
    h = layers.Add()([h, layers.MultiHeadAttention(2, 16, dropout=0.1, seed=5)(h, h)])
    h = layers.LayerNormalization()(h)
    h = layers.Add()([h, layers.Dense(32)(layers.Dense(64, activation="gelu")(h))])
    return keras.Model(inputs, layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling1D()(h)))


def recurrent() -> keras.Model:
    """A loop inside the graph beside layers that can be planned."""
    return keras.Sequential(
        [
            keras.Input((24,), dtype="int32"),
            layers.Embedding(32, 32),
            layers.Dense(64, activation="relu"),
            layers.LSTM(16),
            layers.Dense(5, activation="softmax"),
        ]
    )


def under_bfloat16() -> keras.Model:
    with _policy("mixed_bfloat16"):
        return residual()


@contextmanager
def _policy(name: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


class Subclassed(keras.Model):
    """A model that says itself what a step is."""

    def __init__(self) -> None:
        super().__init__()
        self.body = residual()

    def call(self, x: Any, training: bool = False) -> Any:
        return self.body(x, training=training)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            both = self(x, training=True), self(tf.reverse(x, [0]), training=True)
            loss = self.compute_loss(y=y, y_pred=both[0]) + tf.reduce_mean(tf.square(both[1]))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True))
        return {"loss": loss}


NETWORKS = [
    Network("residual", residual, images),
    Network("dropout", lambda: residual(0.3), images),
    Network("inception", inception, images),
    Network("squeezing", squeezing, more_images),
    Network("frozen", frozen, images),
    Network("unet", unet, volumes, "binary_crossentropy"),
    Network("transformer", transformer, tokens),
    Network("recurrent", recurrent, tokens),
    Network("mixed_bfloat16", under_bfloat16, images),
    Network("subclassed, own train_step", Subclassed, images, optimizer="sgd"),
]


def compiled(network: Network) -> keras.Model:
    """A fresh model, the same every time."""
    keras.utils.set_random_seed(0)
    model = network.build()
    model.compile(network.optimizer, network.loss, jit_compile=False)
    if not model.built:
        model.build(network.batch()[0].shape)
    model.optimizer.build(model.trainable_variables)
    return model


def bits(model: keras.Model) -> list[bytes]:
    """Every weight and every piece of optimizer state, bit for bit."""
    return [np.asarray(v).tobytes() for v in (*model.weights, *model.optimizer.variables)]


def _on_device(name: str, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def step_there(data: Any) -> Any:
        with tf.device(name):
            return step(data)

    return step_there


class Bench:
    """One model's traced step, ready to run under any decisions."""

    def __init__(
        self, network: Network, leave: tuple[str, ...] = (), with_state: bool = False, device: str | None = None
    ) -> None:
        """`device`: where its ops run; None leaves that to TensorFlow."""
        self.model = compiled(network)
        self.data = tuple(tf.constant(part) for part in network.batch())
        self.variables = [*self.model.variables, *self.model.optimizer.variables]
        self.start = [np.asarray(v) for v in self.variables]
        step = self.model.train_step if device is None else _on_device(device, self.model.train_step)
        self.concrete = tf.function(step).get_concrete_function(self.data)
        self.recording: Recording = record(
            self.concrete.graph, min_nbytes=SMALLEST_NBYTES, machine=MACHINE, leave=leave, with_state=with_state
        )
        self.tier = open_tier("auto")
        self.copies = GraphCopies(self.tier, DeviceMemory(0), 30.0)
        self.edit = Edit(self.concrete.graph)

    @cached_property
    def plain(self) -> Outcome:
        """What comes of the training without a plan."""
        return self.run_plain()

    def run_plain(self, num_steps: int = 3) -> Outcome:
        return self._run(lambda: self.concrete(self.data), num_steps)

    def run(
        self,
        decisions: Any,
        num_steps: int = 3,
        gated_nbytes: int = SMALLEST_NBYTES,
        watched: bool = False,
        room_nbytes: list[int] | None = None,
    ) -> Outcome:
        gates = carry_out(self.recording, decisions, self.edit, self.copies, gated_nbytes=gated_nbytes, room_nbytes=room_nbytes)
        function = self.edit.make_function(self.concrete.function_type)

        def step() -> Any:
            self.copies.begin_step(gates, 2**40, recording=watched)
            logs = function(self.data)
            self.log = self.copies.end_step()
            return logs

        try:
            return self._run(step, num_steps)
        finally:
            self.edit.undo()

    def _run(self, step: Callable[[], Any], num_steps: int) -> Outcome:
        for variable, value in zip(self.variables, self.start, strict=True):
            variable.assign(value)
        self.model.reset_metrics()
        with same_rewrites():
            losses = [float(step()["loss"]) for _ in range(num_steps)]
        return Outcome(losses, {str(place): value for place, value in enumerate(bits(self.model))})

    def decide(self, choose: Callable[[int], Decision]) -> list[Decision]:
        return [choose(s) for s in self.recording.trace.movable]

    def swap_all(self) -> list[Decision]:
        return self.decide(self.swap)

    def swap(self, s: int) -> Decision:
        storage = self.recording.trace.storages[s]
        return Decision(s, Action.SWAP, storage.nbytes, swap_in_at=storage.wanted_at)

    def keep(self, s: int) -> Decision:
        return Decision(s, Action.KEEP, self.recording.trace.storages[s].nbytes)

    def close(self) -> None:
        self.copies.close()
        self.tier.close()
