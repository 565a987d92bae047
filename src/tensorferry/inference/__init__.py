"""From a trained model to the fastest engine that this hardware runs: checked, measured, and saved where the server finds it."""

from tensorferry.inference.engine import Engine
from tensorferry.inference.start import optimize

__all__ = ["Engine", "optimize"]
