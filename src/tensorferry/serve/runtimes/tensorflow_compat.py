"""Every private name of TensorFlow that the server uses, and what for; one that is missing is told before a model is loaded."""

import tensorflow as tf  # noqa: F401

from tensorferry.extras import private_names

with private_names("tensorflow"):
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel  # the file of a SavedModel, read without running it
    from tensorflow.python.framework.op_def_registry import get as find_op  # what an op takes, and whether it has state

__all__ = ["SavedModel", "find_op"]
