"""RecoveryClient: late joins and off-transport recoveries of a context's receivers (UM-136..UM-143).

The core decides when to connect, which requests to send and when to give up (ffi/core/receiver/fetch.h). This module
attends the fetches in turns. All fetches from one source context share a connection (connection.py). The simulator runs
the same core over simulated connections.
"""

from __future__ import annotations

import logging
import selectors

from umstack._core import ffi, lib
from umstack.recovery.connection import ConnectionKey, RequestConnection
from umstack.recovery.fetch import Fetch, FetchConnection
from umstack.repeated_records import RepeatedRecords
from umstack.streams.counters import StreamCounters
from umstack.streams.tags import KeysOf

_LOOK_NS = 5_000_000
_STARVED_NS = 1_000_000
_ATTENDED_A_LOOK = 256
"""Fetches attended in each look; more of them are attended in turns."""
_SLOTS_MIN = 64

_records = RepeatedRecords(logging.getLogger("umstack.recovery"))


class RecoveryClient:
    """The fetches of a context and their connections. Used only by the streams thread."""

    def __init__(
        self, selector: selectors.BaseSelector, counters: StreamCounters, keys_of: KeysOf, traffic_class: int
    ) -> None:
        """Start without fetches."""
        self._selector = selector
        self._counters = counters
        self._keys_of = keys_of
        self._traffic_class = traffic_class
        self._fetches: list[Fetch] = []
        """By slot."""
        self._slots = ffi.new("um_attended_fetch[]", _SLOTS_MIN)
        self._due = ffi.new("uint32_t[]", _ATTENDED_A_LOOK)
        self._next_slot = 0
        self._look_ns = 0
        self._starved: dict[Fetch, None] = {}
        self._connections: dict[ConnectionKey, list[RequestConnection]] = {}
        self._unsent: dict[FetchConnection, None] = {}
        """Connections for which requests may have been written since they were last flushed."""

    def begin(self, fetch: Fetch) -> None:
        """Run a fetch until it is over."""
        fetch.slot = len(self._fetches)
        if fetch.slot == len(self._slots):
            larger = ffi.new("um_attended_fetch[]", 2 * len(self._slots))
            ffi.memmove(larger, self._slots, ffi.sizeof(self._slots))
            self._slots = larger
        self._fetches.append(fetch)
        self._place(fetch)
        self._attend(fetch.slot, 1)

    def run(self, now_ns: int) -> int | None:
        """Attend the next fetches if it is time, and return the time of the next call."""
        if now_ns >= self._look_ns:
            for fetch in list(self._starved):
                self._work(fetch)
            count = min(_ATTENDED_A_LOOK, len(self._fetches) - self._next_slot)
            self._attend(self._next_slot, count)
            self._next_slot = 0 if self._next_slot + count >= len(self._fetches) else self._next_slot + count
            self._look_ns = now_ns + (_STARVED_NS if self._starved else _LOOK_NS)
        while self._unsent:
            self._unsent.popitem()[0].flush()
        return self._look_ns if self._fetches else None

    def close(self) -> None:
        """End every fetch and close every connection."""
        for fetch in self._fetches:
            fetch.end()

    def _place(self, fetch: Fetch) -> None:
        slot = self._slots[fetch.slot]
        slot.subscription, slot.fetch = fetch.subscription.handle, fetch.raw

    def _remove(self, fetch: Fetch) -> None:
        self._starved.pop(fetch, None)
        last = self._fetches.pop()
        if last is not fetch:
            last.slot = fetch.slot
            self._fetches[last.slot] = last
            self._place(last)

    def _attend(self, first: int, count: int) -> None:
        """Attend the fetches of `count` slots and run the due action of each."""
        due_count = lib.um_attend_fetches(self._slots + first, count, self._due)
        due = [
            (self._fetches[first + self._due[i]], self._slots[first + self._due[i]].action)
            for i in range(due_count)
        ]
        for fetch, action in due:
            if action == lib.UM_FETCH_STEP:
                self._work(fetch)
            elif action == lib.UM_FETCH_CONNECT:
                self._connect(fetch)
            elif action == lib.UM_FETCH_DISCONNECT:
                if fetch.connection is not None:
                    fetch.connection.close()
            else:
                fetch.end()
            if fetch.is_over:
                self._remove(fetch)

    def _work(self, fetch: Fetch) -> None:
        """Run a step without received bytes; one that waits for its queue is looked at more often."""
        fetch.work()
        if fetch.connection is not None:
            self._unsent[fetch.connection] = None
        if fetch.raw.is_starved and not fetch.is_over:
            self._starved[fetch] = None
        else:
            self._starved.pop(fetch, None)

    def _connect(self, fetch: Fetch) -> None:
        """Attach a fetch to a connection; if there can be none now, it tries again after its interval."""
        try:
            self._attach(fetch)
        except OSError as error:
            _records.write("connect", logging.WARNING, "cannot connect to %s:%d: %s", *fetch.endpoint, error)

    def _attach(self, fetch: Fetch) -> None:
        """Attach a fetch to its provider, or to the connection to its source's context, opened if there is none."""
        if fetch.provider is not None:
            self._unsent[fetch.provider.attach(fetch)] = None
            return
        keys = self._keys_of(fetch.subscription.topic)
        key = ConnectionKey(fetch.endpoint, int(fetch.raw.plan.purpose), keys[0] if keys else None)
        shared = self._connections.get(key, ())
        connection = next((one for one in shared if not one.has_topic(fetch.raw.topic_index)), None)
        if connection is None:
            connection = RequestConnection(
                key, self._selector, self._counters, self._keys_of, self._traffic_class, self._forget
            )
            self._counters.otr_connections += fetch.raw.plan.is_otr
            self._connections.setdefault(key, []).append(connection)
        self._unsent[connection] = None
        connection.attach(fetch)

    def _forget(self, connection: RequestConnection) -> None:
        self._unsent.pop(connection, None)
        open_ones = self._connections[connection.key]
        open_ones.remove(connection)
        if not open_ones:
            del self._connections[connection.key]


__all__ = ["RecoveryClient"]
