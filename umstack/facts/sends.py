"""Sends: the first sendings of a session at a point of capture, in order of time.

Numbers are nearly always consecutive, so they are stored as runs, each a first number and a length. Only times are
stored one by one. A first sending takes 8 bytes, and 12 more if it starts a new run. Spilled times are kept in an
unnamed, mapped file whose pages the system can reclaim, so memory does not grow with a capture of consecutive numbers.
Where analyses need few of the times, only these are stored (`umstack.facts.kept_times`). The objects are immutable and
not shared by threads.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from umstack.facts.kept_times import KeptTimes, NotKeptError

Numbers = Any
"""A numpy array of numbers."""

Stream = tuple[str, str, int, str]
"""Point of capture, publisher, session id, and the receiver of a unicast copy, or "" for a multicast group."""

_WRAP = 2**32
_LARGE_FILES = "/var/tmp"
_PLACES = 1 << 9
"""Pages that are mapped at a time. The kernel maps sixteen for each page that is read."""
_PIECE = 1 << 20
"""The number of times in a piece that is read at once."""
_SPILL_SENDS = 1 << 20
"""The number of times per stream that are held in memory before they are written to its file."""


@dataclass(frozen=True, slots=True)
class Sends:
    """First sendings in order of time, then of number."""

    firsts: Numbers
    """The first wire number of each run, uint32."""
    lengths: Numbers
    """The length of each run, int64. Its numbers are consecutive modulo 2^32."""
    times_ns: Numbers
    """The capture time of each first sending, int64; or `KeptTimes`, with those at both ends of each run."""

    def __len__(self) -> int:
        return len(self.times_ns)

    @classmethod
    def of(cls, sqns: Numbers, times_ns: Numbers) -> Sends:
        """Create it from numbers and times in any order."""
        if not _is_in_order(sqns, times_ns):
            order = np.lexsort((sqns, times_ns))
            sqns, times_ns = sqns[order], times_ns[order]
        firsts, lengths = _runs(sqns)
        return cls(firsts, lengths, times_ns)

    @classmethod
    def of_kept(cls, sqns: Numbers, times_ns: Numbers, places: Numbers) -> Sends:
        """Create it from those sendings whose times are kept, in order, and their indices among all.

        Args:
            sqns: Their numbers, uint32. Both ends of each run are among them, so the numbers between are known.
            times_ns: Their times.
            places: Their indices, ascending from 0. The last one is that of the last sending.

        Raises:
            NotKeptError: The end of a run is missing.
        """
        steps = np.diff(places)
        breaks = np.flatnonzero(np.diff(sqns) != steps.astype(np.uint32)) + 1
        if np.any(steps[breaks - 1] != 1):
            raise NotKeptError("the end of a run was not kept")
        begins = np.concatenate(([0], breaks))
        lengths = np.diff(places[begins], append=places[-1] + 1)
        is_whole = len(places) == places[-1] + 1
        return cls(sqns[begins], lengths, times_ns if is_whole else KeptTimes(places, times_ns))

    def kept(self) -> tuple[Numbers, Numbers, Numbers]:
        """Return the numbers, times and indices of those sendings whose times are kept."""
        if not isinstance(self.times_ns, KeptTimes):
            return self.sqns, self.times_ns, np.arange(len(self))
        places, begins = self.times_ns.places, np.cumsum(self.lengths) - self.lengths
        run = np.searchsorted(begins, places, "right") - 1
        sqns = self.firsts[run] + (places - begins[run]).astype(np.uint32)
        return sqns, self.times_ns.times_ns, places

    @property
    def sqns(self) -> Numbers:
        """The number of each first sending, uint32."""
        return expanded(self.firsts.astype(np.int64), self.lengths).astype(np.uint32)

    @property
    def last(self) -> int:
        """The number of the last first sending."""
        return (int(self.firsts[-1]) + int(self.lengths[-1]) - 1) % _WRAP

    def equals(self, other: Sends) -> bool:
        """Return true if both have the same numbers and times."""
        return all(
            np.array_equal(mine, theirs)
            for mine, theirs in (
                (self.firsts, other.firsts),
                (self.lengths, other.lengths),
                (self.times_ns, other.times_ns),
            )
        )


def expanded(firsts: Numbers, lengths: Numbers) -> Numbers:
    """Return the numbers of runs, one by one."""
    begins = np.cumsum(lengths) - lengths
    return np.repeat(firsts - begins, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)


def distance(later: Numbers, earlier: Numbers) -> Numbers:
    """Return how far wire numbers, as int64, are after others: from -2**31 to 2**31 - 1."""
    return ((later - earlier + _WRAP // 2) % _WRAP) - _WRAP // 2


def times_at(times_ns: Numbers, places: Numbers) -> Numbers:
    """Return the times at these ascending indices. Pages of a mapped file are released after they are read."""
    mapped = _mapping(times_ns)
    if mapped is None:
        return times_ns[places]
    found = np.empty(len(places), np.int64)
    for begin in range(0, len(places), _PLACES):
        piece = slice(begin, begin + _PLACES)
        found[piece] = times_ns[places[piece]]
        mapped.madvise(mmap.MADV_DONTNEED)
    return found


def pieces_of(times_ns: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield all times in pieces, each with their indices, and with the first time of the next piece.

    Pages of a mapped file are released after each piece: memory does not grow with the number of times. If only some
    were kept, these are the only piece.
    """
    if isinstance(times_ns, KeptTimes):
        yield times_ns.places, times_ns.times_ns
        return
    mapped = _mapping(times_ns)
    for start in range(0, max(1, len(times_ns) - 1), _PIECE):
        times = times_ns[start : start + _PIECE + 1]
        yield np.arange(start, start + len(times)), times
        if mapped is not None:
            mapped.madvise(mmap.MADV_DONTNEED)


