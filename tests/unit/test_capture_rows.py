"""The row of a packet, field by field, and the names for malformed packets."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from tests.unit.capture_bytes import (
    GROUP,
    RECEIVER,
    SESSION,
    SOURCE,
    START_NS,
    Packet,
    data,
    ethernet,
    frame,
    ipv4,
    ipv6,
    lbtru_data,
    lbtru_options,
    message,
    nak,
    ncf,
    pcap,
    sm,
    status,
    udp,
)

pytest.importorskip("pyarrow")

from umstack._engine.endpoint import Endpoint
from umstack.capture import CapturePorts, decode
from umstack.recovery.codec import endpoint_option
from umstack.resolution.codec import Advertisement, LbtrmAddress, OtherTransport, ResolutionDatagram, encode

FRAGMENT_OPTION = struct.pack("!BBHIII", 0, 16, 0, 41, 1200, 2000)


def row_of(tmp_path: Path, content: bytes, original: int | None = None, **options: Any) -> dict[str, Any]:
    """The row of one Ethernet frame."""
    path = tmp_path / "capture"
    path.write_bytes(pcap([Packet(START_NS, content, original)]))
    rows = [row for batch in decode(path, batch_rows=64, **options) for row in batch.to_pylist()]
    assert len(rows) == 1
    found: dict[str, Any] = rows[0]
    return found


def present(row: dict[str, Any]) -> set[str]:
    """The columns that are not null, of those that may be."""
    return {name for name, value in row.items() if value is not None}


def test_data(tmp_path: Path) -> None:
    """A DATA datagram: the transport's fields, and every message with its place in the whole message."""
    part = struct.pack("!BBHII", 0, 1, 12 + 16 + 5, 9, 42) + FRAGMENT_OPTION + b"01234"
    row = row_of(tmp_path, frame(data(100, message(7, 3, b"hello"), part, trail=90, flags=0xA0)))
    assert (row["source_address"], row["source_port"]) == (SOURCE, 14390)
    assert (row["destination_address"], row["destination_port"]) == (GROUP, 14400)
    assert (row["status"], row["packet_type"], row["session_id"], row["nak_port"]) == (
        "ok",
        "DATA",
        SESSION,
        14390,
    )
    assert (row["transport_sqn"], row["trail_sqn"], row["retransmission"]) == (100, 90, True)
    assert (row["transport_flags"], row["udp_bytes"], row["ip_fragment"]) == (0xA0, 20 + 17 + 33, False)
    assert row["messages"] == [
        {
            "topic_index": 7,
            "topic_sqn": 3,
            "first_sqn": 3,
            "fragment_offset": 0,
            "message_length": 5,
            "payload_bytes": 5,
            "sent_ns": None,
            "kind": "message",
        },
        {
            "topic_index": 9,
            "topic_sqn": 42,
            "first_sqn": 41,
            "fragment_offset": 1200,
            "message_length": 2000,
            "payload_bytes": 5,
            "sent_ns": None,
            "kind": "message",
        },
    ]
    assert not {"sm_sqn", "lead_sqn", "sqns", "ncf_reason", "vlan", "next_sqn", "window_bytes"} & present(row)


def test_the_time_of_sending(tmp_path: Path) -> None:
    """send_timestamps: the time is the message's, other extended options are none, and a DATA datagram with extended
    options stays one."""
    option = struct.pack("!BBBBHHQ", 0, 16, 0xC0, 85, 4, 0, 1_700_000_000_123_456_789)
    other = struct.pack("!BBBBHHQ", 0, 16, 0xC0, 9, 4, 0, 5)
    timed = struct.pack("!BBHII", 0, 254, 12 + 16 + 5, 9, 42) + option + b"01234"
    foreign = struct.pack("!BBHII", 0, 254, 12 + 16 + 5, 9, 43) + other + b"01234"
    row = row_of(tmp_path, frame(data(100, timed, foreign, message(7, 3, b"hello"))))
    assert (row["status"], row["packet_type"]) == ("ok", "DATA")
    assert [one["kind"] for one in row["messages"]] == ["message"] * 3
    assert [one["sent_ns"] for one in row["messages"]] == [1_700_000_000_123_456_789, None, None]
    assert [one["payload_bytes"] for one in row["messages"]] == [5, 5, 5]


