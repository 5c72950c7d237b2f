"""All LBT-RM packet types of the stack, captured on a separate loopback and dissected by tshark (W1)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.wire.dissection import MARKS, Frame, number, octets, topic_report, tshark, values
from umstack.scapy import LBMCGroupReport, LBTRMData, LBTRMNcf

RETRANSMISSION = 0x20
UNICAST_NAKS = 0x80
STATUS_OPTION = 85
SEND_TIME_SUBTYPE = 4


@pytest.fixture(scope="session")
def session(capture: list[Frame], facts: dict[str, Any]) -> list[Frame]:
    """The main session's frames, both directions."""
    return [frame for frame in capture if frame.is_lbtrm and frame.session_id == facts["session_id"]]


def to_group(frame: Frame) -> bool:
    return int(frame.destination.split(".")[0]) >= 224


def is_retransmission(frame: Frame) -> bool:
    return frame.kind == 0 and bool(number(frame.layers, "lbtrm.data.flags_fec_type") & RETRANSMISSION)


def has(frame: Frame, field: str) -> bool:
    return bool(values(frame.messages, field))


def batch_flags(message: object) -> int:
    return number(message, "lbmc.batch.flags") if values(message, "lbmc.batch.flags") else 0


def ncf_reason(frame: Frame) -> int | None:
    """Return the reason of an NCF, by the layers, because tshark shifts it in some versions."""
    return frame.read[LBTRMNcf].reason if frame.kind == 4 else None


def group_report(frame: Frame) -> LBMCGroupReport | None:
    """Return the group report in a datagram to the group."""
    if frame.kind != 0 or not to_group(frame):
        return None
    found = [message.option(LBMCGroupReport) for message in frame.read[LBTRMData].messages]
    return next((report for report in found if report is not None), None)


def is_path_probe(payload: bytes) -> bool:
    """Return true for a session message with our control message, which contains the size, and zeros behind it."""
    head = bytes.fromhex("08fe0014 ff10c055 000a0000 01")
    size = int.from_bytes(payload[42:44], "big")
    return payload[24:37] == head and len(payload) == size and not any(payload[44:])


def is_repair_report(payload: bytes) -> bool:
    """Return true for a session message with a repair report behind it: a head of 16 bytes, and 8 per entry."""
    return payload[31:34] == bytes.fromhex("55 000c") and len(payload) > 40 and len(payload) % 8 == 0


def status_flags(frame: Frame) -> int | None:
    """Return the flags of a status message; None for other frames."""
    if frame.kind != 0 or to_group(frame):
        return None
    status = frame.read[LBTRMData].status()
    assert status is not None
    return int(status.status_flags)


EVERYTHING: dict[str, Callable[[Frame], bool]] = {
    "DATA, one message": lambda f: f.kind == 0 and to_group(f) and len(f.messages) == 1,
    "DATA, several messages": lambda f: f.kind == 0 and len(f.messages) > 2,
    "DATA, several topics": lambda f: f.kind == 0 and len(set(values(f.messages, "lbmc.tidx"))) > 1,
    "DATA, full": lambda f: f.kind == 0 and f.payload_bytes == 1472,
    "DATA, batch start": lambda f: f.kind == 0 and any(batch_flags(m) == 2 for m in f.messages),
    "DATA, batch end": lambda f: f.kind == 0 and any(batch_flags(m) == 1 for m in f.messages),
    "DATA, batch of one": lambda f: f.kind == 0 and any(batch_flags(m) == 3 for m in f.messages),
    "DATA, fragment": lambda f: f.kind == 0 and has(f, "lbmc.frag.first_sqn"),
    "DATA, send time": lambda f: f.kind == 0 and to_group(f) and has(f, "lbmc.extopt.subtype"),
    "DATA, TSNI": lambda f: f.kind == 0 and has(f, "lbmc.tsni.num_recs"),
    "DATA, retransmission": lambda f: is_retransmission(f),
    "SM": lambda f: f.kind == 2,
    "NAK": lambda f: f.kind == 3 and f.session_id == 0x5EED0001,
    "NCF, ignored": lambda f: ncf_reason(f) == 1,
    "NCF, retransmit delay": lambda f: ncf_reason(f) == 2,
    "NCF, shed": lambda f: ncf_reason(f) == 3,
    "DATA, group report": lambda f: group_report(f) is not None,
    "status message": lambda f: status_flags(f) == 0,
    "status message, eliciting": lambda f: status_flags(f) == 1,
    "status message, leaving": lambda f: status_flags(f) == 2,
}


