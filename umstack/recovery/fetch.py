"""Fetch: one late join or one off-transport recovery, between the core and a connection to the source."""

from __future__ import annotations

import errno
from typing import Any, Protocol

from umstack._core import ffi, lib
from umstack._engine.endpoint import Endpoint
from umstack._engine.subscription import Subscription
from umstack.streams.counters import StreamCounters

_HELD_MAX_BYTES = 1 << 20


class FetchConnection(Protocol):
    """The connection of a fetch, which others may share."""

    @property
    def request_space(self) -> tuple[Any, int]:
        """Pointer to the place for a fetch's next requests, and the number of bytes that it may write there."""

    def fill_requests(self, count: int) -> None:
        """Account for requests that a fetch has written; `flush` sends them."""

    def flush(self) -> None:
        """Send written requests."""

    def detach(self, fetch: Fetch) -> None:
        """Remove a fetch."""

    def close(self) -> None:
        """Close the connection for all its fetches."""


class FetchProvider(Protocol):
    """Another party than the source that serves its messages."""

    def attach(self, fetch: Fetch) -> FetchConnection:
        """Let a fetch use it. Raises ConnectionError if it cannot serve now."""


class Fetch:
    """One late join or one off-transport recovery. Used only by the streams thread."""

    __slots__ = (
        "_counters",
        "_has_dropped",
        "_held",
        "connection",
        "endpoint",
        "is_over",
        "provider",
        "raw",
        "slot",
        "subscription",
    )

    def __init__(
        self,
        subscription: Subscription,
        identity: Any,
        topic_index: int,
        epoch: int,
        plan: Any,
        endpoint: Endpoint,
        counters: StreamCounters,
        provider: FetchProvider | None = None,
    ) -> None:
        """`identity` is the core's session, `epoch` the core's number of the fetch, and `plan` an um_fetch_plan.

        `provider` serves it instead of the source's request port.
        """
        self.provider = provider
        self.subscription = subscription
        self.endpoint = endpoint
        self.connection: FetchConnection | None = None
        self.is_over = False
        self.slot = -1
        self._counters = counters
        self._held = bytearray()
        """Answers that wait for space in the queue, so that other topics' answers behind them do not wait."""
        self._has_dropped = False
        """True if answers beyond _HELD_MAX_BYTES were dropped; they are requested again."""
        self.raw = ffi.new("um_fetch *")
        self.raw.id = identity
        self.raw.topic_index = topic_index
        self.raw.epoch = epoch
        self.raw.plan = plan[0]
        lib.um_fetch_begin(self.raw)

    def take(self, received: Any, length: int) -> None:
        """Take whole answers of the topic."""
        if self._held:
            self._hold(received, length)
            return
        consumed = self._step(received, length)
        if consumed < length and not self.is_over:
            self._hold(received + consumed, length - consumed)

    @property
    def held_bytes(self) -> int:
        """Number of bytes of answers that wait for space in the queue."""
        return len(self._held)

    def work(self) -> None:
        """Take held answers as far as the queue has space, and write due requests."""
        if not self._held:
            self._step(ffi.NULL, 0)
            return
        with ffi.from_buffer("char[]", self._held) as held:
            consumed = self._step(held, len(self._held))
        del self._held[:consumed]
        if self._has_dropped and not self._held:
            self._has_dropped = False
            self.raw.needs_retry = True

    def _hold(self, received: Any, length: int) -> None:
        if len(self._held) + length > _HELD_MAX_BYTES:
            self._has_dropped = True
        elif not self._has_dropped:
            self._held += ffi.buffer(received, length)

    def _step(self, received: Any, length: int) -> int:
        """Pass answers to the core and collect its requests; return the number of bytes used."""
        connection = self.connection
        out, space = connection.request_space if connection is not None else (ffi.NULL, 0)
        result = lib.um_subscription_fetch(self.subscription.handle, self.raw, received, length, out, space)
        if result == 0:
            if connection is not None and self.raw.written:
                connection.fill_requests(self.raw.written)
            return int(self.raw.consumed)
        if result == -errno.EBADMSG:
            self._counters.recovery_malformed += 1
        self.end()
        if result == -errno.EBADMSG and connection is not None:
            connection.close()
        return length

    def end(self) -> None:
        """Stop; the core's state is freed with its receiver."""
        if self.is_over:
            return
        self.is_over = True
        self._held = bytearray()  # not cleared: work() may be passing it to the core
        if self.connection is not None:
            self.connection.detach(self)
        if self.raw.is_given_up and self.raw.plan.is_otr:
            self._counters.otr_given_up += 1
        elif self.raw.is_given_up:
            self._counters.late_joins_given_up += 1


__all__ = ["Fetch", "FetchConnection", "FetchProvider"]
