"""Traces as OpenTelemetry spans, sent to a collector by OTLP: a request, its wait in the queue, its batch, the model's run.

Spans are made when a request is answered, from what was noted on its way, and wait in a queue of the SDK that drops what is too
much. Sampling, the service's name and headers for the collector are read from OpenTelemetry's own variables (`OTEL_...`).
"""

import logging
import random
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context
from opentelemetry.trace.status import Status, StatusCode

from tensorferry import __version__
from tensorferry.errors import BadOption, FerryError
from tensorferry.serve.core.logs import LOGGER
from tensorferry.serve.core.tracing import BatchRecord, RequestTrace, TraceContext

_PATH = "/v1/traces"
_SCOPE = InstrumentationScope("tensorferry", __version__)
_SEND_SECONDS = 5
_FLUSH_SECONDS = 2.0  # to send what waits, at the end
_SAMPLED = "01"


class OtlpTraces:
    """Sends the traces of requests to a collector."""

    def __init__(self, endpoint: str) -> None:
        self.resource = Resource.create()
        if str(self.resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):  # the SDK's word for no name
            self.resource = self.resource.merge(Resource({SERVICE_NAME: "tensorferry"}))
        exporter = OTLPSpanExporter(endpoint=check_endpoint(endpoint), timeout=_SEND_SECONDS)
        self.processor = BatchSpanProcessor(exporter)
        self.sampler = TracerProvider(shutdown_on_exit=False).sampler
        logger = logging.getLogger("opentelemetry")
        logger.handlers = logging.getLogger(LOGGER).handlers  # what it says of a collector that is gone belongs in the same log
        logger.propagate = False

    def begin(self, context: TraceContext | None, model_name: str) -> RequestTrace | None:
        """The record of a request that continues a context, or begins a trace; None where it is not sampled."""
        parent = None
        if context is None:
            context = TraceContext(f"{random.getrandbits(128) or 1:032x}", "", secrets.token_hex(8), _SAMPLED)
        else:
            parent = set_span_in_context(NonRecordingSpan(_make_context(context, context.parent_id, int(context.flags, 16))))
        decision = self.sampler.should_sample(parent, int(context.trace_id, 16), "infer").decision
        return RequestTrace(context, model_name) if decision.is_sampled() else None

    def finish(self, trace: RequestTrace, fault: FerryError | None) -> None:
        """Send the record of a request that was answered."""
        ended = time.perf_counter_ns()
        to_wall = time.time_ns() - ended  # from the clock that durations are measured with, to the one of dates
        context = trace.context
        root = _make_context(context, context.span_id)
        parent = _make_context(context, context.parent_id) if context.parent_id else None
        status = Status(StatusCode.ERROR, str(fault)) if fault is not None else Status(StatusCode.OK)
        self._send(
            f"infer {trace.model_name}",
            root,
            parent,
            (trace.started + to_wall, ended + to_wall),
            {"ferry.model.name": trace.model_name},
            kind=SpanKind.SERVER,
            status=status,
        )
        for batch in list(trace.batches):
            self._send_batch(batch, root, to_wall)

    def close(self) -> None:
        """Send what waits; a collector that does not take it is not waited for."""
        flushing = threading.Thread(target=self.processor.shutdown, name="ferry-otlp", daemon=True)
        flushing.start()
        flushing.join(_FLUSH_SECONDS)

    def _send_batch(self, batch: BatchRecord, root: SpanContext, to_wall: int) -> None:
        times = batch.times
        names = {"ferry.model.name": batch.model}
        sizes = {"ferry.batch.requests": batch.num_requests, "ferry.batch.rows": batch.num_rows}
        around = _make_child(root)
        self._send("queue", _make_child(root), root, (batch.queued + to_wall, times.started + to_wall), names)
        self._send("batch", around, root, (times.started + to_wall, times.split + to_wall), names | sizes)
        self._send("model", _make_child(root), around, (times.merged + to_wall, times.inferred + to_wall), names)

    def _send(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        interval: tuple[int, int],
        attributes: Mapping[str, Any],
        kind: SpanKind = SpanKind.INTERNAL,
        status: Status | None = None,
    ) -> None:
        self.processor.on_end(
            ReadableSpan(
                name,
                context,
                parent,
                self.resource,
                attributes,
                kind=kind,
                status=status or Status(StatusCode.UNSET),
                start_time=interval[0],
                end_time=interval[1],
                instrumentation_scope=_SCOPE,
            )
        )


def check_endpoint(endpoint: str) -> str:
    """The address that spans are posted to; raises BadOption for what is none.

    >>> check_endpoint("http://collector:4318")
    'http://collector:4318/v1/traces'
    """
    try:
        parts = urlsplit(endpoint)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise BadOption(f"--otlp takes the address of a collector, such as http://localhost:4318, received {endpoint!r}")
    return endpoint if parts.path.strip("/") else endpoint.rstrip("/") + _PATH


def _make_context(context: TraceContext, span_id: str, flags: int = TraceFlags.SAMPLED) -> SpanContext:
    return SpanContext(int(context.trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(flags))


def _make_child(root: SpanContext) -> SpanContext:
    span_id = random.getrandbits(64) or 1
    return SpanContext(root.trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
