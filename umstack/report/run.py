"""Making a report: tables, summary, findings, page, in this order; the page is written last and at once."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umstack.capture import CaptureError
from umstack.report.errors import ReportError
from umstack.report.findings import Finding, findings
from umstack.report.page import page
from umstack.report.summary import Summary
from umstack.spark.capture_files import capture_files

if TYPE_CHECKING:
    from umstack.report.tables import Tables

PAGE = "report.html"
_AT_A_TIME = 2
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
    engine: str | None = None
    """"alone" or "spark". None: Spark where a master, or anything else of it, is named, or where `spark-submit` started
    this program; alone otherwise."""

    @property
    def uses_spark(self) -> bool:
        """Whether Spark makes the tables."""
        if self.engine is not None:
            if self.engine not in ("alone", "spark"):
                raise ReportError(f"engine is {self.engine}", hint="use alone or spark")
            return self.engine == "spark"
        named = bool(self.master or self.driver_memory or self.spark_options)
        return named or _SUBMITTED in os.environ


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
    took: dict[str, float] = {}
    if chosen.uses_spark:
        summary, packets, started = _by_spark(folder, files, chosen, took, progress, on_tasks)
    else:
        summary, packets, started = _alone(folder, files, chosen.mtu, took, progress)
    found = findings(summary)
    target = folder / PAGE
    _write(target, page(summary, found, files, metadata.version("umstack")))
    took["page"] = time.monotonic() - started
    return Report(target, files, packets, time.monotonic() - began, found, summary, took)


def _alone(
    folder: Path, files: list[str], mtu: int, took: dict[str, float], progress: Progress
) -> tuple[Summary, int, float]:
    """The summary, how many packets there were, and when the page was begun."""
    from umstack.report.alone import STEPS, report_alone

    total, began = len(STEPS) + 1, time.monotonic()
    under_way: list[str] = []

    def begin(step: str) -> None:
        nonlocal began
        now = time.monotonic()
        if under_way:
            took[under_way[-1]] = now - began
        began = now
        under_way.append(step)
        progress(step, len(under_way), total)

    try:
        summary, packets = report_alone(folder, files, mtu, begin)
        begin("page")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_space(under_way[-1]) from error
        raise
    return summary, packets, began


def _by_spark(
    folder: Path,
    files: list[str],
    chosen: ReportOptions,
    took: dict[str, float],
    progress: Progress,
    on_tasks: Progress,
) -> tuple[Summary, int, float]:
    from umstack.analysis.spark_session import SMALL_BYTES, enough_memory, spark_session
    from umstack.report.spark_summary import summarise
    from umstack.report.tables import PACKETS, Tables

    with spark_session(
        "umstack report",
        chosen.master,
        driver_memory=chosen.driver_memory or enough_memory(chosen.master),
        options=dict(chosen.spark_options),
        is_little=sum(Path(file).stat().st_size for file in files) < SMALL_BYTES,
    ) as spark:
        tables = Tables(spark, folder.as_uri(), files, chosen.mtu)
        make_tables(tables, took, progress, on_tasks)
        started = time.monotonic()
        summary = summarise(tables)
        packets = tables.read(PACKETS).where("kind != 'NOTE'").count()
    return summary, packets, started


def make_tables(tables: Tables, took: dict[str, float], progress: Progress, on_tasks: Progress) -> None:
    """Make all tables. Two at a time: Spark plans one query while it runs the other."""
    groups = list(tables.steps())
    total = sum(map(len, groups)) + 1
    with ThreadPoolExecutor(_AT_A_TIME, "umstack-report") as pool:
        for group in groups:
            running = {pool.submit(_timed, name, step): name for name, step in group.items()}
            try:
                while running:
                    first = next(iter(running.values()))
                    progress(first, len(took) + 1, total)
                    for done in _some_done(running, partial(_tell_tasks, tables, first, on_tasks)):
                        took[running.pop(done)] = done.result()
            finally:
                for future in running:
                    future.cancel()
    progress("page", total, total)


def _tell_tasks(tables: Tables, step: str, on_tasks: Progress) -> None:
    on_tasks(step, *tables.tasks())


def _some_done(running: Iterable[Future[float]], meanwhile: Callable[[], None]) -> set[Future[float]]:
    """Those that are done, as soon as there are some; what is to be told meanwhile is told twice a second."""
    while True:
        done, _ = wait(running, _LOOK_SECONDS, FIRST_COMPLETED)
        if done:
            return done
        meanwhile()


def _timed(name: str, step: Callable[[], None]) -> float:
    started = time.monotonic()
    _run(name, step)
    return time.monotonic() - started


def _run(name: str, step: Callable[[], None]) -> None:
    """Run a step; what a worker met is told in a line, not in a Java traceback."""
    from pyspark.errors import PySparkException

    try:
        step()
    except PySparkException as error:
        said = str(error)
        if os.strerror(errno.ENOSPC) in said:
            raise _no_space(name) from error
        if CaptureError.__name__ in said:
            reason = said.rpartition(f"{CaptureError.__name__}: ")[2].splitlines()[0]
            raise CaptureError(
                reason, hint="the captures must stay as they are, where they are, until the report ends"
            ) from error
        line = next((line for line in reversed(said.splitlines()) if line.strip()), said)
        raise ReportError(f"{name} failed: {line.strip()}") from error


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
