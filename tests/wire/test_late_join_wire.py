"""Late join and off-transport recovery as tshark decodes them: LBMC over TCP, both directions of real connections."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import wrpcap

from tests.tag_oracle import TRAILER_BYTES, RecordStream
from tests.unit.loopback import open_context, recovery_server
from tests.unit.test_off_transport import IDLE, SOON_ENDED, Account
from tests.waiting import SECONDS
from tests.wire.dissection import MARKS, tshark
from umstack._engine.endpoint import Endpoint
from umstack.recovery.codec import RangeRequest, encode_range_request, endpoint_option

_REQUEST_PORT = 14391


def _segment(data: bytes, sequence: int, acknowledged: int, *, answers: bool) -> Packet:
    ports = (_REQUEST_PORT, 40000) if answers else (40000, _REQUEST_PORT)
    tcp = TCP(sport=ports[0], dport=ports[1], seq=sequence, ack=acknowledged, flags="PA")
    return Ether() / IP(src="10.9.0.1", dst="10.9.0.2") / tcp / Raw(data)


def test_tshark_decodes_requests_and_answers(tmp_path: Path) -> None:
    """UM-138, UM-140: options 78, 30 and 21 and messages of LBMC type 10 decode with no mark of malformed
    data.
    """
    with open_context(request_tcp_port_low=24391, request_tcp_port_high=25391) as context:
        source = context.source("wire", late_join=1)
        source.send_many([b"message %d" % n for n in range(3)], flush=True)
        request = encode_range_request(RangeRequest(source.topic_index, count=3, outstanding=10, bytes=1000))
        option = struct.Struct("!BBHIIIIHHI")
        chain = b"".join(
            option.pack(21 if n < 2 else 255, 28, 0, 5, 0, source.topic_index, n, 0, 0, 0) for n in range(3)
        )
        asked = request + struct.pack("!BBH", 8, 21, 4 + len(chain)) + chain
        server = recovery_server(context)
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


class Relay:
    """A relay between a receiver and a source's request port, which records both directions of the last connection."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.server: tuple[str, int] = ("", 0)
        self.asked, self.answered = bytearray(), bytearray()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            peer, _ = self.listener.accept()
            try:
                server = socket.create_connection(self.server)
            except OSError:  # the source has ended
                peer.close()
                continue
            self.asked, self.answered = bytearray(), bytearray()
            for source, target, kept in ((peer, server, self.asked), (server, peer, self.answered)):
                threading.Thread(target=self._pass, args=(source, target, kept), daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                kept += part
                target.sendall(part)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _fields(file: Path, *names: str) -> list[str]:
    columns = [word for name in names for word in ("-e", name)]
    rows = [line.split("\t") for line in tshark(file, "-T", "fields", *columns).splitlines()]
    return ["".join(row) for row in zip(*rows, strict=True)]


def test_tshark_decodes_an_off_transport_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """UM-138, UM-142: the requests of a receiver that lost messages 3 to 7, and the responses."""
    relay = Relay()
    at = Endpoint("127.0.0.1", relay.port)
    real: list[Any] = []

    def lead_to_relay(endpoint: Endpoint) -> Any:
        real.append(endpoint)
        return endpoint_option(at)

    monkeypatch.setattr("umstack.context.endpoint_option", lead_to_relay)
    ports = {"request_tcp_port_low": 24391, "request_tcp_port_high": 25391}
    with open_context(**ports) as publisher, open_context(**ports) as subscriber:
        source = publisher.source("recovered", late_join=1, flow_control="none", **IDLE)
        relay.server = (real[0].ip, real[0].port)
        # Long enough for a recovery on a busy machine, before the idle session ends again.
        soon_ended = {**SOON_ENDED, "transport_lbtrm_activity_timeout": 1500}
        account = Account(subscriber.receiver("recovered", use_late_join=0, **soon_ended))
        account.until_mapped()
        source.send_many([b"%d" % n for n in range(3)], flush=True)
        account.until(3)
        account.until_ended()
        source.send_many([b"%d" % n for n in range(3, 8)], flush=True)
        sent = 8
        deadline = time.monotonic() + 2 * SECONDS
        while account.numbers != list(
            range(sent)
        ):  # the session is joined again and lives while data arrives
            assert time.monotonic() < deadline, (account.numbers, account.lost)
            source.send(b"%d" % sent, flush=True)
            sent += 1
            account.take_for(sent, 1.0)
    asked, answered = bytes(relay.asked), bytes(relay.answered)
    file = tmp_path / "recovered.pcap"
    wrpcap(
        str(file),
        [_segment(asked, 1, 1, answers=False), _segment(answered, 1, 1 + len(asked), answers=True)],
    )
    assert tshark(file, "-Y", MARKS) == ""
    topic = str(source.topic_index)
    found = _fields(
        file,
        "lbmc.lji_req.tx_low_sqn", "lbmc.lji_req.topic_idx", "lbmc.ume_lj_info.low_seqnum",
        "lbmc.ume_lj_info.high_seqnum", "lbmc.ume_rxreq.seqnum", "lbmc.sqn",
    )  # fmt: skip
    low, found_topic, first, _, requested, repeated = found
    assert (low, found_topic, first, requested[:9]) == ("3", topic, "3", "3,4,5,6,7")
    assert repeated == requested


def test_tshark_decodes_a_recovery_with_keys(tmp_path: Path) -> None:
    """UM-138: greetings and record headers are control messages with an HMAC option among the others."""
    secret = bytes(range(32))
    keys = tmp_path / "keys"
    keys.write_text(f"topic * 7 {secret.hex()}\n")
    keys.chmod(0o600)
    options = {"authentication_scope": "all", "authentication_key_file": str(keys)}
    with open_context(request_tcp_port_low=24391, request_tcp_port_high=25391, **options) as context:
        source = context.source("wire", late_join=1)
        source.send_many([b"message %d" % n for n in range(3)], flush=True)
        server = recovery_server(context)
        tags = RecordStream(secret, 7, "wire", source.topic_index, is_server=False)
        with socket.create_connection(server.endpoint, timeout=10) as peer:
            peer.sendall(tags.greeting)
            answered = peer.recv(TRAILER_BYTES, socket.MSG_WAITALL)
            tags.begin(answered, server.endpoint)
            record = tags.seal(
                encode_range_request(RangeRequest(source.topic_index, count=3, outstanding=10))
            )
            peer.sendall(record)
            answered += peer.recv(TRAILER_BYTES + 20, socket.MSG_WAITALL)
    asked = tags.greeting + record
    file = tmp_path / "keyed.pcap"
    wrpcap(
        str(file),
        [_segment(asked, 1, 1, answers=False), _segment(answered, 1, 1 + len(asked), answers=True)],
    )
    assert tshark(file, "-Y", MARKS) == ""
    tagged = ",".join(part.hex() for data in (asked, answered) for part in (data[8:28], data[36:56]))
    assert _fields(file, "lbmc.ume_lj_info.high_seqnum", "lbmc.lji_req.rx_req_max") == ["2", "3"]
    columns = [
        line
        for line in tshark(file, "-T", "fields", "-e", "lbmc.hmac.data").replace("\n", ",").split(",")
        if line
    ]
    assert ",".join(columns) == tagged
