"""First transmissions as runs: any capture, in any pieces, has the same result as single sqns and times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("polars")

import itertools

from umstack.analysis.numbering import BUCKET_BITS, Numbered, copies, coverage, gaps, sent_times
from umstack.facts import sends as sends_module
from umstack.facts.facts import Facts, Pieces, frame_schema
from umstack.facts.sends import Sends, SendsInPieces

pl: Any = pytest.importorskip("polars")

KEY = ("switch", "10.0.0.1", 7, None)
WRAP = 2**32

# Runs that continue, leave gaps, step back and repeat sqns: near the wrap, and across the end of a bucket.
runs = st.lists(st.tuples(st.integers(-6, 8), st.integers(1, 6)), max_size=12)
starts = st.sampled_from([0, 100, (1 << BUCKET_BITS) - 9, WRAP - 20])


@st.composite
def captured(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Sqns that do not wrap, and times, in order of time."""
    found, number, time_ns = [], draw(starts) + 10, 1_000
    for step, length in draw(runs):
        number += step
        for _ in range(length):
            found.append((max(number, 0), time_ns))
            number += 1
            time_ns += draw(st.integers(0, 2))
    return found


def arrays(found: list[tuple[int, int]]) -> tuple[Any, Any]:
    """Return them as arrays of a capture."""
    numbers = np.array([number % WRAP for number, _ in found], np.uint32)
    return numbers, np.array([time_ns for _, time_ns in found], np.int64)


@given(captured(), st.data())
def test_merging_in_any_order_gives_the_whole(found: list[tuple[int, int]], data: st.DataObject) -> None:
    """Facts of parts that are merged in any order equal those of the whole, also with a file for the times."""
    whole = Sends.of(*arrays(found))
    assert sorted(zip(whole.times_ns.tolist(), whole.sqns.tolist(), strict=True)) == sorted(
        (time_ns, number % WRAP) for number, time_ns in found
    )
    assert (np.diff(whole.times_ns) >= 0).all()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(found)), max_size=4)))
    parts = [found[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(found)], strict=True)]
    pieces = SendsInPieces()
    for part in data.draw(st.permutations(parts)):
        pieces.add(Sends.of(*arrays(part)))
    if found:
        assert pieces.sends().equals(whole)


@given(captured())
def test_times_in_a_file_are_the_same(found: list[tuple[int, int]]) -> None:
    """Many times are stored in a file, piece by piece and in any order."""
    whole, most = Sends.of(*arrays(found)), sends_module._SPILL_SENDS
    sends_module._SPILL_SENDS = 4
    try:
        pieces = SendsInPieces(spills=True)
        for begin in range(0, len(found), 3):
            pieces.add(Sends.of(*arrays(found[begin : begin + 3])))
        if found:
            assert pieces.sends().equals(whole)
    finally:
        sends_module._SPILL_SENDS = most


@given(captured())
def test_analyses_of_runs(found: list[tuple[int, int]]) -> None:
    """Coverage, gaps, copies and send times equal those computed from single sqns."""
    if not found:
        return
    pieces = Pieces()
    pieces.add_sends(KEY, Sends.of(*arrays(found)))
    first = min((time_ns, number % WRAP) for number, time_ns in found)
    stored = {"publisher": KEY[1], "session_id": KEY[2], "epoch": 0, "time_ns": first[0], "sqn": first[1]}
    pieces.add("references", pl.DataFrame([stored], frame_schema("references")))
    everything = Numbered.of(pieces.facts()).everything
    # Sqns are unwrapped relative to the first one.
    shift = first[1] - next(number for number, time_ns in found if (time_ns, number % WRAP) == first)
    seen = sorted((number + shift, time_ns) for number, time_ns in found)
    numbers = [number for number, _ in seen]
    [one] = everything
    assert one.sqns.tolist() == numbers
    assert one.times_ns.tolist() == [time_ns for _, time_ns in seen]
    distinct = sorted(set(numbers))
    assert gaps(everything, pieces.facts().runs).select("first_sqn", "last_sqn").rows() == [
        (before + 1, after - 1) for before, after in itertools.pairwise(distinct) if after - before > 1
    ]
    again = [time_ns for at, (number, time_ns) in enumerate(seen) if at and numbers[at - 1] == number]
    assert copies(everything)["time_ns"].to_list() == again
    rows = coverage(everything).rows(named=True)
    buckets = sorted({number >> BUCKET_BITS for number in numbers})
    assert [row["bucket"] for row in rows] == buckets
    for row in rows:
        own = [one for one in seen if one[0] >> BUCKET_BITS == row["bucket"]]
        assert (row["low"], row["high"]) == (own[0][0], own[-1][0])
        assert (row["low_ns"], row["high_ns"]) == (own[0][1], own[-1][1])
        assert (row["datagrams"], row["distinct"]) == (len(own), len({number for number, _ in own}))
        assert row["missing"] == row["high"] - row["low"] + 1 - row["distinct"]
    asked = list(range(numbers[0] - 3, numbers[-1] + 4))
    wanted = pl.DataFrame(
        {"publisher": [KEY[1]] * len(asked), "session_id": [KEY[2]] * len(asked), "sqn": asked}
    )
    times = dict(reversed(seen))
    found_times = sent_times(everything, wanted).sort("sqn")
    assert dict(found_times.select("sqn", "sent_ns").rows()) == times
    at_first = {number: min(t for n, t in seen if n == number) for number in distinct}
    sqns, first_ns = one.first_times()
    assert dict(zip(sqns.tolist(), first_ns.tolist(), strict=True)) == at_first
    assert Facts.merged([pieces.facts()]).equals(pieces.facts())
