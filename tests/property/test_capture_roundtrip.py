"""Decoding any capture returns the written datagrams, whole or in splits."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.capture_bytes import (
    SESSION,
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

pytest.importorskip("pyarrow")

from umstack.capture import decode, split

REASONS = ("no_retry", "ignored", "rx_delay", "shed")
U32 = st.integers(0, 2**32 - 1)
Case = tuple[bytes, dict[str, Any]]


@st.composite
def data_case(draw: Callable[..., Any]) -> Case:
    sqn = draw(U32)
    trail = (sqn - draw(st.integers(0, 1000))) % 2**32
    again = draw(st.booleans())
    parts = draw(st.lists(st.tuples(U32, U32, st.binary(max_size=40)), max_size=5))
    datagram = data(sqn, *(message(*part) for part in parts), trail=trail, flags=0xA0 if again else 0x80)
    found = [(topic, number, len(payload)) for topic, number, payload in parts]
    row = {"transport_sqn": sqn, "trail_sqn": trail, "retransmission": again, "found": found}
    return datagram, {"packet_type": "DATA", **row}


@st.composite
def sm_case(draw: Callable[..., Any]) -> Case:
    number, lead = draw(U32), draw(U32)
    trail = (lead - draw(st.integers(0, 1000))) % 2**32
    row = {"packet_type": "SM", "sm_sqn": number, "lead_sqn": lead, "trail_sqn": trail, "found": None}
    return sm(number, lead, trail), row


@st.composite
def list_case(draw: Callable[..., Any]) -> Case:
    sqns = draw(st.lists(U32, max_size=30))
    if draw(st.booleans()):
        return nak(*sqns), {"packet_type": "NAK", "sqns": sqns, "ncf_reason": None, "found": None}
    reason, trail = draw(st.integers(0, 3)), draw(U32)
    row = {
        "packet_type": "NCF",
        "sqns": sqns,
        "ncf_reason": REASONS[reason],
        "trail_sqn": trail,
        "found": None,
    }
    return ncf(reason, trail, *sqns), row


CASES = st.lists(
    st.tuples(
        data_case() | sm_case() | list_case(),
        st.integers(0, 10**12),
        st.lists(st.integers(1, 4094), max_size=2),
        st.integers(0, 1),
    ),
    max_size=12,
)


def written(path: Path, make: str, packets: list[Packet]) -> None:
    order = "<" if make.endswith("le") else ">"
    if make.startswith("pcapng"):
        content = section(order) + interface(order, 1, 0, option(order, 9, b"\x09"))
        content += interface(order, 1, 0, option(order, 2, b"second"), option(order, 9, b"\x09"))
        content += b"".join(enhanced(packet, order, ticks=packet.time_ns) for packet in packets)
    else:
        content = pcap(packets, order=order)
    path.write_bytes(content)


@settings(max_examples=60)
@given(CASES, st.sampled_from(["pcap-le", "pcap-be", "pcapng-le", "pcapng-be"]), st.integers(1, 600))
def test_decode_returns_the_written_packets(
    cases: list[tuple[Case, int, list[int], int]], make: str, split_bytes: int
) -> None:
    """Generated packets survive the round trip."""
    packets = []
    for (datagram, _), after_ns, tags, number in cases:
        frame = ethernet(ipv4(udp(datagram)), tags=tags)
        packets.append(Packet(START_NS + after_ns, frame, interface=number))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "capture"
        written(path, make, packets)
        rows = [row for batch in decode(path, batch_rows=64) for row in batch.to_pylist()]
        parts = split(path, split_bytes)
        apart = [row for part in parts for batch in decode(part, batch_rows=64) for row in batch.to_pylist()]
    assert rows == apart
    assert len(rows) == len(cases)
    for row, ((_, wanted), after_ns, tags, number) in zip(rows, cases, strict=True):
        messages = row.pop("messages")
        row["found"] = messages and [(m["topic_index"], m["topic_sqn"], m["payload_bytes"]) for m in messages]
        if messages == []:
            row["found"] = []
        assert {name: row[name] for name in wanted} == wanted
        assert (row["status"], row["session_id"], row["time_ns"]) == ("ok", SESSION, START_NS + after_ns)
        assert [row["vlan"], row["inner_vlan"]] == [*tags, None, None][:2]
        if make.startswith("pcapng"):
            assert (row["interface_id"], row["interface_name"]) == (number, "second" if number else None)
