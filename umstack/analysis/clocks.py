"""The clocks of capture points compared, so that all times of a session are of one clock.

Datagrams pass two points in one direction, NAKs in the other, and both reach their second point later than their first.
If a single offset of the clocks makes this true of all of them, it lies between two bounds: their middle is the
estimate, and half of their distance its uncertainty. If no single offset does, the clocks drift apart, and the estimate
is a line through the offsets of short periods. A clock is corrected only if its times contradict the order of events:
with an offset of 0 something would arrive before it was sent.

A clock that is set ahead once has two offsets, if the datagrams before and after that time show the same difference. A
clock that is set back is not corrected: its times before and after overlap.

Without NAKs seen at both points nothing is known about the offset, and nothing is corrected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from umstack.analysis.numbering import Numbers, Seen, Session
from umstack.analysis.rare_rows import RareSlices
from umstack.facts.kinds import SESSION

_PERIODS = 32
"""Number of periods in which the offset is estimated separately if the clocks drift."""
_PERIODS_MIN = 3
_ROUNDS = 3
_STEP_MIN_NS = 500_000_000
"""Smaller steps are taken for a network that becomes slower."""
_STEP_TOLERANCE = 0.1
"""Largest difference between a step and the jump at it, as a share of the step."""


@dataclass(frozen=True, slots=True)
class Clock:
    """How far the clock of a point is ahead of that of the reference point, by NAKs and datagrams seen at both."""

    session: Session
    point: str
    reference: str
    offset_ns: float
    """At `at_ns`."""
    uncertainty_ns: float
    drift: float
    """Nanoseconds that it gains per nanosecond."""
    at_ns: int
    is_corrected: bool
    """False if the offset may be 0: the times are used as captured."""
    step_ns: int = 0
    """How far the clock was set ahead at `stepped_ns`; negative if that of the reference point was."""
    stepped_ns: int = 0
    """The first of its times after the step."""

    def corrected(self, times_ns: Numbers) -> Numbers:
        """Return times of this clock as times of the reference point's."""
        ahead = self.offset_ns + self.drift * (times_ns - self.at_ns)
        stepped = np.where(times_ns >= self.stepped_ns, self.step_ns, 0)
        return times_ns - np.rint(ahead).astype(np.int64) - stepped


Clocks = dict[tuple[Session, str], Clock]
"""By session and point."""


def on_one_clock(everything: list[Seen], slices: RareSlices) -> tuple[list[Seen], RareSlices, Clocks]:
    """Return the datagrams and rare packets with corrected times, and the clocks that could be compared."""
    clocks = {(clock.session, clock.point): clock for clock in _clocks(everything, slices)}
    wrong = {key: clock for key, clock in clocks.items() if clock.is_corrected}
    if not wrong:
        return everything, slices, clocks
    seen = [
        replace(one, times_ns=wrong[one.session, one.point].corrected(one.times_ns))
        if (one.session, one.point) in wrong
        else one
        for one in everything
    ]
    return seen, slices.changed(lambda rows: shifted(rows, clocks)), clocks


def shifted(rows: pl.DataFrame, clocks: Clocks, columns: tuple[str, ...] = ("time_ns",)) -> pl.DataFrame:
    """Return rows (`point`, session, times in nanoseconds) with the times of wrong clocks corrected."""
    for ((publisher, session_id), point), clock in clocks.items():
        if not clock.is_corrected:
            continue
        of_it = (pl.col("point") == point) & (pl.col("publisher") == publisher)
        since = (pl.col(columns) - clock.at_ns).cast(pl.Float64)
        stepped = pl.when(pl.col(columns) >= clock.stepped_ns).then(clock.step_ns).otherwise(0)
        ahead = (clock.offset_ns + clock.drift * since).round().cast(pl.Int64)
        corrected = pl.col(columns) - ahead - stepped
        rows = rows.with_columns(
            pl.when(of_it & (pl.col("session_id") == session_id)).then(corrected).otherwise(pl.col(columns))
        )
    return rows


def _clocks(everything: list[Seen], slices: RareSlices) -> Iterator[Clock]:
    sessions: dict[Session, dict[str, list[Seen]]] = {}
    for one in everything:
        if len(one):
            sessions.setdefault(one.session, {}).setdefault(one.point, []).append(one)
    pairs = []
    for session, points in sessions.items():
        reference = min(points, key=lambda point: (-sum(map(len, points[point])), point))
        pairs += [(session, reference, point) for point in sorted(points.keys() - {reference})]
    up: list[list[tuple[Numbers, Numbers]]] = [[] for _ in pairs]
    for rows in slices if pairs else ():
        for found, (session, reference, point) in zip(up, pairs, strict=True):
            naks = rows.naks.filter(**dict(zip(SESSION, session, strict=True)))
            found.append(_up(naks, reference, point))
    for found, (session, reference, point) in zip(up, pairs, strict=True):
        own = sessions[session]
        up_ns, up_at = (np.concatenate(one) for one in zip(*found, strict=True))
        clock = _clock(session, (reference, own[reference]), (point, own[point]), up_ns, up_at)
        if clock is not None:
            yield clock


