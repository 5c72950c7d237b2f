"""`umstack trace`: shows where the kernel drops datagrams."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.box import SIMPLE
from rich.console import Console, RenderableType
from rich.console import Group as Lines
from rich.live import Live
from rich.table import Table

from umstack.cli.interruption import terminable
from umstack.cli.stack_options import JSON_OPTION
from umstack.errors import InterfaceError
from umstack.trace import Group, Trace, TraceReport
from umstack_xdp import XdpError, find_interface

_EXAMPLES = """\b
Examples:
  umstack trace
  umstack trace 239.10.10.10:14400 --interface eth1
  umstack trace --seconds 10 --json
"""
_REFRESH_SECONDS = 1.0


def _groups(_ctx: click.Context, _param: click.Parameter, texts: Sequence[str]) -> list[Group]:
    """Read each `ADDRESS` or `ADDRESS:PORT`."""
    try:
        return [Group.parse(text) for text in texts]
    except ValueError as error:
        raise click.BadParameter(f"give ADDRESS or ADDRESS:PORT: {error}") from error


@click.command(epilog=_EXAMPLES)
@click.argument("groups", nargs=-1, callback=_groups, metavar="[GROUP[:PORT]]...")
@click.option("-i", "--interface", help="Interface: a name, an address or a network. Default: all.")
@click.option(
    "--seconds", type=click.FloatRange(0.1), metavar="N", help="Stop after N seconds. Default: at Ctrl-C."
)
@JSON_OPTION
def command(groups: Sequence[Group], interface: str | None, seconds: float | None, as_json: bool) -> None:
    """Show where the kernel drops datagrams to these groups; without a group: all multicast.

    Drops with the kernel's reason and function, frames XDP could not carry out or redirect, what the rings of running
    contexts count, and the time the CPUs spent receiving. Needs root, bcc and kernel headers of any version.
    """
    name = None
    if interface is not None:
        try:
            name = find_interface(interface).name
        except XdpError as error:
            raise InterfaceError(error.message, hint=error.hint) from error
    progress = Console(stderr=True)
    with terminable():
        with progress.status("compiling the tracing program"):
            trace = Trace(groups, name)
        with trace:
            if as_json or not Console().is_terminal:
                progress.print("tracing" if seconds else "tracing; Ctrl-C ends it", highlight=False)
                report = _wait(trace, seconds)
            else:
                report = _live(trace, seconds)
    if as_json:
        wanted = {"groups": [str(group) for group in groups], "interface": name}
        click.echo(json.dumps(wanted | asdict(report)))
    elif not Console().is_terminal:
        Console().print(_shown(report))


def _wait(trace: Trace, seconds: float | None) -> TraceReport:
    try:
        if seconds is not None:
            time.sleep(seconds)
        while seconds is None:
            time.sleep(_REFRESH_SECONDS)
    except KeyboardInterrupt:
        pass
    return trace.report()


def _live(trace: Trace, seconds: float | None) -> TraceReport:
    report = trace.report()
    deadline = None if seconds is None else time.monotonic() + seconds
    with Live(_shown(report), auto_refresh=False) as live:
        try:
            while deadline is None or (left := deadline - time.monotonic()) > 0:
                time.sleep(_REFRESH_SECONDS if deadline is None else min(left, _REFRESH_SECONDS))
                report = trace.report()
                live.update(_shown(report), refresh=True)
        except KeyboardInterrupt:
            pass
    return report


def _shown(report: TraceReport) -> RenderableType:
    softirq = report.softirq_net_rx
    parts: list[RenderableType] = [
        f"{report.seconds:.0f} s; receiving took {softirq.microseconds / 1e6:.3f} CPU seconds in "
        f"{softirq.runs:,} runs, {softirq.share:.1%} of the CPUs"
    ]
    if report.drops:
        table = _table("group", "port", "reason", "in", "on", "meaning")
        for drop in report.drops:
            port = str(drop.port or "-")
            table.add_row(
                drop.group, port, drop.reason, drop.where, drop.interface, drop.meaning, f"{drop.count:,}"
            )
        parts.append(table)
    else:
        parts.append("the kernel dropped no such datagram")
    if report.xdp_exceptions or report.redirect_errors:
        table = _table("XDP", "on", "meaning")
        for exception in report.xdp_exceptions:
            table.add_row(f"exception: {exception.action}", exception.interface, "", f"{exception.count:,}")
        for error in report.redirect_errors:
            table.add_row(f"redirect: {error.error}", error.interface, error.meaning, f"{error.count:,}")
        parts.append(table)
    if report.rings:
        table = _table("rings of", "on", "counter")
        for ring in report.rings:
            for counter, value in ring.counters.items():
                table.add_row(str(ring.pid), ring.interface, counter, f"{value:,}")
        parts.append(table)
    return Lines(*parts)


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    table.add_column("count", justify="right")
    return table
