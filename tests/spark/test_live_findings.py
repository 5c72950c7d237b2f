"""`umstack monitor` has the findings of a report, by windows: the same numbers and the same sentences."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("prometheus_client")

import pyarrow.parquet as pq

from tests.sim.sim_run import scripted, storm
from tests.spark.odd_captures import odd_captures
from tests.spark.said import Said
from tests.story import RECEIVERS, Story
from tests.unit.capture_bytes import SOURCE, Packet, data, ethernet, frame, ipv4, message, nak, pcap, udp
from tests.unit.stream_bytes import recoveries
from tests.unit.unicast_bytes import lbtru_session, lbttcp_session
from umstack.monitor import MonitorOptions, monitor
from umstack.monitor.finding_watch import FindingWatch
from umstack.monitor.sinks import IDENTITY
from umstack.monitor.window_findings import FINDINGS, TABLES
from umstack.report import Report, make_report
from umstack.sim import MS, SECOND, START_NS

EVERYTHING_SECONDS = 1e9
"""A window that includes all of these captures."""
REPORTED_OTHERWISE = ("traffic", "loss", "unrepaired", "nak-storm", "capture")
"""Topics of a report that the monitor shows as windows of traffic and recovery, incidents, storms and notes."""
SAMPLE = Path(__file__).parents[1] / "wire" / "wire-sample.pcap"
_AGAIN = 0xA0
"""The flags of a retransmission."""
LATER = 0x1A7E0001
"""A session with a single datagram long after all others, which completes their windows."""
SUMS = {
    "repairs": ("retransmissions", "retransmitted_bytes", "naks", "unrequested", "repeated", "useless_bytes"),
    "duplicates": ("copies",),
    "gaps": ("missing",),
    "datagram_fill": ("datagrams", "messages", "half_empty", "over_mtu"),
    "ip_fragments": ("fragments", "bytes"),
    "recovery_latency": ("lost", "repaired", "naks"),
    "latency": ("datagrams", "negative"),
    "remarks": ("packets",),
    "topics": ("messages", "fragments", "payload_bytes"),
    "recoveries": ("range_requests", "requests", "messages", "fragments", "payload_bytes"),
}
"""Columns whose sums over windows equal those of the report."""


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a case of every finding: simulated runs captured at every port, and unusual captures."""
    seed = random.SystemRandom().randrange(2**24)
    print(f"simulated runs of seeds {seed} and {seed + 1}")
    folder = tmp_path_factory.mktemp("findings") / "captures"
    odd_captures(folder)
    (folder / "useless.pcap").write_bytes(_useless())
    shutil.copy(SAMPLE, folder)
    scripted(folder, seed)
    storm(folder, seed + 1, START_NS + 5 * SECOND)
    (folder / "recovery.pcap").write_bytes(pcap(recoveries()))
    (folder / "lbtru.pcap").write_bytes(pcap(lbtru_session()))
    (folder / "lbttcp.pcap").write_bytes(pcap(lbttcp_session()))
    return folder


def _useless() -> bytes:
    """A datagram NAKed once and retransmitted three times, one retransmitted without a NAK, and one seen twice."""
    asks = ethernet(ipv4(udp(nak(5), 14400, 14390), "10.0.0.2", SOURCE))
    frames = [frame(data(sqn, message(1, sqn, bytes(200)))) for sqn in (*range(20), 3)]
    frames += [asks, *(frame(data(sqn, message(1, sqn, bytes(200)), flags=_AGAIN)) for sqn in (5, 5, 5, 7))]
    return pcap(Packet(START_NS + at * MS, one) for at, one in enumerate(frames))


