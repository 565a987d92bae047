"""The PyTorch engine: trace a step, carry out its plan."""

from tensorferry.engines.torch.capture import capture
from tensorferry.engines.torch.large_model import LargeModel, large_model

__all__ = ["LargeModel", "capture", "large_model"]
