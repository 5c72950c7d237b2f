"""Capture files of every kind become rows, and missing parts of a file are reported (bulk decoding)."""

from __future__ import annotations

import gzip
import pickle
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.capture_bytes import (
    ETHERNET,
    LOOP,
    NULL,
    RAW,
    SLL,
    SLL2,
    START_NS,
    Packet,
    block,
    data,
    enhanced,
    ethernet,
    frame,
    interface,
    ipv4,
    message,
    option,
    pcap,
    section,
    simple,
    udp,
)

pa = pytest.importorskip("pyarrow")

from umstack.capture import SCHEMA, CaptureError, CaptureNotes, NoteKind, Split, decode, split  # noqa: E402
from umstack.capture.reading.container import compression_of  # noqa: E402
from umstack.capture.reading.notes import not_a_capture  # noqa: E402

PACKETS = [Packet(START_NS + 1000 * i, frame(data(i, message(7, i, b"x" * (5 + 13 * i))))) for i in range(40)]


def rows_of(source: Path | Split, notes: CaptureNotes | None = None, **options: Any) -> list[dict[str, Any]]:
    """Every row, from batches that are valid Arrow of the promised schema."""
    rows: list[dict[str, Any]] = []
    for batch in decode(source, notes=notes, **options):
        batch.validate(full=True)
        assert batch.schema.equals(SCHEMA)
        rows += batch.to_pylist()
    return rows


def written(tmp_path: Path, content: bytes, name: str = "capture") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def kinds(notes: CaptureNotes) -> list[NoteKind]:
    return [note.kind for note in notes.notes]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nanoseconds", [True, False])
