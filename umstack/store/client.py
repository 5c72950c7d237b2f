"""Clients of Stores: PersistentSource publishes a topic that Stores keep, replay() reads it back."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self, Unpack

from umstack._engine.endpoint import Endpoint
from umstack.buffers import Buffer
from umstack.config.keywords import SourceKeywords
from umstack.context import Context
from umstack.errors import BackPressured, Closed, InvalidArgument, MessageTooLong, NotConnected
from umstack.store.protocol.events import RegistrationRefused, SourceEvent
from umstack.store.protocol.messages import encode_data
from umstack.store.protocol.reader_side import ReaderSide, RecoveredMessage
from umstack.store.protocol.source_side import SourceLimits, SourceSide, StabilityRule
from umstack.store.server import NoKeys
from umstack.store.wire import MalformedMessage, RegistrationError, StoreStream

_SESSION_MAXIMUM = (1 << 64) - 2
_HEADERS_BYTES = 128
"""Space for the headers of a datagram with one message."""
_STREAM_BYTES = 4 << 20
EVENTS_MAX = 65_536
"""Events that wait for `take_events`; then the oldest are dropped."""
_TICK_SECONDS = 0.1
_RETRY_NS = 500_000_000


def _check_session(session_id: int) -> None:
    if not 1 <= session_id <= _SESSION_MAXIMUM:
        raise InvalidArgument(
            f"session id {session_id} is not between 1 and 2^64 - 2", hint="choose another number"
        )


class _Link:
    """The connection to one Store."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.peer: socket.socket | None = None
        self.stream: StoreStream | None = None
        self.is_connected = False
        self.retry_ns = 0


