"""`umstack store`: runs Stores, checks and lists the repository of one."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from umstack.cli.interruption import stoppable
from umstack.cli.meter import amount
from umstack.cli.service_manager import ServiceManager
from umstack.cli.stack_options import JSON_OPTION, configuration, stack_options
from umstack.config import Scope
from umstack.context import Context
from umstack.store.protocol import StoreLimits
from umstack.store.repository import Durability, RepositorySettings
from umstack.store.repository.verification import DumpedRecord, SegmentReport, dump, verify
from umstack.store.server import StoreServer
from umstack.store.status import read_status

_PORT = 14567

_EXAMPLES = """\b
Examples:
  umstack store run /var/lib/umstack/store --interface eth1 --listen 10.9.0.11:14567
  umstack store status /var/lib/umstack/store
  umstack store verify /var/lib/umstack/store
  umstack store dump /var/lib/umstack/store --source 0 --first 1000 --last 1010
  umstack store dump /var/lib/umstack/store --json --content
"""
_DIRECTORY = click.argument(
    "directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)


@click.group(epilog=_EXAMPLES)
def command() -> None:
    """Run Stores; check and list the messages that a Store keeps in DIR (docs/store.md)."""


@command.command("run", epilog="Example: umstack store run /var/lib/umstack/store --listen 10.9.0.11:14567")
@click.argument(
    "directories",
    metavar="DIR...",
    nargs=-1,
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
)
@click.option(
    "--listen",
    "where",
    default=f"127.0.0.1:{_PORT}",
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Address for clients. The Store of the next DIR has the next port; port 0: any.",
)
@click.option(
    "--durability",
    type=click.Choice([each.value for each in Durability]),
    default=Durability.DISK.value,
    show_default=True,
    help="When a message is acknowledged.",
)
@click.option(
    "--state-lifetime",
    type=click.FloatRange(min=0, min_open=True),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Delete clients and the messages of sources that were away longer than this, or than their own lifetime.",
)
@click.option(
    "--allow-receiver-paced-persistence",
    "allows_receiver_pacing",
    is_flag=True,
    help="Let sources be receiver-paced: messages are kept until all receivers have acknowledged them.",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Address where Prometheus scrapes the counters of all DIRs, such as :9464; or run umstack exporter.",
)
@stack_options
@JSON_OPTION
def run_command(
    directories: tuple[Path, ...],
    where: str,
    durability: str,
    state_lifetime: float,
    allows_receiver_pacing: bool,
    metrics: str | None,
    interface: str | None,
    config_file: str | None,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Keep what sources send, one Store for each DIR, until Ctrl-C or SIGTERM.

    Sources name the Store's address, and the Store receives their topics as every subscriber does. Put each DIR on a
    volume of its own. --json prints a summary at the end. Status 1: a disk failed.
    """
    host, _, port = where.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{where} is not ADDRESS:PORT", param_hint="--listen")
    config = configuration((Scope.CONTEXT, Scope.RECEIVER), {}, config_file, options)
    settings = RepositorySettings(durability=Durability(durability))
    limits = StoreLimits(
        state_lifetime_ns=int(state_lifetime * 3600e9), allows_receiver_pacing=allows_receiver_pacing
    )
    with contextlib.ExitStack() as opened:
        stores = []
        for at, directory in enumerate(directories):
            context = opened.enter_context(Context(interface, config=config, metrics=metrics))
            listen = (host, int(port) + at if int(port) else 0)
            stores.append(
                opened.enter_context(StoreServer(context, directory, listen, settings, limits=limits))
            )
            click.echo(
                f"keeping messages in {directory} at {stores[-1].endpoint[0]}:{stores[-1].endpoint[1]}",
                err=True,
            )
        failures = _serve(stores)
        if as_json:
            rows = [
                {"directory": str(directory), **store.status()}
                for directory, store in zip(directories, stores, strict=True)
            ]
            click.echo(json.dumps({"ok": not failures, "stores": rows}))
    for failure in failures:
        click.echo(f"umstack: {failure}", err=True)
    if failures:
        raise SystemExit(1)


