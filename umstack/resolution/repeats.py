"""Datagrams that were taken in before, and what was noted of each. A resolution daemon knows a repeat by them."""

from __future__ import annotations

from typing import Generic, TypeVar

Noted = TypeVar("Noted")

_DATAGRAMS_MAXIMUM = 4096
_BYTES_MAXIMUM = 4 * 1024 * 1024


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