def test_sm_nak_and_ncf(tmp_path: Path) -> None:
    """Session messages, NAKs and NCFs: their own fields, and nulls in those they have not."""
    row = row_of(tmp_path, frame(sm(5, 200, 150)))
    assert (row["packet_type"], row["sm_sqn"], row["lead_sqn"], row["trail_sqn"]) == ("SM", 5, 200, 150)
    assert not {"transport_sqn", "retransmission", "messages", "sqns"} & present(row)
    row = row_of(tmp_path, ethernet(ipv4(udp(nak(7, 0xFFFFFFFF), 14395, 14390), RECEIVER, SOURCE)))
    assert (row["packet_type"], row["sqns"], row["source_address"]) == ("NAK", [7, 0xFFFFFFFF], RECEIVER)
    assert not {"trail_sqn", "transport_flags", "ncf_reason", "messages"} & present(row)
    for reason, name in enumerate(["no_retry", "ignored", "rx_delay", "shed", "unknown"]):
        row = row_of(tmp_path, frame(ncf(reason, 6, 8, 9)))
        assert (row["packet_type"], row["ncf_reason"], row["sqns"], row["trail_sqn"]) == (
            "NCF",
            name,
            [8, 9],
            6,
        )


def test_the_status_message(tmp_path: Path) -> None:
    """A flow control datagram is distinguished from DATA: position, window, group tag, receiver."""
    row = row_of(tmp_path, ethernet(ipv4(udp(status(1234), 5000, 14390), RECEIVER, SOURCE)))
    assert (row["packet_type"], row["status"], row["transport_sqn"]) == ("STATUS", "ok", 1234)
    assert (row["next_sqn"], row["window_bytes"], row["group_tag"]) == (1234, 1 << 24, 77)
    assert row["receiver_id"] == 0xFEDCBA9876543210 - (1 << 64)
    assert [item["kind"] for item in row["messages"]] == ["status"]


def test_tsni_is_an_entry_a_record(tmp_path: Path) -> None:
    """Topic sqn records name topics and their sqns; a control message that holds nothing else has no entry."""
    tsni = struct.pack("!BBHBBHIIII", 8, 32, 24, 255, 20, 2, 1001, 46, 1002, 8)
    row = row_of(tmp_path, frame(data(5, tsni)))
    found = [(m["kind"], m["topic_index"], m["topic_sqn"], m["first_sqn"]) for m in row["messages"]]
    assert found == [("tsni", 1001, 46, None), ("tsni", 1002, 8, None)]


def test_vlan_ip_options_and_ipv6(tmp_path: Path) -> None:
    """One tag and two, IP options, IPv6 and its extension headers: the same datagram inside."""
    inside = ipv4(udp(data(1)), options=b"\x94\x04\0\0")
    for tags, vlan, inner in [((), None, None), ((42,), 42, None), ((100, 42), 100, 42)]:
        row = row_of(tmp_path, ethernet(inside, tags=tags))
        assert (row["status"], row["vlan"], row["inner_vlan"], row["transport_sqn"]) == ("ok", vlan, inner, 1)
    hop_by_hop = bytes([17, 0, 1, 4, 0, 0, 0, 0])
    for packet in (ipv6(udp(data(1))), ipv6(hop_by_hop + udp(data(1)), 0)):
        row = row_of(tmp_path, ethernet(packet, 0x86DD))
        assert (row["source_address"], row["destination_address"]) == ("fd00::1", "ff05::e")
        assert (row["status"], row["transport_sqn"]) == ("ok", 1)


