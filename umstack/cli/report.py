"""`umstack report`: what captures say about loss, recovery and rates, as one page and Parquet."""

from __future__ import annotations

import json

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
from umstack.cli.stack_options import JSON_OPTION
from umstack.errors import Unsupported

_EXAMPLES = """\b
Examples:
  umstack report capture.pcapng --out report
  umstack report captures/ --out report --mtu 9000
  umstack report '/shared/captures/*.pcap.gz' --out /shared/report --master spark://head:7077
"""


@click.command(epilog=_EXAMPLES)
@click.argument("captures", nargs=-1, required=True, metavar="CAPTURE...")
@click.option(
    "--out", type=click.Path(file_okay=False), required=True, help="Folder for the page and its tables."
)
@click.option("--master", help="Spark master; the cores of this machine otherwise.")
@click.option(
    "--mtu", type=click.IntRange(576, 65535), default=1500, show_default=True, help="MTU of the network."
)
@click.option("--driver-memory", help="Memory of Spark's driver; 512m and 256m for each core otherwise.")
@JSON_OPTION
def command(
    captures: tuple[str, ...],
    out: str,
    master: str | None,
    mtu: int,
    driver_memory: str | None,
    as_json: bool,
) -> None:
    """Analyse captures: files (pcap, pcapng, compressed or not), folders or globs.

    Writes OUT/report.html, one page with plots and findings in sentences, and every table behind it as Parquet in OUT.
    """
    try:
        from umstack.report import ReportOptions, make_report
    except ImportError as error:
        raise Unsupported(f"reports need {error.name}", hint="pip install 'umstack[report]'") from None

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    try:
        with terminable(), Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting Spark", total=None)

            def show(step: str, number: int, of: int) -> None:
                bar.update(task, description=step.replace("_", " "), completed=number - 1, total=of)

            report = make_report(captures, out, ReportOptions(master, mtu, driver_memory), show)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED_STATUS) from None
    if as_json:
        click.echo(json.dumps(report.to_dict()))
        return
    for finding in report.findings:
        click.echo(f"- {finding.text}")
    click.echo(f"\n{report.packets:,} packets in {report.seconds:.1f} s: {report.page}")
