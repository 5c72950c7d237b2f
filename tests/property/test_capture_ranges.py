"""Splits from ranges that are walked independently: together they have the rows of the file, wherever ranges start.

The captures contain captures as payload, whose records look like those of the file, also up to its end.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.capture_bytes import (
    START_NS,
    Packet,
    data,
    enhanced,
    frame,
    interface,
    message,
    pcap,
    pieces,
    section,
    udp,
)
from tests.unit.stream_bytes import recoveries
from umstack.capture import CapturePorts, Split, decode
from umstack.capture.generate import Traffic, generate
from umstack.capture.reading import ranges
from umstack.capture.reading.ranges import joined, range_count, walked_range

PORTS = CapturePorts()
RANGE_BYTES = 500_000
SMALL = frame(data(1, message(1, 1, b"small")))
INNER = [Packet(START_NS, SMALL)] * 5
FRAMES = {
    "small": [SMALL],
    "capture": [frame(data(2, message(1, 2, pcap(INNER))))],
    "records": [frame(data(3, message(1, 3, pcap(INNER)[24:])))],
    "blocks": [frame(data(4, message(1, 4, b"".join(map(enhanced, INNER)))))],
    "ends": [frame(b"") + pcap(INNER)[24:]],
    "fragments": pieces(udp(data(5, message(1, 5, bytes(4000))))),
    "connection": [one.data for one in recoveries()[:12]],
}


def content(kind: str, runs: list[tuple[str, int]]) -> bytes:
    """A capture of these runs of packets."""
    frames = [one for name, count in runs for _ in range(count) for one in FRAMES[name]]
    packets = [Packet(START_NS + 1_000_000 * number, one) for number, one in enumerate(frames)]
    if kind == "pcap":
        return pcap(packets)
    blocks = b"".join(map(enhanced, packets))
    # A second section describes its interface again.
    return section() + interface() + blocks + (section() + interface() + blocks if kind == "joint" else b"")


def rows(part: Split) -> list[dict[str, Any]]:
    """The rows of a part."""
    return [row for batch in decode(part) for row in batch.to_pylist()]


def splits(path: Path, range_bytes: int) -> list[Split]:
    """The splits of a file, from all of its ranges."""
    begun = Split(str(path))
    numbers = range(range_count(path.stat().st_size, range_bytes))
    found = {number: walked_range(begun, number, range_bytes, PORTS) for number in reversed(numbers)}
    return joined(begun, found, range_bytes, PORTS)


@settings(max_examples=40)
@given(
    kind=st.sampled_from(["pcap", "pcapng", "joint"]),
    runs=st.lists(st.tuples(st.sampled_from(sorted(FRAMES)), st.sampled_from([1, 3, 300])), max_size=6),
    share=st.floats(0.001, 1),
    cut=st.integers(0, 20),
)
def test_each_packet_is_in_one_split_of_any_ranges(
    tmp_path_factory: pytest.TempPathFactory, kind: str, runs: list[tuple[str, int]], share: float, cut: int
) -> None:
    """The splits have the rows of the file in its order, whatever their packets contain."""
    path = tmp_path_factory.getbasetemp() / "ranges.pcap"
    whole = content(kind, runs)
    path.write_bytes(whole[: len(whole) - cut])
    parts = splits(path, max(200, int(len(whole) * share)))
    assert [row for part in parts for row in rows(part)] == rows(Split(str(path)))
    assert [part.end for part in parts[:-1]] == [part.start for part in parts[1:]]


@pytest.mark.parametrize("kind", ["pcap", "pcapng"])
def test_ranges_of_a_well_formed_capture_are_not_walked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The record found in each range is the one where the range before it ends."""
    path = tmp_path / "large.pcap"
    if kind == "pcap":
        generate(path, 4000, Traffic())
    else:
        path.write_bytes(content(kind, [("small", 5000), ("records", 500), ("capture", 500)] * 2))
    begun, range_bytes = Split(str(path)), RANGE_BYTES
    count = range_count(path.stat().st_size, range_bytes)
    found = {number: walked_range(begun, number, range_bytes, PORTS) for number in range(count)}
    assert count > 4
    monkeypatch.delattr(ranges, "walk")
    parts = joined(begun, found, range_bytes, PORTS)
    assert len(parts) == count
    assert [row for part in parts for row in rows(part)] == rows(begun)


def test_a_wrong_record_is_found_out(tmp_path: Path) -> None:
    """A range that starts inside a packet, or in another state, is walked again from the right place."""
    path = tmp_path / "large.pcap"
    generate(path, 4000, Traffic())
    begun, range_bytes = Split(str(path)), RANGE_BYTES
    count = range_count(path.stat().st_size, range_bytes)
    found = {number: walked_range(begun, number, range_bytes, PORTS) for number in range(count)}
    right = joined(begun, found, range_bytes, PORTS)
    for number, changed in (
        (2, {"start": 2 * RANGE_BYTES + 1}),
        (3, {"streams": b"one"}),
        (4, {"interfaces": ()}),
    ):
        walked = found[number]
        assert walked is not None
        wrong = replace(walked, begun=replace(walked.begun, **changed), ended=replace(walked.ended, start=1))
        again = joined(begun, {**found, number: wrong}, range_bytes, PORTS)
        assert [(one.start, one.end) for one in again] == [(one.start, one.end) for one in right]