def test_ip_fragments_are_rows(tmp_path: Path) -> None:
    """The first has the datagram's fields, as far as it goes; the others only addresses. Both say what they are."""
    datagram = udp(data(3, message(1, 2, bytes(3000))))
    row = row_of(tmp_path, ethernet(ipv4(datagram[:1480], fragment=0x2000)))
    assert (row["status"], row["ip_fragment"], row["packet_type"]) == ("IP fragment", True, "DATA")
    assert (row["transport_sqn"], row["udp_bytes"]) == (3, 20 + 12 + 3000)
    assert row["messages"][0]["payload_bytes"] == 3000
    row = row_of(tmp_path, ethernet(ipv4(datagram, fragment=0x1000)))
    assert (row["status"], row["packet_type"]) == ("IP fragment", None)
    row = row_of(tmp_path, ethernet(ipv4(datagram[1480:2960], fragment=0x2000 | 185)))
    assert (row["status"], row["ip_fragment"], row["packet_type"]) == ("IP fragment", True, None)
    assert (row["source_address"], row["udp_bytes"], row["source_port"]) == (SOURCE, None, None)


def test_a_frame_that_was_cut_when_captured(tmp_path: Path) -> None:
    """As far as headers reach there are fields, and that is no fault of the packet; how much was kept is there."""
    whole = frame(data(100, message(7, 3, bytes(30)), message(8, 4, bytes(60))))
    names = {}
    for kept in range(len(whole)):
        row = row_of(tmp_path, whole[:kept], len(whole))
        names[kept] = row["status"]
        assert (row["captured_bytes"], row["frame_bytes"]) == (kept, len(whole))
        if kept >= 62:
            assert (row["status"], row["transport_sqn"], row["udp_bytes"]) == ("ok", 100, len(whole) - 42)
            topics = [m["topic_index"] for m in row["messages"]]
            assert topics == [7, 8][: (kept >= 74) + (kept >= 74 + 30 + 12)]
        else:
            assert row["status"] == "cut before the end of its headers"
            assert (row["session_id"] is not None) == (kept >= 50)
    row = row_of(tmp_path, frame(nak(*range(20)))[:96], 42 + 92)
    assert (row["status"], row["sqns"]) == ("ok", list(range(10)))


_STATUS_BODY = struct.pack("!BBHIIIQI", 1, 0, 0, 1234, 1 << 24, 77, 0xFEDCBA9876543210, 0)
_EXTENDED_OPTION = struct.pack("!BBHBBBBHH", 8, 254, 4 + 8 + 28, 255, 8 + 28, 0xC0, 85, 1, 0) + _STATUS_BODY
_OTHER_OPTION = struct.pack("!BBHBBBBHH", 8, 254, 4 + 8 + 28, 255, 8 + 28, 0xC0, 86, 1, 0) + _STATUS_BODY
_TSNI = struct.pack("!BBHBBHIIII", 8, 32, 24, 255, 20, 2, 1001, 46, 1002, 8)


def _to_source(datagram: bytes) -> bytes:
    return ethernet(ipv4(udp(datagram, 5000, 14390), RECEIVER, SOURCE))


def _from_lbtru(datagram: bytes) -> bytes:
    return ethernet(ipv4(udp(datagram, 14380, 14360), destination=RECEIVER))


def _to_lbtru(datagram: bytes) -> bytes:
    return ethernet(ipv4(udp(datagram, 14360, 14380), source=RECEIVER, destination=SOURCE))