def _serve(stores: list[StoreServer]) -> list[Exception]:
    """Run the Stores until a signal, or until one fails; return the failures."""
    failures: list[Exception] = []
    ended = threading.Event()

    def serve(store: StoreServer) -> None:
        try:
            store.serve()
        except Exception as error:  # the other Stores must be stopped, whatever failed
            failures.append(error)
        finally:
            ended.set()

    with stoppable(ended.set):
        threads = [threading.Thread(target=serve, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        ServiceManager().announce_readiness()
        ended.wait()
        for store in stores:
            store.stop()
        for thread in threads:
            thread.join()
    return failures


@command.command("status", epilog="Example: umstack store status /var/lib/umstack/store --json")
@_DIRECTORY
@JSON_OPTION
def status_command(directory: Path, as_json: bool) -> None:
    """Show the sources and receivers of the Store in DIR, running or not, and how far each receiver is.

    A running Store writes its counters and newest numbers every 5 seconds. --json includes the counters.
    """
    status = read_status(directory)
    if as_json:
        click.echo(json.dumps(status))
        return
    now_ns = time.time_ns()
    state = "running" if status["is_running"] else "not running"
    click.echo(
        f"{directory}  {state}, {status['segments']} segments, {amount(status['segment_bytes'])}, "
        f"{amount(status['free_bytes'])} free"
    )
    for source in status["sources"]:
        newest = source["newest_sqn"]
        click.echo(
            f"  source {source['topic']}  session {source['session_id']}  newest {newest}  "
            f"active {_age(now_ns, source)} ago"
        )
        for receiver in source["receivers"]:
            acknowledged = receiver["acknowledged_sqn"]
            pacing = "" if receiver["pacing"] == "none" else f"  {receiver['pacing'].replace('_', '-')}"
            click.echo(
                f"    receiver  session {receiver['session_id']}{pacing}  acknowledged {acknowledged}  "
                f"active {_age(now_ns, receiver)} ago"
            )


def _age(now_ns: int, client: dict[str, Any]) -> str:
    return f"{max(now_ns - client['active_ns'], 0) / 1e9:.0f} s"


@command.command("verify", epilog="Example: umstack store verify /var/lib/umstack/store")
@_DIRECTORY
@JSON_OPTION
def verify_command(directory: Path, as_json: bool) -> None:
    """Check every byte of every segment in DIR. Nothing is changed, and a Store may run meanwhile.

    Status 0: everything is readable, 1: something is damaged. Bytes of an interrupted commit at the end of the newest
    segment are no damage: they were never acknowledged.
    """
    reports = verify(directory)
    ok = not any(report.problems for report in reports)
    if as_json:
        click.echo(json.dumps({"ok": ok, "segments": [asdict(report) for report in reports]}))
    else:
        for report in reports:
            click.echo(_line(report))
        records = sum(report.record_count for report in reports)
        size = sum(report.byte_count for report in reports)
        click.echo(
            f"{len(reports)} segments, {amount(size)}, {records:,} records: {'ok' if ok else 'damaged'}"
        )
    if not ok:
        raise SystemExit(1)


def _line(report: SegmentReport) -> str:
    state = "sealed" if report.is_sealed else "open"
    commits = f"commits {report.first_commit} to {report.last_commit}"
    torn = f", {report.torn_bytes} bytes of an interrupted commit" if report.torn_bytes else ""
    problems = "".join(f"\n  {problem}" for problem in report.problems)
    return f"{report.name}  {state}  {report.record_count:,} records, {commits}{torn}{problems}"


@command.command("dump", epilog="Example: umstack store dump /var/lib/umstack/store --source 0 --json")
@_DIRECTORY
@click.option("--source", type=click.IntRange(0), metavar="N", help="Only records of this source number.")
@click.option("--first", type=click.IntRange(0), metavar="SQN", help="Only sequence numbers from here.")
@click.option("--last", type=click.IntRange(0), metavar="SQN", help="Only sequence numbers up to here.")
@click.option("--content", is_flag=True, help="Include the message in hexadecimal.")
@JSON_OPTION
def dump_command(
    directory: Path, source: int | None, first: int | None, last: int | None, content: bool, as_json: bool
) -> None:
    """List the records in DIR in the order of the log, one per line. With --json each line is an object."""
    for record in dump(directory):
        if (
            (source is not None and record.source != source)
            or (first is not None and record.sqn + record.sqn_count <= first)
            or (last is not None and record.sqn > last)
        ):
            continue
        click.echo(_json(record, content) if as_json else _text(record, content))


def _json(record: DumpedRecord, content: bool) -> str:
    fields = {**asdict(record), "message": record.message.hex(), "message_bytes": len(record.message)}
    if not content:
        del fields["message"]
    return json.dumps(fields)


def _text(record: DumpedRecord, content: bool) -> str:
    kind = f"{record.sqn_count} lost" if record.is_lost else f"{len(record.message)} bytes"
    message = f"  {record.message.hex()}" if content else ""
    return (
        f"{record.segment}:{record.offset}  commit {record.commit}  source {record.source}  sqn {record.sqn}  "
        f"received {record.received_ns}  {kind}{message}"
    )
