"""`umstack report`: analyses captures for loss, recovery and rates; writes one page and Parquet tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from umstack.cli.interruption import INTERRUPTED_STATUS, terminable
from umstack.cli.meter import Meter
from umstack.cli.stack_options import HARDWARE_TIMES_OPTION, JSON_OPTION
from umstack.errors import Unsupported

if TYPE_CHECKING:
    from umstack.report import Report

_SPARK, _FACTS = "starting Spark", "starting"
_EXAMPLES = """\b
Examples:
  umstack report capture.pcapng --out report
  umstack report captures/ --out report --mtu 9000
  umstack report --tables tables --out report
  umstack report '/shared/captures/*.pcap.gz' --out /shared/report --master spark://head:7077
"""


@click.command(epilog=_EXAMPLES)
@click.argument("captures", nargs=-1, metavar="[CAPTURE...]")
@click.option(
    "--out", type=click.Path(file_okay=False), required=True, help="Directory for the page and its tables."
)
@click.option(
    "--tables",
    "tables_folder",
    type=click.Path(file_okay=False),
    help="Read the tables of umstack pipeline instead of captures.",
)
@click.option("--master", help="Spark master. Default: run locally without Spark.")
@click.option(
    "--mtu", type=click.IntRange(576, 65535), default=1500, show_default=True, help="MTU of the network."
)
@click.option(
    "--expected-loss",
    type=click.FloatRange(0, 1),
    help="Expected loss rate on the way to each receiver; not reported as a fault.",
)
@click.option(
    "--format",
    "table_format",
    default="parquet",
    show_default=True,
    help="Format of the tables. Others (delta, orc) need a Spark that supports them.",
)
@HARDWARE_TIMES_OPTION
@click.option("--driver-memory", help="Memory of Spark's driver; implies Spark.")
@JSON_OPTION
def command(
    captures: tuple[str, ...],
    out: str,
    tables_folder: str | None,
    master: str | None,
    mtu: int,
    expected_loss: float | None,
    table_format: str,
    hardware_times: bool,
    driver_memory: str | None,
    as_json: bool,
) -> None:
    """Analyse captures: files (pcap, pcapng, ERF, compressed or not), folders or globs.

    Writes OUT/report.html, one page with plots and findings in sentences, and every table behind it as Parquet in OUT.
    """
    if bool(captures) == bool(tables_folder):
        raise click.UsageError("name captures, or --tables with the folder of umstack pipeline")
    if tables_folder is not None and (master or driver_memory or hardware_times or table_format != "parquet"):
        raise click.UsageError(
            "--tables cannot be used with --master, --driver-memory, --hardware-times or --format"
        )
    try:
        import pyarrow

        if master is None and driver_memory is None and table_format == "parquet":
            _without_pandas(pyarrow)

        from umstack.report import ReportOptions, make_report, make_report_of_tables, outputs
    except ImportError as error:
        raise Unsupported(f"reports need {error.name}", hint="pip install 'umstack[report]'") from None

    options = ReportOptions(
        master,
        mtu,
        driver_memory,
        expected_loss=expected_loss,
        table_format=table_format,
        hardware_times=hardware_times,
    )
    if options.uses_spark and find_spec("pyspark") is None:
        raise Unsupported("a report by Spark needs pyspark", hint="pip install 'umstack[spark,report]'")
    del outputs  # Imported to detect missing packages before the work starts.
    # Arrow's own pool retains tens of MiB. A small report does not use them, and a large one is as fast without them.
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    try:
        with terminable(), _display(_SPARK if options.uses_spark else _FACTS) as display:
            if tables_folder is not None:
                report = make_report_of_tables(tables_folder, out, options, display.show_step)
            else:
                report = make_report(captures, out, options, display.show_step, display.show_tasks)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED_STATUS) from None
    if as_json:
        click.echo(json.dumps(report.to_dict()))
        return
    for line in _text(report):
        click.echo(line)
    click.echo(f"\n{report.packets:,} packets in {report.seconds:.1f} s: {report.page}")


def _text(report: Report) -> Iterator[str]:
    """Yield the lines of a report in the order of its page: verdict, figures, problems, settings, facts."""
    from umstack.report.figures import shown_figures

    yield report.verdict.text
    if report.figures is not None:
        yield ""
        for figure in shown_figures(report.summary, report.figures):
            yield f"{figure.name:<16}{figure.value:<14}{figure.note}"
    problems = [
        f"- {one.cost.text}: {one.text} What to do: {one.remedy}"
        for one in report.problems
        if one.cost is not None
    ]
    settings = [f"- {one.text}" for one in report.findings if one.is_advice]
    facts = [f"- {one.text}" for one in report.findings if not one.is_problem and not one.is_advice]
    for title, lines in (("problems", problems), ("settings that would help", settings), ("facts", facts)):
        if lines:
            yield from ("", title, *lines)


class _NoPandas:
    """A module finder that blocks pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Refuse pandas; leave other modules to the next finder."""
        if name == "pandas":
            raise ImportError(name)


def _without_pandas(pyarrow: Any) -> None:
    """Stop Arrow from importing pandas, which it does for its first array if pandas is installed.

    The import takes a sixth of the CPU time of a small report, and 32 MiB.
    """
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas)
        try:
            pyarrow.array([0])
        finally:
            sys.meta_path.remove(_NoPandas)


class _Display(Protocol):
    """Shows the progress of a report on stderr."""

    def show_step(self, step: str, number: int, of: int) -> None:
        """Show the step that starts."""

    def show_tasks(self, step: str, done: int, of: int) -> None:
        """Show the progress of the step."""


@contextmanager
def _display(starting: str) -> Iterator[_Display]:
    """A bar on a terminal, lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        with Meter() as meter:
            yield _Lines(meter, starting)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress, starting)


class _Bar:
    """A progress bar over the steps."""

    def __init__(self, progress: Progress, starting: str) -> None:
        self._progress = progress
        self._task = progress.add_task(starting, total=None)

    def show_step(self, step: str, number: int, of: int) -> None:
        """Advance the bar."""
        self._progress.update(self._task, description=_words(step), completed=number - 1, total=of)

    def show_tasks(self, step: str, done: int, of: int) -> None:
        """Show details without advancing the bar."""
        self._progress.update(self._task, description=_words(step) + _of_tasks(done, of))


class _Lines:
    """Prints a line when a step starts, and one every few seconds while it runs."""

    def __init__(self, meter: Meter, starting: str) -> None:
        self._meter = meter
        self._step = ""
        self._number = self._of = 0
        meter.show(f"report: {starting}", is_news=True)

    def show_step(self, step: str, number: int, of: int) -> None:
        """Print the step that starts. A repeated step prints nothing: it only reports that a parallel one ended."""
        is_news = step != self._step
        self._step, self._number, self._of = step, number, of
        self._meter.show(self._text(step), is_news=is_news)

    def show_tasks(self, step: str, done: int, of: int) -> None:
        """Print the progress of a long step."""
        self._meter.show(self._text(step) + _of_tasks(done, of))

    def _text(self, step: str) -> str:
        return f"report, {self._number} of {self._of}: {_words(step)}"


def _words(step: str) -> str:
    return step.replace("_", " ")


def _of_tasks(done: int, of: int) -> str:
    return f", {done:,} of {of:,} tasks" if of > 1 else ""
