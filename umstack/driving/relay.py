"""Relay: moves messages from a queue to publications, in the core."""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from umstack._core import ffi, lib
from umstack._engine.queue_memory import QueueMemory
from umstack.driver.protocol import NAK_CUTOFF, STALE_TAGS
from umstack.errors import UmError, error_from_result
from umstack.foreign_text import displayed

_log = logging.getLogger("umstack.driver")

_EVENTS: dict[int, str] = {lib.UM_RELAY_NAK_CUTOFF: NAK_CUTOFF, lib.UM_RELAY_STALE_TAGS: STALE_TAGS}

NOT_READY: Final = object()
"""Returned instead of a publication that is not ready for its first message yet."""


@dataclass(frozen=True, slots=True)
class RelayCounters:
    """Counts of a relay since it began."""

    messages: int
    bytes: int
    lost: int
    refused: int


Ready = Sequence[tuple[selectors.SelectorKey, int]]


class RelayThreads(Protocol):
    """Runs the relays of a driver."""

    def start(self, relay: Relay) -> None:
        """Begin to run a relay."""

    def stop(self, relay: Relay) -> None:
        """End running it. Its queue is closed."""

    def wait(self, selector: selectors.DefaultSelector, timeout: float | None) -> Ready:
        """Wait for requests of applications; None: without a timeout. On the thread that serves them."""


class Relay:
    """Moves the messages of a queue. The owner decides where those of each source go, on the thread that runs it."""

    __slots__ = (
        "_memory",
        "_on_ended",
        "_on_event",
        "_on_unknown",
        "_targets",
        "_threads",
        "handle",
        "is_stopping",
    )

    def __init__(
        self,
        memory: QueueMemory,
        threads: RelayThreads,
        *,
        keeps_numbers: bool,
        on_unknown: Callable[[str], Any],
        on_ended: Callable[[str], None],
        on_event: Callable[[str, str], None] = lambda _name, _kind: None,
    ) -> None:
        """Start it.

        Args:
            memory: The queue. The caller closes it before it closes the relay.
            threads: The threads that run it.
            keeps_numbers: Publish messages under the topic sequence numbers that they have.
            on_unknown: Called with the name of a source whose first row has come. Returns the core's publication for
                its messages, None if they are to be ignored, or NOT_READY: it is then called again soon.
            on_ended: Called with the name of a source whose session has ended, once all of its messages were moved.
            on_event: Called with the name of a source and the kind of an event (driver.protocol.EVENTS).
        """
        self._memory = memory
        self._threads = threads
        self._on_unknown = on_unknown
        self._on_ended = on_ended
        self._on_event = on_event
        self._targets: dict[int, str] = {}
        self.is_stopping = False
        """True once stop() was called."""
        handle = ffi.new("um_relay **")
        result = lib.um_relay_open(memory.handle, keeps_numbers, memory.message_max_bytes, handle)
        if result != 0:
            raise error_from_result(result, "a relay")
        self.handle: Any = handle[0]
        """The core's relay."""
        threads.start(self)

    @property
    def is_idle(self) -> bool:
        """False while messages wait for a publication."""
        return not lib.um_relay_is_held(self.handle)

    def handle_result(self, result: int, source: int) -> bool:
        """Do what the core's relay needs from its owner. Returns false if the publication of a source is not ready."""
        if result == lib.UM_RELAY_UNKNOWN:
            return self._set(source)
        if result == lib.UM_RELAY_ENDED:
            self._on_ended(self._targets.pop(source))
        elif result in _EVENTS:
            self._on_event(self._targets[source], _EVENTS[result])
        elif result == lib.UM_RELAY_IDLE and self._memory.sources.is_due:
            self._recycle()
        return True

    def _set(self, number: int) -> bool:
        name = self._memory.sources.table.names[number]
        try:
            publication = self._on_unknown(name)
        except UmError as error:  # the other sources continue
            _log.error("%s is not relayed: %s", displayed(name), displayed(str(error)))
            publication = None
        if publication is NOT_READY:
            return False
        self._targets[number] = name
        lib.um_relay_set(self.handle, number, ffi.NULL if publication is None else publication)
        return True

    def _recycle(self) -> None:
        """Let numbers of sources be used again; one that has another name now belongs to another source."""
        self._memory.recycle_sources()
        names = self._memory.sources.table.names
        for number, name in [*self._targets.items()]:
            if names[number] != name:
                lib.um_relay_forget(self.handle, number)
                del self._targets[number]
                self._on_ended(name)

    def reached(self, name: str) -> int | None:
        """Return the topic sequence number after the last message of a source that was moved; None if none was."""
        number = next((number for number, one in [*self._targets.items()] if one == name), None)
        reached = -1 if number is None else int(lib.um_relay_reached(self.handle, number))
        return None if reached < 0 else reached

    def counters(self) -> RelayCounters:
        """Read the counters. Not after close()."""
        counters = ffi.new("um_relay_counters *")
        lib.um_relay_read_counters(self.handle, counters)
        return RelayCounters(counters.messages, counters.bytes, counters.lost, counters.refused)

    def stop(self) -> None:
        """End running it. Not from a callback; the queue is closed."""
        self.is_stopping = True
        self._threads.stop(self)

    def close(self) -> None:
        """Free it, after stop(). Its publications may be closed before or after."""
        lib.um_relay_close(self.handle)
        # The callbacks refer to the owner, which refers to this: the cycle would keep the queue until a collection.
        del self._on_unknown, self._on_ended, self._on_event
