"""Issue 4: `umstack monitor` has the findings of a report, by windows: the same numbers, and the same sentences."""

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
"""A window that all of these captures are in."""
TOLD_OTHERWISE = ("traffic", "loss", "unrepaired", "nak-storm", "capture")
"""Topics of a report that are windows of traffic and recovery, incidents, storms and notes in the monitor."""
SAMPLE = Path(__file__).parents[1] / "wire" / "wire-sample.pcap"
_AGAIN = 0xA0
"""The flags of a retransmission."""
LATER = 0x1A7E0001
"""A session of nothing but a datagram long after all others, so that their windows are over."""
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
"""What windows have in parts of what the report has in all."""


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with everything there can be a finding of: simulated runs, captured at every port, and odd ones."""
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
    """A datagram that somebody asks for and gets three times, and one that nobody asked for."""
    asks = ethernet(ipv4(udp(nak(5), 14400, 14390), "10.0.0.2", SOURCE))
    frames = [frame(data(sqn, message(1, sqn, bytes(200)))) for sqn in range(20)]
    frames += [asks, *(frame(data(sqn, message(1, sqn, bytes(200)), flags=_AGAIN)) for sqn in (5, 5, 5, 7))]
    return pcap(Packet(START_NS + at * MS, one) for at, one in enumerate(frames))


@pytest.fixture(scope="module")
def report(captures: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Give the report on them."""
    return make_report([str(captures)], tmp_path_factory.mktemp("report"))


def told_of(captures: Path, tmp_path: Path, **options: Any) -> Said:
    """What the monitor tells of what is there."""
    said = Said()
    watched = MonitorOptions((str(captures),), once=True, sink=said, checkpoint=tmp_path / "state", **options)
    monitor(watched, print, warn=lambda _line: None)
    return said


def of_windows(report: Report) -> list[tuple[str, str, str]]:
    """The findings of a report that windows have as well."""
    return [
        (one.topic, one.severity.name.lower(), one.text)
        for one in report.findings
        if one.topic not in TOLD_OTHERWISE and not one.topic.startswith("loss-")
    ]


@pytest.mark.timeout(400)
def test_a_window_that_holds_everything_has_the_findings_of_the_report(
    captures: Path, report: Report, tmp_path: Path
) -> None:
    """Word for word, of every topic but those that are told otherwise."""
    metrics = tmp_path / "umstack.prom"
    said = told_of(captures, tmp_path, window_seconds=EVERYTHING_SECONDS, prometheus_file=metrics)
    expected = of_windows(report)
    topics = {topic for topic, _, _ in expected}
    assert {
        "gaps",
        "recovery",
        "repeated-naks",
        "useless-repairs",
        "refused",
        "duplicates",
        "bursts",
    } <= topics
    assert {"topics", "fill", "ip-fragments", "latency", "suggestion", "malformed", "recovery-tcp"} <= topics
    assert {"clients", "reconnects", "stream-loss"} <= topics
    told = [(row["topic"], row["severity"], row["text"]) for row in said.rows(FINDINGS)]
    assert sorted(told) == sorted(expected)
    for topic, severity, text in expected:
        quiet = topic in ("fill", "recovery") and severity == "note"
        assert any(line.endswith(text) for line in said.lines) != quiet, text
    for topic in topics:
        counted = sum(one == topic for one, _, _ in expected)
        assert _metric(metrics, f'umstack_findings_total{{.*topic="{topic}"}}') == counted
    assert json.loads(json.dumps(said.to_dict()))[FINDINGS]


@pytest.mark.timeout(400)
def test_windows_are_told_once_and_make_up_the_report_whenever_it_is_restarted(
    captures: Path, report: Report, tmp_path: Path
) -> None:
    """Two goes over a folder that grows, by windows of a second: nothing is lost or doubled between them."""
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
        told = pq.read_table(out / name).to_pylist()
        known = pq.read_table(report.page.parent / name, partitioning=None).to_pylist()
        assert _sums(told, columns) == _sums(known, columns), name


