"""`umstack store`: checks and lists the repository of a Store."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from umstack.cli.meter import amount
from umstack.cli.stack_options import JSON_OPTION
from umstack.store.repository.verification import DumpedRecord, SegmentReport, dump, verify

_EXAMPLES = """\b
Examples:
  umstack store verify /var/lib/umstack/store
  umstack store dump /var/lib/umstack/store --source 0 --first 1000 --last 1010
  umstack store dump /var/lib/umstack/store --json --content
"""
_DIRECTORY = click.argument(
    "directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)


@click.group(epilog=_EXAMPLES)
def command() -> None:
    """Check and list the messages that a Store keeps in DIR (docs/store.md)."""


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