class PersistentSource:
    """Publish a topic that Stores keep. Subscribers receive it as any other source.

    A message is stable once enough Stores have written it. At most `limits.flight_messages` messages are not stable:
    then send() waits. One thread of the source talks to the Stores, any number of threads may send.

    Args:
        context: Context of the source.
        topic: Name of the topic.
        stores: Address and TCP port of each Store.
        session_id: Identifies the source at the Stores, so that a restarted one continues its numbering.
        rule: Which Stores must have a message before it is stable.
        limits: Limits and times.
        timeout: Maximum wait in seconds for the registration.
        **options: Source options by name.

    Raises:
        NotConnected: Too few Stores accepted the source within the timeout.
        InvalidArgument: There is no Store, or the session id is out of range.

    Example:
        ```python
        def publish(ctx):
            with PersistentSource(ctx, "orders", [("10.9.0.11", 14567)], session_id=7) as source:
                source.send(b"first")
                assert not source.close(timeout=5)
        ```
    """

    def __init__(
        self,
        context: Context,
        topic: str,
        stores: Sequence[tuple[str, int]],
        session_id: int,
        *,
        rule: StabilityRule = StabilityRule.QUORUM,
        limits: SourceLimits | None = None,
        timeout: float = 30.0,
        **options: Unpack[SourceKeywords],
    ) -> None:
        _check_session(session_id)
        if not stores:
            raise InvalidArgument("a persistent source without a Store", hint="use Context.source() instead")
        endpoints = tuple(Endpoint(*store) for store in stores)
        self._side = SourceSide(topic, session_id, endpoints, rule, limits)
        self._links = [_Link(endpoint) for endpoint in endpoints]
        self._changed = threading.Condition()
        """Guards the side and the links; notified when the side changed."""
        self._events: deque[SourceEvent] = deque(maxlen=EVENTS_MAX)
        self._is_closed = False
        self._selector = selectors.DefaultSelector()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="umstack-persistence", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + timeout
        try:
            first = self._await_first(topic, deadline)
            options["initial_sequence_number"] = first
            self._source = context.source(topic, **options)
        except BaseException:
            self._end_thread()
            raise
        self.maximum_bytes = min(self._source.message_maximum_bytes, context.datagram_bytes - _HEADERS_BYTES)
        """Length of the longest message: it must fit one datagram."""
        with self._changed:
            self._side.attach(self._source.transport, self._source.topic_index, time.monotonic_ns())
        self._wake()
        if not self._wait(lambda: self._side.has_quorum, deadline):
            self.close(0)
            raise NotConnected(
                f"too few Stores of {topic!r} receive its session within {timeout} s",
                hint="check that the Stores are on the source's network: umstack doctor",
            )

    def _await_first(self, topic: str, deadline: float) -> int:
        self._wait(lambda: self._side.first_sqn is not None, deadline)
        if self._side.first_sqn is None:
            refused = [event.reason for event in self._events if isinstance(event, RegistrationRefused)]
            raise NotConnected(
                f"too few Stores accepted the source of {topic!r}: {', '.join(refused) or 'no answer'}",
                hint="check that the Stores run and their addresses",
            )
        return self._side.first_sqn

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, data: Buffer, *, timeout: float | None = None) -> int:
        """Send a message at once, after waiting for space in flight.

        Args:
            data: Any contiguous buffer of at most `maximum_bytes` bytes.
            timeout: Maximum wait in seconds; None: no timeout.

        Returns:
            The number of the message.

        Raises:
            BackPressured: The timeout ended: too many messages are not stable, or too few Stores are registered.
            MessageTooLong: The message does not fit one datagram.
            Closed: The source is closed.
        """
        payload = bytes(data)
        if len(payload) > self.maximum_bytes:
            raise MessageTooLong(
                f"a persistent message of {len(payload)} bytes is longer than {self.maximum_bytes}",
                hint="send several messages",
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._is_closed and not self._side.can_send(len(payload)):
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    raise BackPressured(
                        f"{len(self._side.unstable)} messages are not stable, {len(self._side.active_stores)} Stores",
                        hint="wait for the Stores, or raise the limits of messages in flight",
                    )
                self._changed.wait(remaining)
            if self._is_closed:
                raise Closed("the persistent source is closed")
            sqn = self._side.next_sqn
            message = encode_data(self._source.topic_index, sqn, payload)
            sent = self._source.send(payload, flush=True, timeout=timeout)
            assert sent == sqn % (1 << 32), (sent, sqn)
            self._side.sent(sqn, message, time.monotonic_ns())
            return sqn

    @property
    def active_stores(self) -> list[int]:
        """Positions, in the list given, of the Stores that keep the source's messages now."""
        with self._changed:
            return self._side.active_stores

    def take_events(self) -> list[SourceEvent]:
        """Return the events since the last call, at most the newest EVENTS_MAX.

        They are registrations, stable messages, and Stores that were lost or came back.
        """
        with self._changed:
            events = list(self._events)
            self._events.clear()
            return events

    def close(self, timeout: float = 5.0) -> list[int]:
        """Wait until every message is stable, then end the source. A second call does nothing.

        Args:
            timeout: Maximum wait in seconds.

        Returns:
            Numbers of the messages in flight. Those that were given up before are in NotStable events.
        """
        if self._is_closed:
            return []
        self._wait(lambda: not self._side.unstable, time.monotonic() + timeout)
        with self._changed:
            self._is_closed = True
            unstable = self._side.unstable
            self._changed.notify_all()
        self._end_thread()
        self._source.close()
        return unstable

    # The thread

    def _wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        with self._changed:
            while not condition() and (remaining := deadline - time.monotonic()) > 0:
                self._changed.wait(remaining)
            return condition()

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _end_thread(self) -> None:
        with self._changed:
            self._is_closed = True
        self._wake()
        self._thread.join()
        for link in self._links:
            if link.peer is not None:
                link.peer.close()
        self._selector.close()
        os.close(self._wake_fd)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                now_ns = time.monotonic_ns()
                for at, link in enumerate(self._links):
                    if link.peer is None and now_ns >= link.retry_ns:
                        self._connect(at, now_ns)
                for at in self._side.tick(now_ns):
                    self._end(at, now_ns)
                for at in range(len(self._links)):
                    self._write(at)
                self._events += self._side.take_events()
                self._changed.notify_all()
            ready = self._selector.select(_TICK_SECONDS)
            with self._changed:
                for key, mask in ready:
                    if key.fd == self._wake_fd:
                        os.eventfd_read(self._wake_fd)
                    elif mask & selectors.EVENT_READ or not self._links[key.data].is_connected:
                        self._read(key.data)

    def _connect(self, at: int, now_ns: int) -> None:
        link = self._links[at]
        link.peer = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        link.peer.setblocking(False)
        link.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.stream, link.is_connected = (
            StoreStream(link.endpoint, NoKeys(), _STREAM_BYTES, is_store=False),
            False,
        )
        link.retry_ns = now_ns + _RETRY_NS
        self._selector.register(link.peer, selectors.EVENT_READ | selectors.EVENT_WRITE, at)
        try:
            with contextlib.suppress(BlockingIOError):
                link.peer.connect(link.endpoint)
        except OSError:
            self._end(at, now_ns)

    def _read(self, at: int) -> None:
        link = self._links[at]
        now_ns = time.monotonic_ns()
        if link.peer is None or link.stream is None:
            return
        if not link.is_connected:
            if link.peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._end(at, now_ns)
                return
            link.is_connected = True
            self._side.connected(at, now_ns)
        try:
            if not link.stream.receive(link.peer):
                self._end(at, now_ns)
                return
            for message in link.stream.messages():
                self._side.received(at, message, now_ns)
        except (MalformedMessage, OSError):
            self._end(at, now_ns)

    def _write(self, at: int) -> None:
        link = self._links[at]
        if link.peer is None or link.stream is None or not link.is_connected:
            return
        output = self._side.take_output(at)
        try:
            if output and not link.stream.put(output):
                raise ConnectionError("the Store does not read")
            if link.stream.waiting_bytes:
                link.stream.flush(link.peer)
        except OSError:
            self._end(at, time.monotonic_ns())
            return
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.stream.waiting_bytes else 0)
        if self._selector.get_key(link.peer).events != mask:
            self._selector.modify(link.peer, mask, at)

    def _end(self, at: int, now_ns: int) -> None:
        link = self._links[at]
        assert link.peer is not None
        self._selector.unregister(link.peer)
        link.peer.close()
        link.peer, link.stream, link.retry_ns = None, None, now_ns + _RETRY_NS
        self._side.disconnected(at)


