"""The PyTorch engine: trace a step, carry out its plan."""

from tensorferry.engines.torch.capture import capture
from tensorferry.engines.torch.large_model import LargeTraining, large_model

__all__ = ["LargeTraining", "capture", "large_model"]
