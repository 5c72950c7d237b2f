"""`umstack record`: records topics to Parquet files or to a journal."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from umstack.cli.interruption import INTERRUPTED_STATUS, stoppable, terminable
from umstack.cli.meter import Meter, amount
from umstack.cli.service_manager import ServiceManager
from umstack.cli.stack_options import JSON_OPTION, configuration, stack_options, warn_in_one_line
from umstack.config import OptionValue, Scope
from umstack.context import Context
from umstack.recorder.background import Readers
from umstack.recorder.recorder import Recorder, RecorderReport, RecorderSettings
from umstack.recorder.resumption import RecorderGap

_MEBIBYTE = 1 << 20
_QUEUE_BLOCKS = 32
"""Size of a receiver's queue: space for the messages that arrive while a batch is written."""

_EXAMPLES = """\b
Examples:
  umstack record orders fills --out /var/recordings -i eth1
  umstack record --regex 'market/.*' --out /var/recordings --part-seconds 300
  umstack record --regex '.*' --group 224.10.10.10-224.10.10.14 --out /var/recordings
  umstack record orders --journal /var/journal --journal-size 1024 --fsync always
  umstack record orders --out recordings --count 1000000 --json
"""


def _fsync_seconds(_ctx: click.Context, _option: click.Parameter, value: str) -> float | None:
    """Return the seconds between two syncs: 0 for always, None for never."""
    try:
        return {"never": None, "always": 0.0}[value] if value in ("never", "always") else float(value)
    except ValueError:
        raise click.BadParameter(f"{value} is neither never, always nor a number of seconds") from None


@click.command(epilog=_EXAMPLES)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--regex", is_flag=True, help="Each TOPIC is a regular expression that matches whole topic names."
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="ADDRESS",
    help="Record only sources on this multicast group, range A-B or network; repeatable, or separated by commas.",
)
@click.option("--out", metavar="DIR", help="Write Parquet files below this directory.")
@click.option(
    "--journal", metavar="DIR", help="Directory of the journal. Default: a short journal below --out."
)
@click.option(
    "--journal-size",
    type=click.FloatRange(1),
    metavar="MIB",
    help="Maximum size; the oldest part of the journal is deleted.",
)
@click.option(
    "--hold",
    is_flag=True,
    help="With --journal-size: at the limit, wait for a consumer to release rows; flow control slows the sources.",
)
@click.option(
    "--fsync",
    callback=_fsync_seconds,
    default="never",
    metavar="never|always|SECONDS",
    show_default=True,
    help="When to fsync the journal. Written data survives a killed process in any case.",
)
@click.option(
    "--part-seconds",
    type=click.FloatRange(0.1),
    default=60.0,
    show_default=True,
    help="Maximum seconds per Parquet file.",
)
@click.option(
    "--part-rows",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="Maximum messages per Parquet file.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.01),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Interval at which the transports' counters are recorded.",
)
@click.option(
    "--until-unread",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Stop when no query of Spark's live source has read the journal for this long.",
)
@click.option("--count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    help="Stop after this many seconds. Default: at Ctrl-C.",
)
@stack_options
@JSON_OPTION
def command(
    topics: tuple[str, ...],
    regex: bool,
    groups: tuple[str, ...],
    out: str | None,
    journal: str | None,
    journal_size: float | None,
    hold: bool,
    fsync: float | None,
    part_seconds: float,
    part_rows: int,
    interval: float,
    until_unread: float | None,
    count: int | None,
    seconds: float | None,
    interface: str | None,
    config_file: str | None,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Record the messages of TOPICs, and the counters of their transports.

    --out writes three tables: messages, events (session starts and ends, unrecoverable losses) and transports (counters
    by interval), each below DIR/TABLE/day=.../session=.../part-*.parquet. If the command is killed, only whole files
    remain, and it resumes when restarted. Status 0 unless messages were lost or the requested number of messages or
    seconds was not reached.
    """
    if out is None and journal is None:
        raise click.UsageError("name a directory: --out for Parquet, --journal for a journal, or both")
    if hold and journal_size is None:
        raise click.UsageError("--hold needs --journal-size")
    if until_unread is not None and journal is None:
        raise click.UsageError("--until-unread needs --journal")
    warn_in_one_line()
    defaults: dict[tuple[Scope, str], OptionValue] = {
        (Scope.RECEIVER, "receiver_queue_block_count"): _QUEUE_BLOCKS
    }
    config = configuration((Scope.CONTEXT, Scope.RECEIVER), defaults, config_file, options)
    settings = RecorderSettings(
        journal_bytes=int((journal_size or 0) * _MEBIBYTE),
        when_full="refuse" if hold else "discard_oldest",
        fsync_seconds=fsync,
        part_seconds=part_seconds,
        part_rows=part_rows,
        interval_seconds=interval,
    )

    readers = Readers(Path(str(journal)))

    def is_unread() -> bool:
        return until_unread is not None and readers.away_seconds() > until_unread

    with (
        Meter() as meter,
        terminable(once=True),
        Context(interface, config=config) as context,
        Recorder(
            context,
            topics,
            regex=regex,
            groups=groups,
            out=out,
            journal=journal,
            settings=settings,
            on_gap=_print_gap,
        ) as recorder,
        stoppable(recorder.stop) as asked,
    ):
        ServiceManager().announce_readiness()
        recorder.run(
            seconds,
            lambda report: meter.show(_progress(report)),
            lambda report: (count is not None and report.messages >= count) or is_unread(),
        )
    report, interrupted = recorder.report, asked.has_come
    cut_short = (interrupted and seconds is not None) or (count is not None and report.messages < count)
    _print_summary(report, cut_short=cut_short, interrupted=interrupted, as_json=as_json)


def _print_gap(gap: RecorderGap) -> None:
    click.echo(
        f"umstack: {gap.lost:,} messages of {gap.topic!r} (numbers {gap.first_sequence_number} to "
        f"{gap.sequence_number}) were sent while no recorder ran, and are not recorded",
        err=True,
    )


def _progress(report: RecorderReport) -> str:
    losses = f", {report.lost:,} lost" if report.lost else ""
    paused = f", held back for {report.paused_seconds:.0f} s" if report.paused_seconds >= 1 else ""
    return (
        f"recorded {report.messages:,} messages, {amount(report.bytes)}, of {report.topics} topics"
        f"{losses}{paused}"
    )


def _print_summary(report: RecorderReport, *, cut_short: bool, interrupted: bool, as_json: bool) -> None:
    ok = not cut_short and not report.lost and not report.topics_ignored
    if report.topics_ignored:
        click.echo(
            f"umstack: {report.topics_ignored} more topics match than can be recorded at once", err=True
        )
    if as_json:
        click.echo(json.dumps({"ok": ok, **asdict(report)}))
    else:
        click.echo(_progress(report), err=True)
    if not ok:
        raise SystemExit(INTERRUPTED_STATUS if cut_short and interrupted else 1)
