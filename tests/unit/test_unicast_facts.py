"""Facts and tables of LBT-RU and LBT-TCP: sent data is counted once, losses per receiver.

Each receiver gets its own copies. The captures come from unicast_bytes, and their contents are known exactly.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

import polars as pl
import pyarrow as pa

from tests.unit import unicast_bytes as truth
from tests.unit.capture_bytes import Packet, pcap
from umstack.analysis.tables import Tables, tables_of
from umstack.capture import decode
from umstack.facts.facts import Facts, facts_of, facts_of_packets
from umstack.facts.kinds import EPOCH_NS
from umstack.facts.packed import packed, unpacked
from umstack.monitor.windows import traffic
from umstack.report import Report, make_report

FIRST, SECOND, THIRD = (f"{address}:{port}" for address, port in (truth.FIRST, truth.SECOND, truth.THIRD))
LOSSES = len(truth.LOST_BY_FIRST) + len(truth.LOST_BY_SECOND)


def written(path: Path, packets: list[Packet]) -> str:
    """Write the capture to a file, ordered by time."""
    path.write_bytes(pcap(sorted(packets, key=lambda packet: packet.time_ns)))
    return str(path)


@pytest.fixture(scope="module")
def lbtru(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the capture of LBT-RU."""
    return written(tmp_path_factory.mktemp("lbtru") / "host.pcap", truth.lbtru_session())


