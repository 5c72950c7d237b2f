"""PersistentSource: publishes a topic that Stores keep (docs/store.md).

One file, because every send, event and ending is about the same lock, flight and connections.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from umstack._core import ffi, lib
from umstack._engine.waiting import SLICE_NS
from umstack.config import SourceOptions
from umstack.errors import (
    BackPressured,
    Closed,
    InvalidArgument,
    MessageTooLong,
    NotConnected,
    UmError,
    WouldBlock,
)
from umstack.message_properties import PropertyValue, encoded
from umstack.persistence.advertised import store_endpoint
from umstack.persistence.events import RegistrationRefused, SourceEvent
from umstack.persistence.flight import FRAGMENT_HEADERS_BYTES, Packed
from umstack.persistence.session_ids import session_id_of
from umstack.persistence.source_side import SourceLimits, SourceSide, StabilityRule
from umstack.persistence.store_link import StoreLink
from umstack.store.wire import STORES_MAXIMUM, MalformedMessage, TopicKeys
from umstack.streams.tags import TagRefused

if TYPE_CHECKING:
    from umstack._engine.endpoint import Endpoint
    from umstack._engine.source_events import Drained
    from umstack.buffers import Buffer
    from umstack.source import Source
    from umstack.telemetry.reading import Counters

_FLUSH = lib.UM_SEND_FLUSH
_send = lib.um_flight_send
_STREAM_BYTES = 4 << 20
EVENTS_MAX = 65_536
"""Events that wait for `take_events`; then the oldest are dropped."""
_TICK_SECONDS = 0.1
_COLLECT_MS = 1
"""Time for which acknowledgements are collected after some arrived, unless a thread waits for them. Each one costs the
interpreter's lock, which a sender needs."""
_RETRY_NS = 500_000_000
_KEEPALIVE_NS = 2_000_000_000


