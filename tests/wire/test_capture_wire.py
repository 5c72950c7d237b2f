"""Bulk decode agrees with tshark, an independent implementation, on every field of every row."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

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
    pcap,
    section,
    sm,
    udp,
)
from tests.wire.conftest import emitted
from tests.wire.dissection import Frame, frames, number, octets, values
from tests.wire.emit_lbttcp import FIRST, SECOND, THIRD

pytest.importorskip("pyarrow")

from umstack.capture import decode
from umstack.capture.generate import Traffic, generate
from umstack.scapy import (
    LBMC,
    LBTRU,
    LBTRUAck,
    LBTRUClientId,
    LBTRUCreq,
    LBTRUData,
    LBTRUNak,
    LBTRUNcf,
    LBTRURst,
    LBTRUSessionId,
    LBTRUSm,
)

TYPES = {0: "DATA", 2: "SM", 3: "NAK", 4: "NCF"}
LBTRU_TYPES = {**TYPES, 5: "ACK", 6: "CREQ", 7: "RST"}
TO_SOURCE = ("NAK", "STATUS", "ACK", "CREQ")
REASONS = {0: "no_retry", 1: "ignored", 2: "rx_delay", 3: "shed"}
KINDS = {0: "message", 1: "end", 2: "proactive", 10: "recovered"}
STATUS_OPTION = 85
TRANSPORTS = {0x10: "LBT-RM", 0x01: "LBT-RU", 0x00: "LBT-TCP"}
INFORMATION = {
    "LBT-RM": ("lbmr.tir.lbtrm.srcip", None, "lbmr.tir.lbtrm.sessid"),
    "LBT-RU": ("lbmr.tir.lbtru.ip", "lbmr.tir.lbtru.port", "lbmr.tir.lbtru.session_id"),
    "LBT-TCP": ("lbmr.tir.tcp.ip", "lbmr.tir.tcp.port", "lbmr.tir.tcp.session_id"),
}
"""The fields with address, port and session id of a transport's part of an advertisement."""
REFERENCE = Path(__file__).with_name("wire-sample.pcap")


def integer(tree: object, field: str) -> int | None:
    """Return the only value of a field, or None."""
    return number(tree, field) if values(tree, field) else None


def header_lengths(tree: object) -> Iterator[int]:
    """Yield the lengths of all option headers of an LBMC message."""
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
    """Return the TSNI records of an LBMC message."""
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
    """Return the publisher's time, which tshark shows as bytes of an extended option."""
    owner = integer(found, "lbmc.extopt.id"), integer(found, "lbmc.extopt.subtype")
    return int.from_bytes(octets(found, "lbmc.extopt.data"), "big") if owner == (STATUS_OPTION, 4) else None


def messages(frame: Frame) -> Iterator[dict[str, Any]]:
    """Yield tshark's dissection of a datagram's messages in the form of our rows."""
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
    """Return the topics with sessions in tshark's dissection in the form of our rows, or None."""
    listed = layers.get("lbmr", {}).get("lbmr.tirs", {}).get("lbmr.tir", [])
    decoded = []
    for one in listed if isinstance(listed, list) else [listed]:
        transport = TRANSPORTS[number(one, "lbmr.tir.transport_type")]
        address, port, session = INFORMATION[transport]
        decoded.append(
            {
                "topic": one["lbmr.tir.name"],
                "topic_index": number(one, "lbmr.tir.index"),
                "transport": transport,
                "source_address": values(one, address)[0],
                "source_port": port and integer(one, port),
                "session_id": integer(one, session),
                "group_address": next(iter(values(one, "lbmr.tir.lbtrm.mcastip")), None),
                "group_port": integer(one, "lbmr.tir.lbtrm.dport"),
                "nak_port": integer(one, "lbmr.tir.lbtrm.sport"),
                "request_address": next(iter(values(one, "lbmr.topt.latejoin.src_ip_addr")), None),
                "request_port": integer(one, "lbmr.topt.latejoin.src_tcp_port"),
            }
        )
    return decoded or None


def expected(frame: Frame) -> dict[str, Any]:
    """Return tshark's dissection of a UDP frame in the form of our row."""
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
        "transport",
        "session_id",
        "client_id",
        "nak_port",
        "ack_sqn",
        "transport_flags",
        "transport_sqn",
        "retransmission",
        "sm_sqn",
        "lead_sqn",
    )
    row |= dict.fromkeys((*names, "trail_sqn", "sqns", "ncf_reason", "messages"))
    if "lbtru" in layers:
        row |= expected_of_lbtru(frame)
    if "packet_type" in row:
        row["to_source"] = row["packet_type"] in TO_SOURCE if row["packet_type"] else None
    if not frame.is_lbtrm:
        return row
    lbtrm = layers["lbtrm"]
    row["transport"] = "LBT-RM"
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
    row["to_source"] = row["packet_type"] in TO_SOURCE
    return row


