"""When a source restarted and kept its session id, by the numbers of its first sendings.

First sendings are consecutive. Their numbers move back only by a reordering, which is short, and move on by a loss,
which is no longer than what can have been sent meanwhile. All other jumps are the start of another life of the source,
unless the capture has the numbers that connect both sides: then its clock was set back, and times overlap.
Points of capture have clocks of their own, so each has its own times of the restarts. A point that begins after all
others have ended shows a restart, too, if its numbers do not continue theirs.
"""

from __future__ import annotations

import numpy as np

from umstack.facts.facts import Facts
from umstack.facts.sends import Numbers, Sends, distance, times_at

_REORDERED = 1 << 12
"""First sendings may arrive this many numbers late."""
_PAUSE_NS = 100_000_000
_REORDERED_AFTER_PAUSE = 8
"""The same for the first one after a pause, which a reordering does not bridge."""
_CONNECTED = 8
"""Numbers that may be missing where one part of a life continues another."""
_LOST = 1 << 16
_LOST_PER_NS = 0.02
"""Numbers that may be missing at once, and more for each nanosecond since the one before: 20 million per second."""
_CLOCKS_NS = 10_000_000_000
"""Restarts at two points within this time are one restart."""

Session = tuple[str, int]
Place = tuple[str, str]
"""A point of capture and the receiver of a unicast copy."""


def restarts(facts: Facts) -> dict[Session, dict[str, Numbers]]:
    """Return for each session that restarted the times of its restarts, ascending, by point of capture."""
    found: dict[Session, dict[Place, Sends]] = {}
    for (point, publisher, session_id, receiver), sends in facts.sends.items():
        found.setdefault((publisher, session_id), {})[point, receiver] = sends
    return {session: lives for session, streams in found.items() if (lives := _aligned(_of_streams(streams)))}


def _of_streams(streams: dict[Place, Sends]) -> dict[Place, Numbers]:
    """Return the times at which the numbers of each stream start again, also after those of a stream that ended before
    it: the files of each day may have names of their own."""
    found = {place: _of_stream(sends) for place, sends in streams.items()}
    order = sorted(streams, key=lambda place: int(streams[place].times_ns[0]))
    last = streams[order[0]]
    for place in order[1:]:
        sends = streams[place]
        first_ns, last_ns = int(sends.times_ns[0]), int(last.times_ns[-1])
        jump = int(distance(np.int64(sends.firsts[0]), np.int64(last.last + 1)))
        waited_ns = first_ns - last_ns
        if waited_ns > _CLOCKS_NS and not -_REORDERED_AFTER_PAUSE <= jump <= _LOST + waited_ns * _LOST_PER_NS:
            found[place] = np.insert(found[place], 0, first_ns)
        last = sends if int(sends.times_ns[-1]) > last_ns else last
    return found


def _of_stream(sends: Sends) -> Numbers:
    """Return the times at which the numbers of a stream start again."""
    begins = np.cumsum(sends.lengths) - sends.lengths
    firsts = sends.firsts.astype(np.int64)
    at_ns, before_ns = times_at(sends.times_ns, begins[1:]), times_at(sends.times_ns, begins[1:] - 1)
    jumps = distance(firsts[1:], firsts[:-1] + sends.lengths[:-1])
    waited_ns = at_ns - before_ns
    back = np.where(waited_ns >= _PAUSE_NS, _REORDERED_AFTER_PAUSE, _REORDERED)
    restarted = np.flatnonzero((jumps < -back) | (jumps > _LOST + waited_ns * _LOST_PER_NS)) + 1
    if len(restarted):
        starts = np.union1d(np.append(restarted, 0), np.flatnonzero(np.abs(jumps) > _REORDERED) + 1)
        stops = np.append(starts[1:], len(firsts)) - 1
        lives = _lives(firsts[starts], firsts[stops] + sends.lengths[stops])
        parts = np.searchsorted(starts, restarted)
        restarted = restarted[lives[parts] != lives[parts - 1]]
    return at_ns[restarted - 1]


def _lives(firsts: Numbers, ends: Numbers) -> Numbers:
    """Return for each part of a stream the life it belongs to: a part that starts where another ends continues it."""
    order = np.argsort(firsts, kind="stable")
    places = np.searchsorted(firsts[order], ends)
    following = order[np.minimum(places, len(order) - 1)]
    lives = np.arange(len(firsts))

    def life_of(part: int) -> int:
        while lives[part] != part:
            lives[part] = part = lives[lives[part]]
        return part

    connected = (firsts[following] >= ends) & (firsts[following] <= ends + _CONNECTED)
    for part, after in zip(np.flatnonzero(connected), following[connected], strict=True):
        lives[life_of(int(part))] = life_of(int(after))
    return np.array([life_of(part) for part in range(len(lives))])


def _aligned(streams: dict[Place, Numbers]) -> dict[str, Numbers]:
    """Return the restarts that any stream saw, with the time at each point, or the time elsewhere if it saw none."""
    seen = sorted((int(time_ns), place) for place, times in streams.items() for time_ns in times)
    groups: list[dict[Place, int]] = []
    latest_ns = 0
    for time_ns, place in seen:
        if not groups or time_ns - latest_ns > _CLOCKS_NS or place in groups[-1]:
            groups.append({})
        groups[-1][place] = time_ns
        latest_ns = time_ns
    points = {point for point, _ in streams} if groups else ()
    return {point: np.array([_at(group, point) for group in groups], np.int64) for point in points}


def _at(group: dict[Place, int], point: str) -> int:
    """Return the time of a restart at a point."""
    own = [time_ns for place, time_ns in group.items() if place[0] == point]
    return min(own or group.values())