@pytest.fixture(scope="module")
def lbttcp(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the capture of LBT-TCP."""
    return written(tmp_path_factory.mktemp("lbttcp") / "host.pcap", truth.lbttcp_session())


def only(tables: Tables, name: str) -> dict[str, Any]:
    """Return the only row of a table."""
    [row] = tables[name].to_dicts()
    return row


def texts(report: Report, topic: str) -> list[str]:
    """Return the findings of a topic."""
    return [one.text for one in report.findings if one.topic == topic]


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the capture of LBT-RU with a source that filters."""
    return written(tmp_path_factory.mktemp("filtered") / "host.pcap", truth.lbtru_filtered())


@pytest.mark.parametrize("name", ["lbtru", "lbttcp", "filtered"])
def test_the_core_counts_the_same_as_rows(name: str, request: pytest.FixtureRequest) -> None:
    """Facts from first sends counted by the core equal those from their rows, also after being stored and read."""
    capture = request.getfixturevalue(name)
    facts = facts_of([capture])
    assert facts_of_packets(decode(capture, only_ours=True)).equals(facts)
    assert unpacked([packed(facts)])[0].equals(facts)
    assert not facts.equals(Facts())


def test_a_session_of_lbtru_counts_once(lbtru: str) -> None:
    """The datagrams, messages, retransmissions and NCFs of a session with three receivers, of which one leaves and
    one joins, equal those the source sent; the transport numbers wrap."""
    tables = tables_of(facts_of([lbtru]))
    session = only(tables, "sessions")
    assert (session["publisher"], session["session_id"], session["transport"]) == (
        truth.SOURCE,
        truth.SESSION,
        "LBT-RU",
    )
    assert (session["datagrams"], session["messages"]) == (truth.DATAGRAMS, 2 * truth.DATAGRAMS)
    assert (session["message_bytes"], session["receivers"]) == (150 * truth.DATAGRAMS, 3)
    assert (session["retransmissions"], session["naks"], session["ncfs"]) == (LOSSES, 2, 1)
    assert session["last_sqn"] - session["first_sqn"] == truth.DATAGRAMS - 1
    topics = tables["topics"].to_dicts()
    assert [(one["topic"], one["messages"]) for one in topics] == [
        ("unicast/orders", truth.DATAGRAMS),
        ("unicast/quotes", truth.DATAGRAMS),
    ]
    assert only(tables, "datagram_fill")["datagrams"] == truth.DATAGRAMS
    assert tables["rates"]["datagrams"].sum() == truth.DATAGRAMS + LOSSES
    assert (len(tables["gaps"]), len(tables["duplicates"])) == (0, 0)


def test_losses_of_lbtru_are_per_receiver(lbtru: str) -> None:
    """The receiver that sent the NAK lost the datagram; unneeded retransmissions to the others are neither losses nor
    wasted."""
    tables = tables_of(facts_of([lbtru]))
    losses = [(row["receiver"], row["sqn"] - truth.WRAPS_AT) for row in tables["losses"].to_dicts()]
    assert losses == [(FIRST, one) for one in truth.LOST_BY_FIRST] + [(SECOND, *truth.LOST_BY_SECOND)]
    assert all(row["repaired_ns"] is not None for row in tables["losses"].to_dicts())
    incidents = tables["incidents"].to_dicts()
    assert [(row["receiver"], row["lost"], row["cause"]) for row in incidents] == [
        (FIRST, len(truth.LOST_BY_FIRST), "burst"),
        (SECOND, len(truth.LOST_BY_SECOND), "sporadic"),
    ]
    repairs = only(tables, "repairs")
    assert (repairs["unrequested"], repairs["repeated"], repairs["naks"]) == (0, 0, LOSSES)
    assert repairs["refused_rx_delay"] == 1
    assert {row["option"].rpartition("_")[0][:16] for row in tables["suggestions"].to_dicts()} == {
        "transport_lbtru_"
    }
    clients = {row["receiver"]: row for row in tables["clients"].to_dicts()}
    assert {name: row["datagrams"] for name, row in clients.items()} == {
        FIRST: truth.DATAGRAMS,
        SECOND: truth.SECOND_ENDS,
        THIRD: truth.DATAGRAMS - truth.THIRD_BEGINS,
    }
    assert [clients[one]["connects"] for one in (FIRST, SECOND, THIRD)] == [1, 1, 1]


def test_a_copy_missing_at_one_receiver_is_its_gap(tmp_path: Path) -> None:
    """One receiver misses two numbers that the others have, because the switch before it dropped them."""
    packets = truth.lbtru_session()
    sent = [packet for packet in packets if truth.is_first_sending(packet, truth.SECOND)]
    missing = (sent[40], sent[41])
    tables = tables_of(
        facts_of([written(tmp_path / "far.pcap", [one for one in packets if one not in missing])])
    )
    gap = only(tables, "gaps")
    assert (gap["receiver"], gap["missing"], gap["first_sqn"] - truth.WRAPS_AT) == (SECOND, 2, 40)
    assert only(tables, "sessions")["datagrams"] == truth.DATAGRAMS


def test_two_points_of_lbtru_are_compared_per_receiver(tmp_path: Path) -> None:
    """Only a receiver's own copies pass its port: those of the others are not lost between the two points."""
    packets = truth.lbtru_session()
    near = written(tmp_path / "near.pcap", packets)
    # A packet to the source passes the far point first.
    own = [
        replace(one, time_ns=one.time_ns + (5000 if truth.is_from_source(one) else -5000))
        for one in packets
        if truth.is_of(one, truth.FIRST)
    ]
    own.sort(key=lambda one: one.time_ns)
    far = written(tmp_path / "far.pcap", own)
    tables = tables_of(facts_of([near, far]))
    latency = only(tables, "latency")
    assert (latency["from_point"], latency["to_point"], latency["receiver"]) == ("near", "far", FIRST)
    assert (latency["datagrams"], latency["latency_max"]) == (truth.DATAGRAMS, 5000)
    assert len(tables["lost_repairs"]) == 0
    own.remove(next(one for one in own if truth.is_retransmission(one)))
    lost = only(tables_of(facts_of([near, written(tmp_path / "far.pcap", own)])), "lost_repairs")
    assert (lost["retransmissions"], lost["lost"]) == (LOSSES, 1)


def test_a_session_without_an_id_is_identified_by_its_port(tmp_path: Path) -> None:
    """With `transport_lbtru_use_session_id 0`, the options identify only the client."""
    packets = [truth.without_session_id(one) for one in truth.lbtru_session()]
    tables = tables_of(facts_of([written(tmp_path / "host.pcap", packets)]))
    session = only(tables, "sessions")
    assert (session["session_id"], session["datagrams"]) == (-truth.LBTRU_PORT, truth.DATAGRAMS)
    assert len(tables["losses"]) == LOSSES


def test_a_storm_covers_all_receivers_of_a_session(tmp_path: Path) -> None:
    """NAKs of two receivers of LBT-RU form one storm, with the share of each."""
    storm = only(tables_of(facts_of([written(tmp_path / "host.pcap", truth.lbtru_storm())])), "nak_storms")
    assert (storm["naks"], storm["requests"], storm["repeated"]) == (24, 240, 220)
    assert {one["receiver"]: one["share"] for one in storm["receivers"]} == {FIRST: 0.5, SECOND: 0.5}


def test_a_session_of_lbttcp(lbttcp: str) -> None:
    """Messages count once over any number of connections; the facts have the connections, including the
    reopened one, and its missing messages.
    """
    tables = tables_of(facts_of([lbttcp]))
    session = only(tables, "sessions")
    assert (session["publisher"], session["session_id"], session["transport"]) == (
        truth.SOURCE,
        -truth.TCP_PORT,
        "LBT-TCP",
    )
    assert (session["datagrams"], session["messages"]) == (0, truth.TCP_MESSAGES)
    assert (session["message_bytes"], session["receivers"]) == (100 * truth.TCP_MESSAGES, 3)
    topic = only(tables, "topics")
    assert (topic["topic"], topic["messages"], topic["highest_sqn"]) == (
        "tcp/orders",
        truth.TCP_MESSAGES,
        999,
    )
    clients = tables["clients"].to_dicts()
    assert [(row["receiver"], row["messages"], row["missing"]) for row in clients] == [
        (f"{truth.FIRST[0]}:40001", truth.TCP_MESSAGES, 0),
        (f"{truth.SECOND[0]}:40002", truth.RECONNECTED_BEHIND, 0),
        (
            f"{truth.SECOND[0]}:40003",
            truth.TCP_MESSAGES - truth.RECONNECTED_AT - len(truth.LEFT_OUT),
            len(truth.LEFT_OUT),
        ),
    ]
    assert [row["connects"] for row in clients] == [1, 1, 1]
    assert [row["closes"] > 0 for row in clients] == [False, True, False]
    assert [row["reconnected"] for row in clients] == [False, False, True]
    gap = only(tables, "gaps")
    assert (gap["topic_index"], gap["first_sqn"], gap["last_sqn"]) == (
        truth.TOPIC,
        truth.LEFT_OUT[0],
        truth.LEFT_OUT[-1],
    )
    assert tables["rates"]["datagrams"].sum() == truth.TCP_MESSAGES


def test_the_report_describes_both_transports(lbtru: str, lbttcp: str, tmp_path: Path) -> None:
    """The report shows connections and reconnects, gaps, the absence of NAKs in LBT-TCP, and losses per
    receiver.
    """
    report = make_report([lbtru, lbttcp], tmp_path / "out")
    [traffic_text] = texts(report, "traffic")
    assert f"{truth.DATAGRAMS:,} datagrams and {truth.TCP_MESSAGES:,} messages over LBT-TCP" in traffic_text
    assert any(
        "sends over LBT-RU to 3 receivers: 3 sent a connection request" in text
        for text in texts(report, "clients")
    )
    assert any("by 3 connections to 2 hosts: 3 opened" in text for text in texts(report, "clients"))
    [again] = texts(report, "reconnects")
    assert f"{truth.SECOND[0]} (2 times)" in again
    [missed] = texts(report, "stream-loss")
    assert f"{truth.SECOND[0]}:40003 missed {len(truth.LEFT_OUT)}" in missed
    assert "LBT-TCP has no NAKs" in missed
    assert any(f"{FIRST} lost 5 datagrams" in text for text in texts(report, "loss-burst"))
    page = report.page.read_text()
    assert "LBT-RU" in page
    assert f"{truth.SOURCE}:{truth.TCP_PORT}" in page


def test_a_connection_without_gaps_is_reported(tmp_path: Path) -> None:
    """With LBT-TCP alone the report has no finding on NAKs, but explains why there are none."""
    packets = truth.lbttcp_session()
    kept = [one for one in packets if not truth.is_of(one, (truth.SECOND[0], 40003))]
    report = make_report([written(tmp_path / "host.pcap", kept)], tmp_path / "out")
    assert texts(report, "loss") == []
    [text] = texts(report, "stream-loss")
    assert "No connection of" in text


def test_windows_of_traffic_count_once(lbtru: str, lbttcp: str) -> None:
    """The monitor has one row for the source, with everything once and the transport's name, and one for each
    receiver's NAKs.
    """
    rows = {row["receiver"]: row for row in traffic(facts_of([lbtru]), 1500).to_dicts()}
    source = rows[None]
    assert (source["transport"], source["datagrams"], source["messages"]) == (
        "LBT-RU",
        truth.DATAGRAMS,
        2 * truth.DATAGRAMS,
    )
    assert (source["retransmissions"], source["refused"]) == (LOSSES, 1)
    assert (rows[FIRST]["requests"], rows[SECOND]["requests"]) == (5, 1)
    [row] = traffic(facts_of([lbttcp]), 1500).to_dicts()
    assert (row["transport"], row["datagrams"], row["messages"]) == ("LBT-TCP", 0, truth.TCP_MESSAGES)
    assert row["bytes"] > 100 * truth.TCP_MESSAGES


def test_numbers_filtered_for_a_receiver_are_not_missing(filtered: str) -> None:
    """Filtered numbers are not lost, whether DATA or a filter report announces them, over minutes and
    where numbers wrap. If the capture misses a copy, the numbers it reported are missing, too.
    """
    tables = tables_of(facts_of([filtered]))
    gaps = [
        (row["receiver"], row["first_sqn"] - truth.WRAPS_AT, row["last_sqn"] - truth.WRAPS_AT)
        for row in tables["gaps"].to_dicts()
    ]
    assert gaps == [(FIRST, lost - 1, lost) for lost in truth.UNCAPTURED]
    missing = tables["coverage"].group_by("receiver").agg(pl.col("missing").sum())
    assert dict(missing.iter_rows()) == {FIRST: 2 * len(truth.UNCAPTURED), SECOND: 0}
    assert len(tables["duplicates"]) == 0


def test_a_nak_for_a_filtered_number_is_no_loss(filtered: str) -> None:
    """The NAK is answered with a filter report; other numbers of the NAK that were sent again are
    repaired losses.
    """
    tables = tables_of(facts_of([filtered]))
    loss = only(tables, "losses")
    assert (loss["receiver"], loss["sqn"] - truth.WRAPS_AT) == (FIRST, truth.ASKED[1])
    assert loss["repaired_ns"] is not None
    repairs = only(tables, "repairs")
    assert (repairs["retransmissions"], repairs["unrequested"]) == (1, 0)


def test_facts_of_a_filtered_session_are_small(filtered: str) -> None:
    """DATA's account of itself and its predecessors is contiguous, so it is one run per minute, or two where
    numbers wrap, in any partition."""
    facts = facts_of([filtered])
    of_first = facts.passed.filter(pl.col("receiver") == FIRST)
    minutes = of_first.select((pl.col("first_ns") // EPOCH_NS).n_unique()).item()
    assert len(of_first) == minutes + 1 + len(truth.UNCAPTURED)
    [whole] = pa.Table.from_batches(decode(filtered, only_ours=True)).combine_chunks().to_batches()
    parts = [facts_of_packets([whole.slice(at, 100)]) for at in range(0, len(whole), 100)]
    assert Facts.merged(reversed(parts)).equals(facts)
