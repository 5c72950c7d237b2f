"""Makes a report: tables, summary, findings, page, in this order. The page is written last, atomically."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umstack.capture import CaptureError
from umstack.capture.reading.capture_files import capture_files, total_bytes
from umstack.capture.reading.remote import is_remote, shown
from umstack.errors import error_from_path
from umstack.report.errors import ReportError
from umstack.report.figures import Figures, figures_of
from umstack.report.findings import Finding, findings
from umstack.report.page import page
from umstack.report.summary import Summary
from umstack.report.verdict import Verdict, problems_of, verdict_of

if TYPE_CHECKING:
    from umstack.analysis.tables import Tables

PAGE = "report.html"
STEPS = ("decode", "tables", "write", "page")
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Environment variable that `spark-submit` sets for a program: the port of its JVM."""
_LOOK_SECONDS = 0.5

Progress = Callable[[str, int, int], None]
"""For steps: called with the step that starts, its number and the number of steps.

For tasks: called with the step, the number of its tasks that are done, and the number of its tasks.
"""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """How a report is made."""

    master: str | None = None
    mtu: int = 1500
    driver_memory: str | None = None
    """None selects a size that is enough for any captures."""
    spark_options: tuple[tuple[str, str], ...] = ()
    hardware_times: bool = False
    """Use the times of capture hardware where packets have them."""
    expected_loss: float | None = None
    """Share of datagrams, 0 to 1, that the network was set to lose on the way to each receiver: not a fault."""
    table_format: str = "parquet"
    """Any other format is written by Spark, which must have a data source of that name: delta, iceberg, orc."""
    engine: str | None = None
    """"alone" or "spark". None: Spark if a master or another Spark option is given or `spark-submit` started this
    program, otherwise alone."""

    @property
    def uses_spark(self) -> bool:
        """True if Spark makes the tables."""
        if self.engine is not None:
            if self.engine not in ("alone", "spark"):
                raise ReportError(f"engine is {self.engine}", hint="use alone or spark")
            if self.engine == "alone" and self.needs_spark_to_write:
                raise ReportError(f"tables cannot be written as {self.table_format} without Spark")
            return self.engine == "spark"
        named = bool(self.master or self.driver_memory or self.spark_options or self.needs_spark_to_write)
        return named or _SUBMITTED in os.environ

    @property
    def needs_spark_to_write(self) -> bool:
        """True if only Spark can write the table format."""
        return self.table_format != "parquet"


