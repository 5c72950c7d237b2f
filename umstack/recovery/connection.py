"""RequestConnection: a TCP connection to a source's request port, shared by the fetches of many topics.

A connection carries at most one fetch per topic. Each fetch has at most as many requests outstanding as its receiver's
options allow, and writes them while the connection's buffer has space. Answers are passed to their fetch by topic.
"""

from __future__ import annotations

import selectors
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from umstack._core import ffi, lib
from umstack._engine.endpoint import Endpoint
from umstack.key_file import Key
from umstack.recovery.fetch import Fetch
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
_REQUESTS_WAITING_MAX_BYTES = 1 << 16
_RECEIVES_A_STEP = 8


class ConnectionKey(NamedTuple):
    """Fetches with the same one may share a connection."""

    endpoint: Endpoint
    purpose: int
    """UM_PURPOSE_*: a connection serves late joins or recoveries, which captures distinguish."""
    key: Key | None
    """Key of the connection's tags; None: no tags."""


class RequestConnection:
    """Used only by the streams thread."""

    def __init__(
        self,
        key: ConnectionKey,
        selector: selectors.BaseSelector,
        counters: StreamCounters,
        keys_of: KeysOf,
        traffic_class: int,
        on_close: Callable[[RequestConnection], None],
    ) -> None:
        """Start to connect. `on_close` is called once, after the fetches have been detached. Raises OSError."""
        self.key = key
        self.fetches: dict[int, Fetch] = {}
        """The fetches by the number of their topic on the connection."""
        self.core = ffi.new("um_fetch_connection *")
        self.is_open = True
        self._selector = selector
        self._counters = counters
        self._keys_of = keys_of
        self._on_close = on_close
        self._unsent: deque[Fetch] = deque()
        """Fetches whose range request has not been written."""
        self._is_shared = False
        """True once a second fetch was attached. Before, every answer belongs to the first one."""
        self._greeting = b""
        """Our greeting, until the source has sent its greeting; only with tags."""
        self._topic = ""
        """The topic of the greeting."""
        self._run_key = ffi.new("uint32_t *")
        self._received = ByteWindow(_RECEIVE_WINDOW_BYTES)
        self._requests = ByteWindow(_REQUEST_WINDOW_BYTES)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, traffic_class)
            self._socket.connect_ex(key.endpoint)
        except BaseException:
            self._socket.close()
            raise
        self._interest = selectors.EVENT_READ | selectors.EVENT_WRITE
        selector.register(self._socket, self._interest, self._on_ready)

    def has_topic(self, topic_index: int) -> bool:
        """Return true if a fetch of the topic uses the connection."""
        return lib.um_fetch_topic_key(topic_index) in self.fetches

    def attach(self, fetch: Fetch) -> None:
        """Let a fetch use the connection. Raises ConnectionError if tags cannot be made."""
        if not self.fetches and self.key.key is not None and not self._topic:
            self._greet(fetch, self.key.key)
        self._is_shared |= bool(self.fetches)
        self.fetches[lib.um_fetch_topic_key(fetch.raw.topic_index)] = fetch
        fetch.connection = self
        lib.um_fetch_on_connect(fetch.raw, self.core)
        fetch.raw.left_over = fetch.held_bytes
        self._unsent.append(fetch)

    def detach(self, fetch: Fetch) -> None:
        """Remove a fetch; the connection is closed with its last one."""
        del self.fetches[lib.um_fetch_topic_key(fetch.raw.topic_index)]
        fetch.connection = None
        lib.um_fetch_on_disconnect(fetch.raw)
        self._is_shared = True  # answers to this fetch may still arrive
        if not self.fetches:
            self.close()

    def close(self) -> None:
        """Close the connection; its fetches connect again when it is their time."""
        if not self.is_open:
            return
        self.is_open = False
        self._selector.unregister(self._socket)
        self._socket.close()
        for fetch in self.fetches.values():
            fetch.connection = None
            lib.um_fetch_on_disconnect(fetch.raw)
        self.fetches.clear()
        self._on_close(self)

    # Requests

    @property
    def request_space(self) -> tuple[Any, int]:
        """Pointer to the place for a fetch's next requests, and the number of bytes that it may write there."""
        space = self._requests.free_bytes if len(self._requests) < _REQUESTS_WAITING_MAX_BYTES else 0
        return self._requests.space, min(space, _REQUESTS_WAITING_MAX_BYTES)

    def fill_requests(self, count: int) -> None:
        """Account for requests that a fetch has written."""
        self._requests.fill(count)

    def flush(self) -> None:
        """Write due range requests, and send as much as the socket accepts."""
        if not self.is_open:
            return
        while self._unsent and self._requests.free_bytes >= lib.UM_RANGE_REQUEST_BYTES_MAX:
            fetch = self._unsent.popleft()
            if fetch.connection is self:
                space = ffi.cast("uint8_t *", self._requests.space)
                self._requests.fill(lib.um_fetch_request_range(fetch.raw, space))
        try:
            self._requests.send(self._socket)
        except OSError:
            self.close()
            return
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if len(self._requests) else 0)
        if interest != self._interest:
            self._interest = interest
            self._selector.modify(self._socket, interest, self._on_ready)

    # Tags

    def _greet(self, fetch: Fetch, key: Key) -> None:
        self._topic = fetch.subscription.topic
        self._greeting = encode_greeting(
            Greeting(StreamKind.REQUESTS, fetch.raw.topic_index, key.id, key.encrypts)
        )
        self._received = VerifiedWindow(_RECEIVE_WINDOW_BYTES)
        self._requests = SealedWindow(_REQUEST_WINDOW_BYTES, self._greeting)

    def _take_greeting(self) -> None:
        """Tag the following messages once the source's greeting has arrived. Raises TagRefused, ConnectionError."""
        received, requests, key = self._received, self._requests, self.key.key
        assert isinstance(received, VerifiedWindow)
        assert isinstance(requests, SealedWindow)
        assert key is not None
        theirs = received.take_greeting()
        if theirs is None:
            return
        if decode_greeting(theirs) != decode_greeting(self._greeting):
            raise TagRefused(Refusal.KEY)
        topic, keys_of = self._topic, self._keys_of
        tags = StreamTags(
            key, lambda key: key in keys_of(topic), StreamKind.REQUESTS, (self._greeting, theirs), self.key.endpoint,
            topic, is_server=False,
        )  # fmt: skip
        self._greeting = b""
        requests.begin(tags)
        received.begin(tags)

    def _refuse(self, refusal: TagRefused) -> None:
        """End a connection whose peer is not the source; the next attempt opens another."""
        endpoint = self.key.endpoint
        count_refusal(refusal, self._counters, "recovery", f"{endpoint.ip}:{endpoint.port}")
        self.close()

    # Answers

    def _on_ready(self, _mask: int, _now_ns: int) -> None:
        try:
            for _ in range(_RECEIVES_A_STEP):
                count = self._received.receive(self._socket)
                if self._greeting:
                    self._take_greeting()
                self._dispatch()
                if not count or not self.is_open:
                    break
            if count == 0:
                self.close()
        except TagRefused as refusal:
            self._refuse(refusal)
        except OSError:
            self.close()
        self.flush()

    def _dispatch(self) -> None:
        """Pass received answers to their fetches. Raises TagRefused."""
        received = self._received
        while self.is_open:
            length = lib.um_fetch_next_run(
                ffi.cast("uint8_t *", received.pointer), len(received), not self._is_shared, self._run_key
            )
            if length < 0:
                self._counters.recovery_malformed += 1
                self.close()
            elif length > 0:
                self._pass_on(length)
                received.consume(length)
            elif not received.show_next():
                return

    def _pass_on(self, length: int) -> None:
        """Pass a run of answers to its fetch. Without one they are late: the fetch has ended."""
        fetch = (
            self.fetches.get(self._run_key[0]) if self._is_shared else next(iter(self.fetches.values()), None)
        )
        if fetch is None:
            return
        key = self.key.key
        if key is not None and key not in self._keys_of(fetch.subscription.topic):
            self.detach(fetch)  # the topic's key has changed: its next connection uses another one
            return
        fetch.take(self._received.pointer, length)


__all__ = ["ConnectionKey", "RequestConnection"]
