"""Unwrapped sequence numbers, and the numbers seen at each capture point.

Each minute of a session has a reference: the first number seen in it, unwrapped by its signed distance from the
reference of the minute before. A session message counts as the number after its lead. A number is unwrapped by its
signed distance from the reference of its minute, which is correct as long as no number is further than 2**31 from it.

A source that restarts may keep its session id and begin with other numbers (`umstack.analysis.restarts`). The numbers
of each life of the source are in a region of their own, so that nothing between two lives counts as missing or as a
copy; `without_lives` removes the regions from the finished tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from umstack.analysis.restarts import restarts
from umstack.facts.facts import Facts
from umstack.facts.kinds import EPOCH_NS, SESSION
from umstack.facts.sends import Sends, Stream, distance, expanded, pieces_of, reordered, times_at

_HALF = 2**31
_EPOCHS_AFTER = 10
"""Number of minutes after the last number sent in which NAKs may still arrive."""
BUCKET_BITS = 15
_PIECE = 1 << 20
_LIFE_BITS = 48
"""Bits of a number within one life of a source. Unwrapped numbers are shorter."""
_SQN_COLUMNS = ("sqn", "first_sqn", "last_sqn", "low", "high")

Session = tuple[str, int]
Numbers = Any
"""An array of int64."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The references of one session: minutes in ascending order, and the unwrapped number of each."""

    epochs: Numbers
    numbers: Numbers
    restarts: dict[str, Numbers] = field(default_factory=dict)
    """The times at which the source restarted, by point of capture; empty if it never did."""

    def unwrap(self, sqns: Numbers, times_ns: Numbers, point: str) -> Numbers:
        """Unwrap sequence numbers seen at a point. Numbers in minutes without a reference are returned unchanged."""
        found = np.empty(len(sqns), np.int64)
        # The array is handled piece by piece, so that temporary arrays are no longer than a piece.
        for start in range(0, len(sqns), _PIECE):
            piece = slice(start, start + _PIECE)
            found[piece] = self._piece(sqns[piece].astype(np.int64), times_ns[piece])
        if point in self.restarts:
            found += np.searchsorted(self.restarts[point], times_ns, "right") << _LIFE_BITS
        return found

    def _piece(self, sqns: Numbers, times_ns: Numbers) -> Numbers:
        epoch = times_ns // EPOCH_NS
        # A minute without traffic uses the reference of the one before; NAKs may arrive a minute before the first.
        at = np.searchsorted(self.epochs, epoch, "right") - 1
        known = (epoch >= self.epochs[0] - 1) & (epoch <= self.epochs[-1] + _EPOCHS_AFTER)
        reference = self.numbers[np.maximum(at, 0)]
        return np.where(known, reference + distance(sqns, reference), sqns)


def _life(sqns: Numbers) -> Numbers:
    """Return the life of the source that each unwrapped number is from. Numbers below its first one may be negative."""
    return (sqns + (1 << (_LIFE_BITS - 1))) >> _LIFE_BITS


def references(facts: Facts) -> dict[Session, Reference]:
    """Return the references of every session."""
    found = {}
    restarted = restarts(facts)
    for (publisher, session_id), rows in facts.references.partition_by(list(SESSION), as_dict=True).items():
        first = rows.sort("epoch")
        wrapped = first["sqn"].to_numpy().astype(np.int64)
        steps = np.concatenate((wrapped[:1], distance(wrapped[1:], wrapped[:-1])))
        lives = restarted.get((publisher, session_id), {})
        found[publisher, session_id] = Reference(first["epoch"].to_numpy(), np.cumsum(steps), lives)
    return found


def unwrapped(rows: pl.DataFrame, known: dict[Session, Reference]) -> pl.DataFrame:
    """Return the rows (`point`, session columns, `time_ns`, `sqn`) with `sqn` unwrapped."""
    parts = [rows.clear()]
    for (point, publisher, session_id), part in rows.partition_by("point", *SESSION, as_dict=True).items():
        reference = known.get((publisher, session_id))
        if reference is not None:
            sqns = reference.unwrap(part["sqn"].to_numpy(), part["time_ns"].to_numpy(), point)
            part = part.with_columns(pl.Series("sqn", sqns, pl.Int64))
        parts.append(part)
    return pl.concat(parts)


