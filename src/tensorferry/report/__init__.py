"""What a step was planned to do and what it did: a table, a page, a trace file."""

from tensorferry.report.report import Report
from tensorferry.report.summary import Counters

__all__ = ["Counters", "Report"]
