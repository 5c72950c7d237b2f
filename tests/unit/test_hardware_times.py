"""Times that capture hardware adds to packets: trailers of switches, and ERF as link type and as container."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.capture_bytes import (
    START_NS,
    Packet,
    data,
    ethernet,
    frame,
    ipv4,
    ipv6,
    message,
    pcap,
    section,
    simple,
    trailer,
    udp,
)
from tests.unit.capture_bytes import interface as described

pytest.importorskip("pyarrow")

from tests.unit.read_captures import read
from umstack.capture import NoteKind, decode, split
from umstack.cli import command as umstack

WHOLE = frame(data(7, message(1, 7, b"inside")))
ERF_LINK_TYPE = 197
ETHERNET, COLOR, IPV4, META, ATM = 2, 11, 22, 27, 3
HARDWARE_NS = START_NS - 12_345


def record(
    content: bytes, time_ns: int, kind: int = ETHERNET, lost: int = 0, extensions: int = 0, port: int = 1
) -> bytes:
    """An ERF record."""
    seconds, fraction = divmod(time_ns, 10**9)
    head = bytes([0x80] * (extensions - 1) + [0]) if extensions else b""
    more = b"".join(bytes([first]) + bytes(7) for first in head) + (
        b"\0\0" if kind in (ETHERNET, COLOR) else b""
    )
    body = more + content
    body += bytes(-(16 + len(body)) % 8)
    ticks = -(-(fraction << 32) // 10**9)
    kind |= 0x80 if extensions else 0
    return (
        struct.pack("<II", ticks, seconds)
        + struct.pack("!BBHHH", kind, 4 | port, 16 + len(body), lost, len(content))
        + body
    )


@pytest.mark.parametrize("check", [b"", b"\1\2\3\4"])
@pytest.mark.parametrize("extensions", [b"", b"\0\0\0\x1f" * 3])
@pytest.mark.parametrize("version", [4, 6])
def test_a_trailer_gives_the_time_on_request(
    tmp_path: Path, check: bytes, extensions: bytes, version: int
) -> None:
    """With and without a frame check sequence and extensions; otherwise the capture's time stays."""
    body = udp(data(7, message(1, 7, b"inside")))
    sent = ethernet(ipv4(body)) if version == 4 else ethernet(ipv6(body), 0x86DD)
    content = pcap([Packet(START_NS, sent + trailer(HARDWARE_NS, check, extensions))])
    [row], notes = read(tmp_path / "a.pcap", content, hardware_times=True)
    assert (row["time_ns"], row["status"], row["transport_sqn"]) == (HARDWARE_NS, "ok", 7)
    assert notes.notes == []
    [row], _ = read(tmp_path / "a.pcap", content)
    assert row["time_ns"] == START_NS


@pytest.mark.parametrize(
    "sent",
    [
        WHOLE,
        WHOLE + bytes(30),
        WHOLE + trailer(START_NS - 40 * 86400 * 10**9),
        WHOLE + trailer(START_NS)[:-1],
        frame(data(7, message(1, 7, trailer(HARDWARE_NS)))),
    ],
)
def test_packets_without_a_trailer_keep_their_time(tmp_path: Path, sent: bytes) -> None:
    """Padding, an old time, a trailer cut short, and payload that looks like one; a note counts them."""
    [row], notes = read(tmp_path / "a.pcap", pcap([Packet(START_NS, sent)]), hardware_times=True)
    assert row["time_ns"] == START_NS
    [note] = notes.notes
    assert note.kind is NoteKind.NO_TIME
    assert "1 packets have no time of the capture hardware" in note.text


def test_a_packet_without_a_time_gets_that_of_its_trailer(tmp_path: Path) -> None:
    """pcapng's simple blocks have none."""
    content = section() + described() + simple(Packet(0, WHOLE + trailer(HARDWARE_NS)))
    [row], _ = read(tmp_path / "a.pcapng", content, hardware_times=True)
    assert row["time_ns"] == HARDWARE_NS


