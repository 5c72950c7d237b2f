"""`umstack top`: rows computed from two readings, and a screen of 80 columns that is refreshed in place."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from tests.unit.loopback import connect, open_context, write_counters
from tests.waiting import wait_for
from umstack.cli import command as umstack
from umstack.cli.top import _SORTS, _screen, _short, _sorted, _View
from umstack.telemetry.live_rows import live_rows
from umstack.telemetry.statistics_reader import read_statistics

HOSTILE = "\x1b[2J[/red]\nfeed"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Separate the sockets of these tests from others."""
    monkeypatch.setenv("UMSTACK_STAT_DIR", str(tmp_path / "stat"))
    return tmp_path / "stat"


def report(read_at: float, **changes: Any) -> dict[str, Any]:
    """Return a report of a context that started at time 100."""
    return {
        "pid": 7,
        "number": 0,
        "command": "python3 feed.py",
        "started_at": 100.0,
        "read_at": read_at,
        "interface": "eth1",
        "link": "xdp",
        "link_mode": "native",
        "context": {},
        "link_counters": {},
        "source_transports": [],
        "receiver_transports": [],
        "sources": [],
        "receivers": [],
        **changes,
    }


def sending(read_at: float, sent: int, naks: int, **more: int) -> dict[str, Any]:
    """Return a report with a sending session."""
    session = {"transport": "S", "msgs_sent": sent, "bytes_sent": sent * 100, "naks_rcved": naks, **more}
    return report(read_at, source_transports=[session], sources=[{"topic": "t", "transport": "S"}])


def test_rates_are_computed_from_two_readings() -> None:
    """Seconds are those of the context's clock, not the reader's."""
    rows = live_rows([sending(112, 1500, 50)], [sending(110, 1000, 0)])
    (row,) = rows.sessions
    assert (row.direction, row.topics, row.datagrams, row.bytes, row.naks) == (
        "send",
        ("t",),
        250,
        25_000,
        25,
    )
    assert row.loss == 0.1
    assert rows.contexts[0].link == "native"


def test_a_session_lists_its_own_topics(folder: Path) -> None:
    """Item 16 of issue 41: a receiving session has the topics and queues of its own sources, not the context's."""
    with open_context(statistics=True) as context:
        pairs = [connect(context, f"own/{n}", transport_lbtrm_destination_port=24400 + n) for n in range(2)]
        for n, (source, _) in enumerate(pairs):
            for _ in range(n + 1):
                source.send(b"unread", flush=True)
        wait_for(
            lambda: [receiver.stats()["queued_messages"] for _, receiver in pairs] == [2, 3], "both queues"
        )  # with BeginningOfSession
        write_counters(context)
        received = [row for row in live_rows(read_statistics(), []).sessions if row.direction == "recv"]
        assert sorted((row.topics, row.queued) for row in received) == [(("own/0",), 2), (("own/1",), 3)]
        assert {row.transport: row.topics for row in received} == {
            source.transport: (source.topic,) for source, _ in pairs
        }


def test_a_first_reading_has_the_rates_since_the_start() -> None:
    """A first reading has the rates since the start; so does an object that was recreated and counts from
    zero.
    """
    (row,) = live_rows([sending(110, 1000, 0)], []).sessions
    assert row.datagrams == 100
    (row,) = live_rows([sending(112, 30, 0)], [sending(110, 1000, 0)]).sessions
    assert row.datagrams == 15


def test_loss_window_queue_and_ring_are_shown() -> None:
    """Each rate is computed from the object's own counters."""
    positions = {"pub_pos": 1900, "snd_pos": 1000, "pub_lmt": 2000, "rctlr_data_msgs": 3, "back_pressured": 4}
    (sender,) = live_rows([sending(112, 1, 0, **positions)], [sending(110, 1, 0)]).sessions
    assert (sender.window, sender.queued, sender.back_pressure) == (0.9, 3, 2.0)
    before = report(110, receiver_transports=[{"transport": "R", "lost": 0, "msgs_rcved": 0}])
    now = report(
        112,
        receiver_transports=[{"transport": "R", "lost": 10, "msgs_rcved": 90, "unrecovered_tmo": 4}],
        receivers=[{"topic": "t", "transports": ["R"], "queued_messages": 5, "queue_full_pauses": 2}],
        link_counters={"xdp_rx_ring_full": 8, "ring_kept": 0},
    )
    rows = live_rows([now], [before])
    (receiver,) = rows.sessions
    assert (receiver.loss, receiver.unrecovered, receiver.queued, receiver.back_pressure) == (
        0.1,
        2.0,
        5,
        1.0,
    )
    assert rows.contexts[0].ring == {"xdp_rx_ring_full": 4.0}


def many(count: int) -> list[dict[str, Any]]:
    """Return contexts with one session each."""
    made = []
    for number in range(count):
        one = sending(110, 100 * number + 123_456_789, number)
        made.append(
            {**one, "pid": 4_000_000 + number, "sources": [{"topic": HOSTILE * 20, "transport": "S"}]}
        )
    return made


