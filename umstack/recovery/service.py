"""RecoveryService: late join and off-transport recovery of a context, for its receivers and its sources."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from umstack._core import ffi, lib
from umstack._engine.endpoint import Endpoint
from umstack._engine.publication import Publication
from umstack._engine.subscription import LateMapping, Subscription
from umstack._engine.transport_address import address_of, transport_name
from umstack.config import ContextOptions
from umstack.errors import Closed
from umstack.recovery.client import RecoveryClient
from umstack.recovery.fetch import Fetch, FetchProvider
from umstack.recovery.plans import late_join_plan, otr_plan, store_plan
from umstack.recovery.server import RecoveryServer
from umstack.streams import Streams
from umstack.streams.tags import KeysOf
from umstack_xdp.closing import Closing

_RECOVERIES_AT_A_TIME = 64
WARNED_TOPICS_MAX = 1024
"""Topics whose last warning is remembered."""

_logger = logging.getLogger("umstack.recovery")


class RecoveryService(Closing):
    """Fetches and serves over TCP streams of the context. The streams thread runs the service."""

    def __init__(
        self,
        options: ContextOptions,
        streams: Streams,
        context: Any,
        find_subscription: Callable[[Any], Subscription | None],
        keys_of: KeysOf,
    ) -> None:
        """`context` is the core's context; `find_subscription` returns the Subscription of a core's subscription."""
        self._keys_of = keys_of
        self._options = options
        self._streams = streams
        self._context = context
        self._find_subscription = find_subscription
        self._begun = ffi.new("um_begun_recovery[]", _RECOVERIES_AT_A_TIME)
        self._find_provider: Callable[[Subscription, str], FetchProvider | None] = (
            lambda _subscription, _name: None
        )
        self._warned_ns: dict[str, int] = {}
        self._counters = streams.counters
        self._lock = threading.Lock()
        self._selector: selectors.BaseSelector | None = None
        self._server: RecoveryServer | None = None
        self._client: RecoveryClient | None = None
        self._wake_fd = -1
        self._is_closed = False

    # Any thread

    def serve(self, publication: Publication) -> Endpoint:
        """Offer a source's retained messages; return the endpoint. Raises ResourceLimit, Closed."""
        with self._lock:
            selector = self._open()
            if self._server is None:
                port = self._streams.port()
                self._server = RecoveryServer(self._options, port, selector, self._counters, self._keys_of)
            server = self._server
            self._streams.loop.submit(lambda: server.add(publication))
            return server.endpoint

    def stop_serving(self, publication: Publication) -> None:
        """Stop serving a source that is being closed."""
        with self._lock:
            server = self._server
            if server is not None and not self._is_closed:
                self._streams.loop.submit(lambda: server.remove(publication))

    def expect(self) -> None:
        """Open the service because a source that offers late join is about to be mapped. Raises Closed."""
        with self._lock:
            self._open()

    def use_stores(self, find: Callable[[Subscription, str], FetchProvider | None]) -> None:
        """Recover messages from the Stores that `find` returns for a receiver and the name of a source."""
        self._find_provider = find

    def join(
        self,
        subscription: Subscription,
        session: Any,
        topic_index: int,
        mapping: LateMapping,
        provider: FetchProvider | None = None,
    ) -> None:
        """Fetch the past of a source that um_subscriptions_map has just mapped, from its provider if given."""
        if provider is not None:
            plan = store_plan(subscription.options, mapping.resume_sqn or 0, is_otr=False)
        elif subscription.options.use_late_join:
            plan = late_join_plan(subscription.options, mapping.resume_sqn)
        else:
            plan = otr_plan(subscription.options, mapping.resume_sqn or 0)
        with self._lock:
            self._open()
            fetch = Fetch(
                subscription,
                session.id,
                topic_index,
                mapping.epoch,
                plan,
                mapping.endpoint,
                self._counters,
                provider,
            )
            self._streams.loop.submit(partial(self._begin, fetch, resumed=mapping.resume_sqn is not None))

    def _begin(self, fetch: Fetch, *, resumed: bool) -> None:
        self._counters.late_joins += not resumed
        self._counters.sources_resumed += resumed
        assert self._client is not None
        self._client.begin(fetch)

    def close(self) -> None:
        """Close every connection. Any thread, after the sources and receivers are closed."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._streams.loop.end_thread()
        if self._selector is not None:
            lib.um_context_watch_recoveries(self._context, -1)
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._wake_fd)
            os.close(self._wake_fd)
        if self._client is not None:
            self._client.close()
        if self._server is not None:
            self._server.close()

    def _open(self) -> selectors.BaseSelector:
        if self._is_closed:
            raise Closed("the context is closed")
        if self._selector is None:
            self._selector = self._streams.loop.open()
            self._client = RecoveryClient(
                self._selector, self._counters, self._keys_of, self._options.traffic_class
            )
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._streams.loop.submit(self._watch)
            self._streams.loop.add_work(self._run_due)
            lib.um_context_watch_recoveries(self._context, self._wake_fd)
        return self._selector

    # The streams thread

    def _watch(self) -> None:
        assert self._selector is not None
        self._selector.register(self._wake_fd, selectors.EVENT_READ, self._on_wake)

    def _on_wake(self, _mask: int, _now_ns: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        self._take_recoveries()

    def _take_recoveries(self) -> None:
        """Start the off-transport recoveries that the core has begun."""
        count = _RECOVERIES_AT_A_TIME
        while count == _RECOVERIES_AT_A_TIME:
            count = lib.um_context_take_recoveries(self._context, self._begun, _RECOVERIES_AT_A_TIME)
            for begun in self._begun[0:count]:
                subscription = self._find_subscription(begun.subscription)
                if subscription is not None:
                    self._recover(subscription, begun)

    def _recover(self, subscription: Subscription, begun: Any) -> None:
        assert self._client is not None
        self._warn(subscription, begun)
        name = f"{transport_name(address_of(begun.id))}[{begun.topic_index}]"
        provider = self._find_provider(subscription, name)
        if provider is None:
            plan = otr_plan(subscription.options, begun.next_sqn)
        else:
            plan = store_plan(subscription.options, begun.next_sqn, is_otr=True)
        endpoint = Endpoint.of_core(begun.request_port)
        self._client.begin(
            Fetch(
                subscription,
                begun.id,
                begun.topic_index,
                begun.epoch,
                plan,
                endpoint,
                self._counters,
                provider,
            )
        )

    def _warn(self, subscription: Subscription, begun: Any) -> None:
        """Log a warning, at most once per topic in otr_request_log_alert_cooldown."""
        if not self._is_warning_due(subscription, time.monotonic_ns()):
            return
        _logger.warning(
            "off-transport recovery of %r from %s: the transport has not recovered sequence number %d",
            subscription.topic, transport_name(address_of(begun.id)), begun.next_sqn,
        )  # fmt: skip

    def _is_warning_due(self, subscription: Subscription, now_ns: int) -> bool:
        warned_ns = self._warned_ns.get(subscription.topic)
        cooldown_ns = subscription.options.otr_request_log_alert_cooldown_ns
        if warned_ns is not None and now_ns - warned_ns < cooldown_ns:
            return False
        self._warned_ns.pop(subscription.topic, None)
        if len(self._warned_ns) == WARNED_TOPICS_MAX:
            del self._warned_ns[next(iter(self._warned_ns))]
        self._warned_ns[subscription.topic] = now_ns
        return True

    def _run_due(self, now_ns: int) -> int | None:
        """Run due timers and return the time of the next one."""
        guard = self._streams.loop.guard
        assert self._client is not None
        times = [guard(partial(self._client.run, now_ns))]
        if self._server is not None:
            times.append(guard(partial(self._server.run, now_ns)))
        return min((due_ns for due_ns in times if due_ns is not None), default=None)


__all__ = ["RecoveryService"]
