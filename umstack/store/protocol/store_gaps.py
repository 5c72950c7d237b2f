"""StoreGaps: decides which missing messages of a Store may still arrive, and marks the others lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from umstack.store.protocol.staged_numbers import StagedNumbers
from umstack.store.repository import Repository, StagingFull

REPAIR_NS = 15_000_000_000
"""Age of a gap at which a source no longer fills it. A receiver's NAKs end after 10 s, and a source repeats
a message that is not stable every second."""
AWAY_NS = 30_000_000_000
"""Time without a source after which its gaps count as final. A source that comes back repeats what is not stable."""
_SILENT_NS = 5_000_000_000
"""Time without bytes from a source after which its connection may be broken. Keepalives come every 2 s."""
_MARK_SQNS = 1 << 16
"""Maximum number of messages that one record marks lost, and that are expected before the oldest one."""

_COPIED_SQNS = 1 << 30
"""How far back messages are copied: their lower 32 bits must be clear."""
_COPIED_RANGES = 64
"""Maximum number of gaps that are copied in one attempt."""

SqnRanges = list[tuple[int, int]]


@dataclass(slots=True)
class _Life:
    """The current life of a source."""

    first_sqn: int
    """First number of this life: former ones ended with their process, so nobody sends lower numbers again."""
    since_ns: int
    """Time of its last registration."""
    active_ns: int
    """Time of its last bytes."""
    oldest_sqn: int
    """The oldest message that it may send again, by its last keepalive."""
    has_ended: bool = False
    """It reported its end: it sends nothing more, and serves no NAKs."""


class StoreGaps:
    """The missing messages of a Store's sources. One thread.

    A number that nobody holds is either expected or lost. It is lost if its source can no longer send it: it is below
    the source's current life, or the source had its time to repeat it. Then the loss is written as a marker, and a
    message that arrives nevertheless is refused: a reader that has skipped it misses nothing that the Store holds.
    """

    def __init__(self, repository: Repository, clock_ns: Callable[[], int], staged: StagedNumbers) -> None:
        """`staged` contains everything that waits for a commit."""
        self._repository = repository
        self._clock_ns = clock_ns
        self._staged = staged
        self._started_ns = clock_ns()
        self._lives: dict[int, _Life] = {}
        self._marked: set[tuple[int, int]] = set()
        """Source number and sqn of markers that wait for a commit."""
        self.copied: set[int] = set()
        """Sources whose gaps are copied from other Stores: until they have answered, none is final."""
        self._seen: tuple[int, int, int] = (-1, -1, 0)
        """The last message of which the time of reception was read: source number, sqn, time."""

    # Sources

    def registered(self, number: int, first_sqn: int) -> None:
        """A source registered; its current life began with this number."""
        now_ns = self._clock_ns()
        self._lives[number] = _Life(first_sqn, now_ns, now_ns, first_sqn)

    def heard(self, numbers: Iterable[int]) -> None:
        """Bytes of these sources arrived."""
        now_ns = self._clock_ns()
        for number in numbers:
            if number in self._lives:
                self._lives[number].active_ns = now_ns

    def keeps_from(self, number: int, oldest_sqn: int) -> None:
        """A source no longer has the messages before this number."""
        life = self._lives.get(number)
        if life is not None:
            life.oldest_sqn = max(oldest_sqn, life.oldest_sqn)

    def ended(self, number: int) -> None:
        """A source reported its end."""
        life = self._lives.get(number)
        if life is not None:
            life.has_ended = True

    def forget(self, number: int) -> None:
        """A source was deleted."""
        self._lives.pop(number, None)
        self.copied.discard(number)

    # Gaps

    def first_sqn(self, number: int, ranges: SqnRanges) -> int:
        """Return the number at which a new reader of a source begins: the first that is held or expected."""
        first = ranges[0][0]
        begin = max(self.begin(number), first - _MARK_SQNS)
        return begin if begin < first and self._final_until(number, begin, first) == begin else first

    def begin(self, number: int) -> int:
        """Return the number below which a source sends nothing any more, or this Store has dropped everything."""
        state = self._repository.state.source(number)
        life = self._lives.get(number)
        return max(0 if state is None else state.low_sqn, 0 if life is None else life.first_sqn)

    def missing(self, number: int) -> SqnRanges:
        """Return the messages that only another Store can have: this one misses them, and the source dropped them."""
        life = self._lives.get(number)
        if life is None:
            return []
        gaps: SqnRanges = []
        sqn = max(life.oldest_sqn - _COPIED_SQNS, 0)
        for first, last in (*self._repository.ranges(number), (life.oldest_sqn, life.oldest_sqn)):
            end = min(first, life.oldest_sqn)
            if sqn < end and (number, sqn) not in self._staged and (number, end - 1) not in self._staged:
                gaps.append((sqn, end - 1))
            sqn = max(sqn, last + 1)
        state = self._repository.state.source(number) if gaps else None  # a query of the database
        if state is None:
            return []
        return [(max(first, state.low_sqn), last) for first, last in gaps if last >= state.low_sqn][
            :_COPIED_RANGES
        ]

    def lost_until(self, number: int, sqn: int, ranges: SqnRanges, begin: int) -> int:
        """Return the end of the lost messages that begin with a missing one; `sqn` itself if it is expected.

        `ranges` and `begin` are those of the source.
        """
        if (number, sqn) in self._staged:
            return sqn
        if self._repository.holds(number, sqn):
            found = self._repository.read(number, sqn, sqn)
            if not found:
                return sqn + 1  # a damaged message
            return found[0].sqn + found[0].lost_count if found[0].lost_count else sqn
        after = next((first for first, last in ranges if last > sqn), None)
        if sqn < begin:
            return begin if after is None else min(begin, after)
        if after is None:
            return sqn + 1 if self._is_away(number) else sqn
        self._mark(number, sqn, self._final_until(number, sqn, after))
        return sqn

    def is_marked_lost(self, number: int, sqn: int) -> bool:
        """Return true if a held number is a marker."""
        found = self._repository.read(number, sqn, sqn)
        return bool(found and found[0].lost_count)

    def without_marks(self, number: int, first_sqn: int, last_sqn: int) -> SqnRanges:
        """Return the parts of a committed range that are messages, and forget its markers."""
        if not self._marked:
            return [(first_sqn, last_sqn)]
        parts: SqnRanges = []
        for sqn in range(first_sqn, last_sqn + 1):
            if (number, sqn) in self._marked:
                self._marked.discard((number, sqn))
            elif parts and parts[-1][1] == sqn - 1:
                parts[-1] = parts[-1][0], sqn
            else:
                parts.append((sqn, sqn))
        return parts

    def _is_away(self, number: int) -> bool:
        life = self._lives.get(number)
        return self._clock_ns() - (self._started_ns if life is None else life.active_ns) >= AWAY_NS

    def _final_until(self, number: int, sqn: int, after: int) -> int:
        """Return how far the gap from `sqn` to the held message `after` is final; `sqn`: it may still be filled."""
        if self._is_away(number) and number not in self.copied:
            return after
        life = self._lives.get(number)
        if life is None or sqn >= life.oldest_sqn or number in self.copied:
            return sqn
        if not life.has_ended and not self._is_repaired(life, number, after):
            return sqn
        return min(after, life.oldest_sqn)

    def _is_repaired(self, life: _Life, number: int, after: int) -> bool:
        """Return true if the NAKs for the gap before a held message of a source have ended."""
        now_ns = self._clock_ns()
        if now_ns - life.active_ns >= _SILENT_NS or now_ns - life.since_ns < REPAIR_NS:
            return False
        if self._seen[:2] != (number, after):
            found = self._repository.read(number, after, after)
            self._seen = number, after, found[0].received_ns if found else 0
        return now_ns - self._seen[2] >= REPAIR_NS

    def _mark(self, number: int, first_sqn: int, end_sqn: int) -> None:
        """Stage a marker for the messages from a missing one up to `end_sqn`, or the next one that is staged."""
        if end_sqn <= first_sqn:
            return
        last = first_sqn
        while last + 1 < min(end_sqn, first_sqn + _MARK_SQNS) and (number, last + 1) not in self._staged:
            last += 1
        try:
            self._repository.mark_lost(number, first_sqn, last)
        except StagingFull:
            return  # the next request for it marks it
        self._staged.add(number, first_sqn, last)
        self._marked |= {(number, sqn) for sqn in range(first_sqn, last + 1)}


__all__ = ["AWAY_NS", "REPAIR_NS", "StoreGaps"]