@pytest.mark.parametrize("kind", EVERYTHING)
def test_every_kind_of_packet_is_captured(capture: list[Frame], kind: str) -> None:
    """tshark decodes every packet type that the stack sends."""
    assert any(EVERYTHING[kind](frame) for frame in capture if frame.is_lbtrm)


def test_nothing_is_malformed(directory: Path) -> None:
    """The filters for malformed data match nothing."""
    assert tshark(directory / "wire.pcapng", "-Y", MARKS) == ""


def test_every_frame_is_of_the_stack(capture: list[Frame]) -> None:
    """Datagrams to the stack's ports are LBT-RM or LBMR, and there are no others."""
    for frame in capture:
        port = number(frame.layers["udp"], "udp.dstport")
        assert frame.is_lbtrm == (port == 14400 or 14390 <= port <= 14399), port
        assert ("lbmr" in frame.layers) == (port == 12965), port
        assert port in (14400, 12965, 9) or 14390 <= port <= 14399


def test_no_datagram_is_fragmented_by_ip(capture: list[Frame]) -> None:
    """W4, UM-47, UM-51: every LBT-RM datagram fits the MTU and forbids fragmentation; the TTL is the configured one."""
    for frame in filter(lambda frame: frame.is_lbtrm, capture):
        assert frame.payload_bytes <= 1472
        flags = number(frame.layers["ip"], "ip.flags.df"), number(frame.layers["ip"], "ip.flags.mf")
        is_ours = number(frame.layers["udp"], "udp.srcport") not in (14399,) and frame.kind != 3
        if is_ours:
            assert flags == (1, 0)
        if to_group(frame) and is_ours:
            assert number(frame.layers["ip"], "ip.ttl") == 16
    total = sum(frame.payload_bytes == 1472 for frame in capture if frame.is_lbtrm)
    assert total >= 4, "two full fragments, the largest message, a retransmission"


# ---- the length rules tshark does not enforce ----


def test_data_is_as_long_as_its_messages(capture: list[Frame]) -> None:
    """L is 20 + the sum of msglen; every LBMC version is 0."""
    for frame in (frame for frame in capture if frame.is_lbtrm and frame.kind == 0):
        lengths = [number(message, "lbmc.msglen") for message in frame.messages]
        assert frame.payload_bytes == 20 + sum(lengths)
        assert {number(message, "lbmc.version") for message in frame.messages} == {0}
        assert number(frame.layers, "lbtrm.data.flags_fec_type") & ~RETRANSMISSION == UNICAST_NAKS
        assert number(frame.layers, "lbtrm.data.flags_tgsz") == 0
        assert number(frame.layers, "lbtrm.data.fec_symbol") == 0


