"""How the threads of a driver run its relays: a thread per relay, or one thread for everything."""

from __future__ import annotations

import selectors
import threading
import time
from typing import TYPE_CHECKING, Any

from umstack._core import ffi, lib
from umstack._engine.waiting import SLICE_NS
from umstack.driving.relay import Ready, Relay
from umstack.resolution import DonatedResolver
from umstack.streams import Streams

if TYPE_CHECKING:
    from umstack._engine.engine import Engine

THREADING_MODES = ("dedicated", "shared")
"""By Aeron's names: `dedicated` receives on one thread and sends on others, `shared` does both on one thread."""
_LOOK_SECONDS = 0.001
"""How often a relay asks again for a publication that is not ready yet."""
_IDLE_NS = 1_000_000_000
"""How long a relay's thread waits for messages at a time. Each return costs processor time of an idle driver."""
_LOOK_NS = 1_000_000
"""The same, and how often the work of the context is done at most."""


class DedicatedThreads:
    """A thread per relay. The context is in embedded mode, and receives on its own thread. Any thread."""

    def __init__(self) -> None:
        self._threads: dict[Relay, threading.Thread] = {}

    def start(self, relay: Relay) -> None:
        """Start the relay's thread."""
        thread = threading.Thread(target=self._run, args=(relay,), name="umstack relay", daemon=True)
        self._threads[relay] = thread
        thread.start()

    @staticmethod
    def _run(relay: Relay) -> None:
        source = ffi.new("uint32_t *")
        while not relay.is_stopping:
            result = lib.um_relay_run(relay.handle, _IDLE_NS, source)
            if not relay.handle_result(result, source[0]):
                time.sleep(_LOOK_SECONDS)

    def stop(self, relay: Relay) -> None:
        """End the relay's thread. Its queue is closed, so that it waits for a publication at most."""
        self._threads.pop(relay).join()

    def wait(self, selector: selectors.DefaultSelector, timeout: float | None) -> Ready:
        """Wait for requests. The relays run on their own threads."""
        return selector.select(timeout)


class SharedThread:
    """One thread for everything: the thread that serves the applications runs the relays and the protocol, too.

    The context is in sequential mode. Only that thread calls the methods. It sleeps until messages, requests, topic
    resolution or the TCP streams need it.
    """

    def __init__(self, engine: Engine, resolver: DonatedResolver, streams: Streams) -> None:
        self._engine = engine
        self._resolver = resolver
        self._streams = streams
        self._relays: list[Relay] = []
        self._waiting: dict[Relay, int] = {}
        """Relays whose next message has no publication yet, and the number of its source."""
        self._handles: Any = ffi.NULL
        self._is_changed = False
        self._index = ffi.new("uint32_t *")
        self._source = ffi.new("uint32_t *")
        self._watched: set[int] = set()

    def start(self, relay: Relay) -> None:
        """Run the relay in the next round."""
        self._relays.append(relay)
        self._is_changed = True

    def stop(self, relay: Relay) -> None:
        """Run the relay no more."""
        if self._waiting.pop(relay, None) is None:
            self._relays.remove(relay)
            self._is_changed = True

    def wait(self, selector: selectors.DefaultSelector, timeout: float | None) -> Ready:
        """Run relays and protocol until there are requests, or until the timeout."""
        self._watch(selector.fileno())
        self._watch(self._resolver.fileno())
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self._run()
            ready = selector.select(0)
            if ready or (end is not None and time.monotonic() >= end):
                return ready

    def _watch(self, fd: int) -> None:
        if fd not in self._watched:
            core = self._engine.core
            core.check(lib.um_relays_watch(core.handle, fd), "watching a descriptor of the driver")
            self._watched.add(fd)

    def _slice_ns(self) -> int:
        """Return how long to run the relays before the work of the context is due."""
        if (streams_fd := self._streams.loop.fileno()) is not None:
            self._watch(streams_fd)
        due = (self._resolver.next_deadline_ns(), self._streams.loop.due_ns)
        left = min((due_ns for due_ns in due if due_ns is not None), default=None)
        if left is None:
            return SLICE_NS
        return max(_LOOK_NS, min(left - time.monotonic_ns(), SLICE_NS))

    def _run(self) -> None:
        """Run the relays for a slice, or until one needs its owner."""
        if self._is_changed:
            self._handles = ffi.new("um_relay *[]", [relay.handle for relay in self._relays])
            self._is_changed = False
        timeout_ns = _LOOK_NS if self._waiting else self._slice_ns()
        result = lib.um_relays_run(
            self._engine.core.handle, self._handles, len(self._relays), timeout_ns, self._index, self._source
        )
        self._ask_again()
        if result == lib.UM_RELAY_IDLE:
            for relay in self._relays:
                relay.handle_result(result, 0)
        elif not (relay := self._relays[self._index[0]]).handle_result(result, self._source[0]):
            self._relays.remove(relay)
            self._waiting[relay] = self._source[0]
            self._is_changed = True
        self._engine.between_slices()

    def _ask_again(self) -> None:
        """Run relays again whose publications are ready now."""
        for relay, source in [*self._waiting.items()]:
            if relay.handle_result(lib.UM_RELAY_UNKNOWN, source):
                del self._waiting[relay]
                self.start(relay)
