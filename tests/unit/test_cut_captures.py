"""Captures with a snap length that cuts headers: a report has rows for the captured fields and never fails."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

from tests.unit.capture_bytes import (
    RECEIVER,
    SESSION,
    SOURCE,
    START_NS,
    Packet,
    data,
    ethernet,
    ipv4,
    message,
    nak,
    ncf,
    pcap,
    sm,
    status,
    udp,
)
from tests.unit.test_capture_tunnels import TUNNELS
from tests.unit.unicast_bytes import lbtru_session, lbttcp_session
from umstack.analysis.tables import tables_of
from umstack.facts.facts import facts_of
from umstack.report.findings import findings
from umstack.report.outputs import summarised

_AGAIN = 0xA0
_TAGS: tuple[tuple[int, ...], ...] = ((), (7,), (7, 8))


def every_packet() -> list[Packet]:
    """Packets of every type, each encapsulation in a session of its own, so that no other packet hides a cut one."""
    found = [packet.data for packet in (*lbtru_session(), *lbttcp_session())]
    for number, tags in enumerate(_TAGS):
        contents = (
            data(5, message(1, 5, b"x")),
            data(5, message(1, 5, b"x"), flags=_AGAIN),
            sm(1, 5, 0),
            ncf(1, 0, 3),
        )
        frames = [ethernet(ipv4(udp(one)), tags=tags) for one in contents]
        frames += [
            ethernet(ipv4(udp(one, 14400, 14390), RECEIVER, SOURCE), tags=tags) for one in (nak(5), status(5))
        ]
        found += [renamed(one, number) for one in frames]
    found += [renamed(content, 10 + number) for number, content in enumerate(TUNNELS.values())]
    return [Packet(START_NS + number * 1000, content) for number, content in enumerate(found)]


def renamed(content: bytes, number: int) -> bytes:
    """The frame with the session of that number."""
    assert struct.pack("!I", SESSION) in content
    return content.replace(struct.pack("!I", SESSION), struct.pack("!I", SESSION + number))


@pytest.mark.timeout(300)
def test_every_snap_length_makes_a_report(tmp_path: Path) -> None:
    """From the shortest header to whole packets: sessions without a sequence number, and cut in any field behind it."""
    packets, capture, sent = every_packet(), tmp_path / "cut.pcap", []
    for length in range(14, 140):
        capture.write_bytes(pcap(Packet(one.time_ns, one.data[:length], len(one.data)) for one in packets))
        tables = tables_of(facts_of([str(capture)]))
        assert findings(summarised(tables, [str(capture)]))
        sent.append(int(tables["sessions"]["datagrams"].sum()))
    assert sent[0] == 0 < sent[-1]
