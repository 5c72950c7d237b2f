"""Fetch: one delivery controller's connection to its source's request port (UM-136..UM-143).

    connecting --range requested--> awaits range --> fetches --> complete
        ^                                |              |
        +---- disconnected; again at the plan's intervals; given up after so many, or without progress

The core decides what to request and takes what comes; here are the socket, the attempts and the timeouts. Late join
and off-transport recovery differ in their plan only: off-transport recovery needs no range first, its intervals double,
and it goes on connecting until its message timeout.
"""

from __future__ import annotations

import errno
import selectors
import socket
from dataclasses import dataclass
from typing import Any

from umstack._core import ffi, lib
from umstack._engine.subscription import Subscription
from umstack.config import ReceiverOptions
from umstack.key_file import Key
from umstack.recovery.codec import (
    LATE_JOIN_REQUEST,
    OFF_TRANSPORT_REQUEST,
    RangeRequest,
    RecoveryEndpoint,
    encode_range_request,
)
from umstack.recovery.tags import (
    KeysOf,
    Refusal,
    SealedWindow,
    StreamTags,
    TagRefused,
    VerifiedWindow,
    count_refusal,
    decode_greeting,
    greeting,
)
from umstack.streams.byte_window import ByteWindow
from umstack.streams.counters import StreamCounters

_RECEIVE_WINDOW_BYTES = 1 << 20
_REQUEST_WINDOW_BYTES = 1 << 17
_RECEIVES_A_STEP = 8
_LOOK_NS = 5_000_000
_STARVED_NS = 1_000_000
_UNLIMITED = 1_000_000


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """How a fetch connects, requests and gives up."""

    is_otr: bool
    request_index: int
    attempt_minimum_ns: int
    attempt_maximum_ns: int
    attempts_maximum: int | None
    request_minimum_ns: int
    request_maximum_ns: int
    message_timeout_ns: int
    outstanding_maximum: int
    low_sqn: int | None = None
    count: int | None = None
    bytes: int | None = None
    age_ns: int | None = None

    @classmethod
    def of_late_join(cls, options: ReceiverOptions, resume_sqn: int | None) -> FetchPlan:
        """The past of a source; of one that is found again, what follows `resume_sqn`."""
        bounded = resume_sqn is None
        return cls(
            is_otr=False,
            # Who finds a source again fetches what it missed, not the past.
            request_index=LATE_JOIN_REQUEST if bounded else OFF_TRANSPORT_REQUEST,
            attempt_minimum_ns=options.late_join_info_request_interval_ns,
            attempt_maximum_ns=options.late_join_info_request_interval_ns,
            attempts_maximum=options.late_join_info_request_maximum,
            request_minimum_ns=options.retransmit_request_interval_ns,
            request_maximum_ns=options.retransmit_request_interval_ns,
            message_timeout_ns=options.retransmit_request_message_timeout_ns,
            outstanding_maximum=options.retransmit_request_outstanding_maximum,
            low_sqn=(options.retransmit_request_low_sequence_number or None) if bounded else resume_sqn,
            count=(options.retransmit_request_maximum or None) if bounded else None,
            bytes=(options.retransmit_request_bytes_maximum_bytes or None) if bounded else None,
            age_ns=(options.retransmit_request_age_maximum_ns or None) if bounded else None,
        )

    @classmethod
    def of_otr(cls, options: ReceiverOptions, next_sqn: int) -> FetchPlan:
        """What lacks from `next_sqn` on."""
        return cls(
            is_otr=True,
            request_index=OFF_TRANSPORT_REQUEST,
            attempt_minimum_ns=options.otr_request_minimum_interval_ns,
            attempt_maximum_ns=options.otr_request_maximum_interval_ns,
            attempts_maximum=None,
            request_minimum_ns=options.otr_request_minimum_interval_ns,
            request_maximum_ns=options.otr_request_maximum_interval_ns,
            message_timeout_ns=options.otr_request_message_timeout_ns,
            outstanding_maximum=options.otr_request_outstanding_maximum or _UNLIMITED,
            low_sqn=next_sqn,
        )

    def range_request(self, topic_index: int) -> RangeRequest:
        """How far back to go."""
        return RangeRequest(
            topic_index,
            request_index=self.request_index,
            low_sqn=self.low_sqn,
            count=self.count,
            outstanding=self.outstanding_maximum,
            bytes=self.bytes,
            age_ns=self.age_ns,
        )


