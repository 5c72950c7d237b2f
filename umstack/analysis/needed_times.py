"""Which times of first sendings the tables need, so that the others can be omitted before facts are combined.

The tables look up the times of lost numbers, of the ends of runs, pauses and buckets, and of numbers near a copy or a
reordering. Those of all other first sendings are not used once they are counted. So the facts of a busy session are
combined in two steps, each in proportion to its losses and parts, not to its packets:

1. `outline` keeps the ends of the runs of each part. `needed` combines the outlines of all parts of a session and
   returns the numbers whose times the tables look up, of whichever part they are.
2. `thinned` keeps those times of each part, too. The thinned parts together have the same tables as all times.

A session that several points captured needs all times, because its latency is that of every datagram. So does one whose
parts overlap in time by more than a few packets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from umstack.analysis.numbering import BUCKET_BITS, RunParts, is_ascending, references, run_numbers
from umstack.analysis.stalls import STALL_NS
from umstack.analysis.traffic import STEP_DATAGRAMS
from umstack.facts.facts import Facts
from umstack.facts.sends import Numbers, Sends
from umstack.facts.sessions import Session

_WRAP = 2**32
_EDGE = 256
"""Sendings at each end of a part whose times are kept: parts of a capture may overlap by a few packets."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of wire numbers in ascending order, without an overlap: the first and last number of each, int64."""

    firsts: Numbers
    lasts: Numbers

    @classmethod
    def of(cls, firsts: Numbers, lasts: Numbers) -> Ranges:
        """Create them from ranges in any order, whose numbers may be unwrapped."""
        if np.any(lasts - firsts >= _WRAP):
            return EVERYTHING
        firsts, lasts = firsts % _WRAP, lasts % _WRAP
        wraps = firsts > lasts
        firsts = np.concatenate((firsts, np.zeros(int(wraps.sum()), np.int64)))
        lasts = np.concatenate((np.where(wraps, _WRAP - 1, lasts), lasts[wraps]))
        order = np.argsort(firsts)
        firsts, lasts = firsts[order], np.maximum.accumulate(lasts[order])
        starts = np.concatenate(([True], firsts[1:] > lasts[:-1] + 1))[: len(firsts)]
        ends = np.append(starts[1:], True)[: len(firsts)]
        return cls(firsts[starts], lasts[ends])

    def hold(self, sqns: Numbers) -> Numbers:
        """Return true for each wire number in one of the ranges."""
        at = np.searchsorted(self.firsts, sqns, "right") - 1
        return (at >= 0) & (sqns <= np.append(self.lasts, -1)[at])


NOTHING = Ranges(np.empty(0, np.int64), np.empty(0, np.int64))
EVERYTHING = Ranges(np.zeros(1, np.int64), np.full(1, _WRAP - 1))


def outline(sends: Sends) -> Sends:
    """Return the sendings of a part with the times that `needed` reads."""
    return thinned(sends, NOTHING)


def thinned(sends: Sends, numbers: Ranges) -> Sends:
    """Return the sendings of a part, which has all times, with those that the tables need.

    Args:
        sends: The sendings of one stream in the part.
        numbers: The numbers of its session from `needed`.
    """
    sqns, begins = sends.sqns, np.cumsum(sends.lengths) - sends.lengths
    keeps = numbers.hold(sqns)
    keeps[:_EDGE] = keeps[max(0, len(keeps) - _EDGE) :] = True
    keeps[begins] = keeps[begins + sends.lengths - 1] = True
    of_bucket = sqns & (2**BUCKET_BITS - 1)
    keeps |= (of_bucket == 0) | (of_bucket == 2**BUCKET_BITS - 1)
    paused = np.flatnonzero(np.diff(sends.times_ns) > STALL_NS)
    keeps[paused] = keeps[paused + 1] = True
    places = np.flatnonzero(keeps)
    return Sends.of_kept(sqns[places], sends.times_ns[places], places)


def needed(facts: Facts) -> dict[Session, Ranges]:
    """Return the numbers by session whose times the tables look up.

    Args:
        facts: All facts of the sessions, of the sendings only the outlines.
    """
    named = _named(facts)
    known = references(facts)
    found: dict[Session, list[tuple[Numbers, Numbers]]] = {}
    captured: set[tuple[Session, str]] = set()
    for (point, publisher, session_id, receiver), sends in facts.sends.items():
        session = (publisher, session_id)
        ranges = found.setdefault(session, [named.get(session, _NONE)])
        if (session, receiver) in captured:
            ranges.append((EVERYTHING.firsts, EVERYTHING.lasts))
        captured.add((session, receiver))
        firsts = run_numbers(sends, known[session], point)
        if not is_ascending(firsts, sends.lengths):
            ranges.append(_disordered(RunParts.of(firsts, sends.lengths)))
    return {
        session: Ranges.of(*(np.concatenate(ends) for ends in zip(*ranges, strict=True)))
        for session, ranges in found.items()
    }


_NONE = (NOTHING.firsts, NOTHING.lasts)


def _disordered(parts: RunParts) -> tuple[Numbers, Numbers]:
    """Return the numbers of copies, and those near the end of a part, where times may decrease."""
    lasts = parts.firsts + parts.lengths - 1
    near = STEP_DATAGRAMS + 1
    shared = (parts.firsts[parts.is_shared] - near, lasts[parts.is_shared] + near)
    return (
        np.concatenate((shared[0], parts.firsts - near, lasts - near)),
        np.concatenate((shared[1], parts.firsts + near, lasts + near)),
    )


def _named(facts: Facts) -> dict[Session, tuple[Numbers, Numbers]]:
    """Return the numbers that NAKs, NCFs and retransmissions name, each with the one after it: incidents end there."""
    parts: dict[Session, list[Numbers]] = {}
    for rows in facts.rare.slices():
        for (publisher, session_id), own in rows.partition_by(
            "publisher", "session_id", as_dict=True
        ).items():
            numbers = pl.concat([own["sqn"], own["sqns"].explode()]).drop_nulls().unique().to_numpy()
            parts.setdefault((publisher, session_id), []).append(numbers)
    named = {session: np.unique(np.concatenate(numbers)) for session, numbers in parts.items()}
    return {session: (numbers, numbers + 1) for session, numbers in named.items()}
