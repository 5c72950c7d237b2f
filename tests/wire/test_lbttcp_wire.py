"""LBT-TCP as tshark decodes it: LBMC back to back on a TCP port, from a source and its clients."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from typing import Any

from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import wrpcap

from tests.tag_oracle import RecordStream
from tests.unit.keyed_peers import KEY_ID, SECRET, KeyedPeer, write_keys
from tests.unit.loopback import open_context, payloads
from tests.unit.tcp_peers import RawClient, RawSource, control_session_id, message, ssf_request
from tests.waiting import SECONDS, collect, wait_for
from tests.wire.dissection import MARKS, octets, tshark, values
from umstack._engine.transport_address import TcpAddress

_SOURCE_PORT = 14371
"""The first port of the dissector's range of LBT-TCP source ports."""
_SEGMENT_BYTES = 1460
_LONGEST = 65535
_OPTIONS = ("-o", "lbmc.reassemble_fragments:FALSE")
"""The dissector does not reassemble fragments over TCP, and reports them as undecoded."""


def _stream(data: bytes, *, from_source: bool) -> list[Packet]:
    """Return the bytes as TCP segments, which end anywhere in a message."""
    ports = (_SOURCE_PORT, 40000) if from_source else (40000, _SOURCE_PORT)
    ends = ("10.9.0.1", "10.9.0.2") if from_source else ("10.9.0.2", "10.9.0.1")
    return [
        Ether()
        / IP(src=ends[0], dst=ends[1])
        / TCP(sport=ports[0], dport=ports[1], seq=1 + at, ack=1, flags="PA")
        / Raw(data[at : at + _SEGMENT_BYTES])
        for at in range(0, len(data), _SEGMENT_BYTES)
    ]


def _dissected(folder: Path, packets: list[Packet]) -> list[dict[str, Any]]:
    """Return tshark's LBMC messages; fails on marks of malformed data."""
    file = folder / "tcp.pcap"
    wrpcap(str(file), packets)
    assert tshark(file, *_OPTIONS, "-Y", MARKS) == ""
    text = tshark(file, *_OPTIONS, "-Y", "lbmc", "-T", "json", "--no-duplicate-keys")
    found: list[dict[str, Any]] = []
    for packet in json.loads(text):
        layers = packet["_source"]["layers"]
        assert "lbttcp" in layers or "lbmc" in layers
        messages = layers["lbmc"]
        found += messages if isinstance(messages, list) else [messages]
    return found


def _numbers(tree: object, field: str) -> list[int]:
    return [int(value, 0) for value in values(tree, field)]


def _read_stream(client: RawClient, count: int) -> bytes:
    """Return the bytes of `count` messages as received."""
    data = b""
    for _ in range(count):
        head = client.exactly(4)
        data += head + client.exactly(struct.unpack("!H", head[2:])[0] - 4)
    return data


def test_tshark_decodes_the_data_of_a_source(tmp_path: Path) -> None:
    """The answer to a client, messages, fragments of the longest length, an explicit batch, a TSNI and the
    end are decoded back to back.
    """
    options = {"transport_topic_sequence_number_info_interval": 200}
    with open_context() as context:
        source = context.source("wire", transport="tcp", **options)
        with RawClient(source.transport) as client:
            client.greet()
            data = _read_stream(client, 1)  # the answer
            wait_for(lambda: source.stats()["num_clients"] == 1)
            source.send(b"first")
            source.send(b"batch begins", batch="start")
            source.send(b"batch ends", batch="end", flush=True)
            source.send(bytes(100_000), flush=True)
            data += _read_stream(client, 5)
            data += _read_stream(client, 1)  # the TSNI
            source.close()
            data += _read_stream(client, 1)
    found = _dissected(tmp_path, _stream(data, from_source=True))
    assert _numbers(found, "lbmc.type") == [8, 0, 0, 0, 0, 0, 8, 1]
    assert _numbers(found, "lbmc.version") == [0] * 8
    assert _numbers(found[0], "lbmc.ssf_init.transport_idx") == [client.session_id]
    assert _numbers(found[0], "lbmc.ssf_init.flags.default_exclusions") == [0]
    assert sum(_numbers(found, "lbmc.msglen")) == len(data)
    assert max(_numbers(found, "lbmc.msglen")) == _LONGEST
    assert set(_numbers(found, "lbmc.tidx")) == {source.topic_index}
    assert _numbers(found, "lbmc.sqn") == [0, 1, 2, 3, 4]
    assert _numbers(found, "lbmc.frag.first_sqn") == [3, 3]
    assert _numbers(found, "lbmc.frag.offset") == [0, _LONGEST - 28]
    assert _numbers(found, "lbmc.frag.len") == [100_000, 100_000]
    assert _numbers(found, "lbmc.batch.flags.batch_start") == [1, 0]
    assert _numbers(found, "lbmc.batch.flags.batch_end") == [0, 1]
    assert _numbers(found, "lbmc.tsni.tsni_rec.sqn") == [4]
    assert octets(found[1], "data.data") == b"first"


