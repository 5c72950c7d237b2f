"""LBMC messages out of captured TCP connections: in order, once, across segments and splits, and what a gap costs."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.capture_bytes import RECEIVER, SESSION, SOURCE, Packet, pcap
from tests.unit.stream_bytes import (
    ACK,
    FIN,
    RECEIVER_PORT,
    REQUEST_PORT,
    TOPIC,
    Connection,
    promised,
    recovered,
    recoveries,
    requests,
)

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

import itertools

from tests.store_messages import MESSAGES, STORE_PORT
from umstack.analysis.tables import tables_of
from umstack.capture import CaptureNotes, CapturePorts, NoteKind, Split, decode, split
from umstack.facts.facts import Facts, facts_of
from umstack.recovery.codec import (
    LATE_JOIN_REQUEST,
    OFF_TRANSPORT_REQUEST,
    RangeRequest,
    encode_range_request,
)
from umstack.report import findings
from umstack.report.summary import Summary


def rows_of(
    tmp_path: Path, packets: Iterable[Packet], notes: CaptureNotes | None = None
) -> list[dict[str, Any]]:
    """The rows of packets."""
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(list(packets)))
    return [row for batch in decode(path, only_ours=True, notes=notes) for row in batch.to_pylist()]


def items(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[str, int, int]]:
    """Return the contents of segments: kind, topic, number."""
    for row in rows:
        for message in row["messages"] or ():
            yield message["kind"], message["topic_index"], message["topic_sqn"]


def messages(count: int) -> bytes:
    """Messages of all lengths that matter, numbered from 0."""
    return b"".join(recovered(sqn, bytes([sqn % 256]) * (sqn * 37 % 1500)) for sqn in range(count))


def fetched(count: int) -> list[tuple[str, int, int]]:
    """Return the decoded items."""
    return [("recovered", TOPIC, sqn) for sqn in range(count)]


@pytest.mark.parametrize("seed", range(6))
def test_messages_in_segments_of_any_length(tmp_path: Path, seed: int) -> None:
    """Messages are found wherever segments begin: within headers, options and payloads."""
    random.seed(seed)
    connection, stream = Connection().open(), messages(60)
    connection.send(stream, sorted(random.sample(range(1, len(stream)), 40 if seed else 0)))
    rows = rows_of(tmp_path, connection.packets)
    assert list(items(rows)) == fetched(60)
    assert {row["packet_type"] for row in rows} == {"TCP"}
    assert {row["status"] for row in rows} == {"ok"}
    assert sum(row["tcp_bytes"] for row in rows) == len(stream)
    assert all(row["udp_bytes"] is None and row["session_id"] is None for row in rows)


def test_byte_by_byte(tmp_path: Path) -> None:
    """Requests, the range and a fragment, a byte a segment."""
    connection = Connection().open()
    part = struct.pack("!BBHII", 10, 1, 12 + 16 + 5, TOPIC, 42) + struct.pack(
        "!BBHIII", 0, 16, 0, 41, 1200, 2000
    )
    wanted = encode_range_request(RangeRequest(TOPIC, low_sqn=5, age_ns=10**9)) + requests(5, 6, 7)
    connection.send(wanted, range(1, len(wanted)), from_source=False)
    answer = promised(5, 90) + part + b"01234" + recovered(43, b"")
    connection.send(answer, range(1, len(answer)))
    rows = rows_of(tmp_path, connection.packets)
    assert list(items(rows)) == [
        ("range_request", TOPIC, 5),
        *(("request", TOPIC, sqn) for sqn in (5, 6, 7)),
        ("range", TOPIC, 5),
        *(("recovered", TOPIC, sqn) for sqn in (42, 43)),
    ]
    [fragment] = [message for row in rows for message in row["messages"] if message["topic_sqn"] == 42]
    assert (fragment["first_sqn"], fragment["fragment_offset"], fragment["message_length"]) == (
        41,
        1200,
        2000,
    )
    assert fragment["payload_bytes"] == 5


@pytest.mark.parametrize(
    ("index", "printed"), [(LATE_JOIN_REQUEST, "late_join"), (OFF_TRANSPORT_REQUEST, "off_transport")]
)
def test_the_purpose_of_a_connection(tmp_path: Path, index: int, printed: str) -> None:
    """The range request distinguishes late join from off-transport recovery; without it neither is reported."""
    connection = Connection().open()
    connection.send(encode_range_request(RangeRequest(TOPIC, index)), [], from_source=False)
    connection.send(recovered(0, b"x"), [])
    rows = rows_of(tmp_path, connection.packets)
    assert [row["recovery"] for row in rows] == [None] * 3 + [printed] * 2
    silent = Connection().open()
    silent.send(recovered(0, b"x"), [])
    assert {row["recovery"] for row in rows_of(tmp_path, silent.packets)} == {None}


def test_topics_that_share_a_connection(tmp_path: Path) -> None:
    """A range belongs to the topic that its request index names, not to the topic requested last."""
    connection = Connection().open()
    indices = [topic << 1 | OFF_TRANSPORT_REQUEST for topic in (TOPIC, TOPIC + 1)]
    for topic, index in zip((TOPIC, TOPIC + 1), indices, strict=True):
        connection.send(encode_range_request(RangeRequest(topic, index)), [], from_source=False)
    for index in indices:
        connection.send(struct.pack("!BBHBBHIII", 8, 30, 20, 255, 16, 0, 5, 9, index), [])
    rows = rows_of(tmp_path, connection.packets)
    assert [item for item in items(rows) if item[0] == "range"] == [
        ("range", TOPIC, 5),
        ("range", TOPIC + 1, 5),
    ]
    assert {row["recovery"] for row in rows[3:]} == {"off_transport"}


def test_retransmitted_segments_count_once(tmp_path: Path) -> None:
    """TCP retransmissions of whole or partial segments, also with new bytes after them, are counted once."""
    connection, stream = Connection().open(), messages(20)
    start = connection.sqns[True]
    connection.send(stream, [4000, 8000])
    for begin, end in ((0, 4000), (3000, 9000), (0, len(stream)), (len(stream) - 1, len(stream))):
        connection.add(from_source=True, payload=stream[begin:end], sqn=start + begin)
    assert list(items(rows_of(tmp_path, connection.packets))) == fetched(20)


@pytest.mark.parametrize("seed", range(6))
def test_segments_out_of_order(tmp_path: Path, seed: int) -> None:
    """Segments that arrive out of order, for example after a loss upstream of the capture, are put in order."""
    random.seed(seed)
    connection, stream = Connection().open(), messages(60)
    start = connection.sqns[True]
    places = [0, *sorted(random.sample(range(1, len(stream)), 30)), len(stream)]
    parts = list(itertools.pairwise(places))
    random.shuffle(parts)
    for begin, end in parts:
        connection.add(from_source=True, payload=stream[begin:end], sqn=start + begin)
    notes = CaptureNotes()
    rows = rows_of(tmp_path, connection.packets, notes)
    assert sorted(items(rows)) == sorted(fetched(60))
    assert not notes.notes


def test_losses_of_the_capture_are_reported(tmp_path: Path) -> None:
    """A segment that was acknowledged but never captured is a gap, and a note contains its length."""
    connection = Connection().open()
    stream = b"".join(recovered(sqn, b"x" * 88) for sqn in range(60))
    connection.send(stream, [1000, 2050, 3000])
    lost = connection.packets.pop(-3)
    connection.add(from_source=False)
    connection.add(from_source=True, flags=FIN | ACK)
    notes = CaptureNotes()
    rows = rows_of(tmp_path, connection.packets, notes)
    assert lost.frame_bytes == 14 + 20 + 20 + 1050
    # The bytes from 1000 to 2050 have the headers of messages 10 to 20; 21 begins at 2100.
    assert list(items(rows)) == [one for one in fetched(60) if not 10 <= one[2] <= 20]
    [note] = notes.notes
    assert note.kind is NoteKind.STREAM_GAPS
    assert note.text.startswith(f"{1050 + 50:,} bytes of TCP streams")
    assert not note.rows_are_missing


def test_a_gap_within_a_payload_costs_nothing(tmp_path: Path) -> None:
    """Segments of which a part was kept, within a payload: where the next message begins is known."""
    connection = Connection().open()
    stream = recovered(0, b"x" * 3000) + recovered(1, b"y")
    connection.send(stream[:1000], [])
    connection.add(from_source=True, payload=stream[1000:2000], kept=60)
    connection.send(stream[2000:], [])
    notes = CaptureNotes()
    assert list(items(rows_of(tmp_path, connection.packets, notes))) == fetched(2)
    assert [note.kind for note in notes.notes] == [NoteKind.CUT_PACKETS]


def test_a_capture_that_begins_in_the_middle(tmp_path: Path) -> None:
    """Without the beginning of a connection, messages count from the first that is found."""
    connection = Connection()
    stream = b"".join(recovered(sqn, b"x" * 88) for sqn in range(40))
    connection.send(stream[50:], [700, 1400])
    notes = CaptureNotes()
    assert list(items(rows_of(tmp_path, connection.packets, notes))) == fetched(40)[1:]
    assert [note.text.split()[0] for note in notes.notes] == ["50"]


def test_what_is_no_lbmc(tmp_path: Path) -> None:
    """Nonsense on a source's port has a status and a note, and what follows it is found."""
    connection = Connection().open()
    stream = b"".join(recovered(sqn, b"x" * 20) for sqn in range(5))
    connection.send(b"GET / HTTP/1.1\r\n\r\n" + stream, [])
    notes = CaptureNotes()
    rows = rows_of(tmp_path, connection.packets, notes)
    assert rows[-1]["status"] == "LBMC: unknown version"
    assert list(items(rows)) == fetched(5)
    assert [note.kind for note in notes.notes] == [NoteKind.STREAM_GAPS]


