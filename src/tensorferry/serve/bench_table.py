"""Measurements as lines of text."""

from tensorferry.serve.bench import Measurement
from tensorferry.units import format_seconds

HEADER = f"{'concurrency':>11}  {'requests/s':>10}  {'p50':>9}  {'p95':>9}  {'p99':>9}  {'errors':>6}  {'client CPU':>10}"


def format_row(result: Measurement) -> str:
    """One line."""
    share = result.client_cpu_seconds / result.seconds
    return (
        f"{result.concurrency:>11}  {result.throughput:>10.1f}  {format_seconds(result.p50_seconds):>9}  "
        f"{format_seconds(result.p95_seconds):>9}  {format_seconds(result.p99_seconds):>9}  "
        f"{result.num_errors:>6}  {share:>10.0%}"
    )