def expected_of_lbtru(frame: Frame) -> dict[str, Any]:
    """Return tshark's dissection of an LBT-RU datagram in its columns."""
    lbtru = frame.layers["lbtru"]
    kind = LBTRU_TYPES[number(lbtru, "lbtru.hdr.type")]
    second = {"DATA": "flags", "SM": "flags", "CREQ": "request", "RST": "reason"}.get(kind, "res")
    row: dict[str, Any] = {
        "transport": "LBT-RU",
        "packet_type": kind,
        "session_id": integer(lbtru, "lbtru.opt_sid.session_id"),
        "client_id": integer(lbtru, "lbtru.opt_cid.client_id"),
        "transport_flags": number(lbtru, f"lbtru.hdr.{second}"),
    }
    if kind == "DATA":
        row["transport_sqn"] = number(lbtru, "lbtru.data.sqn")
        row["trail_sqn"] = number(lbtru, "lbtru.data.trail")
        row["retransmission"] = number(lbtru, "lbtru.hdr.flags.rx") == 1
        row["messages"] = list(messages(frame))
        is_interest = values(frame.messages, "lbmc.extopt.subtype") == ["5"]
        if is_interest or any(m["kind"] == "status" for m in row["messages"]):
            row["packet_type"] = "STATUS"
        if values(frame.messages, "lbmc.extopt.subtype") == ["6"]:
            data = octets(frame.messages, "lbmc.extopt.data")
            first, many = (int.from_bytes(data[at : at + 4], "big") for at in (4, 8))
            row |= {
                "packet_type": "FILTER",
                "retransmission": False,
                "sqns": [first, first + many - 1] if many else [],
            }
    elif kind == "SM":
        row["sm_sqn"] = number(lbtru, "lbtru.sm.sqn")
        row["lead_sqn"] = number(lbtru, "lbtru.sm.lead")
        row["trail_sqn"] = number(lbtru, "lbtru.sm.trail")
    elif kind == "NAK":
        row["sqns"] = [int(sqn) for sqn in values(lbtru, "lbtru.nak.list.nak")]
    elif kind == "NCF":
        row["sqns"] = [int(sqn) for sqn in values(lbtru, "lbtru.ncf.list.ncf")]
        row["trail_sqn"] = number(lbtru, "lbtru.ncf.trail")
        row["ncf_reason"] = REASONS[number(lbtru, "lbtru.ncf.reason")]
    elif kind == "ACK":
        row["ack_sqn"] = number(lbtru, "lbtru.ack.sqn")
    return row


def agree(capture: Path, dissected: list[Frame]) -> list[dict[str, Any]]:
    """Compare every UDP row of a capture with its frame. Return the rows."""
    rows = [row for batch in decode(capture) for row in batch.to_pylist() if row["udp_bytes"] is not None]
    assert len(rows) == len(dissected)
    for row, frame in zip(rows, dissected, strict=True):
        wanted = expected(frame)
        assert {name: row[name] for name in wanted} == wanted
        assert row["status"] == ("ok" if row["packet_type"] else "not ours")
    return rows


def test_a_real_run_agrees(directory: Path, capture: list[Frame]) -> None:
    """All packet types of the stack, as written by dumpcap."""
    rows = agree(directory / "wire.pcapng", capture)
    assert {row["packet_type"] for row in rows} == {*TYPES.values(), "LBMR", "STATUS", None}
    assert {row["interface_name"] for row in rows} == {"lo"}


