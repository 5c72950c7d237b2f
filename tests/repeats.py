"""Failures of a run that are repeated alone, after the rest.

Other work of the machine decides how long an event takes, and in which order threads and processes run. A failure that
comes once in many runs is a fault, of the product or of the test, but it need not be one of the change at hand. If a
run has few failures, and each is of a kind below, it ends with a status of its own and writes those tests to a file;
scripts/test runs them alone and names them at the end, because each is to be looked at.

- ran out of time: the test waited for a condition, a program or a call for as long as it allows. It must pass once.
- another failure in a tier of real time (threads, sockets, processes). It must pass three times in a row.

Final are: a failure in a tier whose course depends on its seed alone, because another seed would hide it; a failure of
a file or of a test's end; and more than a few failures.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

FILE = "UMSTACK_REPEATS"
"""The variable that names the file; unset: nothing is repeated."""
REPEATED_MAX = 6
"""More failing tests than this are a fault of the change."""
STATUS_LATE = 10
"""Of a run whose failures all ran out of time."""
STATUS_FAILED = 11
"""Of a run that had other failures, too."""
REAL_TIME = ("tests/unit/", "tests/spark/", "tests/netns/")
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


class Repeats:
    """Separates, in the process that reports, failures that are repeated from those that are final."""

    def __init__(self) -> None:
        """Start with no failure."""
        self.repeated: dict[str, bool] = {}
        """By test: true if it ran out of time."""
        self.has_failed = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that could not be collected."""
        self.has_failed |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        if not report.failed:
            return
        is_late = getattr(report, "ran_out_of_time", False)
        if report.when == "call" and (is_late or report.nodeid.startswith(REAL_TIME)):
            self.repeated[report.nodeid] = is_late
        else:
            self.has_failed = True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, if these tests are all that failed."""
        file = os.environ.get(FILE)
        is_alone = not self.has_failed and 0 < len(self.repeated) <= REPEATED_MAX
        if file and is_alone and session.exitstatus == pytest.ExitCode.TESTS_FAILED:
            Path(file).write_text("\n".join(self.repeated) + "\n")
            session.exitstatus = STATUS_LATE if all(self.repeated.values()) else STATUS_FAILED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> object:
    """Mark the report of a test that ran out of time, in the process that runs it."""
    report = yield
    if call.excinfo is not None:
        try:
            statement = str(call.excinfo.traceback[-1].statement)
        except SyntaxError:  # the file of a compiled module, such as pyarrow's, is no Python
            statement = ""
        report.ran_out_of_time = ran_out_of_time(call.excinfo.value, statement)
    return report
