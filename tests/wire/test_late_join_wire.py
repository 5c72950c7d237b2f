"""Late join as tshark decodes it: LBMC over TCP, both directions of a real exchange."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import wrpcap

from tests.unit.loopback import open_context
from tests.wire.dissection import MARKS, tshark
from umstack.recovery.codec import RangeRequest, encode_range_request

_REQUEST_PORT = 14391


def _segment(data: bytes, sequence: int, acknowledged: int, *, answers: bool) -> Packet:
    ports = (_REQUEST_PORT, 40000) if answers else (40000, _REQUEST_PORT)
    tcp = TCP(sport=ports[0], dport=ports[1], seq=sequence, ack=acknowledged, flags="PA")
    return Ether() / IP(src="10.9.0.1", dst="10.9.0.2") / tcp / Raw(data)


def test_tshark_decodes_requests_and_answers(tmp_path: Path) -> None:
    """UM-138, UM-140: options 78, 30 and 21, and messages of LBMC type 10, with no mark of malformed data."""
    with open_context(request_tcp_port_low=24391, request_tcp_port_high=25391) as context:
        source = context.source("wire", late_join=1)
        source.send_many([b"message %d" % n for n in range(3)], flush=True)
        request = encode_range_request(RangeRequest(source.topic_index, count=3, outstanding=10, bytes=1000))
        option = struct.Struct("!BBHIIIIHHI")
        chain = b"".join(
            option.pack(21 if n < 2 else 255, 28, 0, 5, 0, source.topic_index, n, 0, 0, 0) for n in range(3)
        )
        asked = request + struct.pack("!BBH", 8, 21, 4 + len(chain)) + chain
        server = context._recovery._server
        assert server is not None
        with socket.create_connection(("127.0.0.1", server.endpoint.port), timeout=10) as peer:
            peer.sendall(asked)
            answered = b""
            while len(answered) < 20 + 3 * (12 + 9):
                part = peer.recv(4096)
                assert part
                answered += part
    file = tmp_path / "late.pcap"
    wrpcap(
        str(file),
        [_segment(asked, 1, 1, answers=False), _segment(answered, 1, 1 + len(asked), answers=True)],
    )
    assert tshark(file, "-Y", MARKS) == ""
    fields = {
        "lbmc.lji_req.rx_req_max": "3",
        "lbmc.lji_req.rx_req_outstanding_max": "10",
        "lbmc.ume_lj_info.low_seqnum": "0",
        "lbmc.ume_lj_info.high_seqnum": "2",
        "lbmc.ume_rxreq.seqnum": "0,1,2",
        "lbmc.sqn": "0,1,2",
    }
    columns = [word for field in fields for word in ("-e", field)]
    rows = [line.split("\t") for line in tshark(file, "-T", "fields", *columns).splitlines()]
    assert [part for row in zip(*rows, strict=True) for part in ["".join(row)]] == list(fields.values())