def _sums(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> dict[Any, list[int]]:
    """By what is the same in every window."""
    sums: dict[Any, list[int]] = defaultdict(lambda: [0] * len(columns))
    for row in rows:
        if row.get("kind") != "NOTE":
            key = tuple(str(row.get(name)) for name in IDENTITY)
            sums[key] = [so_far + (row[name] or 0) for so_far, name in zip(sums[key], columns, strict=True)]
    return {key: added for key, added in sums.items() if any(added)}


def _watched(folder: Path, *batches: Story) -> list[dict[str, Any]]:
    """What is told of batches that come one after another, by windows of a second; all of it with the last."""
    watch = FindingWatch(folder / "watched", SECOND, late_ns=100 * MS)
    told = [watch.take(story.packed(SECOND), number).tables for number, story in enumerate(batches)]
    # A window is told once: with the batch that it was over with, or at the end.
    told[-1] |= watch.finish()
    return told


def _pass(story: Story, end_ns: int) -> None:
    """Another session's datagram, so long after the end of a window that the window is told."""
    story.session_id += 1
    story.data(end_ns + 400 * MS, 0)
    story.session_id -= 1


def test_who_sends_nothing_but_a_burst_in_a_window_sends_in_bursts(tmp_path: Path) -> None:
    """The mean is that of the window before as well: by itself a window that holds a burst alone has none."""
    first, then = Story(), Story()
    first.stream(START_NS, 100 * MS, 0, 10)
    _pass(first, START_NS + SECOND)
    then.stream(START_NS + SECOND + 500 * MS, 10_000, 10, 40)
    before, told = _watched(tmp_path, first, then)
    assert FINDINGS in before
    [text] = [row["text"] for row in told[FINDINGS].to_pylist() if row["topic"] == "bursts"]
    assert "sends in bursts" in text


def test_who_is_captured_later_may_come_earlier(tmp_path: Path) -> None:
    """Of two captures the one whose time is earlier is read second: its windows are told as long as none was."""
    first, then = Story("b"), Story("a")
    first.stream(START_NS + SECOND, 10 * MS, 0, 20)
    then.stream(START_NS, 10 * MS, 0, 20)
    told = _watched(tmp_path, first, then)
    assert [sorted(table["datagram_fill"]["point"].to_pylist()) for table in told if table] == [["a", "b"]]


def test_a_repair_is_judged_by_the_nak_of_the_window_before(tmp_path: Path) -> None:
    """It was asked for: what crosses the end of a window is not taken to be of no use."""
    first, then = Story(), Story()
    first.stream(START_NS, 100 * MS, 0, 10)
    first.nak(START_NS + SECOND - MS, RECEIVERS[0], 3)
    _pass(first, START_NS + SECOND)
    then.again(START_NS + SECOND + MS, 3)
    then.nak(START_NS + SECOND + 2 * MS, RECEIVERS[0], 4)
    told = _watched(tmp_path, first, then)
    rows = [row for table in told for row in table["repairs"].to_pylist()]
    assert [(row["naks"], row["retransmissions"]) for row in rows] == [(1, 0), (1, 1)]
    assert [row["useless_bytes"] for row in rows] == [0, 0]


def test_what_a_window_is_judged_by_is_not_told_again(tmp_path: Path) -> None:
    """Copies and gaps of a window that was told are still there when the next one is; they count once."""
    first, then = Story(), Story()
    first.stream(START_NS, 10 * MS, 0, 50)
    first.data(START_NS + 505 * MS, 49)
    first.stream(START_NS + 510 * MS, 10 * MS, 52, 100)
    then.stream(START_NS + 1510 * MS, 10 * MS, 152, 50)
    told = _watched(tmp_path, first, then)
    assert [table["duplicates"]["copies"].to_pylist() for table in told if "duplicates" in table] == [[1]]
    assert [table["gaps"]["missing"].to_pylist() for table in told if "gaps" in table] == [[2]]


def _metric(file: Path, pattern: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{pattern} (\S+)$", file.read_text(), re.MULTILINE))
