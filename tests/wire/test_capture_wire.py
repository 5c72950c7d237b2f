"""Bulk decode agrees with tshark, which nobody here wrote, on every field of every row (captures: bulk decode)."""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.capture_bytes import (
    ETHERNET,
    RAW,
    SLL,
    SLL2,
    START_NS,
    Packet,
    data,
    enhanced,
    ethernet,
    interface,
    ipv4,
    message,
    nak,
    ncf,
    option,
    section,
    sm,
    udp,
)
from tests.wire.dissection import Frame, frames, number, octets, values

pytest.importorskip("pyarrow")

from umstack.capture import decode
from umstack.capture.generate import Traffic, generate

TYPES = {0: "DATA", 2: "SM", 3: "NAK", 4: "NCF"}
REASONS = {0: "no_retry", 1: "ignored", 2: "rx_delay", 3: "shed"}
KINDS = {0: "message", 1: "end", 2: "proactive", 10: "recovered"}
STATUS_OPTION = 85
LBTRM_TRANSPORT = 0x10
REFERENCE = Path(__file__).with_name("wire-sample.pcap")


def integer(tree: object, field: str) -> int | None:
    """The one value of a field, if it is there."""
    return number(tree, field) if values(tree, field) else None


def header_lengths(tree: object) -> Iterator[int]:
    """The lengths of all option headers of an LBMC message."""
    if isinstance(tree, dict):
        for key, item in tree.items():
            if key.endswith(".hdr_len"):
                yield int(item)
            else:
                yield from header_lengths(item)
    elif isinstance(tree, list):
        for item in tree:
            yield from header_lengths(item)