def _clock(
    session: Session,
    reference: tuple[str, list[Seen]],
    other: tuple[str, list[Seen]],
    up_ns: Numbers,
    up_at: Numbers,
) -> Clock | None:
    # Without NAKs, the many datagrams need not be compared.
    if not len(up_ns):
        return None
    down_ns, down_at = _down(reference[1], other[1])
    if not len(down_ns):
        return None
    at_ns = int(down_at[0])
    down_at, up_at = down_at - at_ns, up_at - at_ns
    step_ns, stepped_at = _step(down_ns, down_at)
    if step_ns:
        down_ns = down_ns - step_ns * (down_at >= stepped_at)
        up_ns = up_ns + step_ns * (up_at >= stepped_at)
    # Whichever point comes first, the offset cancels in the sum of both directions.
    sign = 1 if _middle_sum(down_ns, down_at, up_ns, up_at) >= 0 else -1
    down_ns, up_ns = sign * down_ns, sign * up_ns
    drift = 0.0
    low, high = -float(up_ns.min()), float(down_ns.min())
    if low > high:
        drift = _slope(down_ns, down_at, up_ns, up_at)
        low, high = -float((up_ns + drift * up_at).min()), float((down_ns - drift * down_at).min())
    is_corrected = drift != 0 or step_ns != 0 or not low <= 0 <= high
    middle, half = (low + high) / 2, abs(high - low) / 2
    clock = Clock(session, other[0], reference[0], sign * middle, half, sign * drift, at_ns, is_corrected)
    return replace(clock, step_ns=step_ns, stepped_ns=at_ns + stepped_at)


def _step(down_ns: Numbers, down_at: Numbers) -> tuple[int, int]:
    """Return how far one clock was set ahead of the other, and the other's first time after that; zeros if it was not.

    All datagrams after a step differ by it from all before. After a pause of the network, delays are as before.
    """
    if len(down_ns) < 2:
        return 0, 0
    order = np.argsort(down_at, kind="stable")
    took, at = down_ns[order], down_at[order]
    first_after = int(np.argmax(np.abs(np.diff(took)))) + 1
    step_ns = int(took[first_after:].min() - took[:first_after].min())
    jump_ns = int(took[first_after] - took[first_after - 1])
    if abs(step_ns) < _STEP_MIN_NS or abs(jump_ns - step_ns) > abs(step_ns) * _STEP_TOLERANCE:
        return 0, 0
    return step_ns, int(at[first_after])


def _down(reference: list[Seen], other: list[Seen]) -> tuple[Numbers, Numbers]:
    """Return the times from the reference point to the other one of all first sendings seen at both, and when."""
    took, at = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    by_receiver = {one.receiver: one for one in other}
    for here in reference:
        there = by_receiver.get(here.receiver)
        if there is None:
            continue
        here_sqns, here_ns = here.first_times()
        there_sqns, there_ns = there.first_times()
        _, mine, theirs = np.intersect1d(here_sqns, there_sqns, assume_unique=True, return_indices=True)
        took.append(there_ns[theirs] - here_ns[mine])
        at.append(there_ns[theirs])
    return np.concatenate(took), np.concatenate(at)


def _up(naks: pl.DataFrame, reference: str, other: str) -> tuple[Numbers, Numbers]:
    """Return the times from the other point to the reference one of the NAKs that both saw all of, and when."""
    key = ["receiver", "sqn"]
    of_point = [
        naks.filter(point=point).group_by(key).agg(pl.col("time_ns").sort()) for point in (reference, other)
    ]
    both = of_point[0].join(of_point[1], key, suffix="_other")
    times = ["time_ns", "time_ns_other"]
    both = both.filter(pl.col(times[0]).list.len() == pl.col(times[1]).list.len()).explode(times)
    there_ns = both[times[1]].to_numpy()
    return both[times[0]].to_numpy() - there_ns, there_ns


def _periods(down_at: Numbers, up_at: Numbers) -> tuple[Numbers, Numbers]:
    """Return the period of each time; the periods are of equal length."""
    low, high = min(down_at.min(), up_at.min()), max(down_at.max(), up_at.max())
    length = (high - low) // _PERIODS + 1
    return (down_at - low) // length, (up_at - low) // length


def _middle_sum(down_ns: Numbers, down_at: Numbers, up_ns: Numbers, up_at: Numbers) -> float:
    """Return the usual sum of a time down and a time up within one period."""
    down_in, up_in = _periods(down_at, up_at)
    common = np.intersect1d(down_in, up_in)
    if not len(common):
        return float(np.median(down_ns) + np.median(up_ns))
    sums = [np.median(down_ns[down_in == one]) + np.median(up_ns[up_in == one]) for one in common]
    return float(np.median(sums))


def _slope(down_ns: Numbers, down_at: Numbers, up_ns: Numbers, up_at: Numbers) -> float:
    """Return the drift: the slope of the offsets of the periods that have both directions."""
    down_in, up_in = _periods(down_at, up_at)
    common = np.intersect1d(down_in, up_in)
    if len(common) < _PERIODS_MIN:
        return 0.0
    drift = 0.0
    for _ in range(_ROUNDS):
        down, up = down_ns - drift * down_at, up_ns + drift * up_at
        offsets = [(down[down_in == one].min() - up[up_in == one].min()) / 2 for one in common]
        middles = [down_at[down_in == one].mean() for one in common]
        drift += float(np.polyfit(middles, offsets, 1)[0])
    return drift
