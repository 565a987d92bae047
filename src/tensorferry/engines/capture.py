"""`capture` for every framework: the trace of one training step."""

from typing import TYPE_CHECKING, Any

from tensorferry.extras import missing_extra
from tensorferry.frameworks import is_keras_model

if TYPE_CHECKING:
    from tensorferry.trace import Trace


def capture(step_or_model: Any, *args: Any, **kwargs: Any) -> "Trace":
    """The trace of one training step.

    PyTorch: `capture(step_fn, model, optimizer, fake=False)` runs `step_fn` once, a whole training step of `model`; with
    `fake=True` nothing is executed or allocated. Keras: `capture(model, batch)` for a compiled model and what its data set
    yields; on the TensorFlow back end nothing is executed. Keywords: `machine` (whose times, where nothing runs), `min_nbytes`.

        trace = ferry.capture(lambda: train_step(x, y), model, optimizer)
        trace = ferry.capture(keras_model, (x, y))
    """
    try:
        if not is_keras_model(step_or_model):
            from tensorferry.engines.torch.capture import capture as capture_torch

            return capture_torch(step_or_model, *args, **kwargs)
        return _capture_keras(step_or_model, *args, **kwargs)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "tensorflow"):
            raise
        raise missing_extra("capture", error.name) from error


def _capture_keras(model: Any, batch: Any, **kwargs: Any) -> "Trace":
    import keras

    from tensorferry.errors import NotSupported

    match keras.backend.backend():
        case "tensorflow":
            from tensorferry.engines.tensorflow.capture import capture as capture_tensorflow

            return capture_tensorflow(model, batch, **kwargs)
        case "torch":
            from tensorferry.engines.torch.capture import capture as capture_torch

            return capture_torch(lambda: model.train_step(batch), model, **kwargs)
        case backend:
            raise NotSupported(f"Keras runs on {backend!r} here; capture works on its TensorFlow and torch back ends")