@dataclass(frozen=True, slots=True)
class Seen:
    """The first transmissions of a session seen at a capture point, sorted by number, copies by time.

    Numbers are stored as runs: a number that repeats the previous one, or does not follow it, starts a run.
    """

    point: str
    session: Session
    receiver: str
    """The receiver that the datagrams were sent to; "" for a multicast group."""
    firsts: Numbers
    """The first number of each run."""
    lengths: Numbers
    times_ns: Numbers
    """Capture time of each number, in the order of the runs."""
    passed: tuple[Numbers, Numbers] = field(default_factory=lambda: (np.empty(0, np.int64),) * 2)
    """First and last numbers of runs that a filtering source reported as sent to the receiver or skipped for it, in any
    order: no number in them is missing."""
    lead: tuple[int, int] | None = None
    """The highest lead of the session messages, and the time of the first one with it; None without any."""

    def __len__(self) -> int:
        return len(self.times_ns)

    @property
    def lasts(self) -> Numbers:
        """The last number of each run."""
        return self.firsts + self.lengths - 1

    @property
    def begins(self) -> Numbers:
        """The index in `times_ns` of the start of each run."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def low(self) -> int:
        """The first number."""
        return int(self.firsts[0])

    @property
    def high(self) -> int:
        """The last number."""
        return int(self.firsts[-1] + self.lengths[-1] - 1)

    @property
    def sqns(self) -> Numbers:
        """Return every number."""
        return expanded(self.firsts, self.lengths)

    def copied(self) -> Numbers:
        """Return true for each run that starts with a copy of the number before it."""
        return np.concatenate(
            (np.zeros(min(1, len(self.firsts)), np.bool_), self.firsts[1:] == self.lasts[:-1])
        )

    def first_times(self) -> tuple[Numbers, Numbers]:
        """Return each number once, and the time at which it was first seen."""
        again = self.begins[self.copied()]
        return np.delete(self.sqns, again), np.delete(self.times_ns, again)

    def steps_back(self) -> Numbers:
        """Return the indices, among the numbers without copies, of those seen before the number in front of them."""
        again = self.begins[self.copied()]
        # A copy is given the time at which its number was first seen: then no time decreases at it.
        begins_chain = np.diff(again, prepend=-2) != 1
        original = again[begins_chain][np.cumsum(begins_chain) - 1] - 1
        found = [np.empty(0, np.int64)]
        for at, times in pieces_of(self.times_ns):
            low, high = np.searchsorted(again, (at[0], at[-1] + 1))
            if low < high:
                times = times.copy()
                times[np.searchsorted(at, again[low:high])] = self.times_ns[original[low:high]]
            # No time decreases where times were not kept.
            found.append(at[1:][np.diff(times) < 0])
        places = np.concatenate(found)
        return places - np.searchsorted(again, places)

    def first_times_at(self, places: Numbers) -> Numbers:
        """Return the times at which numbers were first seen, at these indices among the numbers without copies."""
        again = self.begins[self.copied()]
        return self.times_ns[places + np.searchsorted(again - np.arange(len(again)), places, "right")]

    def missing(self) -> tuple[Numbers, Numbers]:
        """Return runs of numbers, between the first and the last, that were neither seen nor skipped by a filter: their
        first and last numbers."""
        firsts, lasts = self.firsts, self.lasts
        if len(self.passed[0]):
            within = (self.passed[1] > self.low) & (self.passed[0] < self.high)
            firsts, lasts = (
                np.concatenate((mine, np.clip(reported[within], self.low, self.high)))
                for mine, reported in zip((firsts, lasts), self.passed, strict=True)
            )
            order = np.argsort(firsts, kind="stable")
            firsts, lasts = firsts[order], np.maximum.accumulate(lasts[order])
        same_life = _life(firsts[1:]) == _life(lasts[:-1])
        at = np.flatnonzero((firsts[1:] - lasts[:-1] > 1) & same_life)
        return lasts[at] + 1, firsts[at + 1] - 1

    def passed_over(self, wanted: Numbers) -> Numbers:
        """Return true for each wanted number that a filter skipped for the receiver."""
        order = np.argsort(self.passed[0], kind="stable")
        firsts, lasts = self.passed[0][order], np.maximum.accumulate(self.passed[1][order])
        at = np.searchsorted(firsts, wanted, "right") - 1
        reported = (at >= 0) & (wanted <= np.append(lasts, 0)[at])
        return reported & ~self.places(wanted)[0]

    def places(self, wanted: Numbers) -> tuple[Numbers, Numbers]:
        """Return for each wanted number true if it was seen, and the indices in `times_ns` of those seen (of
        copies, the first)."""
        if not len(self.firsts):
            return np.zeros(len(wanted), np.bool_), np.empty(0, np.int64)
        at = np.minimum(np.searchsorted(self.lasts, wanted), len(self.firsts) - 1)
        hit = (self.firsts[at] <= wanted) & (wanted <= self.lasts[at])
        return hit, (self.begins[at] + wanted - self.firsts[at])[hit]


def run_numbers(sends: Sends, reference: Reference, point: str) -> Numbers:
    """Return the unwrapped first number of each run."""
    begins = np.cumsum(sends.lengths) - sends.lengths
    return reference.unwrap(sends.firsts, sends.times_ns[begins], point)


def is_ascending(firsts: Numbers, lengths: Numbers) -> bool:
    """Return true if runs are in order of number and no number is in two of them."""
    return bool(np.all(firsts[1:] >= firsts[:-1] + lengths[:-1]))


@dataclass(frozen=True, slots=True)
class RunParts:
    """Runs divided where any of them starts or ends, so that two parts have the same numbers or none in common."""

    run: Numbers
    """The index of the run that each part belongs to."""
    firsts: Numbers
    lengths: Numbers
    is_shared: Numbers
    """True if another run has the same numbers."""

    @classmethod
    def of(cls, firsts: Numbers, lengths: Numbers) -> RunParts:
        """Divide runs, given by their unwrapped first numbers and lengths."""
        cuts = np.unique(np.concatenate((firsts, firsts + lengths)))
        low = np.searchsorted(cuts, firsts)
        many = np.searchsorted(cuts, firsts + lengths) - low
        at = expanded(low, many)
        shared = np.bincount(at, minlength=len(cuts)) > 1
        return cls(np.repeat(np.arange(len(firsts)), many), cuts[at], cuts[at + 1] - cuts[at], shared[at])


def _by_number(firsts: Numbers, lengths: Numbers, times_ns: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return the runs and times of a stream in order of number, copies by time."""
    parts = RunParts.of(firsts, lengths)
    places = (np.cumsum(lengths) - lengths - firsts)[parts.run] + parts.firsts
    # Only numbers that were seen again are ordered one by one.
    many = np.where(parts.is_shared, parts.lengths, 1)
    is_single = np.repeat(parts.is_shared, many)
    sqns, places = expanded(parts.firsts, many), expanded(places, many)
    counts = np.where(is_single, 1, np.repeat(parts.lengths, many))
    at_ns = np.zeros(len(sqns), np.int64)
    at_ns[is_single] = times_ns[places[is_single]]
    order = np.lexsort((at_ns, sqns))
    sqns, places, counts = sqns[order], places[order], counts[order]
    starts = np.concatenate(([0], np.flatnonzero(sqns[1:] != sqns[:-1] + counts[:-1]) + 1))
    return sqns[starts], np.add.reduceat(counts, starts), reordered(times_ns, places, counts)


