"""Making a report: tables, summary, findings, page, in this order; the page is written last and at once."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umstack.capture import CaptureError
from umstack.capture.reading.capture_files import capture_files, total_bytes
from umstack.capture.reading.remote import shown
from umstack.report.errors import ReportError
from umstack.report.findings import Finding, findings
from umstack.report.page import page
from umstack.report.summary import Summary

if TYPE_CHECKING:
    from umstack.analysis.tables import Tables

PAGE = "report.html"
STEPS = ("decode", "tables", "write", "page")
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""What `spark-submit` gives a program: the way to the virtual machine that started it."""
_LOOK_SECONDS = 0.5

Progress = Callable[[str, int, int], None]
"""Called with the step that begins, its number and how many there are.

Of the tasks inside a step: with the step, how many of its tasks are done, and how many there are.
"""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """How a report is made."""

    master: str | None = None
    mtu: int = 1500
    driver_memory: str | None = None
    """None: as much as is enough, whatever the captures hold."""
    spark_options: tuple[tuple[str, str], ...] = ()
    expected_loss: float | None = None
    """The share of datagrams that the network was set to lose on the way to each receiver, 0 to 1: no fault then."""
    table_format: str = "parquet"
    """Any other is written by Spark, which must have a data source of the name: delta, iceberg, orc."""
    engine: str | None = None
    """"alone" or "spark". None: Spark where a master, or anything else of it, is named, or where `spark-submit` started
    this program; alone otherwise."""

    @property
    def uses_spark(self) -> bool:
        """Whether Spark makes the tables."""
        if self.engine is not None:
            if self.engine not in ("alone", "spark"):
                raise ReportError(f"engine is {self.engine}", hint="use alone or spark")
            if self.engine == "alone" and self.needs_spark_to_write:
                raise ReportError(f"without Spark no table can be written as {self.table_format}")
            return self.engine == "spark"
        named = bool(self.master or self.driver_memory or self.spark_options or self.needs_spark_to_write)
        return named or _SUBMITTED in os.environ

    @property
    def needs_spark_to_write(self) -> bool:
        """Whether tables are of a format that only Spark writes."""
        return self.table_format != "parquet"