def test_a_port_used_again(tmp_path: Path) -> None:
    """A new connection with the ports of an old one starts again, at any sequence number."""
    connection = Connection().open()
    connection.send(encode_range_request(RangeRequest(TOPIC)), [], from_source=False)
    connection.send(recovered(0, b"x" * 100)[:50], [])
    connection.sqns = {True: 77, False: 5}
    connection.open().send(recovered(1, b"y"), [])
    rows = rows_of(tmp_path, connection.packets)
    assert list(items(rows))[1:] == fetched(2)
    assert rows[-1]["recovery"] is None


def test_more_connections_than_can_be_followed(tmp_path: Path) -> None:
    """The table is bounded: the connection idle longest is evicted, and a note reports it."""
    connections = [Connection(20000 + i).open() for i in range(200)]
    for one in connections:
        one.send(recovered(0, b"x"), [])
    opened = [packet for one in connections for packet in one.packets[:3]]
    sent = [one.packets[3] for one in connections]
    notes = CaptureNotes()
    rows = rows_of(tmp_path, [*opened, *sent], notes)
    assert [note.kind for note in notes.notes if "evicted" in note.text] == [NoteKind.STREAM_GAPS]
    assert len(rows) == 800
    assert list(
        items(rows_of(tmp_path, [packet for one in connections for packet in one.packets]))
    ) == 200 * fetched(1)


