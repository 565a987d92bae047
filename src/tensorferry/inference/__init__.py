"""From a trained model to the fastest engine that this hardware runs: checked, measured, and saved where the server finds it."""

from tensorferry.errors import MissingExtra

try:
    from tensorferry.inference.engine import Engine
    from tensorferry.inference.start import optimize
except ModuleNotFoundError as error:
    raise MissingExtra(f'optimize needs {error.name}, which is not installed: pip install "tensorferry[optimize]"') from error

__all__ = ["Engine", "optimize"]