def test_session_messages_obey_their_rules(capture: list[Frame]) -> None:
    """L is 24, and 20 for the cookie of flow control, unless it is a path probe or has a repair report; lead is at
    least trail - 1 in serial arithmetic; the separate SM counter counts by one (UM-71).
    """
    counters: dict[int, list[int]] = {}
    for frame in (frame for frame in capture if frame.is_lbtrm and frame.kind == 2):
        is_extended = is_path_probe(frame.payload) or is_repair_report(frame.payload)
        assert frame.payload_bytes in (24, 24 + 20) or is_extended
        tree = frame.layers["lbtrm"]
        lead, trail = number(tree, "lbtrm.sm.lead_sqn"), number(tree, "lbtrm.sm.trail_sqn")
        assert (lead - trail + 1) % 2**32 < 2**31
        assert number(tree, "lbtrm.sm.flags_fec_type") == UNICAST_NAKS
        counters.setdefault(frame.session_id, []).append(number(tree, "lbtrm.sm.sm_sqn"))
    for numbers in counters.values():
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_naks_and_ncfs_are_as_long_as_their_lists(capture: list[Frame]) -> None:
    """A NAK has L = 12 + 4n, and an NCF has L = 16 + 4n and a reason up to 3. Both are selective, with
    distinct numbers.
    """
    for frame in (frame for frame in capture if frame.is_lbtrm and frame.kind in (3, 4)):
        tree = frame.layers["lbtrm"]
        name, head = ("nak", 12) if frame.kind == 3 else ("ncf", 16)
        count = number(tree, f"lbtrm.{name}.num_{name}s")
        listed = values(tree, f"lbtrm.{name}.list.{name}")
        assert frame.payload_bytes == head + 4 * count
        assert len(listed) == len(set(listed)) == count
        body = frame.read.payload
        assert body.format == 0, "selective"
        assert to_group(frame) == (frame.kind == 4), "NAKs to the source, NCFs to the group (UM-124)"
        if frame.kind == 4:
            assert ncf_reason(frame) in (1, 2, 3)
            assert body.reserved == 0


def test_control_messages_are_as_long_as_their_options(capture: list[Frame]) -> None:
    """A TSNI has header length 4 + 8n. An extended option has 8 + data and is ignored by receivers that do
    not know it.
    """
    for message in (m for frame in capture if frame.is_lbtrm for m in frame.messages):
        if values(message, "lbmc.tsni.num_recs"):
            count = number(message, "lbmc.tsni.num_recs")
            assert number(message, "lbmc.tsni.hdr_len") == 4 + 8 * count
            assert number(message, "lbmc.msglen") == 8 + 8 * count
            assert len(values(message, "lbmc.tsni.tsni_rec.tidx")) == count
        if values(message, "lbmc.extopt.id"):
            assert number(message, "lbmc.extopt.hdr_len") == 8 + len(octets(message, "lbmc.extopt.data"))
            assert number(message, "lbmc.extopt.flags.ignore") == 1
            assert number(message, "lbmc.extopt.flags.more_fragments") == 0


# ---- the values of fields ----


def new_data(frames: list[Frame]) -> list[Frame]:
    return [f for f in frames if f.kind == 0 and to_group(f) and not is_retransmission(f)]


