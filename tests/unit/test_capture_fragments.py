"""IP fragments are joined: whole datagrams count once, incomplete and contradicting ones are noted."""

from __future__ import annotations

import itertools
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.unit.capture_bytes import (
    GROUP,
    SOURCE,
    START_NS,
    Packet,
    data,
    enhanced,
    ethernet,
    interface,
    ipv4,
    ipv6,
    message,
    pcap,
    pieces,
    section,
    udp,
)

pytest.importorskip("pyarrow")

from tests.unit.read_captures import read
from umstack.analysis.tables import tables_of
from umstack.capture import CaptureNotes, NoteKind, decode, split
from umstack.facts.facts import Facts, facts_of
from umstack.report.findings import findings
from umstack.report.outputs import summarised

MS = 1_000_000
CONTENT = (
    "status",
    "packet_type",
    "session_id",
    "transport_sqn",
    "messages",
    "udp_bytes",
    "destination_port",
)


def datagram(sqn: int, size: int = 900) -> bytes:
    """A UDP datagram of three messages."""
    return udp(data(sqn, *(message(7, 3 * sqn + k, bytes([sqn % 256]) * size) for k in range(3))))


def timed(frames: list[bytes], step_ns: int = MS) -> list[Packet]:
    """The frames as packets, one after the other."""
    return [Packet(START_NS + i * step_ns, one) for i, one in enumerate(frames)]


def of_fragments(notes: CaptureNotes) -> list[str]:
    """The texts about fragments."""
    return [one.text for one in notes.notes if one.kind is NoteKind.IP_FRAGMENTS]


@pytest.mark.parametrize("version", [4, 6])
def test_fragments_in_any_order_are_one_datagram(tmp_path: Path, version: int) -> None:
    """The row has the fields of the whole datagram, and its frames' bytes add up."""
    frame = ethernet(
        ipv4(datagram(5)) if version == 4 else ipv6(datagram(5)), 0x800 if version == 4 else 0x86DD
    )
    [whole], _ = read(tmp_path / "whole.pcap", pcap([Packet(START_NS, frame)]))
    assert (whole["status"], len(whole["messages"]), whole["ip_fragments"]) == ("ok", 3, None)
    sent = pieces(datagram(5), 1000, version=version)
    assert len(sent) == 3
    for frames in itertools.permutations(sent):
        [row], notes = read(tmp_path / "parts.pcap", pcap(timed([*frames])))
        assert [row[one] for one in CONTENT] == [whole[one] for one in CONTENT]
        assert (row["ip_fragment"], row["ip_fragments"]) == (True, 3)
        assert row["frame_bytes"] == row["captured_bytes"] == sum(map(len, sent))
        assert (row["position"], row["time_ns"]) == (24, START_NS + 2 * MS)
        assert (notes.packets, notes.rows, of_fragments(notes)) == (3, 1, [])


def test_a_missing_fragment_leaves_the_start(tmp_path: Path) -> None:
    """Without the middle the start is a row, without the start only the addresses are; a note counts them."""
    first, middle, last = pieces(datagram(5), 1000)
    [row], notes = read(tmp_path / "a.pcap", pcap(timed([first, last])))
    assert (row["status"], row["packet_type"], row["transport_sqn"]) == ("IP fragment", "DATA", 5)
    assert [one["topic_sqn"] for one in row["messages"]] == [15, 16]
    assert (row["ip_fragments"], row["frame_bytes"]) == (2, len(first) + len(last))
    [text] = of_fragments(notes)
    assert text.startswith("1 datagrams sent in IP fragments are not joined: fragments are missing")
    [row], notes = read(tmp_path / "b.pcap", pcap(timed([last, middle])), only_ours=True)
    assert (row["status"], row["packet_type"], row["destination_port"]) == ("IP fragment", None, None)
    assert (row["source_address"], row["destination_address"]) == (SOURCE, GROUP)
    assert len(of_fragments(notes)) == 1


