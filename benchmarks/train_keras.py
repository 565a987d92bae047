"""The Keras side of the memory benchmark, on the TensorFlow back end: build, train, hash.

Every run has op determinism on and the graph rewrites that ferry runs with (`same_rewrites`): some of TensorFlow's own sum in
another order when a graph has other edges, and then a plain run could not be compared bit for bit.
"""

import hashlib
from collections.abc import Iterable
from functools import partial
from typing import Any
from unittest.mock import patch

import keras
import tensorflow as tf

import tensorferry as ferry
from tensorferry.engines.tensorflow.allocator import DeviceMemory, Peaks
from tensorferry.recipes.models.keras import googlenet, resnet, unet3d
from tensorferry.recipes.models.keras.fit import Batch, compile_model
from trainings import NUM_THREADS, SEED, Case, Request, StepClock, Trained

_DEVICE = "CPU:0"


def warm_up() -> None:
    """Start TensorFlow's threads and load everything that any mode loads, so that none of it counts as a mode's own."""
    tf.config.threading.set_intra_op_parallelism_threads(NUM_THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(NUM_THREADS)
    keras.utils.set_random_seed(SEED)
    tf.config.experimental.enable_op_determinism()
    _ = ferry.LargeModel  # loads the engine
    _fit(compile_model(unet3d.unet3d(base=2)), unet3d.make_batch(8), num_steps=2, callbacks=[])
    keras.backend.clear_session()


def train(request: Request, clock: StepClock) -> Trained:
    """Train as asked."""
    model, batch = build(request.case)
    callbacks: list[Any] = [_Watch(clock)]
    if request.mode == "ferry":
        callbacks.insert(0, ferry.LargeModel(budget=request.budget_nbytes or "auto", tier=request.tier))
    with ferry.tensorflow.same_rewrites(), _AllocatorPeak() as peak:
        try:
            _fit(model, batch, request.num_steps, callbacks)
        except tf.errors.ResourceExhaustedError as error:
            raise MemoryError(str(error)) from error
    report = callbacks[0].report() if request.mode == "ferry" else None
    return Trained(partial(digest, model), report, peak.nbytes)


def build(case: Case) -> tuple[keras.Model, Batch]:
    """The compiled model and its batch, the same ones every time."""
    keras.utils.set_random_seed(SEED)
    keras.config.set_dtype_policy("mixed_bfloat16" if case.precision == "bf16" else "float32")
    edge = 64 if case.quick else 224
    match case.family:
        case "unet":
            return compile_model(unet3d.unet3d()), unet3d.make_batch(case.size, seed=SEED)
        case "resnet50" | "resnet152":
            make_model = {"resnet50": resnet.resnet50, "resnet152": resnet.resnet152}[case.family]
            return compile_model(make_model()), resnet.make_batch(case.size, edge, seed=SEED)
        case "googlenet":
            return compile_model(googlenet.googlenet(edge=edge)), googlenet.make_batch(case.size, edge, seed=SEED)
        case _:
            raise ValueError(f"there is no {case.family!r} for Keras")


def _fit(model: keras.Model, batch: Batch, num_steps: int, callbacks: list[Any]) -> None:
    """An epoch a step, since Keras tells the mean loss of an epoch."""
    model.fit(tf.data.Dataset.from_tensors(batch), epochs=num_steps, callbacks=callbacks, verbose=0, shuffle=False)


class _AllocatorPeak:
    """The highest peak of TensorFlow's allocator.

    Ferry resets the peak to measure single ops, and reads it before. What it resets without a look are blocks that it asks for
    only to find where there is room, and whose pages nobody touches.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        probe = DeviceMemory.probe

        def note_and_probe(device: DeviceMemory) -> Peaks:
            self._note()
            return probe(device)

        self._noting = patch.object(DeviceMemory, "probe", note_and_probe)

    def __enter__(self) -> "_AllocatorPeak":
        tf.config.experimental.reset_memory_stats(_DEVICE)
        self._noting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._note()
        self._noting.stop()

    def _note(self) -> None:
        self.nbytes = max(self.nbytes, tf.config.experimental.get_memory_info(_DEVICE)["peak"])


class _Watch(keras.callbacks.Callback):
    """Runs the clock around every step."""

    def __init__(self, clock: StepClock) -> None:
        super().__init__()
        self._clock = clock

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 (Keras' signature)
        self._clock.start()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._clock.stop(float(logs["loss"]))


def digest(model: keras.Model) -> dict[str, str]:
    """A hash over the bits of the parameters, of what else the layers keep, and of the optimizer's state."""
    return {
        "parameters": _hash_variables(model.trainable_variables),
        "buffers": _hash_variables(model.non_trainable_variables),
        "optimizer": _hash_variables(model.optimizer.variables),
    }


def _hash_variables(variables: Iterable[Any]) -> str:
    sha = hashlib.sha256()
    for place, variable in enumerate(variables):
        sha.update(f"{place} {variable.shape}".encode())
        sha.update(keras.ops.convert_to_numpy(variable).tobytes())
    return sha.hexdigest()