def replay(
    topic: str, store: tuple[str, int], session_id: int, *, timeout: float = 10.0, is_explicit: bool = False
) -> Iterator[RecoveredMessage]:
    """Yield what a Store has of a topic, oldest first, from the last acknowledgement of this session id.

    The sources may have ended. Messages are acknowledged in batches, when the message after the batch is
    requested or the iteration ends: a reader that is interrupted gets the messages of its last batch again.

    Args:
        topic: Name of the topic.
        store: Address and TCP port of the Store.
        session_id: Identifies the reader at the Store.
        timeout: Maximum wait in seconds for an answer.
        is_explicit: Acknowledge nothing: the next reader with this session id gets the same messages.

    Yields:
        The messages of each source in order; messages that the Store dropped are skipped.

    Raises:
        NotConnected: The Store does not answer, or refuses the reader.
        InvalidArgument: The session id is out of range.

    Example:
        ```python
        def read():
            for message in replay("orders", ("10.9.0.11", 14567), session_id=3):
                print(message.sqn, message.data)
        ```
    """
    _check_session(session_id)
    endpoint = Endpoint(*store)
    side = ReaderSide(topic, session_id)
    stream = StoreStream(endpoint, NoKeys(), _STREAM_BYTES, is_store=False)
    try:
        with socket.create_connection(endpoint, timeout) as peer:
            is_asked = False
            while not side.is_confirmed:
                messages = side.take_messages()
                yield from messages
                if messages and not is_explicit:
                    for last in {message.source_reg_id: message for message in messages}.values():
                        side.acknowledge(last)
                if side.is_complete and not is_asked:
                    side.confirm()
                    is_asked = True
                stream.put(side.take_output())
                while stream.waiting_bytes:
                    stream.flush(peer)
                if not stream.receive(peer):
                    raise NotConnected(f"the Store at {endpoint} ended the connection", hint="connect again")
                for received in stream.messages():
                    side.received(received)
    except (OSError, MalformedMessage) as error:
        raise NotConnected(f"the Store at {endpoint}: {error}", hint="check that it runs") from error
    _check_accepted(side, endpoint)


def _check_accepted(side: ReaderSide, endpoint: Endpoint) -> None:
    if side.error not in (None, RegistrationError.SOURCE_NOT_FOUND):
        raise NotConnected(f"the Store at {endpoint} refused the reader: {side.error}", hint="connect again")


__all__ = ["PersistentSource", "replay"]
