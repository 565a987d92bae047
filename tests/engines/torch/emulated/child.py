"""A pytest session that runs the tests whose names it reads, and writes what came of them; see `conftest.py`."""

import json
import os
import sys
from typing import Any, TextIO

import pytest
from _pytest.reports import TestReport


class OnDemand:
    """Runs tests by name; the first of a test's reports that is not good is what came of it."""

    def __init__(self, names: TextIO, outcomes: TextIO) -> None:
        self._names = names
        self._outcomes = outcomes
        self._reports: list[TestReport] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        for name in self._names:
            self._reports.clear()
            item = items[name.rstrip("\n")]
            item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
            report = next((report for report in self._reports if report.outcome != "passed"), self._reports[0])
            print(json.dumps((report.outcome, _text_of(report))), file=self._outcomes, flush=True)
        return True

    def pytest_runtest_logreport(self, report: TestReport) -> None:
        self._reports.append(report)


def _text_of(report: TestReport) -> str:
    reason: Any = report.longrepr
    return str(reason[2]) if isinstance(reason, tuple) else report.longreprtext


if __name__ == "__main__":
    # pytest takes the standard streams for itself
    names, outcomes = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(pytest.main([sys.argv[1], "-q", "-p", "no:cacheprovider"], plugins=[OnDemand(names, outcomes)]))
