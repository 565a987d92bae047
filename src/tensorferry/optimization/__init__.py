"""From a trained model to the fastest inference engine here: checked, measured, and saved where the server finds it."""

from tensorferry.extras import missing_extra

try:
    from tensorferry.optimization.engine import Engine, optimize
except ModuleNotFoundError as error:
    raise missing_extra("optimize", error.name, "optimize") from error

__all__ = ["Engine", "optimize"]
