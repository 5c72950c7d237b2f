"""`umstack top`: shows every context of the host and its sessions, refreshed in place."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from umstack.cli.meter import amount
from umstack.cli.stack_options import JSON_OPTION
from umstack.foreign_text import displayed
from umstack.telemetry.exporter_text import program
from umstack.telemetry.live_rows import ContextRow, LiveRows, Report, SessionRow, earlier_of, live_rows
from umstack.telemetry.statistics_reader import read_statistics

_EXAMPLES = """\b
Examples:
  umstack top
  umstack top --sort loss --interval 0.5
  umstack top --session 2                  one session, all its counters
  umstack top --once --json

Keys: s sorts by the next column, up and down (or k and j) choose a session,
Enter shows it alone and goes back, q ends.
"""
_SORTS = ("rate", "bytes", "loss", "naks", "window", "queued", "pid")
_FIGURES = {"rate": 5, "bytes": 8, "loss": 5, "naks": 5, "window": 6, "queued": 6, "bp": 4}
"""The columns of figures and their widths."""

_KEYS = {
    "\x1b[A": "up",
    "k": "up",
    "\x1b[B": "down",
    "j": "down",
    "\r": "enter",
    "\n": "enter",
    "s": "sort",
    "q": "q",
}
_WRITTEN_SECONDS = 1.0
"""Contexts write their counters at least this often, except those with thousands of topics."""
_POLL_SECONDS = 0.05
_CONTEXT_LINES = 3
"""Lines of contexts shown; the sessions get the rest of the screen."""


@dataclass(slots=True)
class _View:
    """The view that the user selected."""

    sort: str
    chosen: int = 0
    is_detail: bool = False

    def press(self, key: str, sessions: int) -> bool:
        """React to a key; False ends."""
        if key == "q":
            return False
        if key == "sort":
            self.sort = _SORTS[(_SORTS.index(self.sort) + 1) % len(_SORTS)]
        elif key == "enter":
            self.is_detail = not self.is_detail
        elif key == "up":
            self.chosen = max(self.chosen - 1, 0)
        elif key == "down":
            self.chosen = min(self.chosen + 1, max(sessions - 1, 0))
        return True


@click.command(epilog=_EXAMPLES)
@click.option("--sort", type=click.Choice(_SORTS), default="rate", show_default=True, help="Sort order.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    show_default=True,
    help="Seconds between readings.",
)
@click.option("--session", "number", type=click.IntRange(1), help="Show only the session with this number.")
@click.option("--once", is_flag=True, help="Take two readings one interval apart, print them, and exit.")
@JSON_OPTION
def command(sort: str, interval: float, number: int | None, once: bool, as_json: bool) -> None:
    """Show the contexts of this host, their sessions, rates, loss, windows, queues and rings.

    A context is found unless it was made with statistics=False. Rates
    are per second. `loss` of a sender is the part of its datagrams that was NAKed.
    """
    if as_json and not once:
        raise click.UsageError("--json needs --once")
    view = _View(sort, (number or 1) - 1, number is not None)
    if once:
        _once(view, interval, as_json)
    else:
        _follow(view, interval)


def _once(view: _View, interval: float, as_json: bool) -> None:
    earlier = read_statistics()
    began = time.monotonic()
    time.sleep(interval)
    reports = read_statistics()
    while len(before := earlier_of(reports, earlier, [])) < len(earlier):
        if time.monotonic() - began >= _WRITTEN_SECONDS:
            break
        time.sleep(_POLL_SECONDS)
        reports = read_statistics()
    rows = live_rows(reports, before)
    if as_json:
        click.echo(json.dumps({"interval": interval, **rows.as_json()}))
        return
    console = Console()
    console.print(_screen(view, rows, reports, lines=None, width=console.width))


def _follow(view: _View, interval: float) -> None:
    console = Console()
    if not console.is_terminal:
        raise click.UsageError("standard output is not a terminal: use --once, or umstack stat --watch")
    earlier: list[Report] = []
    reports = read_statistics()
    with _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        deadline = time.monotonic() + min(interval, 0.5)
        while True:
            rows = live_rows(reports, earlier)
            live.update(_screen(view, rows, reports, lines=console.height, width=console.width), refresh=True)
            while (left := deadline - time.monotonic()) > 0:
                key = keys(left)
                if key is None:
                    continue
                if not view.press(key, len(rows.sessions)):
                    return
                live.update(
                    _screen(view, rows, reports, lines=console.height, width=console.width), refresh=True
                )
            last, reports = reports, read_statistics()
            earlier = earlier_of(reports, last, earlier)
            deadline = time.monotonic() + interval


@contextmanager
def _keys() -> Iterator[Any]:
    """Yield a function that waits up to a timeout for a key and returns its name or None; restore the terminal."""
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        yield lambda seconds: time.sleep(seconds)
        return
    before = termios.tcgetattr(descriptor)

    def wait(seconds: float) -> str | None:
        if not select.select([descriptor], [], [], seconds)[0]:
            return None
        return _KEYS.get(os.read(descriptor, 8).decode(errors="replace"))

    try:
        tty.setcbreak(descriptor)
        yield wait
    except KeyboardInterrupt:
        return
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _sorted(rows: LiveRows, sort: str) -> list[SessionRow]:
    def key(row: SessionRow) -> tuple[float, ...]:
        values = {
            "rate": row.datagrams,
            "bytes": row.bytes,
            "loss": row.loss,
            "naks": row.naks,
            "window": row.window or 0.0,
            "queued": float(row.queued),
            "pid": -float(row.pid),
        }
        return -values[sort], row.pid, row.context

    return sorted(rows.sessions, key=key)


def _screen(
    view: _View, rows: LiveRows, reports: Sequence[Any], lines: int | None, width: int
) -> RenderableType:
    if not rows.contexts:
        return "no context to be read; every one can be, unless it was made with statistics=False"
    ordered = _sorted(rows, view.sort)
    view.chosen = min(view.chosen, max(len(ordered) - 1, 0))
    if view.is_detail and ordered:
        return _detail(ordered[view.chosen], reports, lines)
    contexts = rows.contexts if lines is None else rows.contexts[:_CONTEXT_LINES]
    space = None if lines is None else max(lines - len(contexts) - 6, 1)
    return Group(_contexts(rows, contexts), _sessions(ordered, view, space, width))


def _foreign(text: str) -> Text:
    return Text(displayed(text), no_wrap=True, overflow="ellipsis")


def _contexts(rows: LiveRows, shown: Sequence[ContextRow]) -> Group:
    """One line per context, and one with the number of hidden contexts."""
    lines = []
    for row in shown:
        starved = "  ".join(f"{name} {rate:,.0f}/s" for name, rate in row.ring.items() if name in _STARVATION)
        drops = f"  drops {row.receive_drops:,.0f}/s" if row.receive_drops else ""
        text = f"{row.pid}/{row.context} {program(row.command)} on {row.interface}, {row.link}"
        lines.append(_foreign(f"{text}: {row.sessions} sessions{drops}{'  ' if starved else ''}{starved}"))
    if len(rows.contexts) > len(shown):
        lines.append(Text(f"and {len(rows.contexts) - len(shown)} more contexts"))
    return Group(*lines)


_STARVATION = {
    "xdp_rx_dropped",
    "xdp_rx_ring_full",
    "xdp_rx_fill_ring_empty_descs",
    "xdp_tx_ring_empty_descs",
}


def _sessions(ordered: Sequence[SessionRow], view: _View, space: int | None, width: int) -> Table:
    """Return the sessions around the selected one. Topics get the width that the figures leave."""
    first = 0 if space is None else max(0, view.chosen - space + 1)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    names = [f"{name}*" if name == view.sort else name for name in _FIGURES]
    widths = [max(wide, len(name)) for name, wide in zip(names, _FIGURES.values(), strict=True)]
    table.add_column("#", width=3, justify="right", no_wrap=True)
    table.add_column("pid*" if view.sort == "pid" else "pid", width=7, justify="right", no_wrap=True)
    table.add_column("", width=4, no_wrap=True)
    others = sum(widths) + 3 + 7 + 4 + len(widths) + 3
    table.add_column("topics", width=max(width - others, 8), no_wrap=True, overflow="ellipsis")
    for name, wide in zip(names, widths, strict=True):
        table.add_column(name, width=wide, justify="right", no_wrap=True)
    for number, row in list(enumerate(ordered, 1))[first : None if space is None else first + space]:
        table.add_row(
            str(number),
            str(row.pid),
            row.direction,
            _foreign(", ".join(row.topics)),
            _short(row.datagrams),
            amount(row.bytes),
            _percent(row.loss),
            _short(row.naks),
            _percent(row.window),
            _short(row.queued),
            _short(row.back_pressure),
            style="reverse" if space is not None and number - 1 == view.chosen else "",
        )
    table.caption = "s sort  up/down choose  Enter detail  q end" if space is not None else None
    return table


def _short(number: float) -> str:
    """Format a figure in at most five characters."""
    for unit in ("", "k", "M", "G"):
        if number < 999.5 or unit == "G":
            is_whole = number >= 10 or not unit
            return f"{number:.0f}{unit}" if is_whole else f"{number:.1f}{unit}"
        number /= 1000
    raise AssertionError


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part * 100:.1f}%" if part < 0.1 else f"{part * 100:.0f}%"


def _detail(row: SessionRow, reports: Sequence[Any], lines: int | None) -> RenderableType:
    """Return every nonzero counter of a session."""
    key = "source_transports" if row.direction == "send" else "receiver_transports"
    (report,) = [one for one in reports if (one["pid"], one["number"]) == (row.pid, row.context)]
    item = next(one for one in report[key] if one["transport"] == row.transport)
    figures = [(name, value) for name, value in item.items() if value and isinstance(value, int | float)]
    head = _foreign(f"{row.direction} {row.transport}, process {row.pid} on {row.interface}")
    topics = _foreign(f"topics: {', '.join(row.topics)}")
    table = Table.grid(padding=(0, 3, 0, 0))
    space = len(figures) if lines is None else max(lines - 6, 1)
    columns = 1 if lines is None else max(1, min(2, -(-len(figures) // space)))
    height = -(-len(figures) // columns)
    for at in range(min(height, space)):
        cells: list[str] = []
        for name, value in figures[at::height]:
            cells += [name, f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"]
        table.add_row(*(displayed(cell) for cell in cells))
    return Group(head, topics, _noisiest(item), _slow(item), Text(""), table)


def _slow(item: Any) -> Text:
    """Return the receivers of a source session whose readers are slow."""
    slow = [
        f"{account['receiver']} {'(cut loose)' if account.get('is_cut_loose') else '(queue full)'}"
        for account in item.get("nak_accounts", ())
        if account.get("is_slow") or account.get("is_cut_loose")
    ]
    return _foreign(f"slow receivers: {', '.join(slow)}" if slow else "")


def _noisiest(item: Any) -> Text:
    """Return the receiver with the most NAKs in a source session."""
    accounts = [account for account in item.get("nak_accounts", ()) if account["naks"]]
    if not accounts:
        return Text("")
    most = max(accounts, key=lambda account: int(account["naks"]))
    return _foreign(f"most NAKs: {most['receiver']}, {most['naks']:,}, of them {most['refused']:,} refused")
