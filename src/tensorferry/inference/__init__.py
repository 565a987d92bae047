"""From a trained model to the fastest engine that this hardware runs: checked, measured, and saved where the server finds it."""

from tensorferry.extras import missing_extra

try:
    from tensorferry.inference.engine import Engine
    from tensorferry.inference.start import optimize
except ModuleNotFoundError as error:
    raise missing_extra("optimize", error.name, "optimize") from error

__all__ = ["Engine", "optimize"]
