"""ResponseIntake: the open requests, and the connections on which responders respond to them.

One file, because the leading thread receives, drops and counts the responses.

A thread that waits for a response receives for all requests (it *leads*), so that no other thread has to be woken;
other waiting threads follow until it has finished. While no thread waits, the streams thread receives. An event loop
leads when the descriptor becomes readable. There are bounds on the requests, the connections (set by the port), the
incomplete response of each connection, and the memory of all unread responses.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from random import SystemRandom

from umstack._core import ffi, lib
from umstack._engine.keyring import Keyring
from umstack.config import ContextOptions
from umstack.errors import ResourceLimit, UmError
from umstack.requests.codec import (
    MalformedResponse,
    ResponsePart,
    ResponseStream,
    decode_part,
    message_length,
)
from umstack.requests.counters import RequesterCounters, ResponseTagCounters
from umstack.requests.inbox import Inbox
from umstack.requests.response import Response
from umstack.streams import RequestPort
from umstack.streams.byte_window import ByteWindow
from umstack.streams.request_port import IDLE_PEER_NS, PeerKind, discard_received
from umstack.streams.tags import (
    GREETING_BYTES,
    PROOF,
    Refusal,
    SealedWindow,
    StreamKind,
    StreamTags,
    TagRefused,
    VerifiedWindow,
    count_refusal,
    decode_greeting,
    encode_greeting,
    is_greeting,
    key_check,
)

NEVER_NS = 2**63
"""Deadline of a request without a timeout."""

_WINDOW_BYTES = 131072
_ANSWER_BYTES = 256
"""Bytes for a greeting and an empty record."""
_RECEIVES_AT_A_TIME = 4
_EVENTS_AT_A_TIME = 64
_SLICE_NS = 100_000_000
_SEQUENTIAL_SLICE_S = 0.001
_LED_NS = 50_000_000
"""The streams thread ignores the descriptor for this long after the last wait."""
_PURGE_NS = 1_000_000_000
_IDLE_NS = 60_000_000_000
"""A connection that has delivered a response may be replaced after this long without another."""
_ROW_BYTES = 256
"""Memory of a response in addition to its payload, in bytes."""
_INDICES = 2**32
_NS_PER_S = 1e9


class _Connection:
    """One responder's connection, and its incomplete response."""

    __slots__ = (
        "active_ns",
        "first_sqn",
        "has_begun",
        "is_useful",
        "name",
        "part",
        "received",
        "request_index",
        "skipped_sqn",
        "socket",
        "stream",
        "stream_sqn",
        "tags",
    )

    def __init__(self, peer: socket.socket, now_ns: int) -> None:
        self.socket = peer
        with contextlib.suppress(OSError):
            self.name = "{}:{}".format(*peer.getpeername())
        self.received = ByteWindow(_WINDOW_BYTES)
        self.has_begun = False
        self.tags: StreamTags | None = None
        self.active_ns = now_ns
        self.is_useful = False
        self.stream: ResponseStream | None = None
        self.stream_sqn = 0
        self.part: bytearray | None = None
        self.first_sqn = 0
        self.request_index = 0
        self.skipped_sqn: int | None = None


