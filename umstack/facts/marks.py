"""Marks: the times at which some topic sequence numbers were sent, and were acknowledged by Stores.

Marked are the multiples of 64, and of these at most 1,024 for each topic and sender: the ones whose mixed bits are the
lowest. So any two parts of a capture choose the same numbers, and a number that one part left out is left out of the
whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from umstack._core import lib
from umstack.facts.points import points
from umstack.facts.schema import frame_schema

SQNS_PER_MARK: int = lib.UM_TALLY_MARK_SQNS
SAMPLES_MAX = 1024
_RANGE_MARKS_MAX = 64
"""Marks of one acknowledged range, the first ones: a forged one may cover all numbers."""
_RANGES_AT_ONCE = 1024
"""Ranges whose marks are sampled together, so that many forged ones take no more memory."""
_SQNS = 1 << 32
_MIX = 0x9E3779B1
_MANY = 16
Sender = tuple[str, str, int]
"""Point of capture, address and session of a source."""
_WHOSE = ("point", "client", "session", "topic_index", "store", "store_port")


def sent_marks(batch: pa.RecordBatch, messages: pa.Table) -> pl.DataFrame:
    """Return the marks of first sendings in a batch of packets; `messages` is the result of `sent_messages`."""
    marked = messages["topic_sqn"].to_numpy() % SQNS_PER_MARK == 0
    found = messages.filter(pa.array(marked))
    packets = found["packet"].combine_chunks()

    def of_packets(column: pa.Array) -> pl.Series:
        series = pl.from_arrow(column.take(packets))
        assert isinstance(series, pl.Series)
        return series

    count = len(found)
    return pl.DataFrame(
        {
            "point": of_packets(points(batch)),
            "client": of_packets(batch.column("source_address")),
            "session": of_packets(batch.column("session_id")),
            "topic_index": pl.Series(found["topic_index"].to_numpy(), dtype=pl.Int64),
            "store": pl.Series([None] * count, dtype=pl.String),
            "store_port": pl.Series([None] * count, dtype=pl.Int64),
            "sqn": pl.Series(found["topic_sqn"].to_numpy(), dtype=pl.Int64),
            "time_ns": of_packets(batch.column("time_ns")),
        }
    ).filter(pl.col("time_ns").is_not_null())


def acknowledged_marks(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the marks of ranges that Stores acknowledged: rows with `first_sqn`, `topic_sqn`, their ends and times."""
    marks = _marks_of(ranges[:_RANGES_AT_ONCE])
    for begin in range(_RANGES_AT_ONCE, len(ranges), _RANGES_AT_ONCE):
        more = _marks_of(ranges[begin : begin + _RANGES_AT_ONCE])
        marks = sampled(pl.concat([marks, more]).group_by(*_WHOSE, "sqn").agg(pl.col("time_ns").min()))
    return marks


def _marks_of(ranges: pl.DataFrame) -> pl.DataFrame:
    first, last = (ranges[name].cast(pl.Int64).to_numpy() for name in ("first_sqn", "topic_sqn"))
    numbers = (last - first) % _SQNS + 1
    before = -first % SQNS_PER_MARK
    counts = np.clip((numbers - before + SQNS_PER_MARK - 1) // SQNS_PER_MARK, 0, _RANGE_MARKS_MAX)
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    sqns = (np.repeat(first + before, counts) + place * SQNS_PER_MARK) % _SQNS
    whose = ranges.select("point", "client", "topic_index", "store", "store_port", "time_ns")
    rows = whose[np.repeat(np.arange(len(ranges)), counts)]
    marked = rows.with_columns(session=pl.lit(None, pl.Int64), sqn=pl.Series(sqns, dtype=pl.Int64))
    return marked.select(*_WHOSE, "sqn", "time_ns")


def _mixed(sqns: Any) -> Any:
    """Return the mixed bits of marked numbers of 64 bits, as numpy or Polars has them; different numbers differ."""
    return sqns // SQNS_PER_MARK * _MIX % _SQNS


def _thinned(marks: Any) -> Any:
    """Return the sample of the marks of one sender, as an array: the first time of each number."""
    mixed = _mixed(marks["sqn"].astype(np.uint64))
    marks = marks[np.lexsort((marks["time_ns"], mixed, marks["topic_index"]))]
    topic, sqn = marks["topic_index"], marks["sqn"]
    is_other = topic[1:] != topic[:-1]
    marks = marks[np.concatenate(([True], is_other | (sqn[1:] != sqn[:-1])))]
    topic = marks["topic_index"]
    begins = np.flatnonzero(np.concatenate(([True], topic[1:] != topic[:-1])))
    place = np.arange(len(marks)) - np.repeat(begins, np.diff(np.append(begins, len(marks))))
    return marks[place < SAMPLES_MAX]


class MarkPile:
    """Collects marks of sendings that the core counted, as arrays: before rows are made, sampling costs little."""

    def __init__(self) -> None:
        self._of: dict[Sender, list[Any]] = {}

    def add(self, sender: Sender, marks: Any) -> None:
        """Add a copy of an array with `time_ns`, `topic_index` and `sqn`."""
        waiting = self._of.setdefault(sender, [])
        waiting.append(marks.copy())
        if len(waiting) >= _MANY:
            self._of[sender] = [_thinned(np.concatenate(waiting))]

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yield the rows of each sender."""
        for (point, client, session), waiting in self._of.items():
            marks = _thinned(np.concatenate(waiting))
            columns = {name: pl.Series(marks[name].copy()) for name in ("topic_index", "sqn", "time_ns")}
            whose = {"point": point, "client": client, "session": session, "store": None, "store_port": None}
            rows = pl.DataFrame(columns).with_columns(**{name: pl.lit(one) for name, one in whose.items()})
            yield rows.select(pl.col(name).cast(kind) for name, kind in frame_schema("marks").items())


def sampled(marks: pl.DataFrame) -> pl.DataFrame:
    """Return the marks of the sample, in order. Sampling parts first gives the same."""
    if len(marks) <= SAMPLES_MAX:
        return marks
    mixed = _mixed(pl.col("sqn").cast(pl.UInt64))
    return marks.filter(mixed.rank("ordinal").over(_WHOSE) <= SAMPLES_MAX)


__all__ = [
    "SAMPLES_MAX",
    "SQNS_PER_MARK",
    "MarkPile",
    "Sender",
    "acknowledged_marks",
    "sampled",
    "sent_marks",
]