def test_a_real_run_over_lbtru_agrees(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All LBT-RU packet types of the stack, with and without session id, with and without keys."""
    path = emitted(tmp_path_factory, "emit_lbtru") / "wire.pcapng"
    rows = agree(path, frames(path))
    assert {row["packet_type"] for row in rows} == {*LBTRU_TYPES.values(), "LBMR", "STATUS", "FILTER", None}
    of_lbtru = [row for row in rows if row["transport"] == "LBT-RU"]
    assert {row["session_id"] is None for row in of_lbtru if row["packet_type"] == "DATA"} == {True, False}
    assert {one["transport"] for row in rows for one in row["advertisements"] or ()} == {"LBT-RU"}
    status = [row for row in of_lbtru if row["packet_type"] == "STATUS"]
    interests = [row for row in status if row["next_sqn"] is None]
    assert interests, "an interest is sent by a receiver, and is not data of a session"
    assert all(row["next_sqn"] == row["transport_sqn"] for row in status if row not in interests)


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_lbtru_of_other_senders_agrees(tmp_path: Path) -> None:
    """Every type of LBT-RU packet is decoded as built by scapy: options in both orders, no options, long
    lists, every NCF reason, and flags that the stack itself never sets.
    """
    session, client = LBTRUSessionId(session_id=0x5EED00AA), LBTRUClientId(client_id=7)
    both = [session, client]
    decoded = [LBMC(topic_index=9, sqn=number) / (b"%04d" % number) for number in (41, 42)]
    downstream = [
        LBTRU() / LBTRUData(sqn=500, trail=490, options=both, messages=decoded),
        LBTRU() / LBTRUData(sqn=501, trail=490, options=[client, session], messages=decoded[:1]),
        LBTRU(flags="retransmission")
        / LBTRUData(sqn=2**32 - 1, trail=2**32 - 2, options=[session], messages=decoded),
        LBTRU() / LBTRUData(sqn=0, trail=2**32 - 2, options=[], messages=decoded),
        LBTRU(flags="syn") / LBTRUSm(sm_sqn=1, lead=99, trail=100, options=both),
        LBTRU() / LBTRUSm(sm_sqn=2**32 - 1, lead=2**31, trail=2**31 - 5, options=[session]),
        *(LBTRU() / LBTRUNcf(trail=490, reason=one, sqns=[500, 501], options=[session]) for one in range(4)),
        LBTRU() / LBTRUNcf(trail=490, reason=1, sqns=list(range(500, 850)), options=both),
        LBTRU() / LBTRURst(),
    ]
    upstream = [
        LBTRU() / LBTRUNak(sqns=[500], options=both),
        LBTRU() / LBTRUNak(sqns=[2**32 - 1, 0, *range(300)], options=[session]),
        LBTRU() / LBTRUAck(sqn=2**32 - 1, options=both),
        LBTRU() / LBTRUCreq(options=both),
    ]
    content = pcap(
        Packet(START_NS + i, ethernet(ipv4(udp(bytes(one), *ports), *ends)))
        for i, (one, ports, ends) in enumerate(
            [(one, (14380, 14360), ("10.0.0.1", "10.0.0.2")) for one in downstream]
            + [(one, (14379, 14389), ("10.0.0.2", "10.0.0.1")) for one in upstream]
        )
    )
    path = tmp_path / "lbtru.pcap"
    path.write_bytes(content)
    rows = agree(path, frames(path))
    assert {row["packet_type"] for row in rows} == set(LBTRU_TYPES.values())


def test_the_status_message_holds_the_sent_values(directory: Path) -> None:
    """tshark shows the stack's option as bytes; its sqn equals that of the datagram's header."""
    rows = [row for batch in decode(directory / "wire.pcapng") for row in batch.to_pylist()]
    found = [row for row in rows if row["packet_type"] == "STATUS"]
    assert all(row["next_sqn"] == row["transport_sqn"] for row in found)
    assert all(row["window_bytes"] >= 0 and row["receiver_id"] is not None for row in found)
    assert any(row["window_bytes"] > 0 for row in found)


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_the_reference_sample_agrees() -> None:
    """Packets written byte by byte for tshark's dissectors."""
    rows = agree(REFERENCE, frames(REFERENCE))
    assert Counter(row["packet_type"] for row in rows) == {
        "LBMR": 5,
        "DATA": 15,
        "SM": 2,
        "NAK": 2,
        "NCF": 2,
        "ACK": 1,
        "CREQ": 1,
        "RST": 1,
    }
    decoded = [one for row in rows for one in row["advertisements"] or ()]
    names = [("MD.EURUSD", 1001), ("MD.GBPUSD", 1002), ("RU.T", 2001)]
    assert [(one["topic"], one["topic_index"]) for one in decoded] == names
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


def test_facts_of_a_real_run_over_lbttcp_match_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The data sent over LBT-TCP to two receivers, one of which leaves, is exact in total and per connection."""
    pytest.importorskip("polars")
    from umstack.analysis.tables import tables_of
    from umstack.facts.facts import facts_of

    folder = emitted(tmp_path_factory, "emit_lbttcp")
    said = json.loads((folder / "facts.json").read_text())
    rows = [row for batch in decode(folder / "wire.pcapng") for row in batch.to_pylist()]
    assert {row["session_id"] for row in rows if row["transport"] == "LBT-TCP"} == {said["session_id"]}
    tables = tables_of(facts_of([str(folder / "wire.pcapng")]))
    [session] = tables["sessions"].to_dicts()
    assert (session["session_id"], session["messages"]) == (-said["source_port"], FIRST + SECOND + THIRD)
    clients = sorted(tables["clients"].to_dicts(), key=lambda row: row["messages"])
    assert [(row["messages"], row["missing"], row["connects"]) for row in clients] == [
        (SECOND, 0, 1),
        (FIRST + SECOND + THIRD, 0, 1),
    ]


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_lbttcp_agrees(tmp_path: Path) -> None:
    """The segments of a session have the right sender and session: in the receiver's message, in messages cut
    anywhere, in a TSNI and in the end. A connection without a session id is recognized by its messages.
    """
    stream = b"".join(message(9, number, bytes(100 * number)) for number in range(1, 30))
    stream += bytes.fromhex("08200010ff0c0001000000090000001d") + b"\1\xff\0\4"
    named = bytes.fromhex("086b000cff0800005eed0001")
    segments = [("R", "S", b""), ("S", "SA", b""), ("R", "A", named)]
    segments += [("S", "PA", stream[at : at + 700]) for at in range(0, len(stream), 700)]
    segments += [("R", "A", b""), ("S", "FA", b""), ("R", "FA", b"")]
    packets, at = [], {"R": 1000, "S": 5000}
    for port in (40000, 40001):
        for who, flags, payload in segments:
            if port == 40001 and payload == named:
                continue
            ends = (
                ("10.0.0.1", "10.0.0.2", 14371, port) if who == "S" else ("10.0.0.2", "10.0.0.1", port, 14371)
            )
            tcp = TCP(
                sport=ends[2], dport=ends[3], flags=flags, seq=at[who], ack=at["R" if who == "S" else "S"]
            )
            packets.append(bytes(Ether() / IP(src=ends[0], dst=ends[1]) / tcp / Raw(payload)))
            at[who] += len(payload) + ("S" in flags) + ("F" in flags)
    path = tmp_path / "lbttcp.pcap"
    path.write_bytes(pcap(Packet(START_NS + i, bytes(one)) for i, one in enumerate(packets)))
    rows = [row for batch in decode(path) for row in batch.to_pylist()]
    names = ("tcp.flags", "tcp.len", "tcp.srcport", "lbmc.tidx", "lbmc.sqn", "lbmc.tsni.tsni_rec.sqn")
    command = ["tshark", "-n", "-r", str(path), "-o", "lbmc.reassemble_fragments:FALSE", "-T", "fields"]
    for name in names:
        command += ["-e", name]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    decoded: list[Any] = []
    shown: list[Any] = []
    for row, line in zip(rows, said, strict=True):
        flags, length, source, topics, sqns, tsni = line.split("\t")
        assert (row["tcp_flags"], row["tcp_bytes"]) == (int(flags, 16), int(length))
        assert row["to_source"] == (int(source) != 14371)
        # tshark shows a message at its end, and a row is at the end of its headers.
        shown += zip(topics.split(","), sqns.split(","), strict=True) if topics else ()
        shown += [("tsni", sqn) for sqn in tsni.split(",") if sqn]
        decoded += [
            (str(one["topic_index"]) if one["kind"] == "message" else "tsni", str(one["topic_sqn"]))
            for one in row["messages"]
            if one["topic_sqn"] is not None
        ]
    assert decoded == shown
    assert len(decoded) == 2 * 30
    per_connection = len(segments)
    assert [row["session_id"] for row in rows[:per_connection]] == [None] * 2 + [0x5EED0001] * (
        per_connection - 2
    )
    assert [row["transport"] for row in rows[:per_connection]] == [None] * 2 + ["LBT-TCP"] * (
        per_connection - 2
    )
    assert [row["transport"] for row in rows[per_connection:]] == [None] * 2 + ["LBT-TCP"] * (
        per_connection - 3
    )
    assert {row["session_id"] for row in rows[per_connection:]} == {None}


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_packets_of_other_senders_agree(tmp_path: Path) -> None:
    """Messages and options that the stack does not send, on several link types, with VLAN tags and IP options."""
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
def test_decoding_is_fifty_times_as_fast_as_tshark(tmp_path: Path) -> None:
    """At least 50 packets are decoded, into all columns, in the time that tshark needs for one packet and
    fewer fields.
    """
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
