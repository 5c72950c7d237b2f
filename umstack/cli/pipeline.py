"""`umstack pipeline`: fills a folder of tables from captures, with Spark, once or as they grow."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from umstack.capture.reading.remote import shown
from umstack.cli.interruption import INTERRUPTED_STATUS, stoppable, terminable
from umstack.cli.meter import Meter
from umstack.cli.stack_options import JSON_OPTION, LocalFolder
from umstack.errors import Unsupported

if TYPE_CHECKING:
    from umstack.pipeline.run import PipelineOptions, Progress

_EXAMPLES = """\b
Examples:
  umstack pipeline captures/ --tables tables --once
  umstack pipeline captures/ --tables tables --interval 5
  umstack pipeline /var/journal --tables messages --topics 'market/.*'
  umstack pipeline captures/ --tables tables --format delta
  umstack pipeline captures/ --tables 's3://bucket/tables?region=eu-central-1'
  umstack pipeline --tables tables --compact
  umstack pipeline --tables tables --derive-again --mtu 9000
"""


@click.command(epilog=_EXAMPLES)
@click.argument("captures", required=False, metavar="[FOLDER]")
@click.option(
    "--tables",
    required=True,
    metavar="DIR|URL",
    help="Folder of the tables and of the pipeline's state, or URL of the tables in an object store.",
)
@click.option(
    "--work",
    type=LocalFolder(path_type=Path),
    help="Folder in which the tables of a URL are made.  [default: below ~/.local/state/umstack/tables]",
)
@click.option("--once", is_flag=True, help="Process the existing captures and exit.")
@click.option(
    "--interval",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="Seconds from the start of a batch to the next one.",
)
@click.option(
    "--format",
    "table_format",
    type=click.Choice(("parquet", "delta", "iceberg")),
    help="Also keep silver and gold tables as Delta or Iceberg tables.  [default: parquet]",
)
@click.option("--mtu", type=click.IntRange(576, 65535), help="MTU of the network.  [default: 1500]")
@click.option("--hardware-times", is_flag=True, help="Use times of switch trailers and ERF records.")
@click.option("--topics", metavar="REGEX", help="FOLDER is a journal: record the topics that match into it.")
@click.option("--interface", help="Interface of the recorder for --topics.")
@click.option("--config", type=click.Path(exists=True, dir_okay=False), help="Its configuration file.")
@click.option(
    "--compact", "compacts", is_flag=True, help="Merge the files of each session and day, and exit."
)
@click.option("--derive-again", is_flag=True, help="Derive all tables again from the facts, and exit.")
@click.option("--master", help="Spark master. Default: the cores of this machine.")
@click.option("--driver-memory", default="1g", show_default=True, help="Memory of Spark's driver.")
@click.option(
    "--max-bytes",
    type=click.IntRange(1 << 20),
    default=256 << 20,
    show_default=True,
    help="Maximum bytes of captures per batch.",
)
@JSON_OPTION
def command(
    captures: str | None,
    tables: str,
    work: Path | None,
    once: bool,
    interval: float,
    table_format: str | None,
    mtu: int | None,
    hardware_times: bool,
    topics: str | None,
    interface: str | None,
    config: str | None,
    compacts: bool,
    derive_again: bool,
    master: str | None,
    driver_memory: str,
    max_bytes: int,
    as_json: bool,
) -> None:
    """Fill a folder of tables from the captures or the journal in FOLDER, and keep filling it as they grow.

    Writes facts of the packets (bronze), losses, incidents, latency and more (silver), findings and rollups per day
    (gold) as Parquet. Each packet counts once, also if the command is killed and started again. Ends on Ctrl-C.
    """
    if [captures is not None, compacts, derive_again].count(True) != 1:
        raise click.UsageError("name captures, or use one of --compact and --derive-again")
    if topics is None and (interface or config):
        raise click.UsageError("--interface and --config need --topics")
    given = {"topicPattern": topics, "interface": interface, "config": config}
    live = tuple((name, value) for name, value in given.items() if value is not None)
    if as_json and captures is not None and not once:
        raise click.UsageError("--json needs --once, --compact or --derive-again")
    try:
        from umstack.pipeline import maintenance, upload

        if captures is not None:
            from umstack.pipeline.run import PipelineOptions
    except ImportError as error:
        raise Unsupported(
            f"a pipeline needs {error.name}", hint="pip install 'umstack[spark,report]'"
        ) from None
    store = tables if upload.is_store(tables) else None
    if work is not None and store is None:
        raise click.UsageError("--work needs the URL of an object store for --tables")
    folder = Path(tables.removeprefix("file://"))
    if store is not None:
        folder = work or upload.default_work_folder(store)
    if compacts:
        before, after = maintenance.compact_all(folder, store)
        _report({"files_before": before, "files": after}, f"{before:,} files are {after:,} now", as_json)
    elif derive_again:
        sessions = maintenance.derive_again(folder, mtu, table_format, store)
        _report({"sessions": sessions}, f"derived the tables of {sessions:,} sessions", as_json)
    elif captures is not None:
        options = PipelineOptions(
            captures,
            folder,
            once,
            interval,
            mtu or 1500,
            hardware_times,
            master,
            driver_memory,
            max_bytes,
            live,
            table_format or "parquet",
            store,
        )
        done, was_stopped = _filled(options)
        unit = "messages" if options.reads_messages else "packets"
        named = shown(tables)
        text = f"{done.packets:,} {unit} in {done.batches:,} batches: {named}"
        _report({"ok": not was_stopped, **asdict(done), "tables": named}, text, as_json)
        if was_stopped and once:
            raise SystemExit(INTERRUPTED_STATUS)


def _filled(options: PipelineOptions) -> tuple[Progress, bool]:
    """Run the pipeline; returns what it has done, and true if it was stopped."""
    from umstack.pipeline.run import Progress, run_pipeline

    stop, last = threading.Event(), Progress()
    unit = "messages" if options.reads_messages else "packets"
    try:
        with (
            terminable(once=True),
            ExitStack() as running,
            Console(stderr=True).status("starting Spark") as status,
            Meter() as meter,
        ):

            def started() -> None:
                status.stop()
                running.enter_context(stoppable(stop.set))

            def show(progress: Progress) -> None:
                nonlocal last
                last = progress
                meter.show(
                    f"batch {progress.batches:,}: {progress.packets:,} {unit} so far, {progress.sessions:,} "
                    f"sessions in {progress.seconds:.1f} s"
                )

            run_pipeline(options, show, started, stop)
    except KeyboardInterrupt:
        stop.set()
    return last, stop.is_set()


def _report(result: dict[str, object], text: str, as_json: bool) -> None:
    click.echo(json.dumps({"ok": True, **result}) if as_json else text)
