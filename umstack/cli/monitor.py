"""`umstack monitor`: watches a folder of captures as it grows."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console

from umstack.cli.interruption import INTERRUPTED_STATUS, stoppable, terminable
from umstack.cli.stack_options import HARDWARE_TIMES_OPTION, JSON_OPTION, LocalFolder
from umstack.errors import Unsupported

_EXAMPLES = """\b
Examples:
  umstack monitor captures/
  umstack monitor captures/ --window 60 --parquet /data/windows --checkpoint /data/state
  umstack monitor captures/ --prometheus-port 9464
  umstack monitor captures/ --once --json
"""
_FOLDER = LocalFolder(path_type=Path)


@click.command(epilog=_EXAMPLES)
@click.argument("captures", metavar="FOLDER")
@click.option(
    "--window",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="Length of a window in seconds.",
)
@click.option(
    "--late",
    type=click.FloatRange(0),
    default=2.0,
    show_default=True,
    help="Seconds to wait for late packets.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Seconds between reads of the folder.",
)
@click.option(
    "--mtu", type=click.IntRange(576, 65535), default=1500, show_default=True, help="MTU of the network."
)
@click.option(
    "--parquet", type=_FOLDER, help="Append finished windows and findings to Parquet here, each exactly once."
)
@click.option(
    "--format",
    "table_format",
    default="parquet",
    show_default=True,
    help="Format of the tables in --parquet. Others (delta, orc) need a Spark that supports them.",
)
@click.option("--prometheus-port", type=click.IntRange(1, 65535), help="Serve gauges over HTTP on this port.")
@click.option(
    "--prometheus-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write gauges to this text file.",
)
@click.option("--checkpoint", type=_FOLDER, help="Directory for the state, to resume after a restart.")
@click.option("--once", is_flag=True, help="Process the existing captures and exit.")
@click.option("--master", help="Spark master. Default: the cores of this machine.")
@click.option("--driver-memory", default="1g", show_default=True, help="Memory of Spark's driver.")
@click.option(
    "--max-bytes",
    type=click.IntRange(1 << 20),
    default=256 << 20,
    show_default=True,
    help="Maximum bytes of captures per batch.",
)
@HARDWARE_TIMES_OPTION
@JSON_OPTION
def command(
    captures: str,
    window: float,
    late: float,
    interval: float,
    mtu: int,
    parquet: Path | None,
    table_format: str,
    prometheus_port: int | None,
    prometheus_file: Path | None,
    checkpoint: Path | None,
    once: bool,
    master: str | None,
    driver_memory: str,
    max_bytes: int,
    hardware_times: bool,
    as_json: bool,
) -> None:
    """Watch the captures in FOLDER (or a glob) as they grow, and print a report's findings for each time window.

    Prints lines, or with --parquet or --prometheus-... writes there instead. Ends on Ctrl-C.
    """
    if as_json and (not once or parquet is not None):
        raise click.UsageError("--json needs --once and cannot be used with --parquet")
    try:
        from umstack.monitor import MonitorOptions, monitor
        from umstack.monitor.sinks import Windows
    except ImportError as error:
        raise Unsupported(
            f"watching needs {error.name}", hint="pip install 'umstack[spark,report]'"
        ) from None
    windows = Windows() if as_json else None
    options = MonitorOptions(
        (captures,), window, late, interval, mtu, once, parquet, table_format, prometheus_port, prometheus_file,
        checkpoint, windows, master, driver_memory, max_bytes, hardware_times,
    )  # fmt: skip
    console = Console(stderr=True)
    stop = threading.Event()
    try:
        with terminable(once=True), ExitStack() as watching, console.status("starting Spark") as status:

            def started() -> None:
                status.stop()
                watching.enter_context(stoppable(stop.set))

            monitor(options, click.echo, started, stop=stop)
        if stop.is_set():
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        console.print("watching ended")
        if as_json:
            raise SystemExit(INTERRUPTED_STATUS) from None
    if windows is not None:
        click.echo(json.dumps(windows.to_dict()))
