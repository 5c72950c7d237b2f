"""The demo's pipeline: tables of the captures, kept up to date by Spark while the transfers run, then compared with the
report that was made without Spark.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from umstack.demo.capture import capture_directory
from umstack.demo.errors import DemoFailed
from umstack_xdp.closing import Closing

QUERIES = {
    "losses": (
        "SELECT receiver, COUNT(*) AS lost, COUNT(repaired_ns) AS repaired, SUM(naks) AS naks FROM losses "
        "GROUP BY receiver ORDER BY lost DESC, receiver"
    ),
    "sessions": (
        "SELECT session_id, SUM(datagrams) AS datagrams, SUM(retransmissions) AS retransmissions FROM sessions "
        "GROUP BY session_id ORDER BY session_id"
    ),
    "recoveries": (
        "SELECT receiver, recovery, SUM(fragments) AS fragments FROM recoveries "
        "GROUP BY receiver, recovery ORDER BY receiver, recovery"
    ),
}
"""Questions to the tables, in the SQL that Spark and Polars have in common."""
_END_SECONDS = 20.0
_FINISH_SECONDS = 180.0
_WAIT_SECONDS = 0.2
_LINES_SHOWN = 5
_FLOAT_TOLERANCE = 1e-12
_WITHOUT = "use --without-spark"


def tables_directory(report: Path) -> Path:
    """Return the directory of the tables below the report."""
    return report / "tables"


def why_no_tables() -> str | None:
    """Return what the pipeline needs and this machine has not; None if it can run."""
    if find_spec("pyspark") is None:
        return "pip install 'umstack[spark]'"
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return "there is no java: apt-get install openjdk-17-jre-headless"
    return None


@dataclass(frozen=True, slots=True)
class TablesResult:
    """The tables at the end of the demo."""

    folder: str
    batches: int
    packets: int
    answers: dict[str, list[dict[str, Any]]]
    """Rows that Spark SQL returned, by the name of the query."""
    differences: list[str]
    """Tables, queries and page that differ from the report's."""

    @property
    def ok(self) -> bool:
        """True if nothing differs."""
        return not self.differences


class LiveTables(Closing):
    """A process that fills the tables of a report's captures. Closing ends it."""

    def __init__(self, report: Path) -> None:
        """Start the process; earlier tables are deleted, because they are of other captures."""
        self._report = report.resolve()
        self._tables = tables_directory(self._report)
        shutil.rmtree(self._tables, ignore_errors=True)
        self._report.mkdir(parents=True, exist_ok=True)
        self._log = self._report / "spark.log"
        command = [sys.executable, "-m", "umstack.demo.table_worker"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, str(capture_directory(self._report)), str(self._tables)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._messages: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="umstack-tables", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._messages.put(json.loads(line))

    def news(self, wait_seconds: float = 0.0) -> dict[str, Any] | None:
        """Return the next message: a batch with its new findings, or the answers at the end. None if there is none."""
        try:
            return self._messages.get(wait_seconds > 0, wait_seconds)
        except Empty:
            return None

    def finish(self) -> None:
        """Request the rest: all captures in the tables, and the answers. Returns at once."""
        assert self._process.stdin is not None
        # The reader of its output notices the end of a process that has failed.
        with suppress(BrokenPipeError):
            self._process.stdin.write("finish\n")
            self._process.stdin.flush()

    def result(self, expected_loss: float, on_news: Callable[[dict[str, Any]], None]) -> TablesResult:
        """Wait for the answers, and compare them and the tables with the finished report. DemoFailed without answers.

        Args:
            expected_loss: The loss that the network was set to, as the report knows it.
            on_news: Called with each batch before.
        """
        deadline = time.monotonic() + _FINISH_SECONDS
        while (message := self.news(_WAIT_SECONDS)) is None or "answers" not in message:
            if message is not None:
                on_news(message)
            elif not self._reader.is_alive() and self._messages.empty():
                raise DemoFailed(f"the pipeline on Spark failed: {self._last_words()}", hint=_WITHOUT)
            elif time.monotonic() > deadline:
                raise DemoFailed(f"the pipeline on Spark took over {_FINISH_SECONDS:.0f} s", hint=_WITHOUT)
        answers = message["answers"]
        found = differences(self._tables, self._report, answers, expected_loss)
        return TablesResult(str(self._tables), message["batches"], message["packets"], answers, found)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LINES_SHOWN:]) or "no message"

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()


def differences(
    tables: Path, report: Path, answers: dict[str, list[dict[str, Any]]], expected_loss: float
) -> list[str]:
    """Return the tables, queries and page that differ between a pipeline's folder and a report made without it.

    Args:
        tables: The pipeline's folder; the report on its tables is made here as `umstack report --tables` does.
        report: The report on the captures.
        answers: Rows of QUERIES by Spark SQL on the pipeline's tables.
        expected_loss: The loss that the network was set to, as the report knows it.
    """
    import polars as pl
    from polars.testing import assert_frame_equal

    from umstack.report import ReportOptions, make_report_of_tables
    from umstack.report.run import PAGE

    alone = {file.parent.name: pl.read_parquet(file) for file in report.glob("*/*.parquet")}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        back = make_report_of_tables(tables, folder, ReportOptions(expected_loss=expected_loss or None))
        if back.page.read_text() != (report / PAGE).read_text():
            found.append("page")
        for name, table in alone.items():
            try:
                # The last bits of floats depend on how many rows Polars computes at once.
                made = pl.read_parquet(Path(folder) / name)
                assert_frame_equal(made, table, rel_tol=_FLOAT_TOLERANCE, abs_tol=0)
            except AssertionError:
                found.append(f"table {name}")
    sql = pl.SQLContext(alone)
    for name, query in QUERIES.items():
        wanted = sql.execute(query, eager=True).to_dicts()
        if sorted(map(str, wanted)) != sorted(map(str, answers[name])):
            found.append(f"query {name}")
    return found
