"""`umstack watch --web`: a page that stands alone, server-sent events behind it, and what a browser makes of both."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.browser import needs_chromium, opened
from tests.waiting import wait_for
from umstack.cli import command as umstack
from umstack.telemetry.live_page import LivePage
from umstack.telemetry.live_rows import live_rows

SESSION = "LBTRM:10.0.0.1:14390:0x1:224.10.10.10:14400"
HOSTILE = "<script>document.title='taken'</script>\x1b[2J"


class Readings:
    """Reports of a sender and a receiver, a second apart: 1,000 datagrams per second; 10 are lost and recovered."""

    def __init__(self) -> None:
        self.count = 0
        self.ended = False

    def __call__(self) -> list[dict[str, Any]]:
        self.count += 1
        sent, lost = 1000 * self.count, 10 * self.count
        common = {
            "number": 0, "started_at": 100.0, "read_at": 100.0 + self.count, "interface": "eth1", "link": "socket",
            "link_mode": None, "context": {}, "link_counters": {}, "sources": [], "receivers": [],
            "source_transports": [], "receiver_transports": [],
        }  # fmt: skip
        sender = {"transport": SESSION, "msgs_sent": sent, "bytes_sent": sent * 100, "naks_rcved": lost}
        receiver = {
            "transport": SESSION, "msgs_rcved": sent, "bytes_rcved": sent * 100, "lost": lost, "naks_sent": lost,
            "recovery_counts": [0, lost, 0],
        }  # fmt: skip
        reports = [
            {**common, "pid": 7, "command": "/opt/feed --password=secret", "source_transports": [sender],
             "sources": [{"topic": HOSTILE, "transport": SESSION}]},
            {**common, "pid": 8, "command": "recv", "receiver_transports": [receiver],
             "receivers": [{"topic": "orders", "transports": [SESSION]}]},
        ]  # fmt: skip
        return reports[:1] if self.ended else reports


@pytest.fixture
def readings() -> Readings:
    """Return the data that the page reads."""
    return Readings()


@pytest.fixture
def page(readings: Readings) -> Iterator[LivePage]:
    """The page of these readings."""
    with LivePage("127.0.0.1:0", readings, interval=0.1) as made:
        yield made


def events(stream: Any) -> Iterator[dict[str, Any]]:
    """The events of a stream, as JSON."""
    for line in stream:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


def get(page: LivePage, path: str = "/", **headers: str) -> Any:
    """An answer of the page."""
    return urllib.request.urlopen(urllib.request.Request(page.url + path[1:], headers=headers), timeout=10)


def test_events_are_the_rows_of_top(page: LivePage) -> None:
    """Each event holds contexts and sessions with the rates since the one before."""
    with get(page, "/rows") as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        heard = events(stream)
        first, second = next(heard), next(heard)
    assert second["time"] > first["time"]
    assert [(row["pid"], row["command"]) for row in second["contexts"]] == [(7, "feed"), (8, "recv")]
    send, recv = second["sessions"]
    assert (send["direction"], send["datagrams"], send["loss"]) == ("send", 1000.0, 0.01)
    assert (recv["naks"], recv["topics"]) == (10.0, ["orders"])
    assert recv["recovery_p50_ms"] is not None


def test_viewers_share_readings_and_none_means_none(page: LivePage, readings: Readings) -> None:
    """A reading serves all viewers; nothing is read while nobody looks."""
    time.sleep(0.25)
    assert readings.count == 0
    began = time.monotonic()
    streams = [get(page, "/rows") for _ in range(3)]
    heard = [events(stream) for stream in streams]
    times = [[next(one)["time"] for one in heard] for _ in range(4)]
    for stream in streams:
        stream.close()
    most = 2 + (time.monotonic() - began) / 0.1
    assert len({moment for row in times for moment in row}) <= readings.count <= most


def test_recoveries_are_those_between_the_readings() -> None:
    """The recovery time is that of the interval, not of the session's whole life."""
    reading = Readings()
    earlier, later = reading(), reading()
    later[1]["receiver_transports"][0]["recovery_counts"] = [0, 10, 5]
    (_, recv) = live_rows(later, earlier).sessions
    (_, since_beginning) = live_rows(later, []).sessions
    assert recv.recovery_p50_ms > since_beginning.recovery_p50_ms
    (_, nothing_new) = live_rows(later, later).sessions
    assert nothing_new.recovery_p50_ms is None


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "localhost.evil.example"])
def test_a_name_from_elsewhere_is_not_answered(page: LivePage, readings: Readings, host: str) -> None:
    """A page elsewhere whose name leads here (DNS rebinding) reads nothing."""
    for path in ("/", "/rows"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(page, path, Host=host)
        assert caught.value.code == 421
    assert readings.count == 0


def test_the_page_needs_nothing_from_elsewhere(page: LivePage) -> None:
    """One self-contained page; its policy forbids anything else."""
    with get(page) as answer:
        text = answer.read().decode()
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert set(re.findall(r"""https?://[^\s"']+""", text)) == {"https://github.com/leeoniya/uPlot"}, (
        "named in a comment"
    )
    assert not re.search(r"<(?:link|img|iframe)|src=|innerHTML|@import|url\(", text)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(page, "/etc/passwd")


def test_closing_ends_the_streams(readings: Readings) -> None:
    """Viewers are let go when the command ends."""
    with LivePage("127.0.0.1:0", readings, interval=60) as page:
        stream = get(page, "/rows")
        next(events(stream))
        began = time.monotonic()
    assert not any(b"data" in line for line in list(stream)[1:])
    assert time.monotonic() - began < 5


@needs_chromium
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_a_browser_shows_it(page: LivePage, readings: Readings, width: int, height: int) -> None:
    """Rows and charts at desktop and phone width, foreign text as text, choosing a session."""
    with opened(page.url, width, height) as (browser, errors):
        browser.wait_for_function("() => document.querySelector('.chart')?.chart?.data[0].length > 5")
        assert browser.inner_text("#state") == "2 contexts, 2 sessions"
        assert [title.inner_text() for title in browser.query_selector_all("figure b")] == [
            "Datagrams per second", "Loss, worst session", "Recovery time, p50", "NAKs per second",
        ]  # fmt: skip
        assert (
            browser.query_selector_all(".chart")[0]
            .get_attribute("aria-label")
            .endswith("sent 1.0k, received 1.0k")
        )
        assert browser.inner_text("#sessions td.topics").startswith("<script>")
        assert browser.title() == "umstack: live"
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        box = browser.query_selector(".chart .u-over").bounding_box()
        browser.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 20)
        browser.wait_for_function("() => document.querySelector('.u-legend').innerText.includes('1.0k')")
        browser.mouse.down()
        browser.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 20, steps=4)
        browser.mouse.up()
        browser.wait_for_function(
            "() => { const { data, scales } = document.querySelector('.chart').chart, ages = data[0];"
            " return data[0].length > 9 && scales.x.max < ages[ages.length - 1] && scales.x.min > ages[0]; }"
        )
        browser.click("#sessions tr:last-child")
        browser.wait_for_function("() => document.querySelector('.chart').ariaLabel.includes('sent 0,')")
        readings.ended = True
        browser.wait_for_function("() => document.querySelectorAll('#sessions tr').length === 1")
        assert browser.inner_text("#state") == "1 contexts, 1 sessions"
        assert errors == []
        page.close()
        browser.wait_for_selector("#state.lost")


def test_the_command_shows_the_address_of_the_page(tmp_path: Path) -> None:
    """`umstack watch --web` serves until it is ended, and without --web names `umstack top`."""
    command = [sys.executable, "-m", "umstack", "watch", "--web", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={"UMSTACK_STAT_DIR": str(tmp_path), "PATH": "/usr/bin"},
    )
    try:
        url = json.loads(process.stdout.readline())["url"]
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert b"EventSource" in answer.read()
    finally:
        process.send_signal(signal.SIGTERM)
    wait_for(lambda: process.poll() is not None, "the command's end", 10)
    assert process.returncode == 0
    process.stdout.close()
    refused = CliRunner().invoke(umstack, ["watch"])
    assert refused.exit_code == 2
    assert "umstack top" in refused.output
