"""A capture that grows while it is read, whatever ends a batch: each packet is in exactly one batch."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.capture_bytes import START_NS, Packet, block, enhanced, interface, pcap, section, simple
from umstack.capture import Split, decode
from umstack.capture.reading.split import walk

_UNENDING = 2**63
_STATISTICS = block("<", 5, struct.pack("<III", 0, 0, 0))
_UNKNOWN = block("<", 0x0BAD, b"unknown")
_PACKET = Packet(START_NS, bytes(20))
_RECORDS = [enhanced(_PACKET), simple(_PACKET), interface(), _STATISTICS, _UNKNOWN, section() + interface()]


def pcapng_file(records: list[bytes]) -> bytes:
    """A file of these records."""
    return section() + interface() + b"".join(records)


captures = st.one_of(
    st.lists(st.sampled_from(_RECORDS), max_size=30).map(pcapng_file),
    st.integers(0, 10).map(lambda count: pcap([_PACKET] * count)),
)


def positions(part: Split) -> list[int]:
    """The positions of the packets of a part."""
    return [position for batch in decode(part) for position in batch.column("position").to_pylist()]


@given(capture=captures, choose=st.data())
def test_each_packet_is_in_one_batch(
    tmp_path_factory: pytest.TempPathFactory, capture: bytes, choose: st.DataObject
) -> None:
    """A batch ends at the last complete record when it was planned, also behind a header or a block without a packet,
    and is decoded when the file has grown."""
    lengths = choose.draw(st.lists(st.integers(0, len(capture)), max_size=8).map(sorted))
    path = tmp_path_factory.getbasetemp() / "growing.pcap"
    place, parts = Split(str(path)), []
    for length in (*lengths, len(capture)):
        path.write_bytes(capture[:length])
        following = walk(place, _UNENDING).place
        if following.start > place.start:
            parts.append(replace(place, end=following.start))
            place = following
    assert [position for part in parts for position in positions(part)] == positions(Split(str(path)))


def test_a_batch_may_end_behind_a_file_header(tmp_path: Path) -> None:
    """The packet that arrives between planning and decoding belongs to the next batch."""
    for name, header in (("a.pcap", pcap([])), ("b.pcapng", section() + interface())):
        path = tmp_path / name
        path.write_bytes(header)
        following = walk(Split(str(path)), _UNENDING).place
        assert following.start == len(header)
        path.write_bytes(header + (pcap([_PACKET])[24:] if name == "a.pcap" else enhanced(_PACKET)))
        assert positions(Split(str(path), end=len(header))) == []
        assert positions(following) == [len(header)]