def test_splits_are_the_whole(tmp_path: Path) -> None:
    """A split goes on in the middle of a message, of a header, of a gap; in whatever process."""
    random.seed(3)
    connection, stream = Connection().open(), messages(200)
    connection.send(encode_range_request(RangeRequest(TOPIC)), [11], from_source=False)
    connection.send(stream, sorted(random.sample(range(1, len(stream)), 300)))
    shuffled = connection.packets[:5]
    for at in range(5, len(connection.packets), 3):
        shuffled += reversed(connection.packets[at : at + 3])
    whole = rows_of(tmp_path, shuffled)
    parts = split(tmp_path / "capture.pcap", 3000)
    assert len(parts) > 20
    assert any(part.streams for part in parts)
    found = [row for part in parts for batch in decode(part, only_ours=True) for row in batch.to_pylist()]
    assert found == whole
    assert [one for one in sorted(items(whole)) if one[0] == "recovered"] == fetched(200)


def test_streams_of_another_version(tmp_path: Path) -> None:
    """A split whose state is not what this version stores is refused with what to do."""
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(Connection().open().packets))
    with pytest.raises(Exception, match="another version of umstack"):
        list(decode(Split(str(path), streams=b"nonsense" * 9)))


def test_ports(tmp_path: Path) -> None:
    """Other ports are other people's, unless they are named."""
    connection = Connection().open()
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(connection.packets))
    [batch] = decode(path, ports=CapturePorts(tcp=(0, 0)))
    assert set(batch.column("status").to_pylist()) == {"not ours"}
    assert batch.column("source_port").to_pylist() == [RECEIVER_PORT, REQUEST_PORT, RECEIVER_PORT]
    [named] = decode(path, ports=CapturePorts(tcp=(REQUEST_PORT, REQUEST_PORT)))
    assert set(named.column("packet_type").to_pylist()) == {"TCP"}