def test_transport_sqns_have_no_holes(session: list[Frame], facts: dict[str, Any]) -> None:
    """UM-75, UM-78, UM-112: each datagram has one transport sqn, counted from 0 without a hole, including
    TSNIs (UM-65).
    """
    numbers = [number(frame.layers, "lbtrm.data.sqn") for frame in new_data(session)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= facts["publisher"]["msgs_sent"], "a TSNI may have followed"
    for frame in new_data(session):
        assert number(frame.layers, "lbtrm.data.trail_sqn") == 0, (
            "the window still holds all datagrams (UM-125)"
        )
        assert number(frame.layers, "lbtrm.hdr.ucast_port") == facts["nak_port"]
        assert not values(frame.layers, "lbtrm.transport.data_sqn_gap")


def test_topic_sqns_have_no_holes(session: list[Frame], facts: dict[str, Any]) -> None:
    """UM-52, UM-78: topic sqns count the fragments of a topic; tshark gets the topic names from the TIRs."""
    by_topic: dict[str, list[int]] = {"orders": [], "trades": []}
    for message in (m for frame in new_data(session) for m in frame.messages):
        if number(message, "lbmc.type") == 0:
            (topic,) = values(message, "lbmc.topic")
            assert number(message, "lbmc.tidx") == facts["topics"][topic]
            by_topic[topic].append(number(message, "lbmc.sqn"))
    assert by_topic["orders"] == list(range(facts["messages"] + 2)), "three fragments are one message"
    assert by_topic["trades"] == [0]


def test_one_flush_sends_messages_of_all_topics(session: list[Frame]) -> None:
    """UM-16, UM-78: messages of several topics share a datagram in the order they were sent."""
    frame = new_data(session)[1]
    assert values(frame.messages, "lbmc.topic") == ["orders", "trades", "orders"]
    contents = [octets(message, "data.data") for message in frame.messages]
    assert contents == [b"first of three", b"second of three", b"third of three"]


def test_tshark_reassembles_fragments(session: list[Frame], facts: dict[str, Any]) -> None:
    """UM-42, UM-80: every fragment has a 16-byte option with first sqn and total; offsets are contiguous, and
    tshark agrees.
    """
    fragments = [m for f in new_data(session) for m in f.messages if values(m, "lbmc.frag.first_sqn")]
    assert len(fragments) == 3
    reached = 0
    for message in fragments:
        assert number(message, "lbmc.frag.hdr_len") == 16
        assert number(message, "lbmc.frag.first_sqn") == facts["fragmented"] - 2
        assert number(message, "lbmc.frag.len") == 4000
        assert number(message, "lbmc.frag.offset") == reached
        reached += number(message, "lbmc.msglen") - 12 - 16
    assert reached == 4000
    assert [number(m, "lbmc.msglen") for m in fragments[:2]] == [1452, 1452], "as full as possible (UX-25)"
    joined = [frame for frame in session if "4000" in values(frame.layers, "data.len")]
    assert joined
    assert len(values(joined[0].layers, "lbmc.reassembly.fragment")) == 3
    assert octets(joined[0].layers, "data.data") == bytes(range(250)) * 16


def test_the_send_time_is_a_separate_option(capture: list[Frame], facts: dict[str, Any]) -> None:
    """With send_timestamps, every message and fragment carries the publisher's time after the other options,
    sizes are still exact, and receivers return the times on the wire.
    """
    timed = [f for f in capture if f.is_lbtrm and f.session_id == facts["timed_session"] and to_group(f)]
    messages = [m for f in new_data(timed) for m in f.messages if number(m, "lbmc.type") == 0]
    assert len(messages) == 1 + 2 + 3
    for message in messages:
        assert number(message, "lbmc.extopt.id") == STATUS_OPTION
        assert number(message, "lbmc.extopt.subtype") == SEND_TIME_SUBTYPE
        assert len(octets(message, "lbmc.extopt.data")) == 8
    times = [int.from_bytes(octets(message, "lbmc.extopt.data"), "big") for message in messages]
    low, high = facts["timed_between"]
    assert low <= min(times) <= max(times) <= high
    assert [times[0], times[1], times[2], times[3]] == facts["timed_sent"]
    assert times[3] == times[4] == times[5], "the fragments of a message were sent as one"
    assert number(messages[0], "lbmc.msglen") == 1452, "the largest that fits a datagram"
    assert [batch_flags(message) for message in messages[1:3]] == [2, 1]
    assert [number(m, "lbmc.msglen") for m in messages[3:5]] == [1452, 1452]


def test_a_batch_is_marked_at_start_and_end(session: list[Frame], facts: dict[str, Any]) -> None:
    """UM-34, UM-37: the marks are in a 4-byte option of the first and the last message."""
    wanted = dict(zip(facts["batch"], (2, 0, 1, 3), strict=True))
    found = {
        number(message, "lbmc.sqn"): batch_flags(message)
        for frame in new_data(session)
        for message in frame.messages
        if values(message, "lbmc.topic") == ["orders"] and number(message, "lbmc.sqn") in wanted
    }
    assert found == wanted


def test_a_session_message_carries_the_last_sqn(session: list[Frame]) -> None:
    """UM-68, UM-71, UM-87: the lead of a session message is the last transport sqn before it."""
    last = -1
    for frame in session:
        if frame.kind == 0 and to_group(frame) and not is_retransmission(frame):
            last = number(frame.layers, "lbtrm.data.sqn")
        elif frame.kind == 2:
            assert number(frame.layers, "lbtrm.sm.lead_sqn") == last % 2**32


def test_a_tsni_repeats_the_last_topic_sqn(session: list[Frame], facts: dict[str, Any]) -> None:
    """UM-62, UM-63: a TSNI has topic index and last topic sqn, in a control message that ends the option
    chain.
    """
    last = {facts["topics"]["orders"]: facts["messages"] + 1, facts["topics"]["trades"]: 0}
    tsnis = [m for f in new_data(session) for m in f.messages if values(m, "lbmc.tsni.num_recs")]
    assert tsnis
    for message in tsnis:
        assert number(message, "lbmc.type") == 8
        assert number(message, "lbmc.tsni.next_hdr") == 255
        topics = [int(value, 0) for value in values(message, "lbmc.tsni.tsni_rec.tidx")]
        numbers = [int(value, 0) for value in values(message, "lbmc.tsni.tsni_rec.sqn")]
        assert all(last[topic] == sqn for topic, sqn in zip(topics, numbers, strict=True))


def test_a_retransmission_repeats_the_datagram(session: list[Frame]) -> None:
    """UM-86, UM-120, UM-124, UM-133: a retransmission to the group has the same sqn and messages, and only
    the flag differs.
    """
    originals = {number(frame.layers, "lbtrm.data.sqn"): frame for frame in new_data(session)}
    repairs = [frame for frame in session if is_retransmission(frame)]
    assert [number(frame.layers, "lbtrm.data.sqn") for frame in repairs] == [0, 2]
    for repair in repairs:
        assert to_group(repair)
        original = originals[number(repair.layers, "lbtrm.data.sqn")]
        again = repair.read
        assert again.flags.retransmission
        again.flags.retransmission = False
        again.clear_cache()
        assert bytes(again) == original.payload
        assert values(repair.layers, "lbtrm.transport.data_retransmission") != []


def test_ncfs_carry_their_reason(capture: list[Frame], facts: dict[str, Any]) -> None:
    """UM-129, UM-132: NAKs soon after a retransmission are ignored; beyond the limit NAKs wait; beyond the queue they
    are shed."""
    lists: dict[tuple[int, int], list[int]] = {}
    for frame in (frame for frame in capture if frame.is_lbtrm and frame.kind == 4):
        numbers = [int(value, 0) for value in values(frame.layers, "lbtrm.ncf.list.ncf")]
        reason = ncf_reason(frame)
        assert reason is not None
        lists.setdefault((frame.session_id, reason), []).extend(numbers)
        assert number(frame.layers, "lbtrm.ncf.trail_sqn") == 0
    assert lists[facts["session_id"], 1] == [0]
    delayed, shed = lists[facts["flooded"], 2], lists[facts["flooded"], 3]
    assert len(delayed) == facts["flooded_stats"]["naks_rx_delay_ignored"]
    assert len(shed) == facts["flooded_stats"]["naks_shed"]
    repaired = [
        number(f.layers, "lbtrm.data.sqn")
        for f in capture
        if f.is_lbtrm and f.session_id == facts["flooded"] and is_retransmission(f)
    ]
    assert repaired == sorted(repaired), "the oldest first (UM-133)"
    assert set(delayed) | set(shed) | set(repaired) == set(range(1500)), "every NAK has a response"


def test_the_stacks_own_nak(capture: list[Frame]) -> None:
    """UM-119: a NAK goes from the receiver's address to the source's NAK port, with its port and
    session in the header.
    """
    naks = [f for f in capture if f.is_lbtrm and f.kind == 3 and f.session_id == 0x5EED0001]
    asked = [int(value, 0) for frame in naks for value in values(frame.layers, "lbtrm.nak.list.nak")]
    assert set(asked) == {1, 2}
    for frame in naks:
        assert frame.destination == "127.0.0.1"
        assert number(frame.layers["udp"], "udp.dstport") == 14399
        assert number(frame.layers, "lbtrm.hdr.ucast_port") == 14399
        assert (frame.read.reserved, frame.read.format) == (0, 0)


def test_the_status_message(session: list[Frame], facts: dict[str, Any]) -> None:
    """AE-16, W1: the status message is in an option of a control message, and one that knows its position has the
    topic report behind it; docs/wire.md has the layouts.
    """
    statuses = [frame for frame in session if status_flags(frame) is not None]
    receivers, reports = set(), []
    for frame in statuses:
        message, *behind = frame.messages
        assert len(behind) == (status_flags(frame) == 0)
        reports += behind
        assert number(message, "lbmc.type") == 8
        assert number(message, "lbmc.extopt.id") == STATUS_OPTION
        assert number(message, "lbmc.extopt.subtype") == 1
        assert number(message, "lbmc.extopt.next_hdr") == 255
        status = frame.read[LBTRMData].status()
        assert status is not None
        assert bytes(status)[8:] == octets(message, "lbmc.extopt.data")
        assert (status.status_version, status.group_tag) == (1, 0)
        assert status.round_trip_us < 1_000_000
        assert status.interval_100ms <= 300  # at most flow_control_receiver_report_interval
        flags = int(status.status_flags)
        assert flags in (0, 1, 2)
        receivers.add(status.receiver_id)
        reported_sqns = {number(frame.layers, "lbtrm.data.sqn"), number(frame.layers, "lbtrm.data.trail_sqn")}
        assert reported_sqns == {status.next_sqn}
        assert number(frame.layers["udp"], "udp.dstport") == facts["nak_port"]
        assert status.next_sqn <= len(new_data(session))
        assert flags != 0 or 0 < status.window_bytes <= 2 << 20
    topics = sorted(facts["topics"].values())
    whole = [topic_report(order) for order in (topics, topics[::-1])]
    parts = [topic_report([]), *(topic_report([topic]) for topic in topics)]
    for message in reports:
        assert number(message, "lbmc.type") == 8
        assert number(message, "lbmc.extopt.id") == STATUS_OPTION
        assert number(message, "lbmc.extopt.subtype") == 13
        assert number(message, "lbmc.extopt.next_hdr") == 255
        assert octets(message, "lbmc.extopt.data") in whole + parts
    assert any(octets(message, "lbmc.extopt.data") in whole for message in reports), "both topics"
    # The receiver learns the cookie from the first session message, and may report before.
    cookies = {frame.read[LBTRMData].status().cookie for frame in statuses} - {b""}
    assert statuses[-1].read[LBTRMData].status().cookie
    session_messages = [frame.read for frame in session if frame.kind == 2 and frame.payload_bytes == 24 + 20]
    assert cookies == {bytes(read)[-8:] for read in session_messages}, "the session's"
    assert len(receivers) == 1, "one subscriber, one identity"
    assert status_flags(statuses[0]) == 1, "the first solicits the position"
    assert status_flags(statuses[-1]) == 2, "the last is sent on leaving"


def test_the_group_report(session: list[Frame]) -> None:
    """W1: the number of receivers is in an option of a control message that tshark decodes."""
    frame = next(frame for frame in session if group_report(frame) is not None)
    (message,) = frame.messages
    assert number(message, "lbmc.type") == 8
    assert number(message, "lbmc.extopt.id") == STATUS_OPTION
    assert number(message, "lbmc.extopt.subtype") == 2
    assert number(message, "lbmc.extopt.next_hdr") == 255
    report = group_report(frame)
    assert report is not None
    assert bytes(report)[8:] == octets(message, "lbmc.extopt.data")
    assert (report.report_version, report.reserved, report.receivers) == (1, 0, 1)
    assert report.round_trip_us < 1_000_000


def test_topic_resolution_advertises_the_session(capture: list[Frame], facts: dict[str, Any]) -> None:
    """UX-28: the TIR carries all parameters for joining, and the datagrams use them."""
    found = {
        name: index
        for frame in capture
        if "lbmr" in frame.layers
        for name, index in zip(
            values(frame.layers, "lbmr.tir.name"), values(frame.layers, "lbmr.tir.index"), strict=True
        )
    }
    assert {topic: int(found[topic]) for topic in facts["topics"]} == facts["topics"]
    asked = {name for frame in capture for name in values(frame.layers, "lbmr.tqr.name")}
    assert "forged" in asked  # a topic whose source advertises itself first is not queried immediately