class Fetch:
    """One late join, or one off-transport recovery. One thread: that of the recovery service."""

    def __init__(
        self,
        subscription: Subscription,
        identity: Any,
        topic_index: int,
        epoch: int,
        plan: FetchPlan,
        endpoint: RecoveryEndpoint,
        selector: selectors.BaseSelector,
        counters: StreamCounters,
        keys_of: KeysOf,
    ) -> None:
        """`identity` is the core's session identity, `epoch` its number of the fetch."""
        self._keys_of = keys_of
        self._greeting: tuple[bytes, Key] | None = None
        """While the source has not greeted on a connection with tags: ours, and its key."""
        self.is_over = False
        self._subscription = subscription
        self._plan = plan
        self._endpoint = endpoint
        self._selector = selector
        self._counters = counters
        self._socket: socket.socket | None = None
        self._received = ByteWindow(_RECEIVE_WINDOW_BYTES)
        self._requests = ByteWindow(_REQUEST_WINDOW_BYTES)
        self._interest = 0
        self._attempts = 0
        self._attempt_ns = -(2**62)
        self._attempt_interval_ns = plan.attempt_minimum_ns
        self._requested_ns = 0
        self._request_interval_ns = plan.request_minimum_ns
        self._progress_ns: int | None = None
        self._progress_sqn = -1
        self._has_heard = False
        self._retries = False
        self._fetch = ffi.new("um_fetch *")
        self._fetch.id = identity
        self._fetch.topic_index = topic_index
        self._fetch.epoch = epoch
        self._fetch.outstanding_max = plan.outstanding_maximum
        self._fetch.awaits_range = not plan.is_otr

    def run(self, now_ns: int) -> int:
        """Do what is due; returns when to call again."""
        if self._socket is None:
            self._connect(now_ns)
        self._step(now_ns)
        return now_ns + (_STARVED_NS if self._fetch.is_starved else _LOOK_NS)

    def close(self) -> None:
        """Leave it; the core's part ends with its receiver."""
        self.is_over = True
        self._disconnect()

    def _on_ready(self, _mask: int, now_ns: int) -> None:
        self._step(now_ns)

    # The connection

    def _connect(self, now_ns: int) -> None:
        plan = self._plan
        if now_ns - self._attempt_ns < self._attempt_interval_ns:
            return
        if self._fetch.is_caught_up:
            return  # nothing is lacking now
        if plan.attempts_maximum is not None and self._attempts >= plan.attempts_maximum:
            self._give_up()
            return
        if self._attempts > 0:
            self._attempt_interval_ns = min(2 * self._attempt_interval_ns, plan.attempt_maximum_ns)
        self._attempts += 1
        self._attempt_ns = now_ns
        peer = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.connect_ex(self._endpoint)
        self._counters.otr_connections += plan.is_otr
        self._socket = peer
        self._open_windows()
        # Nothing was requested yet where the range is still to come.
        self._retries = not self._fetch.awaits_range
        self._interest = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.register(peer, self._interest, self._on_ready)

    def _open_windows(self) -> None:
        """Begin a connection with the range request, or with a greeting where the topic has keys."""
        keys = self._keys_of(self._subscription.topic)
        self._greeting = None
        if not keys:
            self._received = ByteWindow(_RECEIVE_WINDOW_BYTES)
            self._requests = ByteWindow(_REQUEST_WINDOW_BYTES)
            self._request_range()
            return
        ours = greeting(self._fetch.topic_index, keys[0])
        self._greeting = ours, keys[0]
        self._received = VerifiedWindow(_RECEIVE_WINDOW_BYTES)
        self._requests = SealedWindow(_REQUEST_WINDOW_BYTES, ours)

    def _request_range(self) -> None:
        self._requests.append(encode_range_request(self._plan.range_request(self._fetch.topic_index)))

    def _take_greeting(self, ours: bytes, key: Key) -> None:
        """Once the source has greeted, tag what follows. Raises TagRefused, ConnectionError."""
        received, requests = self._received, self._requests
        assert isinstance(received, VerifiedWindow)
        assert isinstance(requests, SealedWindow)
        theirs = received.take_greeting()
        if theirs is None:
            return
        if decode_greeting(theirs) != (self._fetch.topic_index, key.id):
            raise TagRefused(Refusal.KEY)
        topic = self._subscription.topic
        tags = StreamTags(key, self._keys_of, topic, self._endpoint, (ours, theirs), is_server=False)
        self._greeting = None
        requests.begin(tags)
        received.begin(tags)
        self._request_range()

    def _refuse(self, refusal: TagRefused) -> None:
        """End a connection whose other side is not the source; the next attempt makes another."""
        count_refusal(refusal, self._counters, f"{self._endpoint.ip}:{self._endpoint.port}")
        self._disconnect()

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def _give_up(self) -> None:
        self._count_given_up()
        lib.um_subscription_give_up_past(self._subscription.handle, self._fetch)
        self.close()

    def _count_given_up(self) -> None:
        if self._plan.is_otr:
            self._counters.otr_given_up += 1
        else:
            self._counters.late_joins_given_up += 1

    # The exchange

    def _step(self, now_ns: int) -> None:
        peer = self._socket
        ended = False
        for _ in range(_RECEIVES_A_STEP):
            count = 0 if peer is None or ended else self._receive(peer)
            ended |= count < 0
            if not self._take(now_ns):
                return
            if count <= 0 or self._fetch.is_starved:
                break
        if peer is not None and self._socket is peer:
            self._send(peer)
            if ended and not len(self._received):
                self._disconnect()
        self._note_progress(now_ns)

    def _receive(self, peer: socket.socket) -> int:
        """Bytes received, 0 when nothing waits or there is no room, -1 at the end."""
        room = self._received.room
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
        self._has_heard |= bool(count)
        return 0 if count is None or room == 0 else count or -1

    def _take(self, now_ns: int) -> bool:
        """Have the core take what was received and write what to request; False when that was the end."""
        while self._take_seen(now_ns):
            try:
                if self._fetch.is_starved or not self._received.show_next():
                    return True
            except TagRefused as refusal:
                self._refuse(refusal)
                return True
        return False

    def _take_seen(self, now_ns: int) -> bool:
        fetch = self._fetch
        may_request = not fetch.awaits_range and self._greeting is None
        fetch.retries = self._retries and may_request
        self._retries &= not may_request
        room = self._requests.room if self._socket is not None and len(self._requests) < 65536 else 0
        result = lib.um_subscription_fetch(
            self._subscription.handle,
            fetch,
            self._received.pointer,
            len(self._received),
            self._requests.space,
            min(room, 65536),
        )
        if result == -errno.EBADMSG:
            self._counters.recovery_malformed += 1
            self._give_up()
            return False
        if result != 0:
            self.close()
            return False
        self._received.consume(fetch.consumed)
        self._requests.fill(fetch.written)
        if fetch.written:
            self._requested_ns = now_ns
        return True

    def _send(self, peer: socket.socket) -> None:
        try:
            self._requests.send(peer)
        except OSError:
            self._disconnect()
            return
        interest = selectors.EVENT_READ if self._received.room and not self._fetch.is_starved else 0
        interest |= selectors.EVENT_WRITE if len(self._requests) else 0
        if interest and interest != self._interest:
            self._interest = interest
            self._selector.modify(peer, interest, self._on_ready)

    def _note_progress(self, now_ns: int) -> None:
        """Request again, or give up, what does not come; a receiver whose reader is slow goes on."""
        fetch, plan = self._fetch, self._plan
        progress = fetch.next_sqn if not fetch.awaits_range else -1
        waits = fetch.is_starved or fetch.is_left_to_transport
        if progress != self._progress_sqn or self._progress_ns is None or waits:
            self._progress_sqn, self._progress_ns = progress, now_ns
            if progress >= 0 and self._socket is not None:
                self._attempts = 0
                self._attempt_interval_ns = plan.attempt_minimum_ns
                self._request_interval_ns = plan.request_minimum_ns
            return
        if fetch.awaits_range and not plan.is_otr:
            if self._socket is not None and now_ns - self._attempt_ns >= self._attempt_interval_ns:
                self._disconnect()  # and connects again
        elif now_ns - self._progress_ns >= plan.message_timeout_ns:
            self._progress_ns = now_ns
            self._on_message_timeout()
        elif not fetch.is_caught_up and now_ns - self._requested_ns >= self._request_interval_ns:
            if plan.is_otr and not self._has_heard:
                self._disconnect()  # the path may be a new one: TCP would go on waiting for the old
            self._has_heard = False
            self._retries = True
            self._requested_ns = now_ns
            self._request_interval_ns = min(2 * self._request_interval_ns, plan.request_maximum_ns)

    def _on_message_timeout(self) -> None:
        if self._fetch.is_caught_up:  # an idle source: there is no more past
            lib.um_subscription_give_up_past(self._subscription.handle, self._fetch)
            self.close()
        elif lib.um_subscription_pass_over(self._subscription.handle, self._fetch) != 0:
            self._count_given_up()
            self.close()
