"""Models written in Python: `model.py` in a version's folder, run by worker processes. See docs/python-models.md."""

from tensorferry.serve.core.faults import InvalidRequest

__all__ = ["InvalidRequest"]