def records(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The TSNI records of an LBMC message."""
    topics, sqns = values(found, "lbmc.tsni.tsni_rec.tidx"), values(found, "lbmc.tsni.tsni_rec.sqn")
    pairs = zip(topics, sqns, strict=True)
    empty = {
        "first_sqn": None,
        "fragment_offset": None,
        "message_length": None,
        "payload_bytes": 0,
        "sent_ns": None,
    }
    return [{"topic_index": int(t), "topic_sqn": int(s), "kind": "tsni", **empty} for t, s in pairs]


def sent_ns(found: dict[str, Any]) -> int | None:
    """The publisher's time, which tshark shows as bytes of an extended option."""
    owner = integer(found, "lbmc.extopt.id"), integer(found, "lbmc.extopt.subtype")
    return int.from_bytes(octets(found, "lbmc.extopt.data"), "big") if owner == (STATUS_OPTION, 4) else None


def messages(frame: Frame) -> Iterator[dict[str, Any]]:
    """What tshark says of a datagram's messages, as our rows say it."""
    for found in frame.messages:
        kind = number(found, "lbmc.type")
        topic = integer(found, "lbmc.tidx")
        total = number(found, "lbmc.msglen")
        extended = integer(found, "lbmc.extopt.id")
        is_status = extended == STATUS_OPTION and integer(found, "lbmc.extopt.subtype") == 1
        payload = 0 if topic is None else total - 12 - sum(header_lengths(found))
        tsni = records(found)
        if kind != 8 or not tsni:
            first = integer(found, "lbmc.frag.first_sqn")
            sqn = integer(found, "lbmc.sqn")
            control = "tag" if values(found, "lbmc.hmac.data") else "control"
            if extended is not None:
                control = "status" if is_status else "extended"
            yield {
                "topic_index": topic,
                "topic_sqn": sqn,
                "first_sqn": sqn if first is None else first,
                "fragment_offset": (None if topic is None else 0)
                if first is None
                else integer(found, "lbmc.frag.offset"),
                "message_length": (None if topic is None else payload)
                if first is None
                else integer(found, "lbmc.frag.len"),
                "payload_bytes": payload,
                "sent_ns": sent_ns(found),
                "kind": KINDS.get(kind, control),
            }
        yield from tsni


def advertisements(layers: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The topics tshark finds advertised with an LBT-RM session, as our rows say it; None where there are none."""
    listed = layers.get("lbmr", {}).get("lbmr.tirs", {}).get("lbmr.tir", [])
    told = [
        {
            "topic": one["lbmr.tir.name"],
            "topic_index": number(one, "lbmr.tir.index"),
            "source_address": one["lbmr.tir.lbtrm"]["lbmr.tir.lbtrm.srcip"],
            "session_id": number(one, "lbmr.tir.lbtrm.sessid"),
            "group_address": one["lbmr.tir.lbtrm"]["lbmr.tir.lbtrm.mcastip"],
            "group_port": number(one, "lbmr.tir.lbtrm.dport"),
            "request_address": next(iter(values(one, "lbmr.topt.latejoin.src_ip_addr")), None),
            "request_port": integer(one, "lbmr.topt.latejoin.src_tcp_port"),
        }
        for one in (listed if isinstance(listed, list) else [listed])
        if number(one, "lbmr.tir.transport_type") == LBTRM_TRANSPORT
    ]
    return told or None


def expected(frame: Frame) -> dict[str, Any]:
    """What tshark says of a UDP frame, as our row says it."""
    layers = frame.layers
    tags = [*values(layers, "ieee8021ad.id"), *values(layers, "vlan.id")]
    tags = [int(tag) for tag in tags] + [None] * (2 - len(tags))
    whole, fraction = values(layers, "frame.time_epoch")[0].split(".")
    row: dict[str, Any] = {
        "time_ns": int(whole) * 10**9 + int(fraction),
        "frame_bytes": number(layers, "frame.len"),
        "captured_bytes": number(layers, "frame.cap_len"),
        "source_address": values(layers, "ip.src")[0],
        "destination_address": values(layers, "ip.dst")[0],
        "source_port": number(layers, "udp.srcport"),
        "destination_port": number(layers, "udp.dstport"),
        "udp_bytes": frame.payload_bytes,
        "vlan": tags[0],
        "inner_vlan": tags[1],
        "packet_type": "LBMR" if "lbmr" in layers else None,
        "advertisements": advertisements(layers),
    }
    names = (
        "session_id",
        "nak_port",
        "transport_flags",
        "transport_sqn",
        "retransmission",
        "sm_sqn",
        "lead_sqn",
    )
    row |= dict.fromkeys((*names, "trail_sqn", "sqns", "ncf_reason", "messages"))
    if not frame.is_lbtrm:
        return row
    lbtrm = layers["lbtrm"]
    row["packet_type"] = TYPES[frame.kind]
    row["session_id"] = frame.session_id
    row["nak_port"] = number(lbtrm, "lbtrm.hdr.ucast_port")
    if frame.kind == 0:
        row["transport_sqn"] = number(lbtrm, "lbtrm.data.sqn")
        row["trail_sqn"] = number(lbtrm, "lbtrm.data.trail_sqn")
        row["transport_flags"] = number(lbtrm, "lbtrm.data.flags_fec_type")
        row["retransmission"] = number(lbtrm, "lbtrm.data.flags_fec_type.rx") == 1
        row["messages"] = list(messages(frame))
        if any(m["kind"] == "status" for m in row["messages"]):
            row["packet_type"] = "STATUS"
    elif frame.kind == 2:
        row["sm_sqn"] = number(lbtrm, "lbtrm.sm.sm_sqn")
        row["lead_sqn"] = number(lbtrm, "lbtrm.sm.lead_sqn")
        row["trail_sqn"] = number(lbtrm, "lbtrm.sm.trail_sqn")
        row["transport_flags"] = number(lbtrm, "lbtrm.sm.flags_fec_type")
    elif frame.kind == 3:
        row["sqns"] = [int(sqn) for sqn in values(lbtrm, "lbtrm.nak.list.nak")]
    else:
        row["sqns"] = [int(sqn) for sqn in values(lbtrm, "lbtrm.ncf.list.ncf")]
        row["trail_sqn"] = number(lbtrm, "lbtrm.ncf.trail_sqn")
        row["ncf_reason"] = REASONS[number(lbtrm, "lbtrm.ncf.reason")]
    return row


def agree(capture: Path, dissected: list[Frame]) -> list[dict[str, Any]]:
    """Compare every UDP row of a capture with its frame; the rows."""
    rows = [row for batch in decode(capture) for row in batch.to_pylist() if row["udp_bytes"] is not None]
    assert len(rows) == len(dissected)
    for row, frame in zip(rows, dissected, strict=True):
        wanted = expected(frame)
        assert {name: row[name] for name in wanted} == wanted
        assert row["status"] == ("ok" if row["packet_type"] else "not ours")
    return rows


def test_a_real_run_agrees(directory: Path, capture: list[Frame]) -> None:
    """Everything the stack says, as dumpcap wrote it."""
    rows = agree(directory / "wire.pcapng", capture)
    assert {row["packet_type"] for row in rows} == {*TYPES.values(), "LBMR", "STATUS", None}
    assert {row["interface_name"] for row in rows} == {"lo"}


def test_the_status_message_holds_what_was_sent(directory: Path) -> None:
    """tshark shows an option of ours as bytes; its position is that of the datagram's own header."""
    rows = [row for batch in decode(directory / "wire.pcapng") for row in batch.to_pylist()]
    found = [row for row in rows if row["packet_type"] == "STATUS"]
    assert all(row["next_sqn"] == row["transport_sqn"] for row in found)
    assert all(row["window_bytes"] >= 0 and row["receiver_id"] is not None for row in found)
    assert any(row["window_bytes"] > 0 for row in found)


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_the_reference_sample_agrees() -> None:
    """Packets written byte by byte from what tshark's dissectors understand; what is not LBT-RM is passed over."""
    rows = agree(REFERENCE, frames(REFERENCE))
    assert Counter(row["packet_type"] for row in rows) == {
        "LBMR": 5,
        "DATA": 13,
        "SM": 1,
        "NAK": 1,
        "NCF": 1,
        None: 8,
    }
    told = [one for row in rows for one in row["advertisements"] or ()]
    assert [(one["topic"], one["topic_index"]) for one in told] == [("MD.EURUSD", 1001), ("MD.GBPUSD", 1002)]
    kinds = {m["kind"] for row in rows for m in row["messages"] or ()}
    assert kinds == {"message", "end", "tsni", "control", "extended", "tag"}


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_recovery_over_tcp_agrees() -> None:
    """UM-136: the segments of the reference sample: a range request, the range, two requests and a message."""
    rows = [row for batch in decode(REFERENCE) for row in batch.to_pylist() if row["packet_type"] == "TCP"]
    assert len(rows) == 7
    names = ("tcp.len", "lbmc.lji_req.topic_idx", "lbmc.lji_req.tx_low_sqn", "lbmc.ume_lj_info.low_seqnum")
    names += ("lbmc.ume_rxreq.id_2", "lbmc.ume_rxreq.seqnum", "lbmc.tidx", "lbmc.sqn")
    command = ["tshark", "-n", "-r", str(REFERENCE), "-Y", "tcp", "-T", "fields"]
    for name in names:
        command += ["-e", name]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for row, line in zip(rows, said, strict=True):
        length, range_topic, low, retained, topics, sqns, topic, sqn = (
            [int(value) for value in field.split(",") if value] for field in line.split("\t")
        )
        wanted = [("range_request", one, *(low or [0])) for one in range_topic]
        wanted += [("range", 1002, one) for one in retained]
        wanted += [("request", *pair) for pair in zip(topics, sqns, strict=True)]
        wanted += [("recovered", *pair) for pair in zip(topic, sqn, strict=True)]
        found = [(one["kind"], one["topic_index"], one["topic_sqn"]) for one in row["messages"]]
        assert (found, [row["tcp_bytes"]]) == (wanted, length)
        assert row["status"] == "ok"
    assert [len(row["messages"]) for row in rows] == [0, 0, 0, 1, 1, 2, 1]


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_what_others_send_agrees(tmp_path: Path) -> None:
    """Kinds of messages and options the stack itself does not send, on several links, with VLAN tags and IP options."""
    body = bytes.fromhex
    datagrams = [
        data(100, message(1001, 41, b"EUR 1.0842"), message(1002, 7, b"GBP 1.2611")),
        data(101, body("0001001f000003e90000002a001000000000002a00000000000007d0") + b"abc"),
        data(102, body("01200010ff0c0001000003e900000034")),
        data(
            103,
            body(
                "00060030000003e900000031fe0c812300112233445566770014c009000100008899aabbccddeeff010203040a0b0c0d"
            ),
        ),
        data(104, body("08ff00060000"), message(5, 1, b"filler before")),
        data(105, body("0862001cff188000") + bytes(20), message(5, 2, b"signed")),
        data(106, body("08fe0018ff14c009000200001797 9cfe362a0000cafef00d"), flags=0xA0),
        sm(1, 105, 100),
        nak(103, 0xFFFFFFFF),
        *(ncf(reason, 100, 104, 105) for reason in range(4)),
        b"not ours at all",
    ]
    content = section() + interface("<", ETHERNET, 0, option("<", 9, b"\x09"))
    content += interface("<", SLL) + interface("<", SLL2) + interface("<", RAW)
    for i, datagram in enumerate(datagrams):
        is_nak = datagram[:1] == b"\x03"
        ip = ipv4(
            udp(datagram, 14390, 14390 if is_nak else 5001 if i == len(datagrams) - 1 else 14400),
            destination="10.0.0.9" if is_nak else "224.10.10.10",
            options=b"\x94\x04\0\0" if i % 2 else b"",
        )
        frame = ethernet(ip, tags=[(), (5,), (6, 7)][i % 3])
        content += enhanced(Packet(START_NS, frame), ticks=START_NS + i)
        cooked = struct.pack("!HHHQH", 0, 1, 6, 0, 0x0800) + ip
        content += enhanced(Packet(START_NS, cooked, interface=1))
        content += enhanced(
            Packet(START_NS, struct.pack("!HHIHBBQ", 0x0800, 0, 2, 1, 0, 6, 0) + ip, interface=2)
        )
        content += enhanced(Packet(START_NS, ip, interface=3))
    path = tmp_path / "others.pcapng"
    path.write_bytes(content)
    rows = agree(path, frames(path))
    assert len(rows) == 4 * len(datagrams)
    kinds = {m["kind"] for row in rows for m in row["messages"] or ()}
    assert kinds == {"message", "end", "tsni", "control", "extended", "tag"}


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_it_is_fifty_times_as_fast(tmp_path: Path) -> None:
    """At least 50 packets are decoded, into all columns, in the time tshark takes for one and fewer fields."""
    path = tmp_path / "speed.pcap"
    packets = 60_000
    generate(path, packets, Traffic(snap_bytes=96))
    fields = (
        "frame.time_epoch",
        "ip.src",
        "ip.dst",
        "lbtrm.hdr.type",
        "lbtrm.data.sqn",
        "lbmc.tidx",
        "lbmc.sqn",
    )
    command = ["tshark", "-r", str(path), "-T", "fields", *(word for name in fields for word in ("-e", name))]
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
    theirs = time.perf_counter() - begun
    ours = []
    for _ in range(5):
        begun = time.perf_counter()
        assert sum(batch.num_rows for batch in decode(path)) == packets
        ours.append(time.perf_counter() - begun)
    assert theirs / min(ours) >= 50
