"""Fetch: one delivery controller's connection to its source's request port (UM-136..UM-143).

The core decides when to connect, which requests to send and when to give up (ffi/core/receiver/fetch.h). This module
has the socket, and the tags if the topic has keys. The simulator runs the same core over simulated connections.
"""

from __future__ import annotations

import errno
import selectors
import socket
from typing import Any

from umstack._core import ffi, lib
from umstack._engine.endpoint import Endpoint
from umstack._engine.subscription import Subscription
from umstack.config import ReceiverOptions
from umstack.key_file import Key
from umstack.recovery.codec import (
    LATE_JOIN_REQUEST,
    OFF_TRANSPORT_REQUEST,
    RangeBounds,
    write_bounds,
)
from umstack.streams.byte_window import ByteWindow
from umstack.streams.counters import StreamCounters
from umstack.streams.tags import (
    Greeting,
    KeysOf,
    Refusal,
    SealedWindow,
    StreamKind,
    StreamTags,
    TagRefused,
    VerifiedWindow,
    count_refusal,
    decode_greeting,
    encode_greeting,
)

_RECEIVE_WINDOW_BYTES = 1 << 20
_REQUEST_WINDOW_BYTES = 1 << 17
_RECEIVES_A_STEP = 8
_LOOK_NS = 5_000_000
_STARVED_NS = 1_000_000
_UNLIMITED = 1_000_000


def late_join_plan(options: ReceiverOptions, resume_sqn: int | None) -> Any:
    """Return an um_fetch_plan for a source's past or, if rediscovered, for the messages after `resume_sqn`."""
    plan = ffi.new("um_fetch_plan *")
    plan.attempts_max = options.late_join_info_request_maximum
    plan.outstanding_max = options.retransmit_request_outstanding_maximum
    plan.attempt_minimum_ns = plan.attempt_maximum_ns = options.late_join_info_request_interval_ns
    plan.request_minimum_ns = plan.request_maximum_ns = options.retransmit_request_interval_ns
    plan.message_timeout_ns = options.retransmit_request_message_timeout_ns
    # A receiver that rediscovers a source fetches the messages it missed, not the past.
    plan.request_index = LATE_JOIN_REQUEST if resume_sqn is None else OFF_TRANSPORT_REQUEST
    bounds = RangeBounds(low_sqn=resume_sqn)
    if resume_sqn is None:
        bounds = RangeBounds(
            low_sqn=options.retransmit_request_low_sequence_number or None,
            count=options.retransmit_request_maximum or None,
            bytes=options.retransmit_request_bytes_maximum_bytes or None,
            age_ns=options.retransmit_request_age_maximum_ns or None,
        )
    write_bounds(plan.bounds, bounds)
    return plan


def otr_plan(options: ReceiverOptions, next_sqn: int) -> Any:
    """Return an um_fetch_plan for the messages missing from `next_sqn` on."""
    plan = ffi.new("um_fetch_plan *")
    plan.is_otr = True
    plan.request_index = OFF_TRANSPORT_REQUEST
    plan.outstanding_max = options.otr_request_outstanding_maximum or _UNLIMITED
    plan.attempt_minimum_ns = plan.request_minimum_ns = options.otr_request_minimum_interval_ns
    plan.attempt_maximum_ns = plan.request_maximum_ns = options.otr_request_maximum_interval_ns
    plan.message_timeout_ns = options.otr_request_message_timeout_ns
    write_bounds(plan.bounds, RangeBounds(low_sqn=next_sqn))
    return plan


