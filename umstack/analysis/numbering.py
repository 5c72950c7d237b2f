"""Sequence numbers that do not wrap, and what was seen of them at a point of capture.

Each minute of a session has a reference, the first number seen in it, unwrapped by its signed distance from the one of
the minute before. A session message counts as the number behind its lead. A number is unwrapped by its signed distance
from the reference of its minute: right as long as none is further than 2**31 from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from umstack.facts.facts import Facts
from umstack.facts.kinds import EPOCH_NS, SESSION

_HALF = 2**31
_MASK = 2**32 - 1
_EPOCHS_AFTER = 10
"""NAKs may come so many minutes after the last number that was sent."""
BUCKET_BITS = 15
_PIECE = 1 << 20

Session = tuple[str, int]
Numbers = Any
"""An array of int64."""


def _distance(later: Numbers, earlier: Numbers) -> Numbers:
    return ((later - earlier + _HALF) & _MASK) - _HALF


@dataclass(frozen=True, slots=True)
class Reference:
    """The references of one session: minutes in order, and the unwrapped number of each."""

    epochs: Numbers
    numbers: Numbers

    def unwrap(self, sqns: Numbers, times_ns: Numbers) -> Numbers:
        """Numbers of the wire, unwrapped. Where the session's minute is not known they stay as they are."""
        found = np.empty(len(sqns), np.int64)
        # Piece by piece: what is worked out on the way is as long as a piece.
        for start in range(0, len(sqns), _PIECE):
            piece = slice(start, start + _PIECE)
            found[piece] = self._piece(sqns[piece].astype(np.int64), times_ns[piece])
        return found

    def _piece(self, sqns: Numbers, times_ns: Numbers) -> Numbers:
        epoch = times_ns // EPOCH_NS
        # A quiet minute keeps the reference of the one before it; NAKs may come a minute before the first.
        at = np.searchsorted(self.epochs, epoch, "right") - 1
        known = (epoch >= self.epochs[0] - 1) & (epoch <= self.epochs[-1] + _EPOCHS_AFTER)
        reference = self.numbers[np.maximum(at, 0)]
        return np.where(known, reference + _distance(sqns, reference), sqns)


def references(facts: Facts) -> dict[Session, Reference]:
    """The references of every session."""
    found = {}
    for (publisher, session_id), rows in facts.references.partition_by(list(SESSION), as_dict=True).items():
        first = rows.sort("epoch")
        wrapped = first["sqn"].to_numpy().astype(np.int64)
        steps = np.concatenate((wrapped[:1], _distance(wrapped[1:], wrapped[:-1])))
        found[publisher, session_id] = Reference(first["epoch"].to_numpy(), np.cumsum(steps))
    return found


def unwrapped(rows: pl.DataFrame, known: dict[Session, Reference]) -> pl.DataFrame:
    """Rows of the session's columns, `time_ns` and `sqn`, with `sqn` unwrapped."""
    parts = [rows.clear()]
    for (publisher, session_id), part in rows.partition_by(list(SESSION), as_dict=True).items():
        reference = known.get((publisher, session_id))
        if reference is not None:
            sqns = reference.unwrap(part["sqn"].to_numpy(), part["time_ns"].to_numpy())
            part = part.with_columns(pl.Series("sqn", sqns, pl.Int64))
        parts.append(part)
    return pl.concat(parts)


@dataclass(frozen=True, slots=True)
class Seen:
    """The first sendings of a session that a point of capture saw: by number, copies by time."""

    point: str
    session: Session
    sqns: Numbers
    times_ns: Numbers

    def first_times(self) -> tuple[Numbers, Numbers]:
        """Each number once, and when it was first seen."""
        first = np.concatenate(([True], self.sqns[1:] != self.sqns[:-1]))[: len(self.sqns)]
        return self.sqns[first], self.times_ns[first]


def seen(facts: Facts, known: dict[Session, Reference]) -> list[Seen]:
    """What was seen, point by point."""
    found = []
    for (point, publisher, session_id), rows in facts.sends.items():
        times = rows["time_ns"].to_numpy()
        sqns = known[publisher, session_id].unwrap(rows["sqn"].to_numpy(), times)
        if len(sqns) > 1 and not np.all(sqns[1:] > sqns[:-1]):
            order = np.lexsort((times, sqns))
            sqns, times = sqns[order], times[order]
        found.append(Seen(point, (publisher, session_id), sqns, times))
    return found


def _keyed(one: Seen, columns: dict[str, Numbers]) -> pl.DataFrame:
    publisher, session_id = one.session
    key = [pl.lit(one.point).alias("point"), pl.lit(publisher).alias("publisher")]
    return pl.DataFrame(columns).select(*key, pl.lit(session_id, pl.Int64).alias("session_id"), pl.all())


