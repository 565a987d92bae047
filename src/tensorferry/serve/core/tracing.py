"""The trace context that a client sends (W3C `traceparent`): kept for the log, passed on in the answer."""

import re
import secrets
from dataclasses import dataclass

_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
HEADER = "traceparent"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One hop of a distributed trace: this server's part."""

    trace_id: str
    parent_id: str
    span_id: str
    flags: str

    @property
    def header(self) -> str:
        """The `traceparent` that names this server as the parent of what follows."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def read_trace(text: str) -> TraceContext | None:
    """The trace that a `traceparent` continues; None where it is not one, as the standard asks.

    >>> read_trace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").trace_id
    '4bf92f3577b34da6a3ce929d0e0e4736'
    """
    match = _PARENT.fullmatch(text)
    if match is None or text.startswith("ff") or set(match[1]) == {"0"} or set(match[2]) == {"0"}:
        return None
    return TraceContext(match[1], match[2], secrets.token_hex(8), match[3])