@pytest.mark.parametrize("is_detail", [False, True])
@pytest.mark.parametrize("lines", [None, 10, 24])
def test_the_screen_fits_80_columns(lines: int | None, is_detail: bool) -> None:
    """Long and hostile names and large figures are truncated, not wrapped; with a height, nothing exceeds it."""
    reports = many(40)
    rows = live_rows(reports, [])
    console = Console(width=80, file=None, record=True, force_terminal=False)
    with console.capture() as captured:
        console.print(_screen(_View("rate", 39, is_detail), rows, reports, lines, 80))
    shown = captured.get().splitlines()
    assert all(len(line.rstrip()) <= 80 and line.isprintable() for line in shown)
    if lines is not None:
        assert len(shown) <= lines
        assert is_detail or any(line.lstrip().startswith("40 ") for line in shown), (
            "the chosen one is in view"
        )
    if not is_detail:
        assert any("\\x1b[2J[/red]"[:6] in line for line in shown)


def test_figures_are_short() -> None:
    """Any value has at most five characters."""
    assert [_short(n) for n in (0, 9.6, 999, 1000, 12_345, 9.99e8, 1.2e9)] == [
        "0",
        "10",
        "999",
        "1.0k",
        "12k",
        "999M",
        "1.2G",
    ]
    assert all(len(_short(7.7 * 10**power)) <= 5 for power in range(12))


@pytest.mark.parametrize("sort", _SORTS)
def test_every_column_sorts(sort: str) -> None:
    """Rows are sorted with the largest first, and process ids with the smallest first."""
    rows = live_rows(many(5), [])
    ordered = [row.pid for row in _sorted(rows, sort)]
    assert ordered == sorted(ordered, reverse=sort in ("rate", "bytes", "loss", "naks"))


def test_keys_control_the_screen() -> None:
    """Keys sort, move within bounds, show one context, and quit."""
    view = _View("rate")
    assert all(view.press(key, 3) for key in ("down", "down", "down", "up", "enter", "sort"))
    assert (view.chosen, view.is_detail, view.sort) == (1, True, "bytes")
    assert not view.press("q", 3)


def run(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(umstack, ["top", *arguments])


def test_once_json_is_one_object_for_scripts() -> None:
    """Two readings of real contexts give the rates of the messages sent in between."""
    with open_context(statistics=True) as context:
        source, receiver = connect(context, HOSTILE)
        stop = threading.Event()

        def publish() -> None:
            while not stop.is_set():
                source.send(b"x" * 100, flush=True)
                receiver.poll(100, 0.001)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            done = run("--once", "--json", "--interval", "0.5")
        finally:
            stop.set()
            thread.join()
    assert done.exit_code == 0, done.output
    shown = json.loads(done.output)
    assert [row["pid"] for row in shown["contexts"]] == [os.getpid()]
    rates = {row["direction"]: row["datagrams"] for row in shown["sessions"]}
    assert rates["send"] > 10
    assert rates["recv"] > 10
    assert {tuple(row["topics"]) for row in shown["sessions"]} == {(HOSTILE,)}


def test_once_shows_a_table_and_a_session() -> None:
    """The text output is for people; without a context it prints a hint."""
    assert "statistics=False" in run("--once", "--interval", "0.1").output
    with open_context(statistics=True) as context:
        connect(context, "seen")
        write_counters(context)
        assert "seen" in run("--once", "--interval", "0.1").output
        detail = run("--once", "--interval", "0.1", "--session", "1").output
        assert "topics: seen" in detail
        assert (
            "tsnis_sent" in detail
            or "session_messages_rcved" in detail
            or "msgs_" in detail
            or "pub_lmt" in detail
        )


@pytest.mark.parametrize("arguments", [("--json",), ()])
def test_invalid_output_options_are_a_usage_error(arguments: tuple[str, ...]) -> None:
    """Without --once, --json and output without a terminal are usage errors."""
    done = run(*arguments)
    assert done.exit_code == 2
    assert "--once" in done.output


def test_a_terminal_is_refreshed_and_restored() -> None:
    """On a pty of 80 columns it shows, reacts to keys, quits with q and restores the terminal."""
    import termios

    with open_context(statistics=True) as context:
        connect(context, "live")
        controller, terminal = pty.openpty()
        before = termios.tcgetattr(terminal)
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        command = [sys.executable, "-m", "umstack", "top", "--interval", "0.2"]
        process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
        try:
            assert "live" in until(controller, "live")
            os.write(controller, b"\r")
            until(controller, "topics: live")
            os.write(controller, b"q")
            deadline = time.monotonic() + 20
            while process.poll() is None and time.monotonic() < deadline:
                drain(controller)
            assert process.poll() == 0
            assert termios.tcgetattr(terminal)[3] == before[3]
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
            os.close(terminal)
            os.close(controller)


def drain(controller: int) -> str:
    """Return the output to the terminal within a short time."""
    return (
        os.read(controller, 65536).decode(errors="replace")
        if select.select([controller], [], [], 0.1)[0]
        else ""
    )


def until(controller: int, text: str, seconds: float = 20) -> str:
    """Return the output to the terminal up to this text."""
    shown_text, deadline = "", time.monotonic() + seconds
    while text not in shown_text:
        assert time.monotonic() < deadline, f"no {text!r} in {shown_text!r}"
        shown_text += drain(controller)
    return shown_text