COVERAGE = {
    "point": pl.String,
    "publisher": pl.String,
    "session_id": pl.Int64,
    **dict.fromkeys(
        ("bucket", "low", "high", "low_ns", "high_ns", "datagrams", "distinct", "missing"), pl.Int64
    ),
}
GAPS = {
    "point": pl.String,
    "publisher": pl.String,
    "session_id": pl.Int64,
    **dict.fromkeys(("first_sqn", "last_sqn", "before_ns", "after_ns", "missing"), pl.Int64),
}


def coverage(everything: list[Seen]) -> pl.DataFrame:
    """One row for each 32768 sequence numbers of a session at a point: how many were captured, how many `missing`."""
    parts = [pl.DataFrame(schema=COVERAGE)]
    for one in everything:
        if not len(one.sqns):
            continue
        edges = np.arange(one.sqns[0] >> BUCKET_BITS, (one.sqns[-1] >> BUCKET_BITS) + 2) << BUCKET_BITS
        bounds = np.searchsorted(one.sqns, edges)
        filled = bounds[1:] > bounds[:-1]
        starts, ends = bounds[:-1][filled], bounds[1:][filled]
        fresh = np.ones(len(one.sqns), np.bool_)
        np.not_equal(one.sqns[1:], one.sqns[:-1], out=fresh[1:])
        distinct = np.add.reduceat(fresh, starts, dtype=np.int64)
        low, high = one.sqns[starts], one.sqns[ends - 1]
        columns = {
            "bucket": edges[:-1][filled] >> BUCKET_BITS,
            "low": low,
            "high": high,
            "low_ns": one.times_ns[starts],
            "high_ns": one.times_ns[ends - 1],
            "datagrams": ends - starts,
            "distinct": distinct,
            "missing": high - low + 1 - distinct,
        }
        parts.append(_keyed(one, columns))
    return pl.concat(parts)


def _holes(sqns: Numbers) -> Numbers:
    """The places behind which a number is missing."""
    found = [np.empty(0, np.int64)]
    for start in range(0, len(sqns) - 1, _PIECE):
        piece = sqns[start : start + _PIECE + 1]
        found.append(np.flatnonzero(piece[1:] - piece[:-1] > 1) + start)
    return np.concatenate(found)


def gaps(everything: list[Seen]) -> pl.DataFrame:
    """Runs of sequence numbers whose first sending was not captured: `first_sqn` to `last_sqn`, and when."""
    parts = [pl.DataFrame(schema=GAPS)]
    for one in everything:
        at = _holes(one.sqns)
        first, last = one.sqns[at] + 1, one.sqns[at + 1] - 1
        columns = {
            "first_sqn": first,
            "last_sqn": last,
            "before_ns": one.times_ns[at],
            "after_ns": one.times_ns[at + 1],
            "missing": last - first + 1,
        }
        parts.append(_keyed(one, columns))
    return pl.concat(parts)


def sent_times(everything: list[Seen], wanted: pl.DataFrame) -> pl.DataFrame:
    """When numbers (`publisher`, `session_id`, `sqn`) were first sent, of those that some point saw: `sent_ns`."""
    parts = [wanted.select(*SESSION, "sqn", pl.lit(0, pl.Int64).alias("sent_ns")).clear()]
    by_session = {
        (publisher, session_id): np.unique(rows["sqn"].to_numpy())
        for (publisher, session_id), rows in wanted.partition_by(list(SESSION), as_dict=True).items()
    }
    for one in everything:
        asked = by_session.get(one.session)
        if asked is None or not len(one.sqns):
            continue
        at = np.minimum(np.searchsorted(one.sqns, asked), len(one.sqns) - 1)
        hit = one.sqns[at] == asked
        columns = {"sqn": asked[hit], "sent_ns": one.times_ns[at[hit]]}
        parts.append(_keyed(one, columns).drop("point"))
    return pl.concat(parts).group_by(*SESSION, "sqn").agg(pl.col("sent_ns").min())


@dataclass(frozen=True, slots=True)
class Numbered:
    """Facts, with what is known of their sequence numbers."""

    facts: Facts
    known: dict[Session, Reference]
    everything: list[Seen]

    @classmethod
    def of(cls, facts: Facts) -> Numbered:
        """Unwrap the numbers of facts."""
        known = references(facts)
        return cls(facts, known, seen(facts, known))


COPIES = {"point": pl.String, "publisher": pl.String, "session_id": pl.Int64, "time_ns": pl.Int64}


def copies(everything: list[Seen]) -> pl.DataFrame:
    """One row each time a number was seen again at a point: `time_ns`."""
    parts = [pl.DataFrame(schema=COPIES)]
    for one in everything:
        again = np.flatnonzero(one.sqns[1:] == one.sqns[:-1]) + 1
        parts.append(_keyed(one, {"time_ns": one.times_ns[again]}))
    return pl.concat(parts)