def seen(facts: Facts, known: dict[Session, Reference]) -> list[Seen]:
    """Return the numbers seen, by capture point, session and receiver."""
    found = []
    leads = _leads(facts, known)
    passed = facts.passed.partition_by([*_STREAM], as_dict=True)
    for (point, publisher, session_id, receiver), sends in facts.sends.items():
        reference = known[publisher, session_id]
        firsts, lengths, times = run_numbers(sends, reference, point), sends.lengths, sends.times_ns
        if not is_ascending(firsts, lengths):
            firsts, lengths, times = _by_number(firsts, lengths, times)
        stream = (point, publisher, session_id, receiver)
        one = Seen(point, (publisher, session_id), receiver, firsts, lengths, times, lead=leads.get(stream))
        reported = passed.get(stream)
        if reported is not None:
            ends = (reported["first_sqn"].to_numpy(), reported["last_sqn"].to_numpy())
            reported_ns = reported["first_ns"].to_numpy()
            runs = tuple(reference.unwrap(sqns, reported_ns, point) for sqns in ends)
            one = replace(one, passed=runs)
        found.append(one)
    return found


def _leads(facts: Facts, known: dict[Session, Reference]) -> dict[Stream, tuple[int, int]]:
    """Return by stream the highest lead and the time of the first session message with it."""
    named = facts.leads.with_columns(pl.col("receiver").fill_null("")).rename({"first_ns": "time_ns"})
    rows = unwrapped(named, known).sort("sqn", "time_ns", descending=[True, False])
    highest = rows.unique([*_STREAM], keep="first", maintain_order=True)
    return {
        (point, publisher, session_id, receiver): (sqn, time_ns)
        for point, publisher, session_id, receiver, sqn, time_ns in highest.select(
            *_STREAM, "sqn", "time_ns"
        ).iter_rows()
    }