def test_every_snap_length(tmp_path: Path) -> None:
    """Of a segment that was cut anywhere there is the truth, or that it was cut."""
    opened = Connection().open()
    stream = recovered(0, b"x" * 30) + recovered(1, b"y" * 40)
    for kept in range(14, 54 + len(stream) + 1):
        packet = opened.segment(from_source=True, payload=stream, sqn=opened.sqns[True], kept=kept)
        rows = rows_of(tmp_path, [*opened.packets, packet])[3:]
        there = len(packet.data) - 54
        assert [sqn for _, _, sqn in items(rows)] == [sqn for sqn, end in ((0, 12), (1, 54)) if there >= end]
        # Without its ports a segment is nobody's.
        whole = there >= 0
        assert all(row["packet_type"] == ("TCP" if whole else None) for row in rows)
        assert all(row["status"] == ("ok" if whole else "cut before the end of its headers") for row in rows)
        assert rows or kept < 38


def test_connections_to_a_store(tmp_path: Path) -> None:
    """Messages of clients and a Store, from a byte per segment to one segment for all; the topic by its index."""
    upward = b"".join(
        MESSAGES[name].encode()
        for name in ("source", "receiver", "consumed", "keepalive of a source", "requests")
    )
    downward = b"".join(
        MESSAGES[name].encode() for name in ("new", "refused", "stable", "stable with a gap", "lost")
    )
    single = bytes.fromhex("0814001c17140001 0000004d 000003e9 00000000 0000002c ff040000")
    downward += single + recovered(43, b"order 43")
    for cuts in (1, 7, 5000):
        connection = Connection(source_port=STORE_PORT).open()
        connection.send(upward, range(cuts, len(upward), cuts), from_source=False)
        connection.send(downward, range(cuts, len(downward), cuts))
        rows = rows_of(tmp_path, connection.packets)
        found = [
            (message["kind"], message["topic_index"], message["first_sqn"], message["topic_sqn"])
            for row in rows
            for message in row["messages"]
        ]
        assert found == [
            ("registration", 1001, None, 0),
            ("registration", 1001, None, 0),
            ("consumed", 1001, None, 44),
            ("keepalive", 1001, None, 0),
            ("request", 1001, None, 43),
            ("request", 1001, None, 44),
            ("registered", 1001, None, 0),
            ("refused", 1001, None, 0),
            ("stable", 1001, 42, 44),
            ("stable", 1001, 0xFFFFFFFE, 0xFFFFFFFE),
            ("stable", 1001, 0, 4),
            ("lost", 1001, 46, 46),
            ("stable", 1001, 44, 44),
            ("recovered", TOPIC, 43, 43),
        ]
        assert {row["recovery"] for row in rows if row["messages"]} == {"store"}
        assert {row["transport"] for row in rows} == {None}
        assert rows[-1]["to_source"] is False