@pytest.mark.parametrize("at", [992, 1008])
def test_overlapping_fragments_are_refused(tmp_path: Path, at: int) -> None:
    """Neither content is believed: the rows have addresses only."""
    body = datagram(5)
    first = ethernet(ipv4(body[:1000], fragment=0x2000))
    overlapping = ethernet(ipv4(body[at - 16 :], fragment=(at - 16) // 8))
    longer = ethernet(ipv4(body[1000:2000], fragment=0x2000 | 125))
    shorter = ethernet(ipv4(body[1000 : at + 8], fragment=125)) if at > 1000 else overlapping
    for frames in ((first, overlapping), (overlapping, first), (longer, shorter, first)):
        rows, notes = read(tmp_path / "a.pcap", pcap(timed([*frames])))
        assert {row["status"] for row in rows} == {"IP fragment"}
        assert sum(row["ip_fragments"] for row in rows) == len(frames)
        assert any("1 datagrams" in text and "contradict" in text for text in of_fragments(notes))


def test_copies_of_fragments_count_once(tmp_path: Path) -> None:
    """A mirror of both directions captures each fragment twice, at once or after the datagram was whole."""
    first, last = pieces(datagram(5), 1480)
    for frames in ((first, first, last, last), (last, last, first, last)):
        rows, notes = read(tmp_path / "a.pcap", pcap(timed([*frames])))
        assert sorted(row["status"] for row in rows) == ["IP fragment", "IP fragment", "ok"]
        assert [len(row["messages"]) for row in rows if row["messages"]] == [3]
        assert sum(row["frame_bytes"] for row in rows) == sum(map(len, frames))
        assert of_fragments(notes) == []


def test_an_id_that_is_used_again_starts_another_datagram(tmp_path: Path) -> None:
    """The old start is not completed by the new end; without losses one id for all is enough."""
    old, new = pieces(datagram(5)), pieces(datagram(6))
    rows, notes = read(tmp_path / "a.pcap", pcap(timed([old[0], new[0], new[1]])))
    assert [(row["status"], row["transport_sqn"]) for row in rows] == [("IP fragment", 5), ("ok", 6)]
    assert len(of_fragments(notes)) == 1
    rows, notes = read(tmp_path / "b.pcap", pcap(timed([*old, *new])))
    assert [(row["status"], row["transport_sqn"]) for row in rows] == [("ok", 5), ("ok", 6)]
    assert of_fragments(notes) == []


def test_an_id_of_a_closed_datagram_continues_the_open_one(tmp_path: Path) -> None:
    """The given-up start of an id does not hide the later datagram with this id, wherever the table holds it."""
    old, new = pieces(datagram(5), 1000, ident=0), pieces(datagram(6), 1000, ident=0)
    others = [frame for n in range(1, 64) for frame in pieces(datagram(n + 10), ident=n)]
    packets = timed([*others[:80], old[0], *others[80:]], 1000)
    packets += [Packet(START_NS + 2000 * MS + i * MS, frame) for i, frame in enumerate(new)]
    rows, notes = read(tmp_path / "a.pcap", pcap(packets))
    assert [row["transport_sqn"] for row in rows if row["status"] == "IP fragment"] == [5]
    assert [row["transport_sqn"] for row in rows if row["status"] == "ok"] == [*range(11, 74), 6]
    assert len(of_fragments(notes)) == 1


def test_time_is_bounded(tmp_path: Path) -> None:
    """Fragments more than a second apart do not belong together; less do."""
    for step_ms, expected in ((900, ["ok"]), (1100, ["IP fragment", "IP fragment"])):
        rows, notes = read(tmp_path / "a.pcap", pcap(timed(pieces(datagram(5)), step_ms * MS)))
        assert [row["status"] for row in rows] == expected
        assert len(of_fragments(notes)) == len(expected) - 1


@pytest.mark.parametrize("size", [80, 20_000])
def test_memory_is_bounded(tmp_path: Path, size: int) -> None:
    """Starts without ends displace the oldest; each is still a row, and the last datagrams are whole."""
    starts = [pieces(datagram(n, size), len(datagram(n, size)) // 16 * 8, ident=n) for n in range(200)]
    frames = [one for frames in starts for one in frames[:1]] + [one for f in starts[195:] for one in f[1:]]
    rows, notes = read(tmp_path / "a.pcap", pcap(timed(frames, 1000)))
    assert [row["transport_sqn"] for row in rows if row["status"] == "ok"] == [*range(195, 200)]
    assert [row["transport_sqn"] for row in rows if row["status"] == "IP fragment"] == [*range(195)]
    assert sum(row["frame_bytes"] for row in rows) == sum(map(len, frames))
    counts = {text.split(": ")[1].split(";")[0]: int(text.split()[0]) for text in of_fragments(notes)}
    assert sum(counts.values()) == 195
    assert counts["more are open at once than can be held"] >= 130


def test_capture_points_and_vlans_are_kept_apart(tmp_path: Path) -> None:
    """The same fragments at two interfaces, or in two VLANs, are two datagrams."""
    first, last = pieces(datagram(5))
    blocks = [section(), interface(), interface()]
    blocks += [enhanced(Packet(START_NS, one, interface=point)) for one in (first, last) for point in (0, 1)]
    rows, notes = read(tmp_path / "a.pcapng", b"".join(blocks))
    assert [(row["status"], row["interface_id"]) for row in rows] == [("ok", 0), ("ok", 1)]
    tagged = [ethernet(one[14:], tags=[vlan]) for one in (first, last) for vlan in (10, 20)]
    rows, notes = read(tmp_path / "a.pcap", pcap(timed(tagged)))
    assert [(row["status"], row["vlan"]) for row in rows] == [("ok", 10), ("ok", 20)]
    assert of_fragments(notes) == []
    tagged = [ethernet(one[14:], tags=[10, vlan]) for one in (first, last) for vlan in (30, 40)]
    rows, notes = read(tmp_path / "a.pcap", pcap(timed(tagged)))
    assert [(row["status"], row["inner_vlan"]) for row in rows] == [("ok", 30), ("ok", 40)]
    assert of_fragments(notes) == []


def test_cut_fragments_are_joined_by_their_lengths(tmp_path: Path) -> None:
    """A snap length keeps the first message's header; the datagram is whole nevertheless."""
    cut = [Packet(START_NS + i, one[:96], len(one)) for i, one in enumerate(pieces(datagram(5)))]
    [row], notes = read(tmp_path / "a.pcap", pcap(cut))
    assert (row["status"], row["transport_sqn"], row["udp_bytes"]) == ("ok", 5, len(datagram(5)) - 8)
    assert [one["topic_sqn"] for one in row["messages"]] == [15]
    assert of_fragments(notes) == []


def test_a_fragmented_tunnel_is_opened(tmp_path: Path) -> None:
    """GRE in fragments, and fragments in GRE in fragments."""
    gre = struct.pack(">HH", 0, 0x0800)

    def tunnelled(packet: bytes, ident: int) -> list[bytes]:
        body, size = gre + packet, 1000
        return [
            ethernet(
                ipv4(
                    body[at : at + size],
                    "10.9.9.1",
                    "10.9.9.2",
                    protocol=47,
                    ident=ident,
                    fragment=(at + size < len(body)) << 13 | at // 8,
                )
            )
            for at in range(0, len(body), size)
        ]

    [row], notes = read(tmp_path / "a.pcap", pcap(timed(tunnelled(ipv4(datagram(5)), 1))))
    assert (row["status"], row["source_address"], len(row["messages"]), row["ip_fragments"]) == (
        "ok",
        SOURCE,
        3,
        3,
    )
    inner = [frame[14:] for frame in pieces(datagram(5), 1480)]
    frames = [one for ident, packet in enumerate(inner) for one in tunnelled(packet, ident)]
    [row], notes = read(tmp_path / "b.pcap", pcap(timed(frames)))
    assert (row["status"], row["transport_sqn"], row["ip_fragments"]) == ("ok", 5, len(frames))
    assert (row["frame_bytes"], of_fragments(notes)) == (sum(map(len, frames)), [])


def test_impossible_fragments_are_malformed(tmp_path: Path) -> None:
    """Empty, beyond 64 KiB, and not a multiple of eight bytes."""
    bad = [
        ipv4(b"", fragment=0x2000),
        ipv4(bytes(64), fragment=0x3FFF),
        ipv4(bytes(63), fragment=0x2000),
    ]
    rows, _ = read(tmp_path / "a.pcap", pcap(timed([ethernet(one) for one in bad])))
    assert [row["status"] for row in rows] == ["malformed IP header"] * 3


def shuffled(seed: int) -> list[Packet]:
    """Datagrams, whole and in fragments of several sizes, some missing or doubled, near their places."""
    rng = random.Random(seed)
    placed = []
    for sqn in range(30):
        size = rng.choice([200, 1480, 4000])
        for frame in pieces(
            datagram(sqn, rng.choice([100, 900])), size, ident=sqn % 7, version=rng.choice([4, 6])
        ):
            times = rng.choice([0, 1, 1, 1, 1, 1, 1, 1, 2])
            placed += [(sqn + 2 * rng.random(), frame) for _ in range(times)]
    placed.sort(key=lambda one: one[0])
    return timed([frame for _, frame in placed], rng.choice([1000, 400 * MS]))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), target=st.integers(1, 60_000))
def test_splits_lose_and_double_nothing(
    tmp_path_factory: pytest.TempPathFactory, seed: int, target: int
) -> None:
    """Rows, notes and facts of the splits are together those of the file."""
    path = tmp_path_factory.getbasetemp() / "splits.pcap"
    note(f"seed {seed}")
    rows, notes = read(path, pcap(shuffled(seed)))
    of_splits, texts = [], CaptureNotes()
    parts = split(path, target)
    for part in parts:
        of_splits += [row for batch in decode(part, notes=texts) for row in batch.to_pylist()]
    assert of_splits == rows

    def total(of: CaptureNotes) -> int:
        return sum(int(text.split()[0]) for text in of_fragments(of))

    assert total(texts) == total(notes)
    if len(parts) > 8:
        return
    whole = facts_of([str(path)])
    merged = Facts.merged(facts_of([part]) for part in parts)
    for name in ("counts", "topics", "rates", "fragments"):
        assert getattr(merged, name).equals(getattr(whole, name)), name


def test_facts_do_not_depend_on_the_mtu(tmp_path: Path) -> None:
    """The messages, bytes and datagrams of topics are the same, whole or in fragments."""
    found = []
    for size in (9000, 1480):
        frames = [one for sqn in range(50) for one in pieces(datagram(sqn), size, ident=sqn)]
        path = tmp_path / "c.pcap"
        path.write_bytes(pcap(timed(frames)))
        facts = facts_of([str(path)])
        topics = facts.topics.select("messages", "payload_bytes").to_dicts()
        datagrams, sent = facts.rates.select("datagrams", "bytes").sum().row(0)
        assert sent == sum(map(len, frames))
        found.append((topics, datagrams, facts.counts["packets"].sum()))
    assert found[0] == found[1]
    assert facts.fragments["fragments"].to_list() == [100]


def test_the_report_fills_the_mtu_with_whole_datagrams(tmp_path: Path) -> None:
    """No share exceeds 100 % for datagrams in fragments, and large frames are not called fragmented."""
    texts = {}
    for size in (9000, 1480):
        frames = [one for sqn in range(50) for one in pieces(datagram(sqn), size, ident=sqn)]
        path = tmp_path / f"{size}.pcap"
        path.write_bytes(pcap(timed(frames)))
        tables = tables_of(facts_of([str(path)]))
        [fill] = tables["datagram_fill"].to_dicts()
        assert fill["messages_per_datagram"] == 3
        assert fill["payload_share"] < 1
        summary = summarised(dict(tables), [])
        texts[size] = [one.text for one in findings(summary) if one.topic == "over-mtu"]
    assert "no fragment was captured" in texts[9000][0]
    assert texts[1480][0].endswith("IP fragmented them.")
