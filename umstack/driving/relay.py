"""Relay: a thread that moves messages from a queue to publications, in the core."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from umstack._core import ffi, lib
from umstack._engine.queue_memory import QueueMemory
from umstack._engine.waiting import SLICE_NS
from umstack.errors import UmError, error_from_result
from umstack.foreign_text import displayed

_log = logging.getLogger("umstack.driver")


@dataclass(frozen=True, slots=True)
class RelayCounters:
    """Counts of a relay since it began."""

    messages: int
    bytes: int
    lost: int
    refused: int


class Relay:
    """Moves the messages of a queue. The owner decides where those of each source go, on the relay's thread."""

    __slots__ = (
        "_handle",
        "_memory",
        "_on_ended",
        "_on_unknown",
        "_stopping",
        "_targets",
        "_thread",
        "is_idle",
    )

    def __init__(
        self,
        memory: QueueMemory,
        *,
        keeps_numbers: bool,
        on_unknown: Callable[[str], Any],
        on_ended: Callable[[str], None],
    ) -> None:
        """Start it.

        Args:
            memory: The queue. The caller closes it before it closes the relay.
            keeps_numbers: Publish messages under the topic sequence numbers that they have.
            on_unknown: Called with the name of a source whose first row has come. Returns the core's publication for
                its messages, or None if they are to be ignored.
            on_ended: Called with the name of a source whose session has ended, once all of its messages were moved.
        """
        self._memory = memory
        self._on_unknown = on_unknown
        self._on_ended = on_ended
        self._stopping = False
        self._targets: dict[int, str] = {}
        self.is_idle = True
        """False while messages wait for a publication."""
        handle = ffi.new("um_relay **")
        result = lib.um_relay_open(memory.handle, keeps_numbers, memory.message_max_bytes, handle)
        if result != 0:
            raise error_from_result(result, "a relay")
        self._handle = handle[0]
        self._thread = threading.Thread(target=self._run, name="umstack relay", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        source = ffi.new("uint32_t *")
        while not self._stopping:
            result = lib.um_relay_run(self._handle, SLICE_NS, source)
            self.is_idle = result != lib.UM_RELAY_HELD
            if result == lib.UM_RELAY_UNKNOWN:
                self._set(source[0])
            elif result == lib.UM_RELAY_ENDED:
                self._on_ended(self._targets.pop(source[0]))
            elif result == lib.UM_RELAY_IDLE and self._memory.sources.is_due:
                self._recycle()

    def _set(self, number: int) -> None:
        name = self._memory.sources.table.names[number]
        try:
            publication = self._on_unknown(name)
        except UmError as error:  # the other sources continue
            _log.error("%s is not relayed: %s", displayed(name), displayed(str(error)))
            publication = None
        self._targets[number] = name
        lib.um_relay_set(self._handle, number, ffi.NULL if publication is None else publication)

    def _recycle(self) -> None:
        """Let numbers of sources be used again; one that has another name now belongs to another source."""
        self._memory.recycle_sources()
        names = self._memory.sources.table.names
        for number, name in [*self._targets.items()]:
            if names[number] != name:
                lib.um_relay_forget(self._handle, number)
                del self._targets[number]
                self._on_ended(name)

    def reached(self, name: str) -> int:
        """Return the topic sequence number after the last message of a source that was moved; 0 if none was."""
        number = next((number for number, one in [*self._targets.items()] if one == name), None)
        return 0 if number is None else int(lib.um_relay_reached(self._handle, number))

    def counters(self) -> RelayCounters:
        """Read the counters. Not after close()."""
        counters = ffi.new("um_relay_counters *")
        lib.um_relay_read_counters(self._handle, counters)
        return RelayCounters(counters.messages, counters.bytes, counters.lost, counters.refused)

    def stop(self) -> None:
        """End the thread, which takes at most two slices. From another thread; the queue is closed."""
        self._stopping = True
        self._thread.join()

    def close(self) -> None:
        """Free it, after stop(). Its publications may be closed before or after."""
        lib.um_relay_close(self._handle)
        # The callbacks refer to the owner, which refers to this: the cycle would keep the queue until a collection.
        del self._on_unknown, self._on_ended