def test_erf_as_link_type(tmp_path: Path) -> None:
    """The record's header is removed; its time counts on request."""
    content = pcap([Packet(START_NS, record(WHOLE, HARDWARE_NS))], link_type=ERF_LINK_TYPE)
    for wanted, time_ns in ((False, START_NS), (True, HARDWARE_NS)):
        [row], notes = read(tmp_path / "a.pcap", content, hardware_times=wanted)
        assert (row["time_ns"], row["transport_sqn"], row["link_type"]) == (time_ns, 7, 1)
        assert row["frame_bytes"] == row["captured_bytes"] == len(WHOLE)
        assert notes.notes == []


def test_an_erf_file(tmp_path: Path) -> None:
    """Records of several kinds; padding and metadata are no packets, losses are counted by interface."""
    content = record(WHOLE, START_NS)
    content += record(WHOLE, START_NS + 10, COLOR, 77, extensions=2, port=2)
    content += record(bytes(64), START_NS + 15, META)
    content += record(WHOLE[14:], START_NS + 20, IPV4, extensions=1, port=0)
    content += record(WHOLE, START_NS + 30, lost=3)
    rows, notes = read(tmp_path / "a.erf", content)
    assert [row["transport_sqn"] for row in rows] == [7] * 4
    assert [row["time_ns"] - START_NS for row in rows] == [0, 10, 20, 30]
    assert [row["interface_id"] for row in rows] == [1, 2, 0, 1]
    assert [row["dropped"] for row in rows] == [None, None, None, 3]
    assert notes.format == "erf"
    assert [note.text for note in notes.notes] == ["the capturing side lost 3 packets of interface 1"]
    parts = split(tmp_path / "a.erf", 1)
    assert len(parts) > 2
    assert [row for part in parts for batch in decode(part) for row in batch.to_pylist()] == rows
    rows, notes = read(tmp_path / "a.erf", content[:-5])
    assert (len(rows), [note.kind for note in notes.notes]) == (3, [NoteKind.TRUNCATED])


def test_an_unknown_erf_record(tmp_path: Path) -> None:
    """An unknown kind of record ends the file with a note, and in pcap is a packet of an unknown link type."""
    rows, notes = read(tmp_path / "a.erf", record(WHOLE, START_NS) + record(bytes(53), START_NS, ATM))
    assert (len(rows), [note.kind for note in notes.notes]) == (1, [NoteKind.DAMAGED])
    content = pcap([Packet(START_NS, record(bytes(53), START_NS, ATM))], link_type=ERF_LINK_TYPE)
    [row], _ = read(tmp_path / "a.pcap", content)
    assert row["status"] == "link type not known"


def test_splits_keep_the_choice(tmp_path: Path) -> None:
    """Splits made with hardware times have them, and decode() does not change that."""
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap([Packet(START_NS + i, WHOLE + trailer(HARDWARE_NS + i)) for i in range(9)]))
    parts = split(path, 100, hardware_times=True)
    assert len(parts) > 2
    times = [time for part in parts for batch in decode(part) for time in batch["time_ns"].to_pylist()]
    assert times == [HARDWARE_NS + i for i in range(9)]


def test_decode_and_report_have_the_option(tmp_path: Path) -> None:
    """The command line, too."""
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap([Packet(START_NS + i, WHOLE + trailer(HARDWARE_NS + i)) for i in range(9)]))
    table = tmp_path / "t.parquet"
    done = CliRunner().invoke(umstack, ["decode", str(path), "--hardware-times", "--parquet", str(table)])
    assert done.exit_code == 0, done.output
    import pyarrow.parquet as pq

    assert pq.read_table(table)["time_ns"][0].as_py() == HARDWARE_NS
    out = tmp_path / "out"
    done = CliRunner().invoke(umstack, ["report", str(path), "--out", str(out), "--hardware-times", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["packets"] == 9
    [session] = pq.read_table(out / "sessions").to_pylist()
    assert session["first_ns"] == HARDWARE_NS
