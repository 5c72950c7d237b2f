"""How the threads of a driver run its relays: a thread per relay, or one thread for everything."""

from __future__ import annotations

import selectors
import threading
import time
from typing import TYPE_CHECKING, Any

from umstack._core import ffi, lib
from umstack._engine.waiting import SLICE_NS
from umstack.driving.relay import Ready, Relay

if TYPE_CHECKING:
    from umstack._engine.engine import Engine

THREADING_MODES = ("dedicated", "shared")
"""By Aeron's names: `dedicated` receives on one thread and sends on others, `shared` does both on one thread."""
_LOOK_SECONDS = 0.001
"""How often a relay asks again for a publication that is not ready yet."""
_LOOK_NS = 1_000_000


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
            result = lib.um_relay_run(relay.handle, SLICE_NS, source)
            if not relay.handle_result(result, source[0]):
                time.sleep(_LOOK_SECONDS)

    def stop(self, relay: Relay) -> None:
        """End the relay's thread, which takes at most two slices."""
        self._threads.pop(relay).join()

    def wait(self, selector: selectors.DefaultSelector, timeout: float | None) -> Ready:
        """Wait for requests. The relays run on their own threads."""
        return selector.select(timeout)


class SharedThread:
    """One thread for everything: the thread that serves the applications runs the relays and the protocol, too.

    The context is in sequential mode. Only that thread calls the methods.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._relays: list[Relay] = []
        self._waiting: dict[Relay, int] = {}
        """Relays whose next message has no publication yet, and the number of its source."""
        self._handles: Any = ffi.NULL
        self._is_changed = False
        self._index = ffi.new("uint32_t *")
        self._source = ffi.new("uint32_t *")
        self._watched: selectors.DefaultSelector | None = None

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
        if self._watched is not selector:
            core = self._engine.core
            core.check(lib.um_relays_watch(core.handle, selector.fileno()), "watching the control sockets")
            self._watched = selector
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self._run()
            ready = selector.select(0)
            if ready or (end is not None and time.monotonic() >= end):
                return ready

    def _run(self) -> None:
        """Run the relays for a slice, or until one needs its owner."""
        if self._is_changed:
            self._handles = ffi.new("um_relay *[]", [relay.handle for relay in self._relays])
            self._is_changed = False
        timeout_ns = _LOOK_NS if self._waiting else self._engine.slice_ns
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
