"""What one training step did."""

from tensorferry.trace.synthetic import make_chain_trace
from tensorferry.trace.trace import Kind, Op, Phase, Storage, Trace

__all__ = ["Kind", "Op", "Phase", "Storage", "Trace", "make_chain_trace"]