@dataclass(frozen=True, slots=True)
class Report:
    """The result: path of the page, verdict, figures, findings, and the rows of the page by table."""

    page: Path
    captures: list[str]
    packets: int
    seconds: float
    verdict: Verdict
    figures: Figures | None
    """None if the captures contain no session."""
    findings: list[Finding]
    summary: Summary
    step_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def problems(self) -> list[Finding]:
        """The findings that cost something, the most expensive first."""
        return problems_of(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the report for programs, as JSON types."""
        return {
            "page": str(self.page),
            "captures": self.captures,
            "packets": self.packets,
            "seconds": round(self.seconds, 3),
            "verdict": {"severity": self.verdict.severity.name.lower(), "text": self.verdict.text},
            "figures": None if self.figures is None else asdict(self.figures),
            "problems": [_described(one) for one in self.problems],
            "findings": [_described(one) for one in self.findings],
            "tables": self.summary.tables,
            "step_seconds": {name: round(taken, 3) for name, taken in self.step_seconds.items()},
        }


def _described(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON types; those of problems have their cost and their remedy."""
    found = {"topic": finding.topic, "severity": finding.severity.name.lower(), "text": finding.text}
    if finding.is_problem and finding.cost is not None:
        cost = {"kind": finding.cost.kind.name.lower(), "size": finding.cost.size, "text": finding.cost.text}
        return {**found, "cost": cost, "remedy": finding.remedy}
    return found


def _silent(_step: str, _number: int, _count: int) -> None:
    """Ignore progress."""


def make_report(
    captures: Sequence[str],
    out: str | os.PathLike[str],
    options: ReportOptions | None = None,
    progress: Progress = _silent,
    on_tasks: Progress = _silent,
) -> Report:
    """Analyse captures (files, folders, globs) and write the page and its tables into the folder `out`.

    `progress` is called for each step, `on_tasks` twice per second during a step.
    On a cluster the captures and `out` must be on storage that all workers reach by the same path.
    """
    chosen = options or ReportOptions()
    files = capture_files(captures)

    def tables_of_captures(folder: Path, steps: _Steps) -> _Analysed:
        make = _by_spark(folder, files, chosen, steps) if chosen.uses_spark else _alone(files, chosen, steps)
        return _Analysed(*make, files)

    return _made(out, chosen, _Steps(progress, on_tasks), tables_of_captures)


def make_report_of_tables(
    tables: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: ReportOptions | None = None,
    progress: Progress = _silent,
) -> Report:
    """Write the report on the captures of a pipeline from its folder of tables, without reading the captures.

    Args:
        tables: The folder that `umstack pipeline` fills.
        out: Folder for the page and the tables of the report.
        options: `expected_loss`; MTU and hardware times are those of the pipeline, and Spark is not used.
        progress: Called for each step.

    Returns:
        The report, as `make_report` returns it for the captures.

    Raises:
        TablesError: The folder has no tables, those of a newer version, or a batch was interrupted.

    Example:
        >>> from umstack.report import make_report_of_tables
        >>> make_report_of_tables("tables", "report").findings    # doctest: +SKIP
    """
    from umstack.pipeline.read_back import read_tables

    def tables_of_pipeline(_folder: Path, steps: _Steps) -> _Analysed:
        steps.begin("tables")
        found, packets, files, _ = read_tables(tables)
        return _Analysed(found, packets, files)

    chosen = replace(options or ReportOptions(), engine="alone")
    return _made(out, chosen, _Steps(progress, _silent), tables_of_pipeline)


@dataclass(frozen=True, slots=True)
class _Analysed:
    """Tables, the number of packets, and the names of the captures."""

    tables: Tables
    packets: int
    files: list[str]


def _made(
    out: str | os.PathLike[str],
    chosen: ReportOptions,
    steps: _Steps,
    analyse: Callable[[Path, _Steps], _Analysed],
) -> Report:
    began = time.monotonic()
    if is_remote(os.fspath(out)):
        raise ReportError(
            f"{shown(os.fspath(out))} is a URL",
            hint="write the report into a folder of a file system, and copy it",
        )
    folder = Path(out).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Remove the page before its tables change, because a page must match the tables it was made from.
        (folder / PAGE).unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(
            f"{folder} cannot be written: {error.strerror}", hint="name a folder that you may write to"
        ) from error
    try:
        analysed = analyse(folder, steps)
        if not chosen.needs_spark_to_write:
            steps.begin("write")
            _written(folder, analysed.tables)
        summary = _summarised(analysed.tables, analysed.files)
        summary.expected_loss = chosen.expected_loss
        steps.begin("page")
        found = findings(summary)
        figures = figures_of(summary)
        verdict = verdict_of(summary, figures, found)
        named = [shown(file) for file in analysed.files]
        _write(folder / PAGE, page(summary, verdict, figures, found, named, metadata.version("umstack")))
    except OSError as error:
        raise error_from_path(error, f"making the report in {folder} (step {steps.under_way})") from error
    took = steps.end()
    seconds = time.monotonic() - began
    return Report(folder / PAGE, named, analysed.packets, seconds, verdict, figures, found, summary, took)


class _Steps:
    """Reports each step when it starts and measures its time."""

    def __init__(self, progress: Progress, on_tasks: Progress) -> None:
        self._progress = progress
        self._on_tasks = on_tasks
        self._took: dict[str, float] = {}
        self._began = 0.0
        self.under_way = STEPS[0]

    def begin(self, step: str) -> None:
        """End the current step and start another."""
        self.end()
        self.under_way, self._took[step] = step, 0.0
        self._progress(step, STEPS.index(step) + 1, len(STEPS))

    def end(self) -> dict[str, float]:
        """End the current step; return the seconds that each step took."""
        now = time.monotonic()
        if self.under_way in self._took:
            self._took[self.under_way] = now - self._began
        self._began = now
        return self._took

    def report_tasks(self, done: int, of: int) -> None:
        """Report how many of the current step's tasks are done."""
        self._on_tasks(self.under_way, done, of)


def _alone(files: list[str], chosen: ReportOptions, steps: _Steps) -> tuple[Tables, int]:
    """Return the tables and the number of packets."""
    from umstack.analysis.tables import tables_of
    from umstack.facts.facts import facts_of

    steps.begin("decode")
    facts = facts_of(files, hardware_times=chosen.hardware_times)
    steps.begin("tables")
    return tables_of(facts, chosen.mtu), facts.packets


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
        making = pool.submit(
            _translated, lambda: tables_by_spark(spark, files, chosen.mtu, chosen.hardware_times)
        )
        while not wait([making], _LOOK_SECONDS).done:
            steps.report_tasks(*tasks_of(spark))
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


def _translated(make: Callable[[], tuple[Tables, int]]) -> tuple[Tables, int]:
    """Make tables; reduce a worker's error to its line instead of a Java traceback."""
    from pyspark.errors import PySparkException

    try:
        return make()
    except PySparkException as error:
        text = str(error)
        if os.strerror(errno.ENOSPC) in text:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise error_from_path(full, "Spark (step decode)") from error
        if CaptureError.__name__ in text:
            reason = text.rpartition(f"{CaptureError.__name__}: ")[2].splitlines()[0]
            raise CaptureError(
                reason, hint="captures must not be changed or moved until the report is finished"
            ) from error
        line = next((line for line in reversed(text.splitlines()) if line.strip()), text)
        raise ReportError(f"decode failed: {line.strip()}") from error


def _write(target: Path, text: str) -> None:
    """Write the page atomically: it is complete or missing."""
    written = target.with_suffix(".part")
    try:
        written.write_text(text, encoding="utf-8")
        written.replace(target)
    except OSError:
        written.unlink(missing_ok=True)
        raise