def test_tshark_decodes_how_a_client_joins_and_filters(tmp_path: Path) -> None:
    """UX-27: the capture has the session id (option 107), the offer to filter (16), the receiver's interest
    and the answer (17).
    """
    options = {"transport": "tcp", "transport_source_side_filtering_behavior": "inclusion"}
    with open_context() as context:
        source = context.source("offer", **options)
        with RawClient(source.transport) as client:
            client.greet()
            offer = _read_stream(client, 1)
            client.socket.sendall(ssf_request(client.session_id, 5, source.topic_index))
            answer = _read_stream(client, 1)
            topic_index = source.topic_index
            session_id, port = client.session_id, int(source.transport.split(":")[2])
    with open_context() as receiving, RawSource(session_id) as raw, receiving.receiver("offer") as receiver:
        receiving._engine.map_source("offer", 7, TcpAddress("127.0.0.1", raw.session_id, raw.port))
        peer = raw.accept()
        said = raw.greeting(peer)
        peer.sendall(offer)
        said += raw.read(peer, 20)
        peer.sendall(message(7, 0, b"wanted"))
        assert payloads(collect(receiver, 1, SECONDS)) == [b"wanted"]
        receiver.close()
    (offered,) = _dissected(tmp_path, _stream(offer, from_source=True))
    assert _numbers(offered, "lbmc.ssf_init.transport") == [0]
    assert _numbers(offered, "lbmc.ssf_init.flags.default_exclusions") == [1]
    assert _numbers(offered, "lbmc.ssf_init.transport_idx") == [session_id]
    assert _numbers(offered, "lbmc.ssf_init.ssf_port") == [port]
    assert values(offered, "lbmc.ssf_init.ssf_ip") == ["127.0.0.1"]
    (answered,) = _dissected(tmp_path, _stream(answer, from_source=True))
    assert _numbers(answered, "lbmc.ssf_creq.mode") == [0]
    assert _numbers(answered, "lbmc.ssf_creq.flags.ignore") == [1]
    assert _numbers(answered, "lbmc.ssf_creq.transport_idx") == [session_id]
    assert _numbers(answered, "lbmc.ssf_creq.topic_idx") == [topic_index]
    assert _numbers(answered, "lbmc.ssf_creq.client_idx") == [1]  # effective requests
    greeting, request = _dissected(tmp_path, _stream(said, from_source=False))
    assert _numbers(greeting, "lbmc.tcp_sid.sid") == [session_id]
    assert _numbers(request, "lbmc.ssf_creq.mode") == [0]
    assert _numbers(request, "lbmc.ssf_creq.transport_idx") == [session_id]
    assert _numbers(request, "lbmc.ssf_creq.topic_idx") == [7]
    assert _numbers(request, "lbmc.ssf_creq.client_idx") == _numbers(offered, "lbmc.ssf_init.client_idx")


def test_tshark_decodes_a_session_with_keys(tmp_path: Path) -> None:
    """W1: greetings and records are control messages with an HMAC option before the messages, in both
    directions.
    """
    write_keys(tmp_path / "keys", "*", (KEY_ID, SECRET))
    options = {"authentication_scope": "all", "authentication_key_file": str(tmp_path / "keys")}
    said: dict[bool, bytes] = {}
    with open_context(**options) as context:
        source = context.source("wire", transport="tcp", transport_source_side_filtering_behavior="inclusion")
        with RawClient(source.transport) as client:
            _, address, port, _ = source.transport.split(":")
            tags = RecordStream(
                SECRET, KEY_ID, "", client.session_id, is_server=False, kind=RecordStream.SESSION
            )
            peer = KeyedPeer(client.socket, tags, (address, int(port)))
            peer.greet()
            peer.send(peer.tags.seal(control_session_id(client.session_id)))
            heard = [peer.heard_greeting, peer.raw_record()]
            peer.send(peer.tags.seal(ssf_request(client.session_id, 0, source.topic_index)))
            wait_for(lambda: source.send(b"?", flush=True) or _has_come(client), "the requested topic")
            source.send_many([b"%02d" % n for n in range(50)], flush=True)
            source.send(bytes(60_000), flush=True)
            source.close()
            while not heard[-1].endswith(b"\x01\xff\x00\x04"):
                heard.append(peer.raw_record())
            said = {True: b"".join(heard), False: bytes(peer.sent)}
    found = _dissected(tmp_path, _stream(said[True], from_source=True))
    records = len(heard) - 1
    types = _numbers(found, "lbmc.type")
    assert types[0] == types[1] == 8
    assert types[-1] == 1
    tagged = [one for one in found if values(one, "lbmc.hmac.data")]
    assert len(tagged) == records + 1
    assert [octets(one, "lbmc.hmac.data")[-12:] for one in tagged] == [record[16:28] for record in heard]
    assert sum(_numbers(found, "lbmc.msglen")) == len(said[True])
    assert values(found, "lbmc.ssf_init.transport_idx")
    numbers = _numbers(found, "lbmc.sqn")
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len(numbers) >= 51  # and those sent until the request had arrived, of which there may be none
    greeting, first, session, second, request = _dissected(tmp_path, _stream(said[False], from_source=False))
    assert all(values(one, "lbmc.hmac.data") for one in (greeting, first, second))
    assert _numbers(session, "lbmc.tcp_sid.sid") == [client.session_id]
    assert _numbers(request, "lbmc.ssf_creq.topic_idx") == [source.topic_index]


def _has_come(client: RawClient) -> bool:
    client.socket.settimeout(0.01)
    try:
        return bool(client.socket.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False
    finally:
        client.socket.settimeout(SECONDS)