class PersistentSource:
    """Publish a topic that Stores keep. Made by Context.source(store=...). Any number of threads may send.

    Subscribers receive it like any other source. A message is stable once enough Stores have written it. Messages that
    are not stable are in flight; at their limits, sends wait.

    Attributes:
        topic: Name of the topic.
        message_maximum_bytes: Length of the longest message, with its properties: the fragments of a message must be
            within `ume_flight_size`.
        first_sequence_number: Number of the first message, by consensus of the Stores. A restarted source continues
            the numbering: it gives the messages that its Stores do not have their former numbers again.

    Example:
        ```python
        def publish(ctx):
            with ctx.source("orders", store=[("10.9.0.11", 14567)], session_id="desk7") as source:
                source.send(b"first")
                assert not source.close(timeout=5)
        ```
    """

    def __init__(
        self,
        make_source: Callable[[int, tuple[Endpoint, ...]], Source],
        keys: TopicKeys,
        topic: str,
        stores: Sequence[str | tuple[str, int]],
        session_id: int | str,
        options: SourceOptions,
        timeout: float,
    ) -> None:
        """Register at the Stores; called by Context.source().

        `make_source` opens the source of the context, from the number of its first message and its Stores. Its
        fragments have a fixed length, that of a datagram now: the numbers of messages do not depend on the path. With
        keys for the topic, the connections to the Stores have tags.
        """
        if not 0 < len(stores) <= STORES_MAXIMUM:
            raise InvalidArgument(
                f"a source with {len(stores)} Stores", hint=f"give store= 1 to {STORES_MAXIMUM} of them"
            )
        endpoints = tuple(map(store_endpoint, stores))
        self.topic = topic
        """The topic's name."""
        self._options = options
        rule = StabilityRule(options.ume_retention_intragroup_stability_behavior)
        self._side = SourceSide(topic, session_id_of(session_id), endpoints, rule, _limits_of(options))
        self._flight = self._side.flight.handle
        self._one, self._sqn = ffi.new("int32_t[2]"), ffi.new("uint64_t *")
        """Offsets of a single message, and the number of the last one sent, for the thread whose turn it is."""
        self._sending = threading.Lock()
        """Held while a message gets its number and is sent, so that numbers are sent in order."""
        self._changed = threading.Condition()
        """Guards the side and the links; notified when the side changed. Never held while the transport waits."""
        self._events: deque[SourceEvent] = deque(maxlen=EVENTS_MAX)
        self._waiting_count = 0
        """Threads that wait for a change."""
        self._is_collecting = False
        """True while the thread does not read acknowledgements, because nobody waits for them."""
        self._is_closed = False
        self._is_thread_ended = False
        self._selector = selectors.DefaultSelector()
        self._links = [
            StoreLink(endpoint, self._selector, at, _STREAM_BYTES, _RETRY_NS, keys, topic)
            for at, endpoint in enumerate(endpoints)
        ]
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        self._collecting = select.poll()
        self._collecting.register(self._wake_fd, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="umstack-persistence", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + timeout
        try:
            self.first_sequence_number = self._await_first(topic, deadline)
            """Number of the first message."""
            self._source = make_source(self.first_sequence_number, endpoints)
        except BaseException:
            self._end_thread()
            raise
        fragment_bytes = self._source._publication.fragment_bytes
        self.message_maximum_bytes = min(
            self._source.message_maximum_bytes, _longest_in_flight(options, fragment_bytes)
        )
        """Length of the longest message, which never changes."""
        self._side.flight.split(fragment_bytes)
        with self._changed:
            self._side.attach(self._source.transport, self._source.topic_index, time.monotonic_ns())
        self._wake()
        if not self._wait(lambda: self._side.has_quorum, deadline):
            self.close(0)
            raise NotConnected(
                f"too few Stores of {topic!r} receive its session within {timeout} s",
                hint="check that the Stores are on the source's network: umstack doctor",
            )
        self._source._await_receivers()

    def _await_first(self, topic: str, deadline: float) -> int:
        self._wait(lambda: self._side.first_sqn is not None, deadline)
        if self._side.first_sqn is None:
            refused = [event.reason for event in self._events if isinstance(event, RegistrationRefused)]
            raise NotConnected(
                f"too few Stores accepted the source of {topic!r}: {', '.join(refused) or 'no answer'}",
                hint="check that the Stores run, their addresses, and that they have the keys of the topic",
            )
        return self._side.first_sqn

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Sending

    def send(
        self,
        data: Buffer,
        flush: bool = False,
        *,
        timeout: float | None = None,
        properties: Mapping[str, PropertyValue] | None = None,
    ) -> int:
        """Send a message, after waiting for space in flight. Any thread.

        Args:
            data: Any contiguous buffer of bytes; with the properties at most `message_maximum_bytes`.
            flush: Send it and every message held before it at once, instead of with the next datagram.
            timeout: Maximum wait in seconds, for space in flight and for the transport together; None: no timeout.
            properties: Properties by name, typed as in MessageProperties.

        Returns:
            The number of the message; of a long one, that of its last fragment.

        Raises:
            BackPressured: The timeout ended: too many messages are not stable, too few Stores are registered, or the
                transport is busy.
            InvalidArgument: The properties cannot be sent.
            MessageTooLong: The message is longer than `message_maximum_bytes`.
            Closed: The source is closed.

        Example:
            ```python
            def publish(source):
                return source.send(b"first", flush=True, timeout=1, properties={"urgent": True})
            ```
        """
        payload = bytes(data)
        properties_bytes = 0
        if properties:
            block = encoded(properties)
            payload, properties_bytes = payload + block, len(block)
        if len(payload) > self.message_maximum_bytes:
            raise self._too_long(len(payload))
        if timeout is None and self._sending.acquire(blocking=False):
            # The path of nearly every send, kept minimal.
            try:
                self._one[1] = len(payload)
                flags = _FLUSH if flush else 0
                if self._try(payload, self._one, 1, properties_bytes, False, flags, SLICE_NS) == 1:
                    return int(self._sqn[0])
            finally:
                self._sending.release()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._turn(deadline):
            self._one[1] = len(payload)
            self._send_some(payload, self._one, 1, properties_bytes, flush, deadline)
            return int(self._sqn[0])

    def _try(
        self,
        data: Any,
        offsets: Any,
        count: int,
        properties_bytes: int,
        may_exceed: bool,
        flags: int,
        wait_ns: int,
    ) -> int:
        """Call um_flight_send, on this thread's turn. Raises UmError if the transport used other numbers."""
        handle, sqn = self._source._handle, self._sqn
        sent: int = _send(
            self._flight, handle, data, offsets, count, properties_bytes, may_exceed, flags, wait_ns, sqn
        )
        if sent == -errno.EPROTO:
            raise UmError(
                f"the transport numbers the messages of {self.topic!r} differently",
                hint="close the source and open it again",
            )
        return sent

    def _send_some(
        self,
        data: Any,
        offsets: Any,
        count: int,
        properties_bytes: int,
        flush: bool,
        deadline: float | None,
    ) -> int:
        """Send as many messages as there is space for in flight, at least one, and return how many."""
        may_exceed, flags = False, _FLUSH if flush else 0

        def attempt(wait_ns: int, more: int) -> int:
            return self._try(data, offsets, count, properties_bytes, may_exceed, flags | more, wait_ns)

        while True:
            sent = self._source._retry(attempt, _remaining(deadline), "sending")
            if sent:
                return sent
            may_exceed = self._await_space(offsets[1] - offsets[0], properties_bytes, deadline)

    @contextlib.contextmanager
    def _turn(self, deadline: float | None) -> Iterator[None]:
        """Wait until no other thread sends. Raises BackPressured."""
        remaining = _remaining(deadline)
        if not self._sending.acquire(timeout=-1 if remaining is None else remaining):
            raise BackPressured(f"another thread sends on {self.topic!r}", hint="allow a longer timeout")
        try:
            yield
        finally:
            self._sending.release()

    def _too_long(self, byte_count: int) -> MessageTooLong:
        return MessageTooLong(
            f"a persistent message of {byte_count} bytes is longer than {self.message_maximum_bytes}",
            hint="send several messages, or raise ume_flight_size",
        )

    def _await_space(self, byte_count: int, properties_bytes: int, deadline: float | None) -> bool:
        """Wait until a message may be sent. Returns true if it may exceed the limits of messages in flight."""
        self._source.flush()  # held messages would not become stable
        side = self._side
        with self._changed:
            while not self._is_closed:
                if side.flight.has_space(byte_count, properties_bytes):
                    return False
                if side.has_quorum and side.blocked is None:
                    side.note_full()
                    if self._options.ume_flight_size_behavior == "notify":
                        return True
                remaining = _remaining(deadline)
                if remaining is not None and remaining <= 0:
                    raise self._back_pressured()
                self._await_change(remaining)
        raise Closed(f"source {self.topic!r} is closed")

    def _back_pressured(self) -> BackPressured:
        side, blocked = self._side, self._side.blocked
        if blocked is not None:
            seconds = (time.monotonic_ns() - blocked.since_ns) / 1e9
            return BackPressured(
                f"receiver {blocked.session_id} blocks {self.topic!r} at Store {blocked.store} for {seconds:.1f} s",
                hint="wait for the receiver; one that has ended blocks until the Store's state lifetime is over",
            )
        return BackPressured(
            f"{len(side.flight)} messages are not stable, {len(side.active_stores)} Stores are registered",
            hint="wait for the Stores, or raise the limits of messages in flight",
        )

    def send_many(
        self, messages: Sequence[Buffer], flush: bool = False, *, timeout: float | None = None
    ) -> int:
        """Send many messages, which share datagrams. Any thread.

        Args:
            messages: Sequence of buffers, each as for send().
            flush: Send them and every message held before them at once.
            timeout: Maximum wait in seconds for all of them; None: no timeout.

        Returns:
            The number of messages sent: all of them, unless the timeout ended after some.

        Raises:
            UmError: As send(). If one message cannot be sent, the messages before it have been sent.

        Example:
            ```python
            def publish(source):
                return source.send_many([b"one", b"two"], flush=True)
            ```
        """
        payloads = list(map(bytes, messages))
        if not payloads:
            return 0
        offsets = array("i", accumulate(map(len, payloads), initial=0))
        return self.send_packed(b"".join(payloads), offsets, flush, timeout=timeout)

    def send_packed(
        self, data: Buffer, offsets: Buffer, flush: bool = False, *, timeout: float | None = None
    ) -> int:
        """Send messages stored end to end in one buffer, as Source.send_packed() does. Any thread.

        Message i is data[offsets[i]:offsets[i + 1]].

        Args:
            data: Any contiguous buffer of bytes; copied before the call returns.
            offsets: Buffer of ascending 32-bit signed integers, one more than messages.
            flush: Send them and every message held before them at once.
            timeout: Maximum wait in seconds for all of them; None: no timeout.

        Returns:
            The number of messages sent, as send_many().

        Raises:
            UmError: As send().

        Example:
            ```python
            def publish(source):
                source.send_packed(b"onetwo", array("i", [0, 3, 6]), flush=True)
            ```
        """
        packed = Packed(data, offsets, self.message_maximum_bytes)
        deadline = None if timeout is None else time.monotonic() + timeout
        done = 0
        try:
            with self._turn(deadline):
                while done < packed.count:
                    part = packed.offsets + done
                    is_last = packed.longer_bytes is None
                    left = packed.count - done
                    done += self._send_some(packed.data, part, left, 0, flush and is_last, deadline)
        except WouldBlock:
            if not done:
                raise
            return done
        if packed.longer_bytes is not None:
            raise self._too_long(packed.longer_bytes)
        return done

    def flush(self) -> None:
        """Send every held message at once. Any thread.

        Example:
            ```python
            def publish(source):
                source.flush()
            ```
        """
        self._source.flush()

    # State

    @property
    def transport(self) -> str:
        """Name of the transport session."""
        return self._source.transport

    @property
    def options(self) -> SourceOptions:
        """The options in force."""
        return self._source.options

    @property
    def known_receivers(self) -> int:
        """The receivers that wait_connected() counts, Stores among them. Raises Closed."""
        return self._source.known_receivers

    @property
    def active_stores(self) -> list[int]:
        """Positions, in the list given, of the Stores that keep the source's messages now."""
        with self._changed:
            return self._side.active_stores

    @property
    def unstable(self) -> list[int]:
        """Numbers of the messages in flight, in order."""
        with self._changed:
            return self._side.unstable

    def wait_connected(self, receivers: int = 1, timeout: float | None = None) -> None:
        """Wait for receivers, as Source.wait_connected() does; Stores are receivers, too.

        Args:
            receivers: Number of receivers.
            timeout: Maximum wait in seconds; None: no timeout.

        Raises:
            NotConnected: The timeout ended.
            OptionError: The source cannot know its receivers.

        Example:
            ```python
            def publish(source):
                source.wait_connected(timeout=5)
            ```
        """
        self._source.wait_connected(receivers, timeout)

    def wait_stable(self, timeout: float | None = None) -> bool:
        """Wait until every message sent so far is stable. Any thread.

        Args:
            timeout: Maximum wait in seconds; None: no timeout.

        Returns:
            True if no message is in flight.

        Example:
            ```python
            def publish(source):
                assert source.wait_stable(timeout=5)
            ```
        """
        self._source.flush()
        return self._wait(
            lambda: not len(self._side.flight), None if timeout is None else time.monotonic() + timeout
        )

    def wait_drained(self, timeout: float | None = None) -> Drained:
        """Wait until every receiver has received or given up all messages, as Source.wait_drained() does.

        Args:
            timeout: Maximum wait in seconds; None: no timeout.

        Returns:
            Drained, as Source.wait_drained().

        Raises:
            Closed: The source is closed.

        Example:
            ```python
            def publish(source):
                assert source.wait_drained(timeout=5)
            ```
        """
        return self._source.wait_drained(timeout)

    def take_events(self) -> list[SourceEvent]:
        """Return the events since the last call, at most the newest EVENTS_MAX, also after close(). Any thread.

        They are registrations, stable messages, limits of messages in flight, and Stores that were lost or came back.

        Returns:
            The events in order, as named tuples of `umstack.persistence.events`.

        Example:
            ```python
            def watch(source):
                for event in source.take_events():
                    print(event)
            ```
        """
        with self._changed:
            events = list(self._events)
            self._events.clear()
            return events

    def stats(self) -> Counters:
        """Read the counters of its Source. Any thread.

        Returns:
            Counters by name.

        Example:
            ```python
            def watch(source):
                print(source.stats())
            ```
        """
        return self._source.stats()

    # Ending

    def close(self, timeout: float = 5.0) -> list[int]:
        """Wait until every message is stable, then end the source. A second call does nothing.

        Args:
            timeout: Maximum wait in seconds.

        Returns:
            Numbers of the messages in flight. Those that were given up before are in NotStable events.

        Example:
            ```python
            def publish(source):
                assert source.close(timeout=5) == []
            ```
        """
        with self._changed:
            if self._is_closed:
                return []
        if not self._source.closed:
            with contextlib.suppress(UmError):  # no driver sends them: the Stores get them from this process
                self._source.flush()
            self._wait(lambda: not len(self._side.flight), time.monotonic() + timeout)
        with self._changed:
            self._is_closed = True
            self._side.flight.end()  # a message that another thread sends from now on would be missing in the result
            unstable = self._side.unstable
            self._changed.notify_all()
        self._end_thread()
        self._source.close()
        return unstable

    # The thread

    def _wait(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        with self._changed:
            while not condition() and not self._is_closed:
                remaining = _remaining(deadline)
                if remaining is not None and remaining <= 0:
                    break
                self._await_change(remaining)
            return condition()

    def _await_change(self, seconds: float | None) -> None:
        """Wait until the side may have changed. With `_changed` held, which the wait releases."""
        self._waiting_count += 1
        if self._is_collecting:
            self._is_collecting = False
            self._wake()
        try:
            self._changed.wait(seconds)
        finally:
            self._waiting_count -= 1

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _end_thread(self) -> None:
        with self._changed:
            self._is_closed = True
            if self._is_thread_ended:
                return
            self._is_thread_ended = True
        self._wake()
        self._thread.join()
        self._side.end()
        for at, link in enumerate(self._links):
            self._write(at)
            link.end(0)
        self._selector.close()
        os.close(self._wake_fd)
        self._events += self._side.take_events()

    def _run(self) -> None:
        ready: list[tuple[selectors.SelectorKey, int]] = []
        while True:
            with self._changed:
                if self._is_closed:
                    return
                now_ns = time.monotonic_ns()
                # With keys, a session whose clock was set back is replaced; so is one whose interface has moved.
                if self._side.transport and self._side.transport != self._source.transport:
                    self._side.attach(self._source.transport, self._source.topic_index, now_ns)
                for at, link in enumerate(self._links):
                    if link.is_due(now_ns):
                        self._connect(at, now_ns)
                for at in self._side.tick(now_ns):
                    self._end(at, now_ns)
                for at in range(len(self._links)):
                    self._write(at)
                self._events += self._side.take_events()
                self._changed.notify_all()
                self._is_collecting = bool(ready) and not self._waiting_count
            if self._is_collecting:
                self._collecting.poll(_COLLECT_MS)
            ready = self._selector.select(_TICK_SECONDS)
            with self._changed:
                for key, mask in ready:
                    if key.fd == self._wake_fd:
                        os.eventfd_read(self._wake_fd)
                    elif mask & selectors.EVENT_READ or not self._links[key.data].is_connected:
                        self._read(key.data)

    def _connect(self, at: int, now_ns: int) -> None:
        try:
            self._links[at].connect(now_ns)
        except OSError:
            self._end(at, now_ns)

    def _read(self, at: int) -> None:
        link = self._links[at]
        now_ns = time.monotonic_ns()
        if not link.is_open:
            return
        try:
            if not link.is_connected:
                if not link.finish_connecting():
                    return
                self._side.connected(at, now_ns)
            for message in link.receive():
                self._side.received(at, message, now_ns)
        except TagRefused as refusal:
            self._side.refused(at, str(refusal))
            self._end(at, now_ns)
        except (MalformedMessage, OSError):
            self._end(at, now_ns)

    def _write(self, at: int) -> None:
        link = self._links[at]
        if link.is_connected:
            try:
                link.send(self._side.take_output(at))
            except OSError:
                self._end(at, time.monotonic_ns())

    def _end(self, at: int, now_ns: int) -> None:
        self._links[at].end(now_ns)
        self._side.disconnected(at)


def _limits_of(options: SourceOptions) -> SourceLimits:
    return SourceLimits(
        flight_messages=options.ume_flight_size,
        flight_bytes=options.ume_flight_size_bytes_bytes or sys.maxsize,
        registration_interval_ns=options.ume_registration_interval_ns,
        activity_timeout_ns=options.ume_store_activity_timeout_ns,
        keepalive_interval_ns=min(_KEEPALIVE_NS, options.ume_store_activity_timeout_ns // 5),
        repeat_ns=options.ume_message_stability_timeout_ns,
        lifetime_ns=options.ume_message_stability_lifetime_ns,
        is_receiver_paced=options.ume_receiver_paced_persistence,
        retained_bytes=options.ume_repository_disk_file_size_limit_bytes,
        confirmations=options.ume_retention_unique_confirmations,
        reports_confirmations=options.ume_confirmed_delivery_notification > 0,
    )


def _longest_in_flight(options: SourceOptions, fragment_bytes: int) -> int:
    """Return the length of the longest message whose fragments are within the limits of messages in flight.

    Alone in flight, a message may have more bytes; but not with receiver pacing, because a Store has space for one
    flight when it stops the source.
    """
    fragments = options.ume_flight_size
    if not options.ume_receiver_paced_persistence:
        return fragments * fragment_bytes
    flight_bytes = options.ume_flight_size_bytes_bytes
    whole, rest = divmod(flight_bytes, fragment_bytes + FRAGMENT_HEADERS_BYTES)
    if whole >= fragments:
        return fragments * fragment_bytes
    return whole * fragment_bytes + max(0, rest - FRAGMENT_HEADERS_BYTES)


def _remaining(deadline: float | None) -> float | None:
    """Return the seconds left, at least 0; None: no deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


__all__ = ["PersistentSource"]
