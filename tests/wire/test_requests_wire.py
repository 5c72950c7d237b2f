"""Requests and responses as tshark decodes them: multicast requests of a source, and responses over TCP."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import wrpcap

from tests.unit.keyed_peers import KEY_ID, SECRET, KeyedPeer, Requester, write_keys
from tests.unit.loopback import PORTS, open_context
from tests.waiting import SECONDS, wait_for
from tests.wire.dissection import MARKS, tshark
from umstack import Request
from umstack.requests.codec import FRAGMENT_MAX_BYTES
from umstack.scapy import LBMCRequest, LBMCStream, LBMCStreamInfo
from umstack.streams.tags import PROOF

_REQUEST_PORT = 14391
_SEGMENT_BYTES = 1400


_DATA_PORT = ("-d", "udp.port==14400,lbtrm")
"""The dissector does not know the groups of the tests."""


def _fields(file: Path, display: str, *names: str) -> list[list[str]]:
    columns = [word for name in names for word in ("-e", name)]
    text = tshark(file, *_DATA_PORT, "-Y", display, "-T", "fields", *columns)
    return [line.split("\t") for line in text.splitlines() if line]


def test_tshark_decodes_a_request(tmp_path: Path) -> None:
    """W1: option 4 has the requester's number, address and port in each fragment, and nothing is marked as
    malformed.
    """
    file = tmp_path / "request.pcapng"
    with open_context(**PORTS, tap=file) as context:
        receiver, source = context.receiver("wire"), context.source("wire")
        wait_for(lambda: receiver.stats()["delivery_controllers"], "topic resolution")
        short, long = source.request(b"short"), source.request(bytes(3000))
        port = context._streams.port().endpoint.port
        got = 0
        while got < 2:
            got += len(receiver.poll(timeout=SECONDS).messages())
        indices = [short.index, long.index]
    assert tshark(file, *_DATA_PORT, "-Y", MARKS) == ""
    found = _fields(
        file,
        "lbmc.tcp_request",
        *("lbmc.tcp_request.transport", "lbmc.tcp_request.qidx", "lbmc.tcp_request.port"),
        *("lbmc.tcp_request.ipaddr", "lbmc.frag.offset", "lbmc.tcp_request_flags.ignore"),
    )
    sent = {tuple(row) for row in found}  # the tap records the sent datagrams, and their copies over loopback
    own = [str(port), "127.0.0.1"]
    chunk = 1472 - 20 - 12 - 16 - 16
    assert sent == {
        ("0x00", str(indices[0]), *own, "", "1"),
        *(("0x00", str(indices[1]), *own, str(n * chunk), "1") for n in range(3)),
    }


@pytest.fixture
def responses() -> tuple[int, bytes]:
    """A request has its number, and its responses are a short one, an empty one and one in two fragments."""
    requests: list[Request] = []

    def on_message(message: Any) -> None:
        if isinstance(message, Request):
            requests.append(message)

    with open_context(**PORTS) as context, socket.create_server(("127.0.0.1", 0)) as listener:
        receiver, source = context.receiver("wire", on_message), context.source("wire")
        wait_for(lambda: receiver.stats()["delivery_controllers"], "topic resolution")
        with source.request(b"x") as pending:
            wait_for(lambda: requests, "the request")
        requests[0].requester = listener.getsockname()
        for data in (b"short", b"", bytes(range(256)) * 300):
            requests[0].respond(data)
        peer, _ = listener.accept()
        expected = 2 * 48 + 5 + 2 * 64 + 76_800
        got = b""
        with peer:
            peer.settimeout(SECONDS)
            while len(got) < expected:
                got += peer.recv(1 << 16)
    assert len(got) == expected
    return pending.index, got


def test_tshark_decodes_responses(tmp_path: Path, responses: tuple[int, bytes]) -> None:
    """W1: responses have the request's number with no port, the stream and its numbers, and fragments that
    reassemble.
    """
    index, data = responses
    file = tmp_path / "responses.pcap"
    packets = []
    for at in range(0, len(data), _SEGMENT_BYTES):
        tcp = TCP(sport=40000, dport=_REQUEST_PORT, seq=1 + at, ack=1, flags="PA")
        packets.append(
            Ether() / IP(src="10.9.0.2", dst="10.9.0.1") / tcp / Raw(data[at : at + _SEGMENT_BYTES])
        )
    wrpcap(str(file), packets)
    assert tshark(file, "-Y", MARKS) == ""
    names = {
        "lbmc.type": [0, 0, 0, 0],
        "lbmc.sqn": [0, 1, 2, 3],
        "lbmc.tcp_request.qidx": [index] * 4,
        "lbmc.tcp_request.port": [0] * 4,
        "lbmc.stream.sqn": [0, 1, 2, 2],
        "lbmc.frag.first_sqn": [2, 2],
        "lbmc.frag.offset": [0, FRAGMENT_MAX_BYTES],
        "lbmc.frag.len": [76_800, 76_800],
    }
    rows = _fields(file, "lbmc", *names)
    found = [
        [int(value, 0) for row in rows for value in row[n].split(",") if value] for n in range(len(names))
    ]
    assert found == list(names.values())
    streams = _fields(file, "lbmc.stream", "lbmc.stream.stream_id", "lbmc.stream.ctxinst", "ip.src")
    values = {value for row in streams for value in zip(*(v.split(",") for v in row[:2]), strict=True)}
    assert len(values) == 1


def test_tshark_decodes_keyed_responses(tmp_path: Path) -> None:
    """W1: greetings, the proof and records are LBMC control messages with an HMAC option among the rest."""
    write_keys(tmp_path / "keys", "*", (KEY_ID, SECRET))
    options = {"authentication_scope": "all", "authentication_key_file": str(tmp_path / "keys")}
    said: dict[str, bytes] = {}

    def talk(peer: KeyedPeer) -> None:
        peer.greet()
        peer.send(peer.tags.seal(PROOF))
        records = [peer.raw_record() for _ in range(3)]
        said["requester"] = bytes(peer.sent)
        said["responder"] = peer.heard_greeting + b"".join(records)

    requests: list[Request] = []
    with open_context(**PORTS, **options) as context:
        receiver = context.receiver("wire", lambda m: requests.append(m) if isinstance(m, Request) else None)
        source = context.source("wire")
        wait_for(lambda: receiver.stats()["delivery_controllers"], "topic resolution")
        with source.request(b"x") as pending:
            wait_for(lambda: requests, "the request")
        requester = Requester(talk)
        requests[0].requester = requester.endpoint
        for data in (b"short", bytes(range(256)) * 300):
            requests[0].respond(data)
        requester.join()
    packets = []
    for who, (source_port, destination_port) in (
        ("requester", (_REQUEST_PORT, 40000)),
        ("responder", (40000, _REQUEST_PORT)),
    ):
        for at in range(0, len(said[who]), _SEGMENT_BYTES):
            tcp = TCP(sport=source_port, dport=destination_port, seq=1 + at, ack=1, flags="PA")
            packets.append(Ether() / IP() / tcp / Raw(said[who][at : at + _SEGMENT_BYTES]))
    file = tmp_path / "keyed.pcap"
    wrpcap(str(file), packets)
    assert tshark(file, "-Y", MARKS) == ""
    for port, types in ((_REQUEST_PORT, [8, 8, 8]), (40000, [8, 8, 0, 8, 0, 8, 0])):
        rows = _fields(file, f"lbmc && tcp.srcport == {port}", "lbmc.type", "lbmc.hmac.data")
        assert [int(value, 0) for row in rows for value in row[0].split(",")] == types
        hmacs = [value for row in rows for value in row[1].split(",") if value]
        assert len(hmacs) == (2 if port == _REQUEST_PORT else 4)
        assert all(len(bytes.fromhex(value.replace(":", ""))) == 20 for value in hmacs)
    rows = _fields(file, "lbmc.tcp_request", "lbmc.tcp_request.qidx")
    assert {value for row in rows for value in row[0].split(",")} == {str(pending.index)}


def test_scapy_dissects_responses(responses: tuple[int, bytes]) -> None:
    """The layers of `umstack.scapy` agree."""
    index, data = responses
    first = LBMCStream(data[: 48 + 5])
    assert first[LBMCRequest].request_index == index
    assert first[LBMCRequest].port == 0
    assert first[LBMCStreamInfo].sqn == 0