class Fetch:
    """One late join or one off-transport recovery. Used only by the recovery service's thread."""

    def __init__(
        self,
        subscription: Subscription,
        identity: Any,
        topic_index: int,
        epoch: int,
        plan: Any,
        endpoint: Endpoint,
        selector: selectors.BaseSelector,
        counters: StreamCounters,
        keys_of: KeysOf,
        traffic_class: int,
    ) -> None:
        """`identity` is the core's session, `epoch` the core's number of the fetch, and `plan` an um_fetch_plan."""
        self._keys_of = keys_of
        self._traffic_class = traffic_class
        self._greeting: tuple[bytes, Key] | None = None
        """Our greeting and its key until the source has sent its greeting; only on connections with tags."""
        self.is_over = False
        self._subscription = subscription
        self._endpoint = endpoint
        self._selector = selector
        self._counters = counters
        self._socket: socket.socket | None = None
        self._received = ByteWindow(_RECEIVE_WINDOW_BYTES)
        self._requests = ByteWindow(_REQUEST_WINDOW_BYTES)
        self._interest = 0
        self._fetch = ffi.new("um_fetch *")
        self._fetch.id = identity
        self._fetch.topic_index = topic_index
        self._fetch.epoch = epoch
        self._fetch.plan = plan[0]
        lib.um_fetch_begin(self._fetch)

    def run(self, now_ns: int) -> int:
        """Run due timers and return the time of the next one."""
        self._step()
        return now_ns + (_STARVED_NS if self._fetch.is_starved else _LOOK_NS)

    def close(self) -> None:
        """Close the connection; the core's state is freed with its receiver."""
        self.is_over = True
        self._disconnect()

    def _on_ready(self, _mask: int, _now_ns: int) -> None:
        self._step()

    # The connection

    def _connect(self) -> None:
        peer = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, self._traffic_class)
        peer.connect_ex(self._endpoint)
        self._counters.otr_connections += self._fetch.plan.is_otr
        self._socket = peer
        lib.um_fetch_on_connect(self._fetch)
        self._open_windows()
        self._interest = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.register(peer, self._interest, self._on_ready)

    def _open_windows(self) -> None:
        """Start a connection with the range request, or with a greeting if the topic has keys."""
        keys = self._keys_of(self._subscription.topic)
        self._greeting = None
        if not keys:
            self._received = ByteWindow(_RECEIVE_WINDOW_BYTES)
            self._requests = ByteWindow(_REQUEST_WINDOW_BYTES)
            self._request_range()
            return
        ours = encode_greeting(Greeting(StreamKind.REQUESTS, self._fetch.topic_index, keys[0].id))
        self._greeting = ours, keys[0]
        self._received = VerifiedWindow(_RECEIVE_WINDOW_BYTES)
        self._requests = SealedWindow(_REQUEST_WINDOW_BYTES, ours)

    def _request_range(self) -> None:
        request = ffi.new("uint8_t[]", lib.UM_RANGE_REQUEST_BYTES_MAX)
        length = lib.um_fetch_request_range(self._fetch, request)
        self._requests.append(bytes(ffi.buffer(request, length)))

    def _take_greeting(self, ours: bytes, key: Key) -> None:
        """Tag the following messages once the source's greeting has arrived. Raises TagRefused, ConnectionError."""
        received, requests = self._received, self._requests
        assert isinstance(received, VerifiedWindow)
        assert isinstance(requests, SealedWindow)
        theirs = received.take_greeting()
        if theirs is None:
            return
        if decode_greeting(theirs) != decode_greeting(ours):
            raise TagRefused(Refusal.KEY)
        topic, keys_of = self._subscription.topic, self._keys_of
        tags = StreamTags(
            key, lambda key: key in keys_of(topic), StreamKind.REQUESTS, (ours, theirs), self._endpoint, topic,
            is_server=False,
        )  # fmt: skip
        self._greeting = None
        requests.begin(tags)
        received.begin(tags)
        self._request_range()

    def _refuse(self, refusal: TagRefused) -> None:
        """End a connection whose peer is not the source; the next attempt opens another."""
        count_refusal(refusal, self._counters, "recovery", f"{self._endpoint.ip}:{self._endpoint.port}")
        self._disconnect()

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
            lib.um_fetch_on_disconnect(self._fetch)

    # The exchange

    def _step(self) -> None:
        peer = self._socket
        ended = False
        for _ in range(_RECEIVES_A_STEP):
            count = 0 if peer is None or ended else self._receive(peer)
            ended |= count < 0
            if not self._take():
                return
            if count <= 0 or self._fetch.is_starved:
                break
        if peer is not None and self._socket is peer:
            self._send(peer)
            if ended and not self._fetch.is_starved:  # the rest is an incomplete message
                self._disconnect()
        self._attend()

    def _receive(self, peer: socket.socket) -> int:
        """Receive; return the number of bytes, 0 if no data waits or there is no space, -1 at the end."""
        space = self._received.free_bytes
        try:
            count = self._received.receive(peer)
            if self._greeting is not None:
                self._take_greeting(*self._greeting)
            self._received.show_next()
        except TagRefused as refusal:
            self._refuse(refusal)
            return -1
        except OSError:
            return -1
        return 0 if count is None or space == 0 else count or -1

    def _take(self) -> bool:
        """Pass received data to the core and collect its requests; return false at the end of the stream."""
        while self._take_seen():
            try:
                if self._fetch.is_starved or not self._received.show_next():
                    return True
            except TagRefused as refusal:
                self._refuse(refusal)
                return True
        return False

    def _take_seen(self) -> bool:
        fetch = self._fetch
        space = self._requests.free_bytes if self._socket is not None and len(self._requests) < 65536 else 0
        result = lib.um_subscription_fetch(
            self._subscription.handle,
            fetch,
            self._received.pointer,
            len(self._received),
            self._requests.space,
            min(space, 65536),
        )
        if result == -errno.EBADMSG:
            self._counters.recovery_malformed += 1
        if result != 0:
            self._end()
            return False
        self._received.consume(fetch.consumed)
        self._requests.fill(fetch.written)
        return True

    def _send(self, peer: socket.socket) -> None:
        try:
            self._requests.send(peer)
        except OSError:
            self._disconnect()
            return
        interest = selectors.EVENT_READ if self._received.free_bytes and not self._fetch.is_starved else 0
        interest |= selectors.EVENT_WRITE if len(self._requests) else 0
        if interest and interest != self._interest:
            self._interest = interest
            self._selector.modify(peer, interest, self._on_ready)

    def _attend(self) -> None:
        action = lib.um_subscription_attend_fetch(self._subscription.handle, self._fetch)
        if action == lib.UM_FETCH_CONNECT:
            self._connect()
        elif action == lib.UM_FETCH_DISCONNECT:
            self._disconnect()  # um_fetch connects again later
        elif action != lib.UM_FETCH_WAIT:
            self._end()

    def _end(self) -> None:
        if self._fetch.is_given_up and self._fetch.plan.is_otr:
            self._counters.otr_given_up += 1
        elif self._fetch.is_given_up:
            self._counters.late_joins_given_up += 1
        self.close()
