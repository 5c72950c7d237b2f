"""Faults that users of other capture readers and multicast stacks reported publicly; each is named with its report."""

from __future__ import annotations

import gzip
import struct
import time
from pathlib import Path

import pytest

from tests.unit.capture_bytes import (
    ETHERNET,
    START_NS,
    Packet,
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
    udp,
)
from tests.unit.loopback import open_context
from umstack.errors import InterfaceError

pytest.importorskip("pyarrow")

from tests.unit.read_captures import read
from umstack import Context
from umstack.capture import NoteKind, decode, split

RESOLUTION, RAW_IP, IPV4 = 9, 101, 228
WHOLE = frame(data(7, message(1, 7, b"inside")))


@pytest.mark.parametrize(
    ("exponent", "ticks"), [(0x80 | 33, 2**33), (0x80 | 20, 2**20), (9, 10**9), (3, 10**3)]
)
def test_any_time_resolution(tmp_path: Path, exponent: int, ticks: int) -> None:
    """libpcap 577: resolutions that are powers of two, as those of a tap; times were negative."""
    described = interface("<", ETHERNET, 0, option("<", RESOLUTION, bytes([exponent])))
    packet = enhanced(Packet(0, WHOLE), ticks=1_700_000_000 * ticks + ticks // 2)
    [row], _ = read(tmp_path / "capture", section() + described + packet)
    assert row["time_ns"] == 1_700_000_000_500_000_000


def test_nanoseconds_are_exact(tmp_path: Path) -> None:
    """scapy 2342: times were off by 24 ns, and by a factor of 1000."""
    described = interface("<", ETHERNET, 0, option("<", RESOLUTION, b"\x09"))
    exact = 1_573_830_016_444_223_380
    [row], _ = read(tmp_path / "capture", section() + described + enhanced(Packet(0, WHOLE), ticks=exact))
    [plain], _ = read(tmp_path / "capture", pcap([Packet(exact, WHOLE)]))
    assert row["time_ns"] == plain["time_ns"] == exact


def test_each_interface_has_its_own_resolution_link_type_and_snap_length(tmp_path: Path) -> None:
    """dpkt 681, pcapfix 23, libpcap 832: those of the first interface were used for all, or the file was refused."""
    content = section() + interface("<", ETHERNET, 0, option("<", RESOLUTION, b"\x09"))
    content += interface("<", RAW_IP, 0xFFFFFFFF) + interface("<", ETHERNET, 96)
    content += enhanced(Packet(0, WHOLE, interface=0), ticks=START_NS)
    content += enhanced(Packet(0, WHOLE[14:], interface=1), ticks=START_NS // 1000)
    content += enhanced(Packet(0, WHOLE, interface=2), ticks=START_NS // 1000)
    rows, notes = read(tmp_path / "capture", content)
    assert [row["transport_sqn"] for row in rows] == [7, 7, 7]
    assert [row["link_type"] for row in rows] == [ETHERNET, RAW_IP, ETHERNET]
    assert [row["time_ns"] // 1000 for row in rows] == [START_NS // 1000] * 3
    assert notes.notes == []


@pytest.mark.parametrize("snap_bytes", [0, 16, 0xFFFFFFFF])
def test_a_snap_length_in_the_header_refuses_no_packet(tmp_path: Path, snap_bytes: int) -> None:
    """super 462, pcap-file 36, gopacket 474: packets longer than the header's snap length, or one of 0."""
    content = bytearray(pcap([Packet(START_NS, WHOLE)] * 2))
    content[16:20] = struct.pack("<I", snap_bytes)
    rows, notes = read(tmp_path / "capture", bytes(content))
    assert [row["transport_sqn"] for row in rows] == [7, 7]
    assert notes.notes == []


def test_the_length_on_the_wire_is_at_least_the_captured_one(tmp_path: Path) -> None:
    """libpcap 1710, gopacket 939: old sniffers write a smaller one, and a raw link type; a reader trusted it."""
    packet = ipv4(udp(data(7, message(1, 7, b"inside"))))
    [row], _ = read(
        tmp_path / "capture", pcap([Packet(START_NS, packet + bytes(6), original=1)], link_type=IPV4)
    )
    assert (row["frame_bytes"], row["captured_bytes"]) == (len(packet) + 6, len(packet) + 6)
    assert (row["status"], row["transport_sqn"]) == ("ok", 7)
    assert ethernet(packet) == WHOLE


def test_padding_of_short_frames_is_no_payload(tmp_path: Path) -> None:
    """gopcap 6: zeros that fill an Ethernet frame were taken for a part of the packet."""
    short = data(7)
    [plain], _ = read(tmp_path / "capture", pcap([Packet(START_NS, frame(short))]))
    [row], _ = read(tmp_path / "capture", pcap([Packet(START_NS, frame(short) + bytes(40))]))
    assert (row["status"], row["udp_bytes"]) == (plain["status"], plain["udp_bytes"]) == ("ok", len(short))


def test_lengths_of_cut_packets_stay_those_on_the_wire(tmp_path: Path) -> None:
    """PcapPlusPlus 49: after splitting a file the captured length replaced the length on the wire."""
    path = tmp_path / "c.pcap"
    path.write_bytes(pcap([Packet(START_NS + i, WHOLE[:60], original=len(WHOLE)) for i in range(20)]))
    parts = split(path, 100)
    assert len(parts) > 5
    rows = [row for part in parts for batch in decode(part) for row in batch.to_pylist()]
    assert {(row["frame_bytes"], row["captured_bytes"]) for row in rows} == {(len(WHOLE), 60)}


def test_reserved_space_is_no_packet(tmp_path: Path) -> None:
    """Zeros of a preallocated file are a note, compressed or not; with something behind them they are damage."""
    packets = [Packet(START_NS + i, WHOLE) for i in range(3)]
    blocks = section() + interface() + b"".join(map(enhanced, packets))
    for content in (pcap(packets), blocks):
        for zeros in (4, 16, 100_000):
            rows, notes = read(tmp_path / "capture", content + bytes(zeros))
            assert [row["transport_sqn"] for row in rows] == [7, 7, 7]
            [note] = notes.notes
            assert (note.kind, note.position, note.rows_are_missing) == (
                NoteKind.RESERVED,
                len(content),
                False,
            )
            assert f"{zeros} bytes of zeros" in note.text
            parts = split(tmp_path / "capture", 100)
            assert sum(batch.num_rows for part in parts for batch in decode(part)) == len(rows)
        rows, notes = read(tmp_path / "capture", gzip.compress(content + bytes(100_000)))
        assert ([one.kind for one in notes.notes], len(rows)) == ([NoteKind.RESERVED], 3)
        rows, notes = read(tmp_path / "capture", content + bytes(100_000) + b"x")
        assert ([one.kind for one in notes.notes], len(rows)) == ([NoteKind.DAMAGED], 3)


def test_closing_a_receiver_without_a_source_does_not_hang() -> None:
    """libzmq 822: the context never closed after a receiver that no source had reached."""
    began = time.monotonic()
    with open_context() as context:
        context.receiver("nobody sends")
    assert time.monotonic() - began < 30


def test_an_interface_that_does_not_exist_is_an_error() -> None:
    """libzmq 1205: an interface by name ended the process in an assertion."""
    with pytest.raises(InterfaceError, match="no-such-0"):
        Context("no-such-0")
