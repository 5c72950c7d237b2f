"""Datagrams of the topic resolution machine, written to a capture and dissected by tshark (W1)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import wrpcap

from tests.wire.dissection import MARKS, tshark, values
from tests.wire.layer_fields import differences
from umstack._engine.transport_address import transport_name
from umstack.config import Config
from umstack.resolution.codec import (
    LbtipcAddress,
    LbtrmAddress,
    LbtruAddress,
    ResolutionDatagram,
    TcpAddress,
    decode,
)
from umstack.resolution.machine import ResolutionMachine
from umstack.resolution.pattern import TopicPattern
from umstack.scapy import LBMR

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")

MS = 1_000_000
HOST = "10.9.0.1"
GROUP, PORT = "224.9.10.11", 12965


def address(session_id: int = 0x5EED0001) -> LbtrmAddress:
    return LbtrmAddress(HOST, "224.10.10.10", session_id, 14400, 14390)


def machine(size: int = 1472) -> ResolutionMachine:
    return ResolutionMachine(Config().context_options(), size, now_ns=0)


def write(path: Path, payloads: list[bytes]) -> None:
    packets = [
        Ether(src="02:00:00:00:00:01", dst="01:00:5e:09:0a:0b")
        / IP(src=HOST, dst=GROUP, ttl=16)
        / UDP(sport=40000 + number, dport=PORT)
        / Raw(payload)
        for number, payload in enumerate(payloads)
    ]
    wrpcap(str(path), packets)


def dissect(path: Path, payloads: list[bytes]) -> list[dict[str, Any]]:
    """Return the LBMR layer of each datagram. Fails if one is not LBMR or malformed, or if scapy differs."""
    write(path, payloads)
    assert tshark(path, "-Y", MARKS) == ""
    packets = json.loads(tshark(path, "-T", "json", "--no-duplicate-keys"))
    layers = [packet["_source"]["layers"] for packet in packets]
    assert len(layers) == len(payloads)
    assert all("lbmr" in layer for layer in layers)
    for payload, layer in zip(payloads, layers, strict=True):
        assert differences(LBMR(payload), layer["lbmr"]) == []
    return [layer["lbmr"] for layer in layers]


def test_an_advertisement_has_every_field(tmp_path: Path) -> None:
    """W1: a TIR carries source ip, group, session id, both ports, and the topic index."""
    resolver = machine()
    resolver.advertise("MD.EURUSD", 1001, address(), Config().source_options(), 0)
    (tree,) = dissect(tmp_path / "tir.pcap", resolver.datagrams_to_send(0))
    expected = {
        "lbmr.hdr.ver": "0",
        "lbmr.hdr.type": "0x00",
        "lbmr.hdr.tqrs": "0",
        "lbmr.hdr.tirs": "1",
        "lbmr.tir.name": "MD.EURUSD",
        "lbmr.tir.transport_type": "0x10",
        "lbmr.tir.tlen": "16",
        "lbmr.tir.ttl": "60",
        "lbmr.tir.index": "1001",
        "lbmr.tir.lbtrm.srcip": HOST,
        "lbmr.tir.lbtrm.mcastip": "224.10.10.10",
        "lbmr.tir.lbtrm.sessid": "0x5eed0001",
        "lbmr.tir.lbtrm.dport": "14400",
        "lbmr.tir.lbtrm.sport": "14390",
    }
    for field, value in expected.items():
        found = values(tree, field)
        assert len(found) == 1, (field, found)
        assert found[0] == value or int(found[0], 0) == int(value, 0), field


def test_an_advertisement_of_an_ipv6_session(tmp_path: Path) -> None:
    """tshark decodes the advertisement: it shows our option as unknown, and zeros as addresses of the transport."""
    resolver = machine()
    over_ipv6 = LbtrmAddress("fd00:1::2", "ff15::7", 0x5EED0001, 14400, 14390)
    resolver.advertise("MD.SIX", 1001, over_ipv6, Config().source_options(), 0)
    resolver.advertise("MD.FOUR", 1002, address(), Config().source_options(), 0)
    (datagram,) = resolver.datagrams_to_send(0)
    path = tmp_path / "ipv6.pcap"
    write(path, [datagram])
    assert tshark(path, "-Y", "_ws.malformed || _ws.short") == ""
    assert "Unknown option 0x55" in tshark(path, "-O", "lbmr", "-V")
    (packet,) = json.loads(tshark(path, "-T", "json", "--no-duplicate-keys"))
    tree = packet["_source"]["layers"]["lbmr"]
    assert values(tree, "lbmr.tir.name") == ["MD.SIX", "MD.FOUR"]
    assert values(tree, "lbmr.tir.lbtrm.srcip") == ["0.0.0.0", HOST]
    assert values(tree, "lbmr.tir.lbtrm.mcastip") == ["0.0.0.0", "224.10.10.10"]
    assert [int(one, 0) for one in values(tree, "lbmr.tir.lbtrm.sessid")] == [0x5EED0001] * 2
    option = LBMR(datagram).tirs[0].options[1]
    assert (option.source_ip, option.group, option.flags) == ("fd00:1::2", "ff15::7", 0)
    assert LBMR(bytes(LBMR(datagram))) == LBMR(datagram)


@pytest.mark.parametrize("session_id", [0x5EED00AA, 0])
def test_an_advertisement_of_a_unicast_source(tmp_path: Path, session_id: int) -> None:
    """W1: TIRs of LBT-RU and TCP carry source ip, port and the session id, if any."""
    resolver = machine()
    resolver.advertise("MD.U", 2001, LbtruAddress(HOST, session_id, 14380), Config().source_options(), 0)
    resolver.advertise("MD.T", 2002, TcpAddress(HOST, session_id, 14371), Config().source_options(), 0)
    (tree,) = dissect(tmp_path / "unicast.pcap", resolver.datagrams_to_send(0))
    assert values(tree, "lbmr.tir.name") == ["MD.U", "MD.T"]
    assert [int(kind, 0) for kind in values(tree, "lbmr.tir.transport_type")] == [0x01, 0x00]
    assert values(tree, "lbmr.tir.tlen") == [str(10 if session_id else 6)] * 2
    for transport, port in (("lbtru", "14380"), ("tcp", "14371")):
        assert values(tree, f"lbmr.tir.{transport}.ip") == [HOST]
        assert values(tree, f"lbmr.tir.{transport}.port") == [port]
        expected = [session_id] if session_id else []
        found = values(tree, f"lbmr.tir.{transport}.session_id")
        assert [int(one, 0) for one in found] == expected


def test_an_advertisement_of_a_source_in_shared_memory(tmp_path: Path) -> None:
    """W1, UX-12: a TIR of LBT-IPC carries host id, session id and transport id."""
    resolver = machine()
    address = LbtipcAddress(0x0A0B0C0D, 0x5EED00AB, 20003)
    resolver.advertise("MD.I", 2003, address, Config().source_options(), 0)
    (tree,) = dissect(tmp_path / "ipc.pcap", resolver.datagrams_to_send(0))
    assert [int(kind, 0) for kind in values(tree, "lbmr.tir.transport_type")] == [0x40]
    assert values(tree, "lbmr.tir.tlen") == ["10"]
    for field, value in (("host_id", 0x0A0B0C0D), ("session_id", 0x5EED00AB), ("xport_id", 20003)):
        assert [int(one, 0) for one in values(tree, f"lbmr.tir.lbtipc.{field}")] == [value]
    assert transport_name(address) == "LBTIPC:5eed00ab:20003"


def test_queries_and_advertisements_share_a_datagram(tmp_path: Path) -> None:
    """TQRs come first and TIRs follow; the counts match the records."""
    resolver = machine()
    for number in range(3):
        resolver.query(f"wanted.{number}", Config().receiver_options(), 0)
        resolver.advertise(f"offered.{number}", number, address(), Config().source_options(), 0)
    (tree,) = dissect(tmp_path / "both.pcap", resolver.datagrams_to_send(0))
    assert values(tree, "lbmr.hdr.tqrs") == ["3"]
    assert values(tree, "lbmr.hdr.tirs") == ["3"]
    assert values(tree, "lbmr.tqr.name") == ["wanted.0", "wanted.1", "wanted.2"]
    assert values(tree, "lbmr.tir.name") == ["offered.0", "offered.1", "offered.2"]
    assert values(tree, "lbmr.tir.index") == ["0", "1", "2"]


def test_full_datagrams_are_complete(tmp_path: Path) -> None:
    """tshark ignores a count that is too small, so names are compared with the queries."""
    resolver = machine()
    names = [f"{'long' * 20}.{number:03}" for number in range(200)]
    for name in names:
        resolver.query(name, Config().receiver_options(), 0)
    payloads = [data for now in range(0, 300, 10) for data in resolver.datagrams_to_send(now * MS)]
    trees = dissect(tmp_path / "full.pcap", payloads)
    assert set(values(trees, "lbmr.tqr.name")) == set(names)
    for tree in trees:
        assert int(values(tree, "lbmr.hdr.tqrs")[0]) == len(values(tree, "lbmr.tqr.name"))


def test_a_wildcard_query_has_its_pattern(tmp_path: Path) -> None:
    """A wildcard TQR (type 1) has one kind byte and the pattern, which tshark shows, and no other records are
    in the datagram.
    """
    resolver = machine()
    resolver.match(1, TopicPattern.of_expression(r"^MD\..*"), Config().wildcard_receiver_options(), 0)
    payloads = resolver.datagrams_to_send(0)
    assert payloads == [bytes.fromhex("01010000015e4d445c2e2e2a00")]
    (layer,) = dissect(tmp_path / "wildcard.pcap", payloads)
    assert values(layer, "lbmr.hdr.type") == ["0x01"]
    assert r"^MD\..*" in json.dumps(layer).replace("\\\\", "\\")


def test_final_advertisement_and_request(tmp_path: Path) -> None:
    """The final advertisement of a source (TTL 0), and the request for resolution."""
    resolver = machine()
    polite = Config().source_options(resolver_send_final_advertisements=1)
    resolver.advertise("orders", 5, address(), polite, 0)
    resolver.datagrams_to_send(0)
    resolver.withdraw("orders", 5, address())
    resolver.request_resolution()
    request, final = dissect(tmp_path / "rare.pcap", resolver.datagrams_to_send(1 * MS))
    assert values(request, "lbmr.hdr.type") == ["0x07"]
    assert values(final, "lbmr.tir.ttl") == ["0"]
    assert values(final, "lbmr.tir.index") == ["5"]


def test_tshark_and_our_decoder_agree(tmp_path: Path) -> None:
    """Names with all kinds of characters of topics are dissected."""
    resolver = machine()
    names = ["a", "x" * 246, "prix/€", "with blank", "tab\there", "=+*^$"]
    for name in names:
        resolver.query(name, Config().receiver_options(), 0)
    payloads = resolver.datagrams_to_send(0)
    ours = [q for data in payloads if isinstance(d := decode(data), ResolutionDatagram) for q in d.queries]
    theirs = values(dissect(tmp_path / "names.pcap", payloads), "lbmr.tqr.name")
    assert ours == names
    assert len(theirs) == len(names)
    assert [name for name in theirs if name.isascii() and name.isprintable()] == [
        name for name in names if name.isascii() and name.isprintable()
    ]