def _keyed(one: Seen, columns: dict[str, Numbers]) -> pl.DataFrame:
    publisher, session_id = one.session
    key = [pl.lit(one.point).alias("point"), pl.lit(publisher).alias("publisher")]
    key += [pl.lit(session_id, pl.Int64).alias("session_id")]
    return pl.DataFrame(columns).select(
        *key, pl.lit(one.receiver or None, pl.String).alias("receiver"), pl.all()
    )


_STREAM = {"point": pl.String, "publisher": pl.String, "session_id": pl.Int64, "receiver": pl.String}
COVERAGE = {
    **_STREAM,
    **dict.fromkeys(
        ("bucket", "low", "high", "low_ns", "high_ns", "datagrams", "distinct", "missing"), pl.Int64
    ),
}
GAPS = {
    **_STREAM,
    **dict.fromkeys(("topic_index", "first_sqn", "last_sqn", "before_ns", "after_ns", "missing"), pl.Int64),
}


def coverage(everything: list[Seen]) -> pl.DataFrame:
    """Return one row for each 32768 sequence numbers of a session at a point (over LBT-RU, for each receiver): how many
    were captured and how many are `missing`."""
    parts = [pl.DataFrame(schema=COVERAGE)]
    parts += [_keyed(one, _covered(one)) for one in everything if len(one)]
    return pl.concat(parts)


def _covered(one: Seen) -> dict[str, Numbers]:
    """Return the columns of `coverage` for one point. A run is cut where a bucket ends."""
    buckets = (one.lasts >> BUCKET_BITS) - (one.firsts >> BUCKET_BITS) + 1
    run = np.repeat(np.arange(len(one.firsts)), buckets)
    bucket = expanded(one.firsts >> BUCKET_BITS, buckets)
    low = np.maximum(one.firsts[run], bucket << BUCKET_BITS)
    high = np.minimum(one.lasts[run], ((bucket + 1) << BUCKET_BITS) - 1)
    place = one.begins[run] + low - one.firsts[run]
    is_copy = one.copied()[run] & (low == one.firsts[run])
    starts = np.flatnonzero(np.concatenate(([True], bucket[1:] != bucket[:-1])))
    ends = np.append(starts[1:], len(bucket)) - 1
    datagrams = np.add.reduceat(high - low + 1, starts)
    distinct = datagrams - np.add.reduceat(is_copy.astype(np.int64), starts)
    return {
        "bucket": bucket[starts],
        "low": low[starts],
        "high": high[ends],
        "low_ns": times_at(one.times_ns, place[starts]),
        "high_ns": times_at(one.times_ns, place[ends] + high[ends] - low[ends]),
        "datagrams": datagrams,
        "distinct": distinct,
        "missing": _missing_between(one, low[starts], high[ends]),
    }


def _missing_between(one: Seen, low: Numbers, high: Numbers) -> Numbers:
    """Return the count of missing numbers between each pair of seen numbers."""
    firsts, lasts = one.missing()
    upto = np.concatenate(([0], np.cumsum(lasts - firsts + 1)))
    return upto[np.searchsorted(firsts, high)] - upto[np.searchsorted(firsts, low)]


