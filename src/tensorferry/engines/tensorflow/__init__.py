"""The TensorFlow engine: trace a graph, carry out its plan."""

from tensorferry.engines.tensorflow.capture import capture
from tensorferry.engines.tensorflow.edit import same_rewrites
from tensorferry.engines.tensorflow.large_function import LargeFunction, large_function

__all__ = ["LargeFunction", "capture", "large_function", "same_rewrites"]
