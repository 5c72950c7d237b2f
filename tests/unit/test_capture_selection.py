"""A selection in the decoder gives the rows that the whole capture has and a filter in Python leaves."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.capture_bytes import (
    GROUP,
    RECEIVER,
    SOURCE,
    START_NS,
    Packet,
    data,
    ethernet,
    frame,
    ipv4,
    pcap,
    udp,
)
from tests.unit.test_capture_rows import EVERY_TYPE

pytest.importorskip("pyarrow")

from umstack.capture import decode
from umstack.capture.selection import TYPES, VALUES_MAX, Selection
from umstack.resolution.codec import Advertisement, LbtrmAddress, ResolutionDatagram, encode


def rows_of(path: Path, selection: Selection | None = None) -> list[dict[str, Any]]:
    """All rows of a capture, in small batches."""
    return [row for one in decode(path, batch_rows=64, selection=selection) for row in one.to_pylist()]


def is_selected(selection: Selection, row: dict[str, Any]) -> bool:
    """Return true if a filter on the columns selects the row."""
    bounded = (
        selection.is_timed or replace(selection, types=None, sessions=None, destinations=None) != Selection()
    )
    time_ns = row["time_ns"]
    if bounded and (time_ns is None or not selection.time_low_ns <= time_ns <= selection.time_high_ns):
        return False
    wanted = {
        "packet_type": selection.types,
        "session_id": selection.sessions,
        "destination_address": selection.destinations,
    }
    return all(values is None or row[name] in values for name, values in wanted.items())


def write_capture(path: Path) -> Path:
    """Packets of every type, of several sessions, some cut; advertisements, which lie beside the rows."""
    address = LbtrmAddress("10.0.0.1", GROUP, 7, 14400, 14395)
    printed = encode(ResolutionDatagram((), (Advertisement("orders", 1, 0, address),)))
    contents = [
        *EVERY_TYPE.values(),
        ethernet(b"arp", 0x0806),
        ethernet(ipv4(udp(printed, 5000, 12965))),
        *(frame(data(number, session=number)) for number in range(1, 20)),
    ]
    packets = []
    for turn in range(20):
        for number, content in enumerate(contents):
            kept = len(content) - 20 * (turn % 3)
            packets.append(Packet(START_NS + turn * 1_000_000 + number * 1000, content[:kept], len(content)))
    path.write_bytes(pcap(packets))
    return path


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A capture of them."""
    return write_capture(tmp_path / "capture.pcap")


def test_a_selection_gives_what_a_filter_leaves(capture: Path) -> None:
    """By time, type, session, destination, all together, and what nothing meets."""
    every = rows_of(capture)
    assert rows_of(capture, Selection()) == every
    rand = random.Random(30)
    sessions = sorted({row["session_id"] for row in every if row["session_id"] is not None})
    chosen = [
        Selection(is_timed=True),
        Selection(types=frozenset()),
        Selection(sessions=frozenset(), is_timed=True),
        Selection(time_low_ns=START_NS + 1, time_high_ns=START_NS),
        Selection(time_high_ns=START_NS),
        Selection(time_low_ns=2**70),
        Selection(sessions=frozenset(sessions[:VALUES_MAX])),
        Selection(destinations=frozenset({SOURCE, GROUP})),
    ]
    for _ in range(40):
        one = Selection(time_low_ns=START_NS + rand.randrange(10_000_000))
        if rand.random() < 0.5:
            one = replace(one, time_high_ns=one.time_low_ns + rand.randrange(10_000_000))
        if rand.random() < 0.5:
            one = replace(one, types=frozenset(rand.sample(TYPES, rand.randrange(1, 4))))
        if rand.random() < 0.4:
            one = replace(one, sessions=frozenset(rand.sample(sessions, 3)))
        if rand.random() < 0.4:
            one = replace(one, destinations=frozenset(rand.sample([SOURCE, GROUP, RECEIVER], 2)))
        chosen.append(one)
    found = 0
    for selection in chosen:
        expected = [row for row in every if is_selected(selection, row)]
        assert rows_of(capture, selection) == expected, selection
        found += len(expected)
    assert found > len(every)


def test_a_selection_names_a_bounded_number_of_values(capture: Path) -> None:
    """More are an error, not a part of them."""
    with pytest.raises(ValueError, match="at most"):
        rows_of(capture, Selection(sessions=frozenset(range(1, VALUES_MAX + 2))))
