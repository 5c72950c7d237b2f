"""Tests that ran out of time: a limit that passed beside other tests proves nothing about the product yet.

How long an event takes depends on what else the machine does, so a limit of time that was never exceeded on one machine
is exceeded on a slower one. A run in which nothing else failed ends with status 10 and writes those tests to a file;
scripts/test runs them once more, one by one. One that runs out of time again has failed. Any other failure, an error
outside a test, and more than a few such tests fail the run at once.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

FILE = "UMSTACK_TIME_LIMITS"
"""The variable that names the file; unset: nothing is repeated."""
REPEATED_MAX = 6
"""More tests than this that ran out of time are a fault of their own."""
STATUS = 10
"""Of a run whose only failures are in the file."""
_DEADLINE = re.compile(r"assert time\.monotonic\(\) < \w+")
_TIMEOUTS = ("TimeoutError", "TimeoutExpired")
"""Names, because libraries have classes of their own."""
_WHOLE_TEST = "Timeout (>"
"""How pytest-timeout begins."""


def ran_out_of_time(error: BaseException, statement: str) -> bool:
    """Return true if an error that a statement raised is the end of a wait."""
    if isinstance(error, AssertionError):
        return _DEADLINE.match(statement.strip()) is not None
    if isinstance(error, pytest.fail.Exception):
        return str(error).startswith(_WHOLE_TEST)
    return type(error).__name__ in _TIMEOUTS


class TimeLimits:
    """Separates, in the process that reports, tests that ran out of time from those that failed."""

    def __init__(self) -> None:
        """Start with no failure."""
        self.repeated: list[str] = []
        self.has_failed = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that could not be collected."""
        self.has_failed |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        if report.failed and report.when == "call" and getattr(report, "ran_out_of_time", False):
            self.repeated.append(report.nodeid)
        else:
            self.has_failed |= report.failed

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, if these tests are all that failed."""
        file = os.environ.get(FILE)
        is_alone = not self.has_failed and 0 < len(self.repeated) <= REPEATED_MAX
        if file and is_alone and session.exitstatus == pytest.ExitCode.TESTS_FAILED:
            Path(file).write_text("\n".join(self.repeated) + "\n")
            session.exitstatus = STATUS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> object:
    """Mark the report of a test that ran out of time, in the process that runs it."""
    report = yield
    if call.excinfo is not None:
        statement = str(call.excinfo.traceback[-1].statement)
        report.ran_out_of_time = ran_out_of_time(call.excinfo.value, statement)
    return report