def test_pcap_of_every_make(tmp_path: Path, order: str, nanoseconds: bool) -> None:
    """Both byte orders, micro- and nanoseconds; a packet's position is its record's byte."""
    notes = CaptureNotes()
    content = pcap(PACKETS, order=order, nanoseconds=nanoseconds)
    rows = rows_of(written(tmp_path, content), notes)
    unit = 1 if nanoseconds else 1000
    assert [row["time_ns"] for row in rows] == [packet.time_ns // unit * unit for packet in PACKETS]
    assert [row["transport_sqn"] for row in rows] == list(range(40))
    assert all(
        content[row["position"] + 16 :].startswith(p.data) for row, p in zip(rows, PACKETS, strict=True)
    )
    assert {row["interface_name"] for row in rows} == {None}
    assert (notes.format, notes.packets, notes.rows, notes.notes) == ("pcap", 40, 40, [])


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_with_interfaces_of_their_own(tmp_path: Path, order: str) -> None:
    """Link type, name, resolution (powers of ten and of two) and time offset belong to each interface."""
    raw = ipv4(udp(data(1)))
    content = section(order)
    content += interface(order, ETHERNET, 0, option(order, 2, b"eth0"), option(order, 9, b"\x09"))
    content += interface(
        order, RAW, 0, option(order, 9, b"\x8a"), option(order, 14, struct.pack(f"{order}q", -5))
    )
    content += interface(order, ETHERNET)
    content += enhanced(Packet(0, frame(data(0))), order, ticks=START_NS)
    content += enhanced(Packet(0, raw, interface=1), order, ticks=3 * 1024 + 512)
    content += enhanced(Packet(START_NS, frame(data(2)), interface=2), order)
    rows = rows_of(written(tmp_path, content))
    assert [row["time_ns"] for row in rows] == [START_NS, -1_500_000_000, START_NS // 1000 * 1000]
    assert [row["interface_name"] for row in rows] == ["eth0", None, None]
    assert [row["interface_id"] for row in rows] == [0, 1, 2]
    assert [row["link_type"] for row in rows] == [ETHERNET, RAW, ETHERNET]
    assert [row["transport_sqn"] for row in rows] == [0, 1, 2]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("queue", "verdict", "expected"),
    [
        (None, None, (None, None)),
        (0, (2, 2), (0, "XDP_PASS")),
        (7, (2, 4), (7, "XDP_REDIRECT")),
        (0xFFFFFFFF, None, (0xFFFFFFFF, None)),
        (None, (2, 0), (None, "XDP_ABORTED")),
        (None, (2, 5), (None, "other")),
        (None, (2, 2**64 - 1), (None, "other")),
        (None, (1, 2), (None, "other")),
    ],
)
def test_queue_and_verdict(
    tmp_path: Path,
    order: str,
    queue: int | None,
    verdict: tuple[int, int] | None,
    expected: tuple[int | None, str | None],
) -> None:
    """Epb_queue and epb_verdict become columns, null where the packet does not have them."""
    options = [option(order, 2, struct.pack(f"{order}I", 1))]
    if queue is not None:
        options.append(option(order, 6, struct.pack(f"{order}I", queue)))
    if verdict is not None:
        options.append(option(order, 7, struct.pack(f"{order}BQ", *verdict)))
    said = enhanced(PACKETS[1], order, options=b"".join(options) + option(order, 0, b""))
    plain = enhanced(PACKETS[2], order)
    first, second = rows_of(written(tmp_path, section(order) + interface(order) + said + plain))
    assert (first["queue"], first["verdict"]) == expected
    assert (second["queue"], second["verdict"]) == (None, None)
    assert first["messages"][0]["topic_sqn"] == 1


@pytest.mark.parametrize("order", ["<", ">"])
def test_drops_are_reported_packet_by_packet(tmp_path: Path, order: str) -> None:
    """Epb_dropcount is a column; a capture that was not ended is reported to have lost their sum."""

    def said(n: int) -> bytes:
        return enhanced(
            PACKETS[1], order, options=option(order, 4, struct.pack(f"{order}Q", n)) + option(order, 0, b"")
        )

    notes = CaptureNotes()
    content = section(order) + interface(order) + said(7) + enhanced(PACKETS[2], order) + said(70) + said(0)
    rows = rows_of(written(tmp_path, content), notes)
    assert [row["dropped"] for row in rows] == [7, None, 70, 0]
    [note] = notes.notes
    assert (note.kind, "lost 77 packets" in note.text) == ("capture-drops", True)


def test_the_statistics_have_the_last_word_about_drops(tmp_path: Path) -> None:
    """At the end of a capture its statistics say all of it, and nothing is counted twice."""
    said = enhanced(PACKETS[1], options=option("<", 4, struct.pack("<Q", 7)) + option("<", 0, b""))
    drops = struct.pack("<III", 0, 0, 0) + option("<", 5, struct.pack("<Q", 12)) + option("<", 0, b"")
    notes = CaptureNotes()
    rows_of(written(tmp_path, section() + interface() + said + block("<", 5, drops)), notes)
    assert ["lost 12 packets" in note.text for note in notes.notes] == [True]


def test_more_interfaces_than_can_be_distinguished(tmp_path: Path) -> None:
    """The packets of further interfaces are rows, and the unknown parts are reported."""
    content = (
        section() + interface() * 1030 + enhanced(PACKETS[1]) + enhanced(replace(PACKETS[2], interface=1029))
    )
    notes = CaptureNotes()
    first, last = rows_of(written(tmp_path, content), notes)
    assert (first["interface_id"], first["packet_type"]) == (0, "DATA")
    assert (last["interface_id"], last["link_type"], last["packet_type"]) == (-1, -1, None)
    assert {note.kind for note in notes.notes} == {"no-time", "link-type"}
    assert any("6 interfaces beyond the limit of 1024" in note.text for note in notes.notes)


def test_sections_each_describe_their_interfaces(tmp_path: Path) -> None:
    """Files put end to end: interface 0 of the second section is another one, in another byte order."""
    notes = CaptureNotes()
    content = (
        section()
        + interface("<", ETHERNET, 0, option("<", 2, b"a"))
        + enhanced(Packet(START_NS, frame(data(0))))
    )
    content += section(">") + interface(">", RAW, 0, option(">", 2, b"b"))
    content += enhanced(Packet(START_NS, ipv4(udp(data(1)))), ">")
    rows = rows_of(written(tmp_path, content), notes)
    assert [(row["interface_id"], row["interface_name"]) for row in rows] == [(0, "a"), (1, "b")]
    assert [row["transport_sqn"] for row in rows] == [0, 1]
    assert notes.notes == []


def test_blocks_that_are_no_packets(tmp_path: Path) -> None:
    """Names and custom blocks are skipped; drops and unknown blocks are reported; simple packets count."""
    drops = struct.pack("<III", 0, 0, 0) + option("<", 5, struct.pack("<Q", 12)) + option("<", 0, b"")
    content = (
        section() + interface("<", ETHERNET, 70) + block("<", 4, bytes(8)) + block("<", 0x0BAD, bytes(4))
    )
    content += block("<", 0x77, b"what") + simple(
        Packet(0, frame(data(3, message(1, 1, bytes(100))))[:70], 170)
    )
    content += block("<", 5, drops)
    notes = CaptureNotes()
    (row,) = rows_of(written(tmp_path, content), notes)
    assert (row["time_ns"], row["transport_sqn"], row["captured_bytes"], row["frame_bytes"]) == (
        None,
        3,
        70,
        170,
    )
    assert set(kinds(notes)) == {
        NoteKind.NO_TIME,
        NoteKind.UNKNOWN_BLOCK,
        NoteKind.CUT_PACKETS,
        NoteKind.CAPTURE_DROPS,
    }
    unknown = next(note for note in notes.notes if note.kind is NoteKind.UNKNOWN_BLOCK)
    assert unknown.position == content.index(b"what") - 8
    assert "12 packets" in str(notes)


@pytest.mark.parametrize(
    ("link_type", "head"),
    [
        (NULL, struct.pack("<I", 2)),
        (LOOP, struct.pack(">I", 2)),
        (SLL, bytes(14) + b"\x08\x00"),
        (SLL, bytes(14) + b"\x81\x00\x00\x2a\x08\x00"),
        (SLL2, b"\x08\x00" + bytes(18)),
        (RAW, b""),
        (228, b""),
    ],
)
def test_link_types(tmp_path: Path, link_type: int, head: bytes) -> None:
    """Loopback, Linux cooked, raw IP: the same datagram in each."""
    packet = Packet(START_NS, head + ipv4(udp(data(9))))
    (row,) = rows_of(written(tmp_path, pcap([packet], link_type=link_type)))
    assert (row["status"], row["packet_type"], row["transport_sqn"]) == ("ok", "DATA", 9)
    assert row["vlan"] == (0x2A if b"\x81\x00" in head else None)


def test_a_link_type_nobody_knows_is_a_note(tmp_path: Path) -> None:
    """Its packets are rows without addresses, and the note names the type."""
    notes = CaptureNotes()
    (row,) = rows_of(written(tmp_path, pcap(PACKETS[:1], link_type=147)), notes)
    assert (row["status"], row["source_address"], row["packet_type"]) == ("link type not known", None, None)
    assert kinds(notes) == [NoteKind.LINK_TYPE]
    assert "147" in str(notes)


def test_an_interface_nobody_described(tmp_path: Path) -> None:
    """A packet of an interface that is not in the file becomes a row with a note."""
    content = section() + interface() + enhanced(Packet(START_NS, frame(data(0)), interface=4))
    (row,) = rows_of(written(tmp_path, content))
    assert (row["status"], row["interface_id"], row["interface_name"]) == (
        "interface not described",
        -1,
        None,
    )


def pcapng_of(packets: list[Packet]) -> bytes:
    return section() + interface() + b"".join(enhanced(packet) for packet in packets)


@pytest.mark.parametrize("make", [pcap, pcapng_of])
def test_a_file_cut_at_every_byte(tmp_path: Path, make: Any) -> None:
    """For every length, complete packets are rows, and the truncation is reported with its byte."""
    whole = make(PACKETS[:4])
    positions = [row["position"] for row in rows_of(written(tmp_path, whole))]
    ends = [*positions[1:], len(whole)]
    begins = len(make([]))
    for length in range(len(whole)):
        notes = CaptureNotes()
        rows = rows_of(written(tmp_path, whole[:length]), notes, batch_rows=64)
        assert len(rows) == sum(end <= length for end in ends)
        boundaries = {28, begins, *ends} if make is pcapng_of else {begins, *ends}
        expected = NoteKind.EMPTY if length == 0 else None if length in boundaries else NoteKind.TRUNCATED
        assert kinds(notes) == ([expected] if expected else []), length
        if expected is NoteKind.TRUNCATED:
            assert notes.notes[0].position == max([0, *(b for b in boundaries if b < length)])


def test_what_is_no_capture(tmp_path: Path) -> None:
    """A text file gives no rows and a note with its first bytes; a missing file is an error that names it."""
    notes = CaptureNotes()
    assert rows_of(written(tmp_path, b"Dear reader, this is text."), notes) == []
    assert kinds(notes) == [NoteKind.NOT_A_CAPTURE]
    assert notes.notes[0].rows_are_missing
    with pytest.raises(CaptureError, match="nowhere"):
        rows_of(tmp_path / "nowhere")


def test_damage_is_reported_and_earlier_packets_are_kept(tmp_path: Path) -> None:
    """A record that cannot be ends the file; the rows before it are there."""
    content = pcap(PACKETS[:2]) + b"\xff" * 40
    notes = CaptureNotes()
    assert len(rows_of(written(tmp_path, content), notes)) == 2
    assert [(note.kind, note.position) for note in notes.notes] == [
        (NoteKind.DAMAGED, len(pcap(PACKETS[:2])))
    ]
    notes = CaptureNotes()
    content = pcapng_of(PACKETS[:2])
    assert len(rows_of(written(tmp_path, content[:-4] + b"\0\0\0\0"), notes)) == 1
    assert kinds(notes) == [NoteKind.DAMAGED]


def test_a_clock_that_steps_back(tmp_path: Path) -> None:
    """Reordering by a second is reported with its byte and size; by microseconds, as queues do it, it is not."""
    times = [0, 5_000_000_000, 4_999_990_000, 3_999_990_000, 6_000_000_000]
    packets = [Packet(START_NS + time, frame(data(i))) for i, time in enumerate(times)]
    notes = CaptureNotes()
    rows = rows_of(written(tmp_path, pcap(packets)), notes)
    assert [(note.kind, note.position) for note in notes.notes] == [
        (NoteKind.CLOCK_STEP, rows[3]["position"])
    ]
    assert "1 times, by up to 1.000000 s" in notes.notes[0].text


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_files(tmp_path: Path, compression: str) -> None:
    """The same rows as of the plain file, also of several streams end to end; cut, the rows before the cut."""
    packets = [Packet(START_NS + i, frame(data(i, message(1, i, bytes(1300))))) for i in range(8000)]
    content = pcap(packets)

    def compressed(part: bytes) -> bytes:
        return gzip.compress(part, 1) if compression == "gzip" else pa.compress(part, "zstd", asbytes=True)

    plain = rows_of(written(tmp_path, content, "plain"))
    halves = compressed(content[:5_000_000]) + compressed(content[5_000_000:])
    notes = CaptureNotes()
    rows = rows_of(written(tmp_path, halves, "packed"), notes)
    assert [{**row, "capture_file": ""} for row in rows] == [{**row, "capture_file": ""} for row in plain]
    assert (notes.compression, notes.notes) == (compression, [])
    assert split(tmp_path / "packed", 1000) == [Split(str(tmp_path / "packed"))]
    cut = compressed(content)
    notes = CaptureNotes()
    rows = rows_of(written(tmp_path, cut[: len(cut) * 2 // 3], "cut"), notes)
    assert [row["position"] for row in rows] == [row["position"] for row in plain[: len(rows)]]
    assert len(rows) > 4000
    assert NoteKind.COMPRESSION in kinds(notes)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_stream_that_expands_too_much_is_not_read_to_its_end(tmp_path: Path, compression: str) -> None:
    """A short file of zeros does not cost the time and memory of all its content; a note reports it."""

    def compressed(part: bytes) -> bytes:
        return gzip.compress(part, 9) if compression == "gzip" else pa.compress(part, "zstd", asbytes=True)

    file = written(tmp_path, compressed(pcap(PACKETS)) + 64 * compressed(bytes(1 << 20)))
    notes = CaptureNotes()
    rows = sum(len(batch) for batch in decode(file, notes=notes))
    assert rows == len(PACKETS)
    assert [note.kind for note in notes.notes] == [NoteKind.COMPRESSION, NoteKind.RESERVED]
    (note,) = [note for note in notes.notes if note.kind is NoteKind.COMPRESSION]
    assert "expands more than 500-fold" in note.text
    assert note.position < 16 << 20


def test_a_record_larger_than_the_window_of_a_stream(tmp_path: Path) -> None:
    """A compressed file may hold a block larger than what is inflated at a time."""
    content = section() + interface() + block("<", 0x0BAD, bytes(10 << 20)) + enhanced(PACKETS[3])
    (row,) = rows_of(written(tmp_path, gzip.compress(content, 1)))
    assert row["transport_sqn"] == 3


@pytest.mark.parametrize("target", [1, 100, 777, 100_000])
def test_splits_hold_every_packet_once(tmp_path: Path, target: int) -> None:
    """Decoded apart, after a trip through pickle, splits give the rows of the whole, whatever they were cut into."""
    ng = section() + interface("<", ETHERNET, 0, option("<", 2, b"eth0"))
    ng += b"".join(enhanced(p) for p in PACKETS[:20]) + interface("<", RAW, 0, option("<", 2, b"ip"))
    ng += b"".join(enhanced(Packet(p.time_ns, p.data[14:], interface=1)) for p in PACKETS[20:])
    ng += section(">") + interface(">") + enhanced(PACKETS[0], ">")
    for content in (pcap(PACKETS), pcap(PACKETS, order=">", nanoseconds=False), ng):
        path = written(tmp_path, content)
        parts = split(path, target)
        assert parts[0].start == 0
        assert [part.end for part in parts[:-1]] == [part.start for part in parts[1:]]
        assert parts[-1].end is None
        assert len(parts) == 1 or target < len(content)
        apart = [row for part in parts for row in rows_of(pickle.loads(pickle.dumps(part)))]
        assert apart == rows_of(path)


def test_a_file_that_changed_under_its_splits(tmp_path: Path) -> None:
    """A split whose end is no longer a boundary is reported instead of decoded."""
    path = written(tmp_path, pcap(PACKETS))
    first = split(path, 500)[0]
    path.write_bytes(pcap([Packet(START_NS, frame(data(0, message(1, 1, bytes(900)))))]))
    notes = CaptureNotes()
    rows_of(first, notes)
    assert kinds(notes) == [NoteKind.DAMAGED]


def test_small_batches_are_the_same_rows(tmp_path: Path) -> None:
    """Rows do not depend on how many a batch holds."""
    path = written(tmp_path, pcap(PACKETS * 10))
    assert rows_of(path, batch_rows=1) == rows_of(path)
    assert max(batch.num_rows for batch in decode(path, batch_rows=1)) <= 64


def test_only_ours(tmp_path: Path) -> None:
    """Other traffic is a row without a type, unless it is left out."""
    other = [
        Packet(START_NS, frame(b"hello", destination_port=53)),
        Packet(START_NS, ethernet(b"\0\1", 0x0806)),
    ]
    path = written(tmp_path, pcap([*other, PACKETS[0]]))
    rows = rows_of(path)
    assert [(row["status"], row["packet_type"]) for row in rows] == [("not ours", None)] * 2 + [
        ("ok", "DATA")
    ]
    assert rows_of(path, only_ours=True) == rows[2:]


@pytest.mark.parametrize(
    ("start", "named"),
    [
        ("04224d18", "lz4 -d"),
        ("fd377a58", "xz -d"),
        ("34cdb2a1", "editcap"),
        ("a1b2cd34", "editcap"),
        ("00010203", None),
    ],
)
def test_containers_that_are_not_read_are_named(start: str, named: str | None) -> None:
    """The note on a file of another container has the command that converts it."""
    text = not_a_capture(bytes.fromhex(start))
    assert (named or "not a capture") in text
    assert ("(" in text) == (named is not None)


def test_a_file_of_pzstd_is_zstd(tmp_path: Path) -> None:
    """A frame to skip precedes the data; its magic has sixteen values."""
    for low in range(16):
        path = tmp_path / "file"
        path.write_bytes(bytes((0x50 | low, 0x2A, 0x4D, 0x18)) + bytes(8))
        assert compression_of(path) == "zstd"


@pytest.mark.parametrize("length", [0, 20, 1 << 25, 1 << 31, 0xFFFFFFFF])
@pytest.mark.parametrize("is_pcapng", [False, True])
def test_an_impossible_length_on_the_wire_is_the_captured_one(
    tmp_path: Path, is_pcapng: bool, length: int
) -> None:
    """A damaged original length, below the captured one or beyond any link, is noted and never counted."""
    damaged = [
        replace(packet, original=length) if i in (3, 7) else packet for i, packet in enumerate(PACKETS)
    ]
    content = b"".join([section(), interface(), *map(enhanced, damaged)]) if is_pcapng else pcap(damaged)
    notes = CaptureNotes()
    rows = rows_of(written(tmp_path, content), notes)
    assert [row["frame_bytes"] for row in rows] == [len(packet.data) for packet in PACKETS]
    assert kinds(notes) == [NoteKind.WRONG_LENGTH]
    assert notes.notes[0].position == rows[3]["position"]
    assert notes.notes[0].text.startswith("2 packets")