def gaps(everything: list[Seen], runs: pl.DataFrame) -> pl.DataFrame:
    """Return runs of sequence numbers whose first transmission was not captured, `first_sqn` to `last_sqn`, and their
    times; for LBT-TCP, with a `topic_index`, the topic sequence numbers missing from a connection."""
    parts = [pl.DataFrame(schema=GAPS), _topic_gaps(runs)]
    for one in everything:
        if not len(one):
            continue
        first, last = one.missing()
        begins = one.begins[np.searchsorted(one.firsts, first)]
        before_ns, after_ns = one.times_ns[begins - 1], one.times_ns[begins]
        # A filtering source may have skipped the numbers before the lead.
        if one.lead is not None and one.lead[0] > one.high and not len(one.passed[0]):
            first, last = np.append(first, one.high + 1), np.append(last, one.lead[0])
            before_ns, after_ns = np.append(before_ns, one.times_ns[-1]), np.append(after_ns, one.lead[1])
        columns = {
            "first_sqn": first,
            "last_sqn": last,
            "before_ns": before_ns,
            "after_ns": after_ns,
            "missing": last - first + 1,
        }
        parts.append(_keyed(one, columns).with_columns(topic_index=pl.lit(None, pl.Int64)).select([*GAPS]))
    return pl.concat(parts)


def _topic_gaps(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the numbers between two runs of a topic in a connection. Numbers that wrap leave no gap."""
    topic = ["point", *SESSION, "receiver", "topic_index"]
    before = {name: pl.col(name).shift().over(topic) for name in ("last_sqn", "last_ns")}
    first, last = before["last_sqn"] + 1, pl.col("first_sqn") - 1
    found = runs.sort(*topic, "first_sqn").select(
        *topic,
        first_sqn=first,
        last_sqn=last,
        before_ns=before["last_ns"],
        after_ns="first_ns",
        missing=last - first + 1,
    )
    return found.filter(pl.col("missing") < _HALF).select([*GAPS])


def sent_times(everything: list[Seen], wanted: pl.DataFrame) -> pl.DataFrame:
    """Return the time `sent_ns` at which each wanted number (`publisher`, `session_id`, `sqn`) was first seen at any
    point."""
    parts = [wanted.select(*SESSION, "sqn", pl.lit(0, pl.Int64).alias("sent_ns")).clear()]
    by_session = {
        (publisher, session_id): np.unique(rows["sqn"].to_numpy())
        for (publisher, session_id), rows in wanted.partition_by(list(SESSION), as_dict=True).items()
    }
    for one in everything:
        wanted_sqns = by_session.get(one.session)
        if wanted_sqns is None:
            continue
        hit, places = one.places(wanted_sqns)
        columns = {"sqn": wanted_sqns[hit], "sent_ns": times_at(one.times_ns, places)}
        parts.append(_keyed(one, columns).drop("point", "receiver"))
    return pl.concat(parts).group_by(*SESSION, "sqn").agg(pl.col("sent_ns").min())


def without_lives(table: pl.DataFrame) -> pl.DataFrame:
    """Return a finished table whose sequence numbers are those of the source, whichever life they are from."""
    present = [name for name in _SQN_COLUMNS if name in table.columns and table.schema[name] == pl.Int64]
    if "bucket" in table.columns:
        table = table.with_columns(_within_a_life(pl.col("bucket"), _LIFE_BITS - BUCKET_BITS))
    return table.with_columns(_within_a_life(pl.col(present), _LIFE_BITS)) if present else table


def _within_a_life(sqns: pl.Expr, bits: int) -> pl.Expr:
    half = 1 << (bits - 1)
    return ((sqns + half) & ((1 << bits) - 1)) - half


@dataclass(frozen=True, slots=True)
class Numbered:
    """Facts with their unwrapped sequence numbers."""

    facts: Facts
    known: dict[Session, Reference]
    everything: list[Seen]

    @classmethod
    def of(cls, facts: Facts) -> Numbered:
        """Unwrap the numbers of the facts."""
        known = references(facts)
        return cls(facts, known, seen(facts, known))


COPIES = {**_STREAM, "time_ns": pl.Int64}


def copies(everything: list[Seen]) -> pl.DataFrame:
    """Return one row, with `time_ns`, for each time that a number was seen again at a point."""
    parts = [pl.DataFrame(schema=COPIES)]
    parts += [_keyed(one, {"time_ns": one.times_ns[one.begins[one.copied()]]}) for one in everything]
    return pl.concat(parts)