EVERY_TYPE = {
    "data": frame(data(100, message(7, 3, b"hello"), message(8, 4, bytes(60)))),
    "data of a status message's length": frame(data(1234, message(7, 3, bytes(28)), trail=1234)),
    "retransmission": frame(data(100, message(7, 3, bytes(90)), flags=0xA0)),
    "tsni": frame(data(5, _TSNI)),
    "other option": frame(data(5, _OTHER_OPTION, message(7, 3, bytes(30)))),
    "sm": frame(sm(5, 200, 150)),
    "nak": _to_source(nak(*range(20))),
    "ncf": frame(ncf(1, 6, *range(20))),
    "status message": _to_source(data(1234, _EXTENDED_OPTION, trail=1234)),
    "status message and more": _to_source(data(1234, _EXTENDED_OPTION, _TSNI, trail=1234)),
    "ipv6": ethernet(ipv6(udp(data(1, message(7, 3, bytes(28))))), 0x86DD),
    "tagged": ethernet(ipv4(udp(data(1, message(7, 3, bytes(28))))), tags=(100, 42)),
    "lbtru data": _from_lbtru(lbtru_data(100, message(7, 3, b"hello"), message(8, 4, bytes(60)))),
    "lbtru sm": _from_lbtru(b"\2\1\x80\0" + struct.pack("!III", 5, 200, 150) + lbtru_options()),
    "lbtru ncf": _from_lbtru(
        b"\4\1\0\0" + struct.pack("!IHBB20I", 6, 20, 0, 16, *range(20)) + lbtru_options()
    ),
    "lbtru rst": _from_lbtru(b"\7\0\0\0"),
    "lbtru nak": _to_lbtru(b"\3\1\0\0" + struct.pack("!HH20I", 20, 0, *range(20)) + lbtru_options()),
    "lbtru ack": _to_lbtru(b"\5\1\0\0" + struct.pack("!I", 9) + lbtru_options()),
    "lbtru creq": _to_lbtru(b"\6\1\0\0" + lbtru_options()),
    "lbtru status message": _to_lbtru(lbtru_data(1234, _EXTENDED_OPTION, trail=1234)),
    "resolution": ethernet(ipv4(udp(b"\x03\x00\x00\x00" + bytes(40), 5000, 12965))),
}
CUT = "cut before the end of its headers"


def _agrees(cut: dict[str, Any], whole: dict[str, Any]) -> bool:
    """Return true if a row contains nothing that the complete packet does not; lists may be shorter."""
    for name, value in cut.items():
        if name in ("captured_bytes", "capture_file", "status", "position", "copy") or value in (None, ""):
            continue
        if isinstance(value, list):
            if value != (whole[name] or [])[: len(value)]:
                return False
        elif value != whole[name]:
            return False
    return True


def _wire_sample() -> list[bytes]:
    """Every packet of the sample that tshark agrees about."""
    content = (Path(__file__).parent.parent / "wire" / "wire-sample.pcap").read_bytes()
    at, packets = 24, []
    while at < len(content):
        (length,) = struct.unpack_from("<I", content, at + 8)
        packets.append(content[at + 16 : at + 16 + length])
        at += 16 + length
    return packets


@pytest.mark.parametrize("name", [*EVERY_TYPE, "wire sample"])
def test_every_snap_length_gives_the_type_or_truncation(tmp_path: Path, name: str) -> None:
    """A packet truncated anywhere keeps its type or is reported as truncated: never as another type."""
    path = tmp_path / "capture"
    for content in _wire_sample() if name == "wire sample" else [EVERY_TYPE[name]]:
        whole = row_of(tmp_path, content)
        path.write_bytes(
            pcap([Packet(START_NS, content[:kept], len(content)) for kept in range(len(content))])
        )
        rows = [row for batch in decode(path) for row in batch.to_pylist()]
        assert len(rows) == len(content)
        for kept, row in enumerate(rows):
            if row["status"] == CUT:
                assert row["transport_sqn"] is None
                assert row["packet_type"] in (None, whole["packet_type"]), kept
            else:
                assert (row["status"], row["packet_type"]) == (whole["status"], whole["packet_type"]), kept
            assert _agrees(row, whole), kept
    # As soon as the fixed part of a packet is complete, its type is reported; for data that is true at any length.
    if name.startswith("data"):
        assert [row["status"] for row in rows[62:]] == ["ok"] * (len(rows) - 62)
    if name == "lbtru data":
        assert {row["status"] for row in rows[14 + 28 + 28 + 2 :]} == {"ok"}
    if name in ("status message", "lbtru status message"):
        assert {row["status"] for row in rows} == {CUT}


