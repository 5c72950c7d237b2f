"""The analyses of a lab run agree with the injected loss and with the stack's own counters.

The run is captured at the switch by tcpdump and by `umstack capture`, and by a tap at each end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("polars")

import pyarrow.parquet as pq
from pyarrow import RecordBatch
from scapy.utils import RawPcapReader

from tests.netns.lab_run import LOSS, LabRun, lab_run
from umstack.analysis.tables import tables_of
from umstack.capture import decode
from umstack.capture.reading.capture_files import capture_files
from umstack.facts.facts import facts_of
from umstack.lab import Lab
from umstack.report import Report, make_report

pytestmark = pytest.mark.timeout(300)

FRAME_HEADERS = 14 + 20 + 8
MS = 1_000_000
Key = tuple[str, int]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LabRun:
    """Return the run, or skip if no lab can be created."""
    if (reason := Lab.supported() or Lab.loss_supported()) is not None:
        pytest.skip(reason)
    return lab_run(tmp_path_factory.mktemp("run"))


@dataclass(frozen=True, slots=True)
class Reported:
    """A report on tcpdump's capture, and its tables."""

    report: Report

    def table(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table on disk."""
        files = sorted((self.report.page.parent / name).glob("*.parquet"))
        return [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]

    def one(self, name: str) -> dict[str, Any]:
        """Return the only row of a table."""
        [row] = self.table(name)
        return row

    def lost(self) -> dict[Key, dict[str, Any]]:
        """Return the losses by receiver and sequence number."""
        return {(row["receiver"], row["sqn"]): row for row in self.table("losses")}


@pytest.fixture(scope="module")
def reported(run: LabRun) -> Reported:
    """Return the report of tcpdump's capture."""
    return Reported(make_report([str(run.by_tcpdump)], run.folder / "report"))


SHORTEST_BACKOFF_MS = 25.0
"""Half of the default `transport_lbtrm_nak_initial_backoff_interval`."""


def test_what_was_sent_is_what_the_publisher_counted(reported: Reported, run: LabRun) -> None:
    """Sessions, topics, datagrams by kind, rates, fill and repairs equal the publisher's counters, to the
    datagram and byte.
    """
    sent = run.source_transport
    session = reported.one("sessions")
    assert (session["publisher"], session["receivers"]) == (run.publisher, len(LOSS))
    counted = {
        "datagrams": sent["msgs_sent"],
        "data_bytes": sent["bytes_sent"],
        "retransmissions": sent["rxs_sent"],
        "naks": sent["nak_pckts_rcved"],
        "ncfs": sent["ncf_pckts_sent"],
        "messages": run.messages,
        "message_bytes": run.payload_bytes,
    }
    assert {name: session[name] for name in counted} == counted
    # These continued while the counters were read.
    assert session["session_messages"] >= sent["session_messages_sent"]
    assert session["status_messages"] >= sent["status_messages_received"]
    assert session["last_sqn"] - session["first_sqn"] + 1 == sent["msgs_sent"]
    topic = reported.one("topics")
    assert (topic["messages"], topic["payload_bytes"]) == (run.messages, run.payload_bytes)
    assert topic["topic"] == "truth", "the name was advertised"
    assert topic["highest_sqn"] - topic["lowest_sqn"] + 1 == topic["fragments"] == run.messages
    rates = reported.table("rates")
    datagrams = sent["msgs_sent"] + sent["rxs_sent"]
    assert sum(row["datagrams"] for row in rates) == datagrams
    assert sum(row["retransmissions"] for row in rates) == sent["rxs_sent"]
    wire_bytes = sent["bytes_sent"] + sent["rx_bytes_sent"] + datagrams * FRAME_HEADERS
    assert sum(row["bytes"] for row in rates) == wire_bytes
    fill = reported.one("datagram_fill")
    assert (fill["messages"], fill["datagrams"], fill["over_mtu"]) == (run.messages, sent["msgs_sent"], 0)
    assert fill["fill"] == pytest.approx(sent["bytes_sent"] / sent["msgs_sent"] / 1472)
    repaired = reported.one("repairs")
    assert (repaired["retransmissions"], repaired["naks"]) == (sent["rxs_sent"], sent["naks_rcved"])
    assert repaired["retransmitted_bytes"] == sent["rx_bytes_sent"]
    assert repaired["refused_ignored"] == sent["naks_ignored"]
    assert reported.table("gaps") == [], "the capture itself has every number"


def test_losses_are_those_each_receiver_had(reported: Reported, run: LabRun) -> None:
    """For each receiver and number, datagrams missing in its tap are lost in its counters and in the report.

    A receiver whose loss was repaired by another receiver's NAK sends none: its counters include the loss,
    but a capture at the switch cannot. No other difference is allowed.
    """
    lost = reported.lost()
    wanted_by_anyone = {sqn for _, sqn in lost}
    latencies = {row["receiver"]: row for row in reported.table("recovery_latency")}
    sent = arrivals(run.by_tcpdump, run.publisher)
    for host, receiver in run.receivers.items():
        counted = run.receiver_transport(host)
        assert (counted["unrecovered_txw"], counted["unrecovered_tmo"], counted["out_of_order"]) == (0, 0, 0)
        assert run.stats[host]["link_counters"]["receive_drops"] == 0
        never_came = sent.keys() - arrivals(run.tap(host), run.publisher).keys()
        assert len(never_came) == counted["lost"]
        asked = {sqn for who, sqn in lost if who == receiver}
        assert asked <= never_came
        assert never_came - asked <= wanted_by_anyone
        latency = latencies[receiver]
        assert (latency["lost"], latency["repaired"]) == (len(asked), len(asked))
        assert latency["naks"] == counted["naks_sent"]


def test_the_port_dropped_what_the_tap_behind_it_lacks(run: LabRun) -> None:
    """The switch's counters confirm how many multicast datagrams of any kind did not reach a receiver.

    Datagrams are matched by content, because the clocks of two capture points differ. Those outside the time in
    which the tap was open and the group was joined may be missing without having been dropped.
    """
    for host, dropped in run.kept_back.items():
        receiver = run.receivers[host]
        sent = multicasts(run.by_tcpdump, receiver)
        came = Counter(multicasts(run.tap(host), receiver))
        assert not came - Counter(sent), "the capture at the switch has every datagram"
        missing_while_open = Counter(between_arrivals(sent, came)) - came
        missing = Counter(sent) - came
        assert 0 < missing_while_open.total() <= dropped <= missing.total()


def test_waiting_is_what_the_receivers_measured(reported: Reported, run: LabRun) -> None:
    """The report's recovery latency at the switch agrees with the mean of each receiver's own counter."""
    lost = reported.lost()
    for host, receiver in run.receivers.items():
        [phase] = [one for one in run.injected if (one.cause, one.receiver) == ("sporadic", receiver)]
        seen = arrivals(run.tap(host), run.publisher)
        waits, from_sending = [], []
        for (who, sqn), row in lost.items():
            # The counter includes everything since the start.
            if who == receiver and row["sent_ns"] < phase.end_ns:
                after = min((at for number, at in seen.items() if number > sqn), default=row["nak_ns"])
                waits.append((row["repaired_ns"] - after) / MS)
                from_sending.append((row["repaired_ns"] - row["sent_ns"]) / MS)
        measured = run.steady_stats[host]["nak_stm_mean"]
        # The counter also includes the way between switch and receiver, which on a busy machine may be most of it.
        # Simulated runs are compared exactly (test_sim_truth.py).
        assert SHORTEST_BACKOFF_MS <= sum(waits) / len(waits) <= 1.25 * measured + 5.0
        assert sum(from_sending) / len(from_sending) >= SHORTEST_BACKOFF_MS


def test_every_cause_is_named(reported: Reported, run: LabRun) -> None:
    """Each sporadic, burst, tail, head and connectivity incident is named after the injected fault."""
    found = reported.table("incidents")
    causes = {row["cause"] for row in reported.report.summary["causes"]}
    assert (
        causes == {"sporadic", "burst", "tail", "head", "connectivity"} == {one.cause for one in run.injected}
    )
    for one in run.injected:
        rows = [
            row
            for row in found
            if row["receiver"] == one.receiver and one.start_ns <= row["start_ns"] <= one.end_ns
        ]
        # If a busy machine delays the publisher for a tenth of a second, losses just before count as tail loss.
        held_up = {"tail"} if one.cause == "sporadic" else set()
        assert {one.cause} <= {row["cause"] for row in rows} <= {one.cause} | held_up, rows
        lost = sum(row["lost"] for row in rows)
        if one.lost is None:
            assert lost > 10
        else:
            assert (len(rows), lost, rows[0]["longest_run"]) == (1, one.lost, one.lost)
    for cause in causes:
        assert any(f"'{cause}'" in finding.text for finding in reported.report.findings)


def test_the_stacks_own_capture_reports_the_same(reported: Reported, run: LabRun) -> None:
    """`umstack capture` and tcpdump at one port give the same losses, incidents, session and repairs."""
    tables = tables_of(facts_of(capture_files([str(run.by_umstack)])))
    own = {(row["receiver"], row["sqn"]): row["naks"] for row in tables["losses"].to_dicts()}
    assert own == {key: row["naks"] for key, row in reported.lost().items()}
    same = ("receiver", "first_sqn", "last_sqn", "lost", "unrepaired", "longest_run", "cause")
    assert sorted(tables["incidents"].select(same).rows()) == sorted(
        tuple(row[name] for name in same) for row in reported.table("incidents")
    )
    [session] = tables["sessions"].to_dicts()
    theirs = reported.one("sessions")
    kept = (
        "datagrams",
        "retransmissions",
        "naks",
        "ncfs",
        "messages",
        "message_bytes",
        "data_bytes",
        "group",
    )
    assert {name: session[name] for name in kept} == {name: theirs[name] for name in kept}
    [repaired] = tables["repairs"].to_dicts()
    theirs = reported.one("repairs")
    assert {**repaired, "point": ""} == {**theirs, "point": ""}


def test_several_points_of_capture_count_nothing_twice(reported: Reported, run: LabRun) -> None:
    """With the switch and every tap, each NAK is captured three times and counted once."""
    captures = (run.by_tcpdump, *(run.tap(host) for host in run.stats))
    tables = tables_of(facts_of(capture_files(map(str, captures))))
    together = {(row["receiver"], row["sqn"]): row["naks"] for row in tables["losses"].to_dicts()}
    assert together == {key: row["naks"] for key, row in reported.lost().items()}
    naks = {row["receiver"]: row["naks"] for row in tables["recovery_latency"].to_dicts()}
    assert naks == {run.receivers[host]: run.receiver_transport(host)["naks_sent"] for host in LOSS}
    storms = tables["nak_storms"]["requests"].to_list()
    assert storms == [row["requests"] for row in reported.table("nak_storms")]
    [topic] = tables["topics"].to_dicts()
    assert (topic["messages"], topic["payload_bytes"]) == (run.messages, run.payload_bytes)


def arrivals(file: Path, publisher: str) -> dict[int, int]:
    """Return the first sendings of a capture by sequence number, with their times."""
    return {
        sqn: time_ns
        for batch in decode(str(file), only_ours=True)
        for kind, source, again, sqn, time_ns in rows(
            batch, "packet_type", "source_address", "retransmission", "transport_sqn", "time_ns"
        )
        if kind == "DATA" and source == publisher and not again
    }


def multicasts(file: Path, host: str) -> list[bytes]:
    """Return the IPv4 multicast datagrams of a capture that came from other hosts: addresses, ports, payload."""
    found = []
    with RawPcapReader(str(file)) as reader:
        for frame, _ in reader:
            # A tap's datagrams have no Ethernet header.
            packet = frame[14:] if frame[12:14] == b"\x08\x00" else frame
            source, target, length = packet[12:16], packet[16:20], int.from_bytes(packet[24:26])
            if ip_address(source) != ip_address(host) and ip_address(target).is_multicast:
                found.append(packet[12:24] + packet[28 : 20 + length])
    return found


def between_arrivals(sent: list[bytes], came: Counter[bytes]) -> list[bytes]:
    """Return what each host sent to each group from the first datagram that arrived to the last one.

    Only a datagram with unique content can be found in `sent`.
    """
    unique = {content for content, count in Counter(sent).items() if count == 1} & came.keys()
    flows: dict[bytes, list[bytes]] = defaultdict(list)
    for content in sent:
        flows[content[:8]].append(content)
    found = []
    for flow in flows.values():
        arrived = [number for number, content in enumerate(flow) if content in unique]
        found += flow[arrived[0] : arrived[-1] + 1] if arrived else []
    return found


def rows(batch: RecordBatch, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield rows of a batch with the named columns."""
    return zip(*(column.to_pylist() for column in batch.select(list(names))), strict=True)
