"""StoreLink: a client's connection to one Store, which never waits."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Iterator

from umstack._engine.endpoint import Endpoint
from umstack.store.wire import StoreStream, TopicKeys

_RECEIVE = selectors.EVENT_READ
_SEND = selectors.EVENT_WRITE
_CONNECTING_NS = 10_000_000_000
"""Time after which a connection that is still being made is given up, and the next one is due."""


class StoreLink:
    """The connection to one Store, and when it is made again. One thread at a time.

    Args:
        endpoint: Address and TCP port of the Store.
        selector: Reports when the connection is ready, with `data`.
        data: The key under which the selector reports it.
        output_bytes: Maximum of bytes that wait to be sent.
        retry_ns: Time from the end of a connection to the next one.
        keys: The keys in use; the first one of the topic makes the connection's tags.
        topic: Name of the topic.
    """

    __slots__ = (
        "_data",
        "_due_ns",
        "_endpoint",
        "_interest",
        "_keys",
        "_output_bytes",
        "_peer",
        "_retry_ns",
        "_selector",
        "_stream",
        "_topic",
        "is_connected",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        selector: selectors.BaseSelector,
        data: object,
        output_bytes: int,
        retry_ns: int,
        keys: TopicKeys,
        topic: str,
    ) -> None:
        self._endpoint = endpoint
        self._selector = selector
        self._data = data
        self._output_bytes = output_bytes
        self._retry_ns = retry_ns
        self._keys = keys
        self._topic = topic
        self._due_ns = 0
        self._peer: socket.socket | None = None
        self._stream: StoreStream | None = None
        self._interest = 0
        self.is_connected = False
        """True once messages may be sent: the Store accepted the connection and, with a key, sent its greeting."""

    @property
    def is_open(self) -> bool:
        """True if there is a connection, or one is being made."""
        return self._peer is not None

    def is_due(self, now_ns: int) -> bool:
        """Return true if it is time to connect."""
        return not self.is_connected and now_ns >= self._due_ns

    def connect(self, now_ns: int) -> None:
        """Begin to connect. Raises OSError."""
        self.end(now_ns)
        self._due_ns = now_ns + _CONNECTING_NS
        self._peer = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._peer.setblocking(False)
        self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = StoreStream.of_client(self._endpoint, self._keys, self._topic, self._output_bytes)
        self._interest = _RECEIVE | _SEND
        self._selector.register(self._peer, self._interest, self._data)
        with contextlib.suppress(BlockingIOError):
            self._peer.connect(self._endpoint)

    def finish_connecting(self) -> bool:
        """The connection is ready: exchange greetings. Return true once it is connected.

        Raises OSError if the Store did not accept it, TagRefused if the Store does not have the key.
        """
        assert self._peer is not None
        assert self._stream is not None
        if error := self._peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, "the Store does not answer")
        if not self._stream.has_begun:
            self._stream.receive(self._peer)
            self._flush()
        self.is_connected = self._stream.has_begun
        return self.is_connected

    def receive(self) -> Iterator[bytes]:
        """Receive what has arrived and return its messages. Raises MalformedMessage, OSError."""
        assert self._peer is not None
        assert self._stream is not None
        if not self._stream.receive(self._peer):
            raise ConnectionError("the Store ended the connection")
        return self._stream.messages()

    def send(self, output: bytes) -> None:
        """Send, as much as the kernel takes now; the rest waits. Raises OSError."""
        assert self._stream is not None
        if output and not self._stream.put(output):
            raise ConnectionError("the Store does not read")
        self._flush()

    def _flush(self) -> None:
        assert self._peer is not None
        assert self._stream is not None
        if self._stream.waiting_bytes:
            self._stream.flush(self._peer)
        interest = _RECEIVE | (_SEND if self._stream.waiting_bytes else 0)
        if interest != self._interest:
            self._interest = interest
            self._selector.modify(self._peer, interest, self._data)

    def end(self, now_ns: int) -> None:
        """Close the connection, if there is one; it is due again after the interval."""
        if self._peer is not None:
            self._selector.unregister(self._peer)
            self._peer.close()
        self._peer = self._stream = None
        self.is_connected, self._due_ns = False, now_ns + self._retry_ns
