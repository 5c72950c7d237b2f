"""Turns: which connection is served next, so that every address gets the same time."""

from __future__ import annotations

from typing import Generic, TypeVar

Waiting = TypeVar("Waiting")


class Turns(Generic[Waiting]):
    """The connections whose requests wait, by the address that they come from.

    The next turn is that of the waiting address which has used the least time. Time that an address did not use is not
    saved, and time that it used in excess counts even if it reconnects. Used by one thread.
    """

    __slots__ = ("_reached_ns", "_used_ns", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[str, dict[Waiting, None]] = {}
        self._used_ns: dict[str, int] = {}
        self._reached_ns = 0
        """The used time of the address that had the last turn."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, address: str, one: Waiting) -> None:
        """Let a connection wait for its turn, behind the others of its address."""
        if address not in self._waiting:
            self._waiting[address] = {}
            self._used_ns[address] = max(self._used_ns.get(address, 0), self._reached_ns)
        self._waiting[address].setdefault(one)

    def next(self) -> tuple[str, Waiting]:
        """Remove and return the connection whose turn it is, with its address. At least one waits."""
        address = min(self._waiting, key=self._used_ns.__getitem__)
        one = next(iter(self._waiting[address]))
        self.remove(address, one)
        self._reached_ns = self._used_ns[address]
        return address, one

    def charge(self, address: str, used_ns: int) -> None:
        """Count the time of a turn."""
        self._used_ns[address] += used_ns
        for other in [one for one, ns in self._used_ns.items() if ns <= self._reached_ns]:
            if other not in self._waiting:
                del self._used_ns[other]

    def remove(self, address: str, one: Waiting) -> None:
        """Remove a connection; does nothing if it does not wait."""
        others = self._waiting.get(address, {})
        others.pop(one, None)
        if not others:
            self._waiting.pop(address, None)
