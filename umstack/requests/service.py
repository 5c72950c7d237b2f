"""RequestService: requests and responses of a context, for its sources and its receivers."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable
from typing import Any

from umstack._core import ffi
from umstack._engine.keyring import Keyring
from umstack._engine.tcp_peers import TcpPeers
from umstack._engine.waiting import timeout_ns
from umstack.config import ContextOptions
from umstack.errors import Closed
from umstack.requests.counters import RequesterCounters, ResponseTagCounters
from umstack.requests.intake import NEVER_NS, ResponseIntake
from umstack.requests.pending_request import PendingRequest
from umstack.requests.responder import Responder
from umstack.streams import Streams
from umstack_xdp.closing import Closing


class RequestService(Closing):
    """Opened on first use. Any thread."""

    def __init__(
        self,
        options: ContextOptions,
        streams: Streams,
        keyring: Keyring,
        peers: TcpPeers,
        run_protocol: Callable[[], object] | None,
        check_owned: Callable[[], None],
    ) -> None:
        """The arguments are those of ResponseIntake, and the peers to which responders connect."""
        self._check_owned = check_owned
        self._tag_counters = ResponseTagCounters()
        self.responder = Responder(options, streams, keyring.keys_of, peers, self._tag_counters)
        self._options = options
        self._streams = streams
        self._keyring = keyring
        self._run_protocol = run_protocol
        self._counters = RequesterCounters()
        self._lock = threading.Lock()
        self._intake: ResponseIntake | None = None
        self._ip = 0
        self._is_closed = False

    def open(self, owner: object, topic: str, timeout: float | None) -> tuple[PendingRequest, Any]:
        """Open a request of a source; return it and the um_request that the core sends.

        Raises ResourceLimit, OptionError if there is no request port, Closed.
        """
        with self._lock:
            if self._is_closed:
                raise Closed("the context is closed")
            intake = self._intake or self._begin()
            deadline_ns = NEVER_NS if timeout is None else time.monotonic_ns() + timeout_ns(timeout)
            inbox = intake.open(owner, topic, deadline_ns)
        named = ffi.new("um_request *")
        named.index, named.port = inbox.index, intake.endpoint.port
        named.ip = self._ip
        return PendingRequest(intake, inbox, timeout), named

    def _begin(self) -> ResponseIntake:
        port = self._streams.port()
        self._ip = int(ipaddress.IPv4Address(port.endpoint.ip))
        selector = self._streams.loop.open()
        self._intake = ResponseIntake(
            self._options, port, selector, self._counters, self._tag_counters, self._keyring, self._run_protocol,
            self._check_owned,
        )  # fmt: skip
        self._streams.loop.add_work(self._intake.run)
        return self._intake

    def note_sent(self) -> None:
        """Count a request that was sent."""
        with self._lock:
            self._counters.requests_sent += 1

    def end_requests_of(self, owner: object, what: str) -> None:
        """End the requests of a source that is being closed."""
        intake = self._intake
        if intake is not None:
            intake.end_all(lambda inbox: Closed(f"{what} is closed") if inbox.owner is owner else None)

    def stats(self) -> dict[str, int]:
        """Return the counters by name."""
        if self._intake is not None:
            self._counters.requests_pending = self._intake.open_count
            self._counters.request_responders = self._intake.responder_count
        mine, tags = self._counters.as_dict(), self._tag_counters.as_dict()
        return {**mine, **self.responder.counters.as_dict(), **tags}

    def close(self) -> None:
        """End every request and close every connection. Any thread, after the sources and receivers are closed."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._intake is not None:
            self._intake.end_all(lambda _: Closed("the context is closed"))
        self._streams.loop.end_thread()
        self.responder.close()
        if self._intake is not None:
            self._intake.close()


__all__ = ["RequestService"]
