"""What was taken in before and would change nothing if it were taken in again: datagrams, and single advertisements.

Topic resolution repeats itself: each source is advertised every second, and a context packs its records alike most
times. A datagram that equals one that was taken in, and of which nothing is still to be done, needs only be counted,
and so does an advertisement in a datagram that is packed otherwise. The owner clears them all when something changes
that a datagram taken in earlier would have changed with it.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

Noted = TypeVar("Noted")

_DATAGRAMS_MAXIMUM = 4096
_BYTES_MAXIMUM = 4 * 1024 * 1024


class DatagramCounts(NamedTuple):
    """What a datagram adds to the counters."""

    queries: int
    advertisements: int
    ignored: int


class RepeatedDatagrams(Generic[Noted]):
    """Datagrams, with what was noted of each. Bounded; the one remembered first makes room. Not thread-safe."""

    __slots__ = ("_by_content", "_bytes")

    def __init__(self) -> None:
        self._by_content: dict[bytes, Noted] = {}
        self._bytes = 0

    def find(self, data: bytes) -> Noted | None:
        """What was noted of a datagram, if it is remembered."""
        return self._by_content.get(data)

    def remember(self, data: bytes, noted: Noted) -> None:
        """Remember a datagram."""
        if data in self._by_content or len(data) > _BYTES_MAXIMUM:
            return
        self._by_content[data] = noted
        self._bytes += len(data)
        while self._bytes > _BYTES_MAXIMUM or len(self._by_content) > _DATAGRAMS_MAXIMUM:
            oldest = next(iter(self._by_content))
            del self._by_content[oldest]
            self._bytes -= len(oldest)

    def clear(self) -> None:
        """Forget them all: every datagram is taken in again."""
        self._by_content.clear()
        self._bytes = 0


class Repeats:
    """Datagrams and advertisements. Bounded: of advertisements so many as a cache has room for. Not thread-safe."""

    __slots__ = ("_advertisements_maximum", "advertisements", "datagrams")

    def __init__(self, advertisements_maximum: int) -> None:
        self._advertisements_maximum = advertisements_maximum
        self.datagrams: RepeatedDatagrams[DatagramCounts] = RepeatedDatagrams()
        """What each adds to the counters, which is all it does."""
        self.advertisements: dict[bytes, int] = {}
        """Encoded ones, with what each adds to the records that are ignored: 0 or 1."""

    def remember_advertisement(self, raw: bytes, ignored: int) -> None:
        """Remember an advertisement that was taken in."""
        if len(self.advertisements) >= self._advertisements_maximum:
            del self.advertisements[next(iter(self.advertisements))]
        self.advertisements[raw] = ignored

    def clear(self) -> None:
        """Forget them all: everything is taken in again."""
        self.datagrams.clear()
        self.advertisements.clear()