class ResponseIntake:
    """The open requests of a context. Any thread; the thread that receives holds `_leading`."""

    def __init__(
        self,
        options: ContextOptions,
        port: RequestPort,
        selector: selectors.BaseSelector,
        counters: RequesterCounters,
        tag_counters: ResponseTagCounters,
        keyring: Keyring,
        run_protocol: Callable[[], object] | None,
        check_owned: Callable[[], None],
    ) -> None:
        """Accept responses at the port. In sequential mode, a waiting thread calls `run_protocol`.

        `check_owned` raises Forked in a process that was forked from the one that opened the context.
        """
        self._check_owned = check_owned
        self.is_sequential = run_protocol is not None
        self.endpoint = port.endpoint
        self._run_protocol = run_protocol
        self._selector = selector
        self._counters = counters
        self._tag_counters = tag_counters
        self._keyring = keyring
        self._connections_max = options.request_responders_maximum
        self._open_max = options.request_pending_maximum
        self._idle_ns = options.recovery_idle_timeout_ns
        self._message_max_bytes = options.response_maximum_message_length_bytes
        self._held_max_bytes = options.request_response_buffer_bytes
        self._held_bytes = 0
        self._abandoned: deque[int] = deque()
        self._accounting = threading.Lock()
        self._numbers = itertools.count(SystemRandom().randrange(_INDICES))
        self._open: dict[int, Inbox] = {}
        self._connections: dict[int, _Connection] = {}
        self._spin = ffi.new("um_adaptive_spin *")
        # On one processor no responder can run while this one polls.
        spins = (os.cpu_count() or 1) > 1
        lib.um_adaptive_spin_init(self._spin, options.pend_adaptive_linger_limit_ns if spins else 0)
        self._leading = threading.Lock()
        self._gate = threading.Lock()
        self._changed = threading.Condition()
        self._attendants = 0
        self._led_ns = -_LED_NS
        self._is_watched = False
        self._purge_ns = 0
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        port.serve(PeerKind.RESPONSES, self)

    # Requests

    def open(self, owner: object, topic: str, deadline_ns: int) -> Inbox:
        """Open a request of a source, with a number that no open request has. Raises ResourceLimit."""
        if len(self._open) >= self._open_max:
            self._purge(time.monotonic_ns())
        if len(self._open) >= self._open_max:
            raise ResourceLimit(
                f"{len(self._open)} requests are open",
                hint="close requests whose responses are no longer wanted, or raise request_pending_maximum",
            )
        while True:
            inbox = Inbox(owner, topic, next(self._numbers) % _INDICES, deadline_ns)
            if self._open.setdefault(inbox.index, inbox) is inbox:
                return inbox

    @property
    def open_count(self) -> int:
        """Return the number of open requests."""
        return len(self._open)

    def end(self, inbox: Inbox, error: UmError) -> None:
        """End a request; its readers get the error. Any thread."""
        inbox.end(error)
        self._forget(inbox)
        if self._attendants:
            self._wake()

    def end_all(self, error: Callable[[Inbox], UmError | None]) -> None:
        """End each request for which `error` returns an error. Any thread."""
        for inbox in list(self._open.values()):
            found = error(inbox)
            if found is not None:
                self.end(inbox, found)

    def abandon(self, inbox: Inbox) -> None:
        """Mark a request that has no reader left. Takes no lock, because destructors call it at any point."""
        self._forget(inbox)
        self._abandoned.extend(_bytes_of(one) for one in inbox.arrived if isinstance(one, Response))

    def note_read(self, response: Response) -> None:
        """Release the memory of a response that was read."""
        self._hold(-_bytes_of(response))

    def _forget(self, inbox: Inbox) -> None:
        """Remove a request; another may already have its number."""
        if self._open.get(inbox.index) is inbox:
            self._open.pop(inbox.index, None)

    def _hold(self, count: int) -> None:
        with self._accounting:
            self._held_bytes += count

    def _purge(self, now_ns: int) -> None:
        """Remove requests whose deadline has passed."""
        for inbox in list(self._open.values()):
            if inbox.is_over(now_ns):
                self._forget(inbox)

    # Waiting

    def wait(self, inbox: Inbox, end_ns: int) -> None:
        """Wait until the request has a response or is over, or until `end_ns`; receive for all requests meanwhile."""
        self._check_owned()
        if self._run_protocol is not None:
            self._wait_sequential(inbox, end_ns, self._run_protocol)
            return
        self._attend(1)
        try:
            while not inbox.is_ready:
                left_ns = end_ns - time.monotonic_ns()
                if left_ns <= 0:
                    self._try_pass()
                    return
                self._lead_or_follow(inbox, min(left_ns, _SLICE_NS) / _NS_PER_S)
        finally:
            self._attend(-1)

    def _lead_or_follow(self, inbox: Inbox, seconds: float) -> None:
        with self._gate:
            leads = self._leading.acquire(blocking=False)
        if leads:
            try:
                if not inbox.is_ready:
                    self._pass(seconds)
            finally:
                self._leading.release()
                if self._attendants > 1:
                    with self._changed:
                        self._changed.notify_all()
        else:
            with self._changed:
                if not inbox.is_ready and self._leading.locked():
                    self._changed.wait(seconds)

    def _wait_sequential(self, inbox: Inbox, end_ns: int, run_protocol: Callable[[], object]) -> None:
        while True:
            run_protocol()
            left_ns = end_ns - time.monotonic_ns()
            self._try_pass(0.0 if left_ns <= 0 else _SEQUENTIAL_SLICE_S)
            if inbox.is_ready or left_ns <= 0:
                return

    def _attend(self, change: int) -> None:
        """Add `change` (1 or -1) to the number of threads that wait for responses and receive them."""
        with self._accounting:
            self._attendants += change
        self._led_ns = time.monotonic_ns()

    @contextlib.contextmanager
    def attending(self) -> Iterator[int]:
        """Yield, for an event loop, a descriptor that is readable when attend() has work."""
        self._check_owned()
        fd = os.dup(self._epoll.fileno())
        self._attend(1)
        try:
            yield fd
        finally:
            self._attend(-1)
            os.close(fd)

    def attend(self) -> None:
        """Receive pending responses, unless a thread leads."""
        self._try_pass()

    def _try_pass(self, seconds: float = 0.0) -> None:
        if self._leading.acquire(blocking=False):
            try:
                self._pass(seconds)
            finally:
                self._leading.release()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake_fd, 1)
        with self._changed:
            self._changed.notify_all()

    # Receiving, with _leading held

    def _poll(self, seconds: float) -> list[tuple[int, int]]:
        """Return readable sockets, waiting at most this many seconds; spin first while responses arrive quickly."""
        poll, spin, clock = self._epoll.poll, self._spin, time.monotonic_ns
        until_ns = lib.um_adaptive_spin_until_ns(spin) if seconds else 0
        found = poll(0, _EVENTS_AT_A_TIME)
        while not found and clock() < until_ns:
            found = poll(0, _EVENTS_AT_A_TIME)
        if not found and seconds:
            found = poll(seconds, _EVENTS_AT_A_TIME)
        if found:
            lib.um_adaptive_spin_on_event(spin, clock())
        return found

    def _pass(self, seconds: float) -> None:
        for fd, _ in self._poll(seconds):
            one = self._connections.get(fd)
            if one is not None:
                self._receive(one)
            elif fd == self._wake_fd:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)

    def _receive(self, one: _Connection) -> None:
        try:
            for _ in range(_RECEIVES_AT_A_TIME):
                space = one.received.free_bytes
                count = one.received.receive(one.socket)
                if count == 0:
                    self._counters.responses_incomplete += one.tags is not None and one.received.held > 0
                    self._drop(one)
                    return
                if count is None:
                    return
                if one.has_begun or self._begin_stream(one):
                    self._take_all(one)
                if count < space:
                    return
        except MalformedResponse:
            self._counters.responses_malformed += 1
            discard_received(one.socket)
            self._drop(one)
        except TagRefused as refusal:
            count_refusal(refusal, self._tag_counters, "responses", one.name)
            discard_received(one.socket)
            self._drop(one)
        except OSError:
            self._drop(one)

    def _begin_stream(self, one: _Connection) -> bool:
        """Exchange greetings if the responder sends one; return false while its greeting is incomplete."""
        if not is_greeting(one.received):
            one.has_begun = True
            return True
        theirs = one.received.peek(GREETING_BYTES)
        if len(theirs) < GREETING_BYTES:
            return False
        said = decode_greeting(theirs)
        key = self._keyring.find(lambda key: key.id == said.key_id and key_check(key) == said.subject)
        if key is None:
            raise TagRefused(Refusal.KEY)
        ours = encode_greeting(said)
        one.tags = StreamTags(
            key, self._keyring.has, StreamKind.RESPONSES, (theirs, ours), self.endpoint, is_server=True
        )
        answer = SealedWindow(_ANSWER_BYTES, ours)
        answer.begin(one.tags)
        answer.append(PROOF)
        answer.send(one.socket)
        if answer.held:
            raise ConnectionError  # this connection cannot even send a greeting
        one.received.consume(GREETING_BYTES)
        verified = VerifiedWindow()
        verified.take_over(one.received)
        verified.begin(one.tags)
        one.received = verified
        one.has_begun = True
        return True

    def _take_all(self, one: _Connection) -> None:
        """Process the complete messages; on a connection with tags, record by record."""
        self._take(one)
        while one.tags is not None:
            if len(one.received):
                raise MalformedResponse  # a record ends with a message
            if not one.received.show_next():
                return
            self._take(one)

    def _take(self, one: _Connection) -> None:
        """Process the complete messages; the longest possible message fits the window."""
        data = one.received.filled
        at = 0
        while len(data) - at >= 4:
            length = message_length(data[at : at + 4])
            if len(data) - at < length:
                break
            message = data[at : at + length]
            self._on_part(one, decode_part(message), message)
            at += length
        one.received.consume(at)

    def _on_part(self, one: _Connection, part: ResponsePart, message: memoryview) -> None:
        if part.offset == 0:
            self._begin(one, part, message)
        elif one.part is not None and self._is_next(one, part):
            self._continue_response(one, part, message)
        elif one.skipped_sqn != part.first_sqn:
            raise MalformedResponse

    def _begin(self, one: _Connection, part: ResponsePart, message: memoryview) -> None:
        """Start to receive a response, or skip it if it is not accepted."""
        now_ns = time.monotonic_ns()
        if one.part is not None:
            self._counters.responses_incomplete += 1
            self._forget_part(one)
        one.skipped_sqn = part.first_sqn
        if self._is_duplicate(one, part):
            return
        inbox = self._inbox_of(one, part.request_index, now_ns)
        if inbox is None:
            self._counters.responses_late += 1
            return
        one.active_ns, one.is_useful = now_ns, True
        length = len(message) - part.payload_from
        if part.total > self._message_max_bytes or not self._has_space(length):
            self._counters.responses_dropped += 1
            inbox.note_dropped()
            return
        if length == part.total:
            self._deliver(one, inbox, bytes(message[part.payload_from :]))
            return
        one.skipped_sqn = None
        one.first_sqn, one.request_index = part.first_sqn, part.request_index
        one.part = bytearray(message[part.payload_from :])
        self._hold(length)

    def _continue_response(self, one: _Connection, part: ResponsePart, message: memoryview) -> None:
        assert one.part is not None
        now_ns = time.monotonic_ns()
        inbox = self._inbox_of(one, part.request_index, now_ns)
        length = len(message) - part.payload_from
        if inbox is None or not self._has_space(length):
            if inbox is None:
                self._counters.responses_late += 1
            else:
                self._counters.responses_dropped += 1
                inbox.note_dropped()
            one.skipped_sqn = part.first_sqn
            self._forget_part(one)
            return
        one.active_ns = now_ns
        one.part += message[part.payload_from :]
        self._hold(length)
        if len(one.part) == part.total:
            whole = bytes(one.part)
            self._forget_part(one)
            self._deliver(one, inbox, whole)

    def _is_next(self, one: _Connection, part: ResponsePart) -> bool:
        return (
            one.part is not None
            and part.first_sqn == one.first_sqn
            and part.request_index == one.request_index
            and part.offset == len(one.part)
        )

    def _is_duplicate(self, one: _Connection, part: ResponsePart) -> bool:
        if part.stream is None:
            self._counters.uim_msgs_no_stream_rcved += 1
            return False
        is_known = part.stream == one.stream
        if is_known and (part.stream_sqn - one.stream_sqn - 1) % 2**32 >= 2**31:
            self._counters.uim_dup_msgs_rcved += 1
            return True
        one.stream, one.stream_sqn = part.stream, part.stream_sqn
        return False

    def _inbox_of(self, one: _Connection, index: int, now_ns: int) -> Inbox | None:
        """Return the open request that a response is to. Raises TagRefused if the connection lacks its topic's key."""
        inbox = self._open.get(index)
        if inbox is None or inbox.is_over(now_ns):
            if inbox is not None:
                self._forget(inbox)
            return None
        keys = self._keyring.keys_of(inbox.topic)
        if one.tags is None and keys:
            raise TagRefused(Refusal.MISSING)
        if one.tags is not None and one.tags.key not in keys:
            raise TagRefused(Refusal.KEY)
        return inbox

    def _has_space(self, length: int) -> bool:
        while self._abandoned:
            self._hold(-self._abandoned.popleft())
        return self._held_bytes + length + _ROW_BYTES <= self._held_max_bytes

    def _deliver(self, one: _Connection, inbox: Inbox, data: bytes) -> None:
        response = Response(data, one.name, time.time_ns())
        self._hold(_bytes_of(response))
        self._counters.responses_rcved += 1
        self._counters.response_bytes_rcved += len(data)
        inbox.take(response)

    def _forget_part(self, one: _Connection) -> None:
        if one.part is not None:
            self._hold(-len(one.part))
            one.part = None

    # Connections. The streams thread makes the port's calls and does the work.

    def adopt(self, peer: socket.socket, now_ns: int) -> None:
        """Receive responses from a responder that has connected."""
        if len(self._connections) >= self._connections_max and not self._make_space(now_ns):
            self._counters.request_responders_refused += 1
            peer.close()
            return
        self._connections[peer.fileno()] = _Connection(peer, now_ns)
        self._epoll.register(peer.fileno(), select.EPOLLIN)

    @property
    def connection_count(self) -> int:
        """Return 0: responders have their own limit, so that they and receivers do not displace each other."""
        return 0

    def make_space(self, now_ns: int, newcomer_ip: str) -> bool:
        """Return false: no connection of this service counts at the port."""
        return False

    @property
    def responder_count(self) -> int:
        """Return the number of connected responders."""
        return len(self._connections)

    def _make_space(self, now_ns: int) -> bool:
        """End the oldest connection that has not delivered a response, or else one that has long been idle."""
        with self._stopped():
            useless = [
                one
                for one in list(self._connections.values())
                if now_ns - one.active_ns > (_IDLE_NS if one.is_useful else IDLE_PEER_NS)
            ]
            if not useless:
                return False
            self._drop(min(useless, key=lambda one: (one.is_useful, one.active_ns)))
        return True

    @contextlib.contextmanager
    def _stopped(self) -> Iterator[None]:
        """Hold the lead: wake the thread that leads and keep it from leading until the end."""
        with self._gate:
            self._wake()
            with self._leading:
                yield

    def _drop(self, one: _Connection) -> None:
        if self._connections.pop(one.socket.fileno(), None) is not None:
            if one.part is not None:
                self._counters.responses_incomplete += 1
                self._forget_part(one)
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(one.socket.fileno())
            one.socket.close()

    def watch(self) -> None:
        """Have the streams thread receive while no thread waits."""
        self._is_watched = True
        self._selector.register(self._epoll.fileno(), selectors.EVENT_READ, self._on_readable)

    def _is_led(self, now_ns: int) -> bool:
        return self._attendants > 0 or now_ns - self._led_ns < _LED_NS

    def _on_readable(self, _mask: int, now_ns: int) -> None:
        if self._is_led(now_ns):
            self._is_watched = False
            self._selector.unregister(self._epoll.fileno())
        else:
            self._try_pass()

    def run(self, now_ns: int) -> int | None:
        """Watch again once no thread waits; remove requests that are over. Returns when to call again."""
        if not self._is_watched and not self._is_led(now_ns):
            self.watch()
        if now_ns >= self._purge_ns:
            self._purge_ns = now_ns + _PURGE_NS
            self._purge(now_ns)
            self._end_idle(now_ns)
        due_ns = self._purge_ns if self._open or self._connections else None
        return due_ns if self._is_watched else now_ns + _LED_NS

    def _end_idle(self, now_ns: int) -> None:
        """End unproductive connections."""
        idle = [
            one
            for one in list(self._connections.values())
            if not one.is_useful and now_ns - one.active_ns > self._idle_ns
        ]
        if idle:
            with self._stopped():
                for one in idle:
                    self._drop(one)

    def close(self) -> None:
        """Close every connection. The loop's thread and all requests have ended."""
        with self._stopped():
            for one in list(self._connections.values()):
                self._drop(one)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._epoll.fileno())
            self._epoll.close()
            os.close(self._wake_fd)
            self._wake_fd = -1


def _bytes_of(response: Response) -> int:
    """Return the memory in bytes that the response occupies until it is read."""
    return len(response.data) + _ROW_BYTES


__all__ = ["NEVER_NS", "ResponseIntake"]