def test_stores_as_facts_and_as_a_table(tmp_path: Path) -> None:
    """A source with two connections and a receiver, whatever the capture was cut into; seen at two points it counts
    once; and the findings of refusals, lost messages and those not stable at the end.
    """
    packets: list[Packet] = []
    for port, upward, downward in (
        (40001, ("source",), ("new", "stable", "keepalive of a Store")),
        (40002, ("receiver", "consumed"), ("stable with a gap", "lost", "refused")),
    ):
        connection = Connection(port, STORE_PORT).open()
        connection.send(b"".join(MESSAGES[name].encode() for name in upward), [30], from_source=False)
        connection.send(b"".join(MESSAGES[name].encode() for name in downward), [50])
        packets += connection.packets
    for name in ("switch.pcap", "host.pcap"):
        (tmp_path / name).write_bytes(pcap(packets))
    facts = facts_of([str(tmp_path / "switch.pcap")])
    parts = split(tmp_path / "switch.pcap", 300)
    assert len(parts) > 3
    assert Facts.merged(facts_of([part]) for part in parts[::-1]).equals(facts)
    both = facts_of([str(tmp_path / name) for name in ("switch.pcap", "host.pcap")])
    (row,) = tables_of(both)["stores"].to_dicts()
    assert row.pop("start_ns") < row.pop("end_ns")
    assert row == {
        "store": SOURCE,
        "store_port": STORE_PORT,
        "client": RECEIVER,
        "topic_index": 1001,
        "connections": 2,
        "registrations": 2,
        "registered": 1,
        "refused": 1,
        "keepalives": 1,
        "acknowledgements": 3,
        "stable": 3 + 1 + 5,
        "lost": 1,
        "consumptions": 1,
        "highest_stable_sqn": 0xFFFFFFFE,
        "highest_consumed_sqn": 44,
        "stability_samples": 0,
        **dict.fromkeys(f"stability_{name}" for name in ("p50", "p90", "p99", "p999", "max")),
    }
    topic = {"publisher": RECEIVER, "session_id": 1, "topic_index": 1001, "topic": "orders"}
    summary = Summary({"stores": [row], "topics": [topic | {"highest_sqn": 0xFFFFFFFF}]})
    texts = [finding.text for rule in (findings._stores, findings._unstable) for finding in rule(summary)]
    assert [text.partition(" ")[2] for text in texts] == [
        f"{SOURCE}:14567 refused 1 registrations of {RECEIVER}.",
        f"{SOURCE}:14567 gave up 1 messages of {RECEIVER}: it will not have them.",
        f"the end of the capture Store {SOURCE}:14567 had not acknowledged the last 1 messages of orders.",
    ]


def test_recoveries_as_facts_and_as_a_table(tmp_path: Path) -> None:
    """Late joins and off-transport recovery by receiver and topic, whatever the capture was cut into."""
    path = tmp_path / "switch.pcap"
    path.write_bytes(pcap(recoveries()))
    facts = facts_of([str(path)])
    parts = split(path, 2000)
    assert len(parts) > 5
    shuffled = random.Random(5).sample(parts, len(parts))
    assert Facts.merged(facts_of([part]) for part in shuffled).equals(facts)
    late, other = sorted(tables_of(facts)["recoveries"].to_dicts(), key=lambda row: row["recovery"])
    printed = (
        "recovery",
        "receiver",
        "topic",
        "topic_index",
        "session_id",
        "connections",
        "range_requests",
        "requests",
    )
    assert [late[name] for name in printed] == ["late_join", RECEIVER, "orders", TOPIC, SESSION, 3, 3, 30]
    assert [other[name] for name in printed] == ["off_transport", RECEIVER, "orders", TOPIC, SESSION, 1, 1, 5]
    got = ("messages", "fragments", "payload_bytes", "lowest_sqn", "highest_sqn")
    assert [late[name] for name in got] == [30, 30, 15_000, 0, 29]
    assert [other[name] for name in got] == [3, 3, 1500, 50, 52]
    assert late["seconds"] == pytest.approx((late["end_ns"] - late["start_ns"]) / 1e9)


def test_a_connection_at_two_points_counts_once(tmp_path: Path) -> None:
    """Where most of it was seen; without an advertisement a topic has its number."""
    packets = recoveries()[1:]
    (tmp_path / "switch.pcap").write_bytes(pcap(packets))
    (tmp_path / "host.pcap").write_bytes(pcap(packets[:-12]))
    table = tables_of(facts_of([str(tmp_path / name) for name in ("switch.pcap", "host.pcap")]))["recoveries"]
    assert sorted(table["messages"].to_list()) == [3, 30]
    assert table["topic"].to_list() == table["session_id"].to_list() == [None, None]
