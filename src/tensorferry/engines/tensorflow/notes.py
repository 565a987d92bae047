"""What a user should know about a graph, for the report."""

from collections import Counter
from typing import Any

from tensorferry.engines.tensorflow.graph import tensor_nbytes
from tensorferry.engines.tensorflow.loops import called_graphs
from tensorferry.engines.tensorflow.record import Recording
from tensorferry.units import format_bytes


def notes_on(recording: Recording) -> tuple[str, ...]:
    """What of this graph is left alone, and how much that is."""
    notes = []
    nested = recording.layout.nested
    if nested:
        counts = ", ".join(f"{count} {kind}" for kind, count in Counter(op.type for op in nested).most_common())
        nbytes = sum(_nested_nbytes(op) for op in nested)
        notes.append(
            f"loops and nested functions are left alone ({counts}): {format_bytes(nbytes)} of tensors inside them, counted once "
            "for each, are not planned"
        )
    if recording.unknown:
        names = ", ".join(op.name for op in recording.unknown[:3])
        notes.append(f"{len(recording.unknown)} ops make tensors of unknown size and are left alone, such as {names}")
    return tuple(notes)


def _nested_nbytes(op: Any) -> int:
    """The bytes that the graphs an op calls make, once each."""
    inner = (inner_op for graph in called_graphs(op).values() for inner_op in graph.get_operations())
    return sum(tensor_nbytes(t) for inner_op in inner for t in inner_op.outputs)
