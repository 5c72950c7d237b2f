"""`umstack stat`: the counters of contexts, running or killed, read from their counter files."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from umstack.cli.meter import amount
from umstack.cli.stack_options import JSON_OPTION
from umstack.errors import UmError
from umstack.foreign_text import displayed
from umstack.telemetry.host_clock import host_clock
from umstack.telemetry.live_rows import earlier_of, identity
from umstack.telemetry.statistics_reader import read_statistics, statistics_directory
from umstack.telemetry.timers import receiver_timers, source_timers

_EXAMPLES = """\b
Examples:
  umstack stat
  umstack stat 4711
  umstack stat 4711 --watch 1
  umstack stat --errors
  umstack stat --json
"""
_LISTS = {
    "source_transports": "transport",
    "receiver_transports": "transport",
    "sources": "topic",
    "receivers": "topic",
    "stores": "store",
}
_NO_FIGURES = {"transport", "transports", "topic", "recovery_counts", "latency_counts", "nak_accounts"}
_NO_FIGURES |= {"store", "commit_counts"}
_TOPICS_SHOWN = 10
_SILENT_SECONDS = 5.0
"""A running process writes its counters at least this often, unless it is stopped or has thousands of topics."""
_TIMERS = {"source_transports": source_timers, "receiver_transports": receiver_timers}
Report = Mapping[str, Any]
Identity = tuple[int, int, float]


class NoStatistics(UmError):
    """The process has no readable context."""

    default_hint = (
        "every context of a running or killed process can be read, "
        "unless it was made with statistics=False or in sequential mode"
    )


@click.command(epilog=_EXAMPLES)
@click.argument("pid", type=click.IntRange(1), required=False)
@click.option(
    "--watch", type=click.FloatRange(0.1), metavar="SECONDS", help="Repeat at this interval and show rates."
)
@click.option("--all", "everything", is_flag=True, help="Include counters that are zero.")
@click.option(
    "--errors", "only_errors", is_flag=True, help="Show the distinct errors of each process instead."
)
@JSON_OPTION
def command(pid: int | None, watch: float | None, everything: bool, only_errors: bool, as_json: bool) -> None:
    """Show the counters of the process PID, or list the readable processes.

    Every context of this user can be read (for root: of all users), unless it was made with statistics=False. Those of
    processes that were killed stay, with their last values, for a day (option statistics_ended_interval).
    """
    if as_json and watch is not None:
        raise click.UsageError("--json prints a single reading, --watch many: give only one of them")
    if only_errors and watch is not None:
        raise click.UsageError("--errors prints a single reading, --watch many: give only one of them")
    reports = _read(pid)
    if only_errors:
        _show_errors(reports, as_json)
        return
    if as_json:
        click.echo(json.dumps({"contexts": reports, "clock": host_clock().as_json()}))
        return
    console = Console()
    if any(_sum(report, "receiver_transports", "latency_messages") for report in reports):
        # This host's clock only; the publishers' clocks are unknown here.
        console.print(_foreign(f"clock of this host: {host_clock()}"))
    console.print(_shown(pid, reports, {}, everything))
    if watch is not None:
        _watch(console, pid, reports, watch, everything)


def _read(pid: int | None) -> list[dict[str, Any]]:
    reports = read_statistics(pid, with_ended=True)
    if pid is not None and not reports:
        raise NoStatistics(f"no context of process {pid} can be read in {statistics_directory()}")
    return reports


def _show_errors(reports: Sequence[Report], as_json: bool) -> None:
    """Print the errors once per process, because all contexts of a process report the same ones."""
    by_process = {report["pid"]: report["errors"] for report in reports}
    if as_json:
        found = [{"pid": pid, **error} for pid, errors in by_process.items() for error in errors]
        click.echo(json.dumps({"errors": found}))
        return
    table = Table("pid", box=SIMPLE, show_edge=False)
    table.add_column("count", justify="right")
    for column in ("first seen", "last seen", "of", "error"):
        table.add_column(column)
    for pid, errors in by_process.items():
        for error in errors:
            times = (_local_time(error["first_at"]), _local_time(error["last_at"]))
            about = error["subject"] or error["logger"]
            table.add_row(str(pid), f"{error['count']:,}", *times, _foreign(about), _foreign(error["text"]))
    Console().print(table if table.row_count else "no errors")


def _local_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _watch(
    console: Console, pid: int | None, reports: Sequence[Report], seconds: float, everything: bool
) -> None:
    earlier: list[Report] = []
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                time.sleep(seconds)
                last, reports = reports, _read(pid)
                earlier = earlier_of(reports, last, earlier)
                before = {identity(report): report for report in earlier}
                live.update(_shown(pid, reports, before, everything), refresh=True)
    except KeyboardInterrupt:
        return


def _shown(
    pid: int | None, reports: Sequence[Report], before: Mapping[Identity, Report], everything: bool
) -> RenderableType:
    if pid is None:
        return _listed(reports, before)
    return Group(*(_detailed(report, before.get(identity(report)), everything) for report in reports))


def _state(report: Report) -> str:
    """Return whether a process has ended, or has written nothing for a while; empty for others."""
    age = time.time() - report["read_at"]
    if not report["is_running"]:
        return f"ended, {age:.0f} s ago"
    return f"silent for {age:.0f} s" if age > _SILENT_SECONDS else ""


def _listed(reports: Sequence[Report], before: Mapping[Identity, Report]) -> RenderableType:
    if not reports:
        return f"no context to be read; {NoStatistics.default_hint}"
    table = Table("pid", "state", "on", "topics", box=SIMPLE, show_edge=False)
    for column in ("sent", "received", "lost", "NAKs"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("command")
    for report in reports:
        earlier = before.get(identity(report))
        topics = sorted({item["topic"] for item in (*report["sources"], *report["receivers"])})
        table.add_row(
            str(report["pid"]),
            _state(report) or "running",
            _foreign(report["interface"]),
            _foreign(", ".join(topics)),
            _traffic(report, earlier, "sources", "bytes_sent"),
            _traffic(report, earlier, "receivers", "bytes_delivered"),
            f"{_sum(report, 'receiver_transports', 'lost'):,}",
            f"{_sum(report, 'receiver_transports', 'naks_sent'):,}",
            _foreign(_short(report["command"])),
        )
    return table


def _foreign(text: str) -> Text:
    """Escape control characters and rich markup in text from another process."""
    return Text(displayed(text))


def _short(command: str) -> str:
    """Return a command line without the directories of the interpreter and the program."""
    words = command.split()
    words[:2] = [word.rpartition("/")[2] for word in words[:2]]
    return " ".join(words[1:] if len(words) > 1 and words[0].startswith("python") else words)


def _sum(report: Report, group: str, counter: str) -> int:
    return sum(item.get(counter, 0) for item in report[group])


def _traffic(report: Report, earlier: Report | None, group: str, counter: str) -> str:
    """Format total bytes or, given an earlier reading, bytes per second."""
    total = _sum(report, group, counter)
    if earlier is None:
        return amount(total)
    elapsed = report["read_at"] - earlier["read_at"]
    return f"{amount((total - _sum(earlier, group, counter)) / elapsed)}/s"


def _detailed(report: Report, earlier: Report | None, everything: bool) -> RenderableType:
    """Print every counter of one context: its owner, name, value and rate."""
    state = f" ({_state(report)})" if _state(report) else ""
    title = _foreign(
        f"process {report['pid']}{state} on {report['interface']}, {report['link']}: {report['command']}"
    )
    table = Table("of", "counter", box=SIMPLE, show_edge=False, title=title, title_justify="left")
    table.add_column("value", justify="right")
    if earlier is not None:
        table.add_column("a second", justify="right")
    values = _flat(report)
    past = _flat(earlier) if earlier is not None else {}
    elapsed = report["read_at"] - earlier["read_at"] if earlier is not None else 0.0
    last = None
    for (of, name), value in values.items():
        if not (value or everything):
            continue
        shown = _foreign(value) if isinstance(value, str) else _number(value)
        row: list[str | Text] = [_foreign(of if of != last else ""), _foreign(name), shown]
        last = of
        if earlier is not None:
            row.append(_rate(value, past.get((of, name)), elapsed))
        table.add_row(*row)
    return table


def _flat(report: Report) -> dict[tuple[str, str], Any]:
    """Return counter values by owner and name."""
    flat: dict[tuple[str, str], Any] = {
        ("topic resolution", name): text for name, text in _resolution(report.get("resolution") or {}).items()
    }
    flat |= {("context", name): value for name, value in report["context"].items()}
    flat |= {("links", name): value for name, value in report["link_counters"].items()}
    for group, label in _LISTS.items():
        for item in report[group]:
            of = f"{group.rstrip('s').replace('_', ' ')} {item[label]}"
            flat |= {(of, name): value for name, value in item.items() if name not in _NO_FIGURES}
            if timers := _TIMERS.get(group):
                flat |= {(of, name): text for name, text in timers(item).items()}
            for account in item.get("nak_accounts", ()):
                receiver = f"receiver {account['receiver']}"
                flat |= {(receiver, name): value for name, value in account.items() if name != "receiver"}
    return flat


def _resolution(domain: Mapping[str, Any]) -> dict[str, str]:
    """Return lines on the resolution domain and the interest of a context, by label."""
    shown = {name: domain[name] for name in ("by", "sends_to", "listens_to") if name in domain}
    for daemon in domain.get("daemons", ()):
        state = "used" if daemon.get("used") else "answers" if daemon.get("answers") else "does not answer"
        shown[f"daemon {daemon['address']}"] = state
    for name in ("advertised", "queried", "unresolved", "patterns"):
        topics = domain.get(name, ())
        more = f", ... ({len(topics)} listed)" if len(topics) > _TOPICS_SHOWN else ""
        shown[name] = ", ".join(topics[:_TOPICS_SHOWN]) + more
    return shown


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"


def _rate(now: Any, before: Any, seconds: float) -> str:
    if not isinstance(now, int) or not isinstance(before, int) or now == before:
        return ""
    return f"{(now - before) / seconds:,.0f}"