@pytest.mark.parametrize(
    ("datagram", "status"),
    [
        (b"", "LBT-RM: shorter than its fields say"),
        (data(1)[:19], "LBT-RM: shorter than its fields say"),
        (sm(1, 2, 1)[:23], "LBT-RM: shorter than its fields say"),
        (nak(1, 2)[:-1], "LBT-RM: shorter than its fields say"),
        (b"\x10" + data(1)[1:], "LBT-RM: unknown version"),
        (b"\x01" + data(1)[1:], "LBT-RM: unknown type"),
        (data(1, trail=2), "LBT-RM: malformed header"),
        (data(1)[:1] + b"\x01" + data(1)[2:], "LBT-RM: malformed header"),
        (data(1, message(1, 1, b"abc")[:-1]), "LBMC: longer than its datagram"),
        (data(1, message(1, 1, b"") + b"\0\0"), "LBMC: longer than its datagram"),
        (data(1, b"\x07\0\0\x04"), "LBMC: unknown type"),
        (data(1, b"\x10\0\0\x0c" + bytes(8)), "LBMC: unknown version"),
        (data(1, b"\0\0\0\x04"), "LBMC: malformed header or option"),
        (data(1, b"\0\x01\0\x0d" + bytes(9)), "LBMC: malformed header or option"),
    ],
)
def test_malformed_datagrams_are_rows_with_a_reason(tmp_path: Path, datagram: bytes, status: str) -> None:
    """On a port of ours nothing is passed over in silence."""
    row = row_of(tmp_path, frame(datagram))
    assert row["status"] == status
    assert (row["source_address"], row["udp_bytes"]) == (SOURCE, len(datagram))


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", "cut before the end of its headers"),
        (ethernet(ipv4(udp(data(1)))[:19]), "cut before the end of its headers"),
        (ethernet(b"\x65" + ipv4(udp(data(1)))[1:]), "malformed IP header"),
        (ethernet(b"\x44" + ipv4(udp(data(1)))[1:]), "malformed IP header"),
        (ethernet(ipv4(udp(data(1)), total=19)), "malformed IP header"),
        (ethernet(ipv4(udp(data(1)), total=0)), "ok"),
        (ethernet(ipv4(udp(data(1), length=7))), "malformed UDP length"),
        (ethernet(ipv4(udp(data(1), length=500))), "malformed UDP length"),
        (ethernet(ipv4(udp(data(1)), protocol=132)), "not ours"),
        (ethernet(ipv4(udp(b"", 5000, 6000) + bytes(12), protocol=6)), "not ours"),
        (ethernet(b"arp", 0x0806), "not ours"),
        (ethernet(ipv4(udp(data(1))), tags=(1, 2, 3)), "ok"),
        (frame(data(1)) + bytes(12), "ok"),
    ],
)
def test_malformed_frames_are_rows_with_a_reason(tmp_path: Path, content: bytes, status: str) -> None:
    """Below the datagram too; padding behind the packet is no fault."""
    assert row_of(tmp_path, content)["status"] == status