@pytest.fixture(scope="module")
def report(captures: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report on the captures."""
    return make_report([str(captures)], tmp_path_factory.mktemp("report"))


def reported_by(captures: Path, tmp_path: Path, **options: Any) -> Said:
    """The findings of the monitor on existing captures."""
    said = Said()
    watched = MonitorOptions((str(captures),), once=True, sink=said, checkpoint=tmp_path / "state", **options)
    monitor(watched, print, warn=lambda _line: None)
    return said


def of_windows(report: Report) -> list[tuple[str, str, str]]:
    """Return those findings of a report that windows have, too."""
    return [
        (one.topic, one.severity.name.lower(), one.text)
        for one in report.findings
        if one.topic not in REPORTED_OTHERWISE and not one.topic.startswith("loss-")
    ]


@pytest.mark.timeout(400)
def test_one_window_over_everything_has_the_findings_of_the_report(
    captures: Path, report: Report, tmp_path: Path
) -> None:
    """The texts are equal, except for topics that the monitor reports in another way."""
    metrics = tmp_path / "umstack.prom"
    said = reported_by(captures, tmp_path, window_seconds=EVERYTHING_SECONDS, prometheus_file=metrics)
    expected = of_windows(report)
    topics = {topic for topic, _, _ in expected}
    assert {
        "gaps",
        "recovery",
        "repeated-naks",
        "useless-repairs",
        "refused",
        "duplicates",
        "copies",
        "bursts",
    } <= topics
    assert {"topics", "fill", "ip-fragments", "latency", "suggestion", "malformed", "recovery-tcp"} <= topics
    assert {"clients", "reconnects", "stream-loss"} <= topics
    reported = [(row["topic"], row["severity"], row["text"]) for row in said.rows(FINDINGS)]
    assert sorted(reported) == sorted(expected)
    for topic, severity, text in expected:
        quiet = topic in ("fill", "recovery") and severity == "note"
        # The lines of suggestions have the session's numbers only.
        shown = re.sub(r" of [^:]* \(([^)]+)\) to ", r" of \1 to ", text) if topic == "suggestion" else text
        assert any(line.endswith(shown) for line in said.lines) != quiet, text
    for topic in topics:
        counted = sum(one == topic for one, _, _ in expected)
        assert _metric(metrics, f'umstack_findings_total{{.*topic="{topic}"}}') == counted
    assert json.loads(json.dumps(said.to_dict()))[FINDINGS]


@pytest.mark.timeout(400)
def test_windows_are_reported_once_and_add_up_to_the_report_after_restarts(
    captures: Path, report: Report, tmp_path: Path
) -> None:
    """A growing folder is watched in two runs by windows of a second, and nothing is lost or counted twice
    between them.
    """
    folder, out = tmp_path / "captures", tmp_path / "findings"
    shutil.copytree(captures, folder)
    for stormy in folder.glob("stormy*"):
        stormy.unlink()
    [planned] = folder.glob("planned*")
    whole = planned.read_bytes()
    planned.write_bytes(whole[: int(0.6 * len(whole))])
    later = frame(data(0, message(1, 0, bytes(200)), session=LATER))
    options = MonitorOptions(
        (str(folder),), 1.0, late_seconds=0.3, once=True, parquet=out, checkpoint=tmp_path / "state"
    )
    monitor(options, print, warn=lambda _line: None)
    first = len(pq.read_table(out / FINDINGS))
    planned.write_bytes(whole)
    for stormy in captures.glob("stormy*"):
        shutil.copy(stormy, folder)
    (folder / "later.pcap").write_bytes(pcap([Packet(START_NS + 60 * SECOND, later)]))
    monitor(options, print, warn=lambda _line: None)
    assert 0 < first < len(pq.read_table(out / FINDINGS))
    assert set(SUMS) <= set(TABLES)
    assert {"MD.EURUSD", "MD.GBPUSD"} <= set(pq.read_table(out / "topics")["topic"].to_pylist())
    for name, columns in SUMS.items():
        reported = pq.read_table(out / name).to_pylist()
        known = pq.read_table(report.page.parent / name, partitioning=None).to_pylist()
        assert _sums(reported, columns) == _sums(known, columns), name


def _sums(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> dict[Any, list[int]]:
    """Sums of columns by the values that identify a row in every window."""
    sums: dict[Any, list[int]] = defaultdict(lambda: [0] * len(columns))
    for row in rows:
        if row.get("kind") != "NOTE":
            key = tuple(str(row.get(name)) for name in IDENTITY)
            sums[key] = [so_far + (row[name] or 0) for so_far, name in zip(sums[key], columns, strict=True)]
    return {key: added for key, added in sums.items() if any(added)}


def _watched(folder: Path, *batches: Story) -> list[dict[str, Any]]:
    """The rows reported for consecutive batches, by windows of a second; the last batch completes all of them."""
    watch = FindingWatch(folder / "watched", SECOND, late_ns=100 * MS)
    reported = [watch.take(story.packed(SECOND), number).tables for number, story in enumerate(batches)]
    # A window is reported once: with the batch that completes it, or at the end.
    reported[-1] |= watch.finish()
    return reported


def _pass(story: Story, end_ns: int) -> None:
    """Add a datagram of another session long enough after a window to complete it."""
    story.session_id += 1
    story.data(end_ns + 400 * MS, 0)
    story.session_id -= 1


def test_a_session_with_only_a_burst_in_a_window_is_bursty(tmp_path: Path) -> None:
    """The mean includes the window before: a window with nothing but a burst has no lower mean."""
    first, then = Story(), Story()
    first.stream(START_NS, 100 * MS, 0, 10)
    _pass(first, START_NS + SECOND)
    then.stream(START_NS + SECOND + 500 * MS, 10_000, 10, 40)
    before, reported = _watched(tmp_path, first, then)
    assert FINDINGS in before
    [text] = [row["text"] for row in reported[FINDINGS].to_pylist() if row["topic"] == "bursts"]
    assert "sends in bursts" in text


def test_captures_may_arrive_in_the_wrong_order(tmp_path: Path) -> None:
    """Two captures arrive in the wrong order of time: the earlier windows are still reported unless they
    already were.
    """
    first, then = Story("b"), Story("a")
    first.stream(START_NS + SECOND, 10 * MS, 0, 20)
    then.stream(START_NS, 10 * MS, 0, 20)
    reported = _watched(tmp_path, first, then)
    assert [sorted(table["datagram_fill"]["point"].to_pylist()) for table in reported if table] == [
        ["a", "b"]
    ]


def test_a_retransmission_counts_as_requested_by_a_nak_in_the_window_before(tmp_path: Path) -> None:
    """A retransmission in the window after its NAK was requested, so it is not counted as unnecessary."""
    first, then = Story(), Story()
    first.stream(START_NS, 100 * MS, 0, 10)
    first.nak(START_NS + SECOND - MS, RECEIVERS[0], 3)
    _pass(first, START_NS + SECOND)
    then.again(START_NS + SECOND + MS, 3)
    then.nak(START_NS + SECOND + 2 * MS, RECEIVERS[0], 4)
    reported = _watched(tmp_path, first, then)
    rows = [row for table in reported for row in table["repairs"].to_pylist()]
    assert [(row["naks"], row["retransmissions"]) for row in rows] == [(1, 0), (1, 1)]
    assert [row["useless_bytes"] for row in rows] == [0, 0]


def test_facts_of_a_reported_window_are_not_reported_again(tmp_path: Path) -> None:
    """Copies and gaps in a reported window are still stored for the next one; they count once."""
    first, then = Story(), Story()
    first.stream(START_NS, 10 * MS, 0, 50)
    first.data(START_NS + 505 * MS, 49)
    first.stream(START_NS + 510 * MS, 10 * MS, 52, 100)
    then.stream(START_NS + 1510 * MS, 10 * MS, 152, 50)
    reported = _watched(tmp_path, first, then)
    assert [table["duplicates"]["copies"].to_pylist() for table in reported if "duplicates" in table] == [[1]]
    assert [table["gaps"]["missing"].to_pylist() for table in reported if "gaps" in table] == [[2]]


def _metric(file: Path, pattern: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{pattern} (\S+)$", file.read_text(), re.MULTILINE))
