"""Models written in Python: `model.py` in a version's folder, run by worker processes. See docs/python-models.md."""

from tensorferry.serve.faults import InvalidRequest

__all__ = ["InvalidRequest"]
