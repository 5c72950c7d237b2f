"""Generated captures match their truth exactly, because analyses are tested against it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from umstack.capture import CaptureNotes, decode
from umstack.capture.generate import Outcome, Traffic, Truth, generate
from umstack.errors import InvalidArgument

LOSSY = Traffic(
    seed=5, sessions=3, receivers=4, loss=0.01, shared=0.3, delayed=0.2, refused=0.1, message_bytes=40
)


def rows_of(truth: Truth) -> list[dict[str, Any]]:
    notes = CaptureNotes()
    rows = [row for batch in decode(truth.path, notes=notes) for row in batch.to_pylist()]
    assert not [note for note in notes.notes if note.rows_are_missing]
    assert {row["status"] for row in rows} == {"ok"}
    return rows


def test_counts_are_the_truth(tmp_path: Path) -> None:
    """As many packets as asked for, of the types the truth counts, in the order of their times."""
    truth = generate(tmp_path / "c.pcap", 20_000, LOSSY)
    rows = rows_of(truth)
    types = Counter((row["packet_type"], row["retransmission"]) for row in rows)
    assert len(rows) == truth.packets == 20_000
    assert types[("DATA", False)] == truth.data
    assert types[("DATA", True)] == truth.retransmissions
    assert (types[("NAK", None)], types[("NCF", None)]) == (truth.naks, truth.ncfs)
    assert all(types.values())
    assert np.all(np.diff([row["time_ns"] for row in rows]) >= 0)
    assert len({row["session_id"] for row in rows}) == 3


def test_losses_are_in_the_capture(tmp_path: Path) -> None:
    """Each loss was sent, NAKed and repaired at the times and as often as the truth states."""
    truth = generate(tmp_path / "c.pcap", 20_000, LOSSY)
    rows = rows_of(truth)
    sent = {(r["session_id"], r["transport_sqn"]): r["time_ns"] for r in rows if r["retransmission"] is False}
    repaired = {(r["session_id"], r["transport_sqn"], r["time_ns"]) for r in rows if r["retransmission"]}
    asked: dict[tuple[int, str, int], list[int]] = {}
    for row in rows:
        if row["packet_type"] == "NAK":
            for sqn in row["sqns"]:
                key = (row["session_id"], row["source_address"], sqn)
                asked.setdefault(key, []).append(row["time_ns"])
    assert set(truth.losses["outcome"]) == {Outcome.RECOVERED, Outcome.REFUSED, Outcome.OPEN}
    for loss in truth.losses:
        session, sqn = truth.session_id(loss["session"]), int(loss["sqn"])
        assert sent[(session, sqn)] == loss["lost_ns"]
        naks = asked.pop((session, truth.receiver_address(loss["receiver"]), sqn), [])
        assert len(naks) == loss["nak_count"]
        assert (naks[0] if naks else -1) == loss["first_nak_ns"]
        if loss["outcome"] == Outcome.RECOVERED:
            assert (session, sqn, loss["end_ns"]) in repaired
    assert asked == {}


def test_a_capture_at_a_receiver_lacks_what_it_lost(tmp_path: Path) -> None:
    """Behind the loss, exactly the datagrams that the truth lists for this receiver are missing."""
    truth = generate(tmp_path / "c.pcap", 20_000, Traffic(seed=6, loss=0.01, message_bytes=40, at_receiver=1))
    rows = rows_of(truth)
    seen = {row["transport_sqn"] for row in rows if row["retransmission"] is False}
    lost = {int(loss["sqn"]) for loss in truth.losses if loss["receiver"] == 1}
    assert set(range(max(seen) + 1)) - seen == {sqn for sqn in lost if sqn <= max(seen)}
    assert {row["source_address"] for row in rows if row["packet_type"] == "NAK"} == {
        truth.receiver_address(1)
    }


def test_the_same_seed_is_the_same_capture(tmp_path: Path) -> None:
    """Byte for byte; another seed is another one."""
    one = generate(tmp_path / "a.pcap", 5000, LOSSY)
    two = generate(tmp_path / "b.pcap", 5000, LOSSY)
    assert one.path.read_bytes() == two.path.read_bytes()
    assert np.array_equal(one.losses, two.losses)
    other = generate(tmp_path / "c.pcap", 5000, Traffic(seed=6, loss=0.01, message_bytes=40))
    assert other.path.read_bytes() != one.path.read_bytes()


def test_traffic_that_cannot_be(tmp_path: Path) -> None:
    """Is refused with what could be."""
    with pytest.raises(InvalidArgument, match="probabilities from 0 to 1"):
        generate(tmp_path / "c.pcap", 1, Traffic(loss=1.5))
    with pytest.raises(InvalidArgument, match="frames of up to"):
        generate(tmp_path / "c.pcap", 1, Traffic(message_bytes=10_000))
