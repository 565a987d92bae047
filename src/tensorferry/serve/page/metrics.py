"""Prometheus metrics, read from the models' own counts when they are scraped: a request pays nothing for them.

Names that begin with `nv_` are Triton's, so dashboards made for it work; those with `ferry_` are what it does not have.
"""

import os
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tensorferry.serve.core.model import Model
from tensorferry.serve.core.repository import Repository
from tensorferry.serve.core.stats import Histogram, Stats

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_LABELS = ("model", "version")
_COUNTERS: tuple[tuple[str, str, Callable[[Stats], float]], ...] = (
    ("nv_inference_request_success", "Requests that were answered", lambda stats: stats.success.count),
    ("nv_inference_count", "Inferences (a batch of n counts n)", lambda stats: stats.inference_count),
    ("nv_inference_exec_count", "Batches that were executed", lambda stats: stats.execution_count),
    (
        "nv_inference_request_duration_us",
        "Time of all requests, from arrival to answer, in microseconds",
        lambda stats: (stats.success.nanoseconds + stats.fail.nanoseconds) // 1000,
    ),
    ("nv_inference_queue_duration_us", "Time in the queue, in microseconds", lambda stats: stats.queue.nanoseconds // 1000),
    (
        "nv_inference_compute_input_duration_us",
        "Time to make batches, in microseconds",
        lambda stats: stats.compute_input.nanoseconds // 1000,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Time in the model, in microseconds",
        lambda stats: stats.compute_infer.nanoseconds // 1000,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Time to take batches apart, in microseconds",
        lambda stats: stats.compute_output.nanoseconds // 1000,
    ),
    ("nv_cache_num_hits_per_model", "Answers out of the response cache", lambda stats: stats.cache_hit.count),
    ("nv_cache_num_misses_per_model", "Looks into the response cache in vain", lambda stats: stats.cache_miss.count),
    (
        "nv_cache_hit_duration_per_model",
        "Time of answers out of the response cache, in microseconds",
        lambda stats: stats.cache_hit.nanoseconds // 1000,
    ),
)


class ModelCollector:
    """Reads the counts of everything that serves."""

    def __init__(self, repository: Repository, count_under_way: Callable[[], int]) -> None:
        self.repository = repository
        self.count_under_way = count_under_way

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        models = self.repository.models()
        for name, text, read in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=_LABELS)
            for model in models:
                counter.add_metric(_labels(model), read(model.stats))
            yield counter
        failures = CounterMetricFamily("nv_inference_request_failure", "Requests that got an error", labels=(*_LABELS, "reason"))
        pending = GaugeMetricFamily("nv_inference_pending_request_count", "Requests that wait for an instance", labels=_LABELS)
        latency = HistogramMetricFamily(
            "ferry_request_duration_seconds", "Time of requests that were answered, from arrival to answer", labels=_LABELS
        )
        batches = HistogramMetricFamily("ferry_batch_size", "Rows of the batches that were executed", labels=_LABELS)
        for model in models:
            for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
                failures.add_metric((*_labels(model), reason), model.stats.failures.get(reason, 0))
            pending.add_metric(_labels(model), model.num_waiting)
            _add(latency, model, model.stats.latency)
            _add(batches, model, model.stats.batch_sizes)
        yield from (failures, pending, latency, batches)
        yield GaugeMetricFamily("ferry_requests_under_way", "Inferences that have begun and not ended", self.count_under_way())
        yield from _process()


def make_registry(repository: Repository, count_under_way: Callable[[], int]) -> CollectorRegistry:
    """A registry of this server's metrics alone."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ModelCollector(repository, count_under_way))
    return registry


def write_metrics(registry: CollectorRegistry) -> bytes:
    """The text that Prometheus reads; counters keep their names, as Triton has them."""
    lines = generate_latest(registry).split(b"\n")
    # the library adds _total to counters, and Triton's names have none
    return b"\n".join(_strip_total(line) if line.startswith((b"nv_", b"# HELP nv_", b"# TYPE nv_")) else line for line in lines)


def _strip_total(line: bytes) -> bytes:
    return line.replace(b"_total{", b"{", 1).replace(b"_total ", b" ", 1)


def _labels(model: Model) -> tuple[str, str]:
    return model.name, str(model.version)


def _add(family: HistogramMetricFamily, model: Model, histogram: Histogram) -> None:
    with model.stats.lock:
        counts, total = list(histogram.counts), histogram.total
    buckets = []
    seen = 0
    for bound, count in zip((*(str(float(bound)) for bound in histogram.bounds), "+Inf"), counts, strict=True):
        seen += count
        buckets.append((bound, seen))
    family.add_metric(_labels(model), buckets, total)


def _process() -> Iterator[Metric]:
    page = os.sysconf("SC_PAGE_SIZE")
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * page
    times = os.times()
    yield CounterMetricFamily(
        "ferry_process_cpu_seconds", "CPU time of the server, without its workers", times.user + times.system
    )
    yield GaugeMetricFamily("ferry_process_resident_bytes", "Memory of the server, without its workers", resident)
    yield GaugeMetricFamily("nv_cpu_memory_total_bytes", "Memory of the machine", os.sysconf("SC_PHYS_PAGES") * page)
    available = os.sysconf("SC_AVPHYS_PAGES") * page
    yield GaugeMetricFamily(
        "nv_cpu_memory_used_bytes", "Memory of the machine that is taken", os.sysconf("SC_PHYS_PAGES") * page - available
    )
