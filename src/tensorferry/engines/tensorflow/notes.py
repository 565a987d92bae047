"""What a user should know about a graph, for the report."""

from collections import Counter

from tensorferry.engines.tensorflow.graph import tensor_nbytes
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


def _nested_nbytes(op: object) -> int:
    """The bytes that the graphs an op calls make, once each."""
    graph = op.graph  # type: ignore[attr-defined]
    total = 0
    for name in _called(op):
        function = graph._get_function(name)
        inner = getattr(function, "graph", None) or getattr(function, "cached_graph", None)
        if inner is not None:
            total += sum(tensor_nbytes(t) for inner_op in inner.get_operations() for t in inner_op.outputs)
    return total


def _called(op: object) -> list[str]:
    """The names of the functions that an op calls."""
    return [value.func.name for value in op.node_def.attr.values() if value.HasField("func")]  # type: ignore[attr-defined]
