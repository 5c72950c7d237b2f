"""PeerCopies: copies what a Store misses from the other Stores of a source, on a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from umstack.persistence.reader_side import LostRange, ReadMessage
from umstack.persistence.session_ids import temporary_session_id
from umstack.persistence.store_replay import StoreReplay
from umstack.repeated_records import RepeatedRecords
from umstack.store.protocol import MissingMessages
from umstack.store.wire import TopicKeys

_SPACE = 1 << 32
_TIMEOUT_SECONDS = 2.0
_EXPECTED_SECONDS = 1.0
"""Wait for a message that the other Store does not have yet. It may wait for this one in turn."""
_PAUSE_NS = 30_000_000_000
"""Time from an attempt that copied nothing to the next one for the same source; it doubles with each in a row."""
_PAUSE_MAX_NS = 3_600_000_000_000
_COPYING_NS = 1 << 62
_WAITING_MAX = 4096
"""Copied messages that wait for space in the staging ring."""


class PeerCopies:
    """Asks the other Stores of sources for messages. One thread requests and takes.

    Args:
        keys: The keys in use.
        wake: Called when there is something to take, on the thread of this object.
    """

    def __init__(self, keys: TopicKeys, wake: Callable[[], None]) -> None:
        self._keys = keys
        self._wake = wake
        self._log = RepeatedRecords(logging.getLogger(__name__))
        self._wanted: queue.SimpleQueue[MissingMessages | None] = queue.SimpleQueue()
        self._due_ns: dict[int, int] = {}
        """By source that is being copied, or was: when it may be next."""
        self._pause_ns: dict[int, int] = {}
        """By source: the pause after an attempt that copies nothing."""
        self.found: deque[tuple[int, ReadMessage]] = deque()
        """Copied messages with the numbers of their sources, for the thread of the Store, which calls `taken`."""
        self.ended: deque[int] = deque()
        """Sources of which an attempt has ended, for that thread to take, too."""
        self._space = threading.Semaphore(_WAITING_MAX)
        self._is_stopping = False
        self._replay: StoreReplay | None = None
        self._thread = threading.Thread(target=self._run, name="umstack-store-copies", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what it has not copied is copied after the next start."""
        self._is_stopping = True
        self._wanted.put(None)
        self._space.release()
        replay = self._replay
        if replay is not None:
            replay.stop_after(0)
        self._thread.join()

    def request(self, missing: MissingMessages, now_ns: int) -> bool:
        """Copy these messages. Returns false if their source is not due."""
        if now_ns < self._due_ns.get(missing.source, 0):
            return False
        self._due_ns[missing.source] = now_ns + _COPYING_NS
        self._wanted.put(missing)
        return True

    def taken(self) -> None:
        """The Store has staged the first message of `found`."""
        self.found.popleft()
        self._space.release()

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None and not self._is_stopping:
            count = 0
            for first, last in wanted.ranges:
                if not self._is_stopping:
                    count += self._copy(wanted, first, last)
            if count:
                self._log.write(
                    wanted.source,
                    logging.INFO,
                    "%s: %d messages were copied from other Stores",
                    wanted.topic,
                    count,
                )
            pause_ns = 0 if count else self._pause_ns.get(wanted.source, _PAUSE_NS)
            self._due_ns[wanted.source] = time.monotonic_ns() + pause_ns
            self._pause_ns[wanted.source] = min(2 * max(pause_ns, _PAUSE_NS // 2), _PAUSE_MAX_NS)
            self.ended.append(wanted.source)
            self._wake()

    def _copy(self, wanted: MissingMessages, first: int, last: int) -> int:
        """Copy a range. Returns how many messages were found."""
        count = 0
        self._replay = StoreReplay(
            wanted.topic,
            wanted.peers,
            temporary_session_id(),
            timeout=_TIMEOUT_SECONDS,
            expected_timeout=_EXPECTED_SECONDS,
            is_explicit=True,
            is_temporary=True,
            keys=self._keys,
        )
        lost = LostRange(wanted.session_id, first % _SPACE, last % _SPACE)
        for items in self._replay.fill(lost, wanted.peers):
            for item in items:
                if self._is_stopping:
                    return count
                if isinstance(item, ReadMessage) and item.source_session_id == wanted.session_id:
                    count += 1
                    self._space.acquire()
                    self.found.append((wanted.source, item))
                    if len(self.found) == 1:
                        self._wake()
        return count


__all__ = ["PeerCopies"]
