"""Frames as mirrors and taps deliver them, in tunnels or behind a time: the row is that of the inner packet."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.unit.capture_bytes import GROUP, SOURCE, Packet, data, ethernet, frame, ipv4, message, pcap, udp
from tests.wire.dissection import tshark

pytest.importorskip("pyarrow")

from umstack.capture import decode

P = struct.pack
INNER_IP = ipv4(udp(data(7, message(1, 7, b"inside"))))
INNER = ethernet(INNER_IP)
GRE, IP_IN_IP = 47, 4


def outer(protocol: int, body: bytes) -> bytes:
    """An Ethernet frame between two switches."""
    return ethernet(ipv4(body, "10.9.9.1", "10.9.9.2", protocol=protocol))


def outer_udp(port: int, body: bytes) -> bytes:
    """The same with a UDP datagram to a port."""
    return outer(17, udp(body, 50000, port))


TUNNELS = {
    "ERSPAN I": outer(GRE, P(">HH", 0, 0x88BE) + INNER),
    "ERSPAN II": outer(GRE, P(">HHIII", 0x1000, 0x88BE, 1, 0x10000065, 0) + INNER),
    "ERSPAN III": outer(GRE, P(">HHIIII", 0x1000, 0x22EB, 1, 0x20000065, 0, 0) + INNER),
    "ERSPAN III, subheader": outer(GRE, P(">HHIIIIII", 0x1000, 0x22EB, 1, 0x20000065, 0, 1, 0, 0) + INNER),
    "GRE": outer(GRE, P(">HH", 0, 0x0800) + INNER_IP),
    "GRE with all fields": outer(GRE, P(">HHIII", 0xB000, 0x0800, 0, 5, 6) + INNER_IP),
    "bridged GRE": outer(GRE, P(">HHI", 0x2000, 0x6558, 5) + INNER),
    "VXLAN": outer_udp(4789, P(">II", 0x08000000, 0x2A00) + INNER),
    "GENEVE": outer_udp(6081, P(">BBHI", 0, 0, 0x6558, 0x2A00) + INNER),
    "GENEVE, options": outer_udp(6081, P(">BBHIHBBI", 2, 0, 0x6558, 0x2A00, 0x100, 1, 1, 9) + INNER),
    "MPLS": ethernet(P(">I", 16 << 12 | 0x1FF) + INNER_IP, 0x8847),
    "MPLS, two labels": ethernet(P(">II", 17 << 12 | 0xFF, 16 << 12 | 0x1FF) + INNER_IP, 0x8847),
    "MPLS, control word": ethernet(P(">II", 16 << 12 | 0x1FF, 0) + INNER, 0x8847),
    "IP in IP": outer(IP_IN_IP, INNER_IP),
    "Arista": ethernet(P(">HHIIH", 1, 0x10, 1700000000, 5, 0x0800) + INNER_IP, 0xD28B),
    "Arista, short": ethernet(P(">HHHIH", 1, 0x120, 7, 5, 0x0800) + INNER_IP, 0xD28B),
    "VXLAN in MPLS": ethernet(
        P(">I", 16 << 12 | 0x1FF) + outer_udp(4789, P(">II", 0x08000000, 0x2A00) + INNER)[14:], 0x8847
    ),
}
NOT_DISSECTED = {"Arista", "Arista, short"}
"""tshark knows this header by another name or not at all."""


def row_of(folder: Path, content: bytes) -> dict[str, Any]:
    """The row of one frame."""
    [row] = rows_of(folder, [Packet(1, content)])
    return row


def rows_of(folder: Path, packets: list[Packet]) -> list[dict[str, Any]]:
    """The rows of some frames."""
    path = folder / "capture.pcap"
    path.write_bytes(pcap(packets))
    return [row for batch in decode(str(path)) for row in batch.to_pylist()]


@pytest.mark.parametrize("name", TUNNELS)
def test_a_tunnel_is_opened(tmp_path: Path, name: str) -> None:
    """Addresses, tags, numbers and messages are those of the inner packet, and a cut at any place hides them only."""
    whole, content = row_of(tmp_path, TUNNELS[name]), TUNNELS[name]
    plain = row_of(tmp_path, INNER)
    for column in ("status", "source_address", "destination_address", "transport_sqn", "messages", "vlan"):
        assert whole[column] == plain[column], column
    for row in rows_of(tmp_path, [Packet(1, content[:n], len(content)) for n in range(len(content))]):
        assert row["transport_sqn"] in (None, 7)
        assert row["packet_type"] in (None, "DATA")


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark not installed")
@pytest.mark.parametrize("name", sorted(set(TUNNELS) - NOT_DISSECTED))
def test_tshark_finds_the_same_packet(tmp_path: Path, name: str) -> None:
    """The innermost addresses and the LBT-RM number agree with tshark."""
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap([Packet(1, TUNNELS[name])]))
    fields = ("-T", "fields", "-e", "ip.src", "-e", "ip.dst", "-e", "lbtrm.data.sqn", "-E", "occurrence=l")
    assert tshark(path, *fields).split() == [SOURCE, GROUP, "0x00000007"]


def test_nesting_is_limited(tmp_path: Path) -> None:
    """Four tunnels are opened, a fifth is not."""
    packet = INNER_IP
    for depth in range(1, 7):
        packet = ipv4(packet, protocol=IP_IN_IP)
        assert row_of(tmp_path, ethernet(packet))["status"] == ("ok" if depth <= 4 else "not ours")


@pytest.mark.parametrize("port", [4789, 6081])
def test_a_datagram_on_a_tunnels_port_stays_a_datagram(tmp_path: Path, port: int) -> None:
    """LBT-RM that is sent to the port of a tunnel is LBT-RM."""
    row = row_of(tmp_path, frame(data(7, message(1, 7, b"inside")), destination_port=port))
    assert (row["status"], row["transport_sqn"], row["destination_port"]) == ("ok", 7, port)


def test_tags_behind_the_second_are_passed(tmp_path: Path) -> None:
    """The first two of up to eight tags are reported."""
    for count in range(3, 10):
        row = row_of(tmp_path, ethernet(INNER_IP, tags=tuple(range(1, count + 1))))
        assert row["status"] == ("ok" if count <= 8 else "not ours")
        assert (row["vlan"], row["inner_vlan"]) == (1, 2)