def neighbours_of(times_ns: Numbers, wanted: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return for each wanted time true if one sending precedes it and the next one does not, and the times of these two
    sendings for those that are true. Two sendings between which times were not kept are no neighbours."""
    known = times_ns.times_ns if isinstance(times_ns, KeptTimes) else times_ns
    after: Numbers = np.searchsorted(known, wanted)
    within: Numbers = (after > 0) & (after < len(known))
    if isinstance(times_ns, KeptTimes):
        within[within] = np.diff(times_ns.places)[after[within] - 1] == 1
    return within, times_at(known, after[within] - 1), times_at(known, after[within])


def reordered(times_ns: Numbers, places: Numbers, lengths: Numbers) -> Numbers:
    """Return times in the order of parts, each given by its first index in the present order and its length."""
    if not isinstance(times_ns, KeptTimes):
        return times_ns[expanded(places, lengths)]
    order = np.argsort(places)
    part = order[np.searchsorted(places[order], times_ns.places, "right") - 1]
    moved = times_ns.places + (np.cumsum(lengths) - lengths - places)[part]
    order = np.argsort(moved)
    return KeptTimes(moved[order], times_ns.times_ns[order])


def _mapping(times_ns: Numbers) -> mmap.mmap | None:
    """Return the mapped file that times are in, or None."""
    base = getattr(times_ns, "base", None)
    mapped = base.obj if isinstance(base, memoryview) else None
    return mapped if isinstance(mapped, mmap.mmap) else None


def _runs(sqns: Numbers) -> tuple[Numbers, Numbers]:
    # Unsigned numbers: 2**32 - 1 is followed by 0.
    breaks = np.flatnonzero(sqns[1:] - sqns[:-1] != 1) + 1
    begins = np.concatenate((np.zeros(min(1, len(sqns)), np.int64), breaks))
    return sqns[begins], np.diff(begins, append=len(sqns)).astype(np.int64)


def _is_in_order(sqns: Numbers, times_ns: Numbers) -> bool:
    if len(times_ns) < 2:
        return True
    steps = times_ns[1:] - times_ns[:-1]
    least = steps.min()
    if least != 0:
        return bool(least > 0)
    same = steps == 0
    return bool(np.all(sqns[1:][same] >= sqns[:-1][same]))


class SendsInPieces:
    """Collects pieces of first sendings, in any order, and combines them into one `Sends`. Each piece is sorted."""

    def __init__(self, *, spills: bool = False) -> None:
        """Start without sendings. If `spills`, the times of many are kept in a file."""
        self._spills = spills
        self._pieces: list[Sends] = []
        self._held = 0
        self._file: Any = None
        self._length = 0

    def add(self, piece: Sends) -> None:
        """Add sendings. Those in order, as read from one capture, are written to the file once there are many."""
        if len(piece):
            self._pieces.append(piece)
            self._held += 0 if isinstance(piece.times_ns, KeptTimes) else len(piece)
            if self._spills and self._held >= _SPILL_SENDS:
                self._spill()

    def _spill(self) -> None:
        if not all(map(_follow, self._pieces, self._pieces[1:])):
            return
        if self._file is None:
            # The file lives as long as its mapping.
            self._file = tempfile.TemporaryFile(prefix="umstack-facts-", dir=large_files_folder())  # noqa: SIM115
        spilt: list[Sends] = []
        for piece in self._pieces:
            times = piece.times_ns
            if not isinstance(times, _Spilt | KeptTimes):
                times = _Spilt(self._length, len(times), int(times[0]), int(times[-1]))
                self._file.write(np.ascontiguousarray(piece.times_ns).data)
                self._length += len(times)
            spilt.append(Sends(piece.firsts, piece.lengths, times))
        self._pieces, self._held = spilt, 0

    def sends(self) -> Sends:
        """Return all sendings that were added."""
        if self._file is not None:
            self._spill()
            times = self._mapped()
            self._pieces = [
                Sends(one.firsts, one.lengths, times[one.times_ns.start : one.times_ns.start + len(one)])
                if isinstance(one.times_ns, _Spilt)
                else one
                for one in self._pieces
            ]
            if all(map(_follow, self._pieces, self._pieces[1:])) and sum(map(len, self._pieces)) == len(
                times
            ):
                return Sends(*_joined(self._pieces), times)
        if any(isinstance(one.times_ns, KeptTimes) for one in self._pieces):
            return _merged_kept(self._pieces)
        pieces = sorted(self._pieces, key=lambda one: (int(one.times_ns[0]), int(one.firsts[0])))
        if not all(map(_follow, pieces, pieces[1:])):
            sqns = np.concatenate([one.sqns for one in pieces])
            return Sends.of(sqns, np.concatenate([one.times_ns for one in pieces]))
        if len(pieces) == 1:
            return pieces[0]
        return Sends(*_joined(pieces), np.concatenate([one.times_ns for one in pieces]))

    def _mapped(self) -> Numbers:
        """Return the times in the file. The system can reclaim its pages, because the file holds their content."""
        self._file.flush()
        mapped = mmap.mmap(self._file.fileno(), 8 * self._length, access=mmap.ACCESS_READ)
        mapped.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(mapped, np.int64)


@dataclass(frozen=True, slots=True)
class _Spilt:
    """A range of times in the file: its start, its length, and its first and last time."""

    start: int
    count: int
    first_ns: int
    last_ns: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> int:
        """Return the first or the last time. No other index is used."""
        return self.first_ns if at == 0 else self.last_ns


def _merged_kept(pieces: list[Sends]) -> Sends:
    """Return pieces together. NotKeptError if a time is missing where two of them overlap."""
    sqns, times, places = (
        np.concatenate(column) for column in zip(*(one.kept() for one in pieces), strict=True)
    )
    # Each stands for itself and for those before it in its piece that were not kept.
    starts = places == 0
    steps, piece = np.diff(places, prepend=-1), np.cumsum(starts)
    steps[starts] = 1
    order = np.lexsort((sqns, times))
    steps, piece = steps[order], piece[order]
    if np.any((steps[1:] > 1) & (piece[1:] != piece[:-1])):
        raise NotKeptError("pieces overlap where times were not kept")
    return Sends.of_kept(sqns[order], times[order], np.cumsum(steps) - 1)


def large_files_folder() -> str | None:
    """Return the folder of unnamed files. It is not /tmp, which may be in memory."""
    return _LARGE_FILES if "TMPDIR" not in os.environ and os.access(_LARGE_FILES, os.W_OK) else None


def _follow(before: Sends, after: Sends) -> bool:
    last_ns, first_ns = int(before.times_ns[-1]), int(after.times_ns[0])
    return last_ns < first_ns or (last_ns == first_ns and before.last <= int(after.firsts[0]))


def _joined(pieces: Iterable[Sends]) -> tuple[Numbers, Numbers]:
    """Return the runs of consecutive pieces. A run that continues in the next piece becomes one run."""
    several = list(pieces)
    firsts = np.concatenate([one.firsts for one in several])
    lengths = np.concatenate([one.lengths for one in several])
    behind = firsts + lengths.astype(np.uint32)
    begins = np.concatenate(([True], firsts[1:] != behind[:-1]))
    at = np.flatnonzero(begins)
    return firsts[at], np.add.reduceat(lengths, at)