def test_ports_nobody_named(tmp_path: Path) -> None:
    """LBT-RM on any port is found when all of it agrees, and only then; a port can be named."""
    good = [data(1, message(1, 1, b"x")), sm(1, 2, 1), nak(1), ncf(1, 0, 1)]
    for datagram in good:
        row = row_of(tmp_path, frame(datagram, destination_port=20000))
        assert row["status"] == "ok"
        assert row["packet_type"] is not None
        row = row_of(tmp_path, frame(datagram + b"\0", destination_port=20000))
        assert (row["status"], row["packet_type"], row["session_id"], row["sqns"]) == (
            "not ours",
            None,
            None,
            None,
        )
    for zeros in range(1, 40):
        assert row_of(tmp_path, frame(bytes(zeros), destination_port=20000))["status"] == "not ours"
    named = CapturePorts(lbtrm=(20000, 20000), resolution=(30000, 30000))
    row = row_of(tmp_path, frame(bytes(7), destination_port=20000), ports=named)
    assert row["status"] == "LBT-RM: shorter than its fields say"
    row = row_of(tmp_path, frame(b"\0\0\0\0", destination_port=30000), ports=named)
    assert (row["status"], row["packet_type"]) == ("ok", "LBMR")
    assert row_of(tmp_path, frame(b"\0", destination_port=12965))["status"] == "LBMR: malformed header"


def test_advertisements_of_topics_are_reported(tmp_path: Path) -> None:
    """Name, index, session, request port of each topic of a TIR; nothing of queries, others, what is malformed."""
    address = LbtrmAddress("10.0.0.7", "239.1.2.3", 0xFEEDBEEF, 14400, 14395)
    offer = (endpoint_option(Endpoint("10.0.0.8", 14391)),)
    orders, quotes = (
        Advertisement("orders", 7, 0, address),
        Advertisement("quotes", 2**32 - 1, 0, address, offer),
    )
    foreign = Advertisement("elsewhere", 1, 0, OtherTransport(4, b"\1\2\3\4\5\6"))
    whole = encode(ResolutionDatagram(("asked",), (orders, foreign, quotes)))
    row = row_of(tmp_path, frame(whole, destination_port=12965))
    session = {
        "transport": "LBT-RM",
        "source_address": "10.0.0.7",
        "source_port": None,
        "session_id": 0xFEEDBEEF,
        "group_address": "239.1.2.3",
        "group_port": 14400,
        "nak_port": 14395,
    }
    assert (row["packet_type"], row["status"]) == ("LBMR", "ok")
    of_version_1 = row_of(tmp_path, frame(bytes((whole[0] | 0x10,)) + whole[1:], destination_port=12965))
    assert of_version_1["advertisements"] == row["advertisements"]
    of_version_2 = row_of(tmp_path, frame(bytes((whole[0] | 0x20,)) + whole[1:], destination_port=12965))
    assert of_version_2["status"] == "LBMR: malformed header"
    assert row["advertisements"] == [
        {"topic": "orders", "topic_index": 7, **session, "request_address": None, "request_port": None},
        {
            "topic": "quotes",
            "topic_index": 2**32 - 1,
            **session,
            "request_address": "10.0.0.8",
            "request_port": 14391,
        },
    ]
    for datagram in (
        encode(ResolutionDatagram(("asked",))),
        whole[:-3],
        encode(ResolutionDatagram((), (foreign,))),
    ):
        assert row_of(tmp_path, frame(datagram, destination_port=12965))["advertisements"] is None
    assert row_of(tmp_path, frame(whole, destination_port=14400))["advertisements"] is None


def test_a_batch_full_of_advertisements_is_many_batches(tmp_path: Path) -> None:
    """More topic resolution than a batch keeps: the next one goes on, and no name is lost."""
    address = LbtrmAddress("10.0.0.7", "239.1.2.3", 1, 14400, 14395)
    count = 2000
    advertised = (Advertisement("t" * 240 + str(n), n, 0, address) for n in range(count))
    datagrams = (encode(ResolutionDatagram((), (one,))) for one in advertised)
    packets = [Packet(n, frame(one, destination_port=12965)) for n, one in enumerate(datagrams)]
    path = tmp_path / "many.pcap"
    path.write_bytes(pcap(packets))
    batches = list(decode(path))
    assert len(batches) > 1
    printed = [one for batch in batches for row in batch.column("advertisements").to_pylist() for one in row]
    assert [one["topic_index"] for one in printed] == list(range(count))
    assert printed[-1]["topic"] == "t" * 240 + str(count - 1)