@dataclass(frozen=True, slots=True)
class Report:
    """What was made: the page, the tables beside it, and what they say."""

    page: Path
    captures: list[str]
    packets: int
    seconds: float
    findings: list[Finding]
    summary: Summary
    step_seconds: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The report for machines."""
        return {
            "page": str(self.page),
            "captures": self.captures,
            "packets": self.packets,
            "seconds": round(self.seconds, 3),
            "findings": [
                {"topic": one.topic, "severity": one.severity.name.lower(), "text": one.text}
                for one in self.findings
            ],
            "tables": self.summary.tables,
            "step_seconds": {name: round(taken, 3) for name, taken in self.step_seconds.items()},
        }


def _silent(_step: str, _number: int, _count: int) -> None:
    """Tell nobody."""


def make_report(
    captures: Sequence[str],
    out: str | os.PathLike[str],
    options: ReportOptions | None = None,
    progress: Progress = _silent,
    on_tasks: Progress = _silent,
) -> Report:
    """Analyse captures (files, folders, globs) and write the page and its tables into the folder `out`.

    `progress` is called for each step, `on_tasks` twice a second while a step is under way.
    On a cluster the captures and `out` must be on storage that its workers reach by the same path.
    """
    chosen = options or ReportOptions()
    began = time.monotonic()
    files = capture_files(captures)
    folder = Path(out).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The tables below a page are those it was made of: an older one goes when they are written anew.
        (folder / PAGE).unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(
            f"{folder} cannot be written: {error.strerror}", hint="name a folder you may write to"
        ) from error
    steps = _Steps(progress, on_tasks)
    try:
        if chosen.uses_spark:
            tables, packets = _by_spark(folder, files, chosen, steps)
        else:
            tables, packets = _alone(files, chosen.mtu, steps)
        if not chosen.needs_spark_to_write:
            steps.begin("write")
            _written(folder, tables)
        summary = _summarised(tables, files)
        summary.expected_loss = chosen.expected_loss
        steps.begin("page")
        found = findings(summary)
        named = [shown(file) for file in files]
        _write(folder / PAGE, page(summary, found, named, metadata.version("umstack")))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_space(steps.under_way) from error
        raise
    took = steps.end()
    return Report(folder / PAGE, named, packets, time.monotonic() - began, found, summary, took)


class _Steps:
    """Tells the steps as they begin, and takes their time."""

    def __init__(self, progress: Progress, on_tasks: Progress) -> None:
        self._progress = progress
        self._on_tasks = on_tasks
        self._took: dict[str, float] = {}
        self._began = 0.0
        self.under_way = STEPS[0]

    def begin(self, step: str) -> None:
        """End the step that is under way, begin another one."""
        self.end()
        self.under_way, self._took[step] = step, 0.0
        self._progress(step, STEPS.index(step) + 1, len(STEPS))

    def end(self) -> dict[str, float]:
        """How long each step took."""
        now = time.monotonic()
        if self.under_way in self._took:
            self._took[self.under_way] = now - self._began
        self._began = now
        return self._took

    def tell_tasks(self, done: int, of: int) -> None:
        """How many tasks of the step under way are done, and how many there are."""
        self._on_tasks(self.under_way, done, of)


def _alone(files: list[str], mtu: int, steps: _Steps) -> tuple[Tables, int]:
    """The tables, and how many packets there were."""
    from umstack.analysis.tables import tables_of
    from umstack.facts.facts import facts_of

    steps.begin("decode")
    facts = facts_of(files)
    steps.begin("tables")
    return tables_of(facts, mtu), facts.packets


def _by_spark(folder: Path, files: list[str], chosen: ReportOptions, steps: _Steps) -> tuple[Tables, int]:
    from umstack.report.outputs import arrow
    from umstack.spark.fact_tables import tables_by_spark
    from umstack.spark.spark_session import SMALL_BYTES, enough_memory, spark_session
    from umstack.spark.table_format import write_table
    from umstack.spark.tasks import tasks_of

    with (
        spark_session(
            "umstack report",
            chosen.master,
            driver_memory=chosen.driver_memory or enough_memory(chosen.master),
            options=dict(chosen.spark_options),
            is_little=total_bytes(files) < SMALL_BYTES,
        ) as spark,
        ThreadPoolExecutor(1, "umstack-report") as pool,
    ):
        steps.begin("decode")
        making = pool.submit(_told, lambda: tables_by_spark(spark, files, chosen.mtu))
        while not wait([making], _LOOK_SECONDS).done:
            steps.tell_tasks(*tasks_of(spark))
        tables, packets = making.result()
        if chosen.needs_spark_to_write:
            steps.begin("write")
            for name, table in tables.items():
                write_table(spark, arrow(table), folder / name, chosen.table_format)
        return tables, packets


def _written(folder: Path, tables: Tables) -> None:
    from umstack.report.outputs import write_tables

    write_tables(folder, tables)


def _summarised(tables: Tables, captures: list[str]) -> Summary:
    from umstack.report.outputs import summarised

    return summarised(tables, captures)


def _told(make: Callable[[], tuple[Tables, int]]) -> tuple[Tables, int]:
    """Make tables; what a worker met is told in a line, not in a Java traceback."""
    from pyspark.errors import PySparkException

    try:
        return make()
    except PySparkException as error:
        said = str(error)
        if os.strerror(errno.ENOSPC) in said:
            raise _no_space("decode") from error
        if CaptureError.__name__ in said:
            reason = said.rpartition(f"{CaptureError.__name__}: ")[2].splitlines()[0]
            raise CaptureError(
                reason, hint="the captures must stay as they are, where they are, until the report ends"
            ) from error
        line = next((line for line in reversed(said.splitlines()) if line.strip()), said)
        raise ReportError(f"decode failed: {line.strip()}") from error


def _no_space(step: str) -> ReportError:
    hint = "free some, or give --out a folder on a larger disk"
    return ReportError(f"no space is left, at {step}", hint=hint, errno=errno.ENOSPC)


def _write(target: Path, text: str) -> None:
    """A page is whole or not there."""
    written = target.with_suffix(".part")
    try:
        written.write_text(text, encoding="utf-8")
        written.replace(target)
    except OSError as error:
        written.unlink(missing_ok=True)
        if error.errno == errno.ENOSPC:
            raise _no_space("page") from error
        raise ReportError(f"{target} cannot be written: {error.strerror}") from error
