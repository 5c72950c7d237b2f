"""Responder: sends responses to requesters over one reused TCP connection to each.

The responding thread sends directly, and waits only while `response_session_maximum_buffer` bytes are queued. The
streams thread sends queued bytes. There are bounds on the connections, the queue of each one, and its idle and stall
times.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import threading
import time
from functools import partial
from random import SystemRandom

from umstack._engine.endpoint import Endpoint
from umstack._engine.tcp_peers import TcpPeers
from umstack._engine.waiting import timeout_ns
from umstack.config import ContextOptions
from umstack.errors import BackPressured, Closed, MessageTooLong, ResourceLimit, ResponseFailed
from umstack.key_file import Key
from umstack.repeated_records import RepeatedRecords
from umstack.requests.codec import (
    FRAGMENT_MAX_BYTES,
    WHOLE_MAX_BYTES,
    ResponseStream,
    encode_fragment_head,
    encode_head,
)
from umstack.requests.counters import ResponderCounters, ResponseTagCounters
from umstack.requests.response_connection import ResponseConnection
from umstack.streams import Streams
from umstack.streams.tags import KeysOf, TagRefused, count_refusal

_records = RepeatedRecords(logging.getLogger("umstack.requests"))
_ATTEMPTS = 3
"""Several attempts, because an open connection may have ended and the requester may have reopened its port."""
_LAST_FLUSH_NS = 1_000_000_000
_NEVER_NS = 2**63
_SQNS = 2**32
_KEY_HINT = "give both hosts the same key file (docs/authentication.md)"


class Responder:
    """The responders of one context. Any thread responds."""

    def __init__(
        self,
        options: ContextOptions,
        streams: Streams,
        keys_of: KeysOf,
        peers: TcpPeers,
        tag_counters: ResponseTagCounters,
    ) -> None:
        """Responses on a topic with keys carry tags made with the first of them."""
        self.counters = ResponderCounters()
        self._tag_counters = tag_counters
        self._options = options
        self._loop = streams.loop
        self._keys_of = keys_of
        self._peers = peers
        self._connections: dict[tuple[Endpoint, Key | None], ResponseConnection] = {}
        self._lock = threading.Lock()
        self._instance = os.urandom(8)
        self._next_stream_id = SystemRandom().randrange(_SQNS)
        self._selector: selectors.BaseSelector | None = None
        self._is_closed = False

    def respond(
        self,
        topic: str,
        source: str,
        requester: tuple[str, int],
        index: int,
        data: memoryview,
        timeout: float | None,
    ) -> None:
        """Send a response; see Request.respond."""
        longest = self._options.response_maximum_message_length_bytes
        if len(data) > longest:
            raise MessageTooLong(
                f"a response of {len(data)} bytes on {topic!r}: longer than {longest}",
                hint="send it in parts, or raise response_maximum_message_length here and at the requester",
            )
        end_ns = _NEVER_NS if timeout is None else time.monotonic_ns() + timeout_ns(timeout)
        endpoint = Endpoint(*requester)
        if not self._peers.admits_of_session(endpoint.ip, source, "responses"):
            raise ResponseFailed(
                f"responding on {topic!r} to {endpoint.ip}:{endpoint.port}: the address is not allowed",
                hint="add it to tcp_connections_allowed if it is a host of yours",
            )
        key = next(iter(self._keys_of(topic)), None)
        try:
            for _ in range(_ATTEMPTS):
                if self._put(endpoint, key, index, data, end_ns, timeout == 0):
                    return
            raise ConnectionAbortedError(errno.ECONNABORTED, "the requester ends every connection")
        except OSError as error:
            raise ResponseFailed(
                f"responding on {topic!r} to {endpoint.ip}:{endpoint.port}: {error.strerror or error}",
                errno=error.errno or 0,
                hint=_KEY_HINT if isinstance(error, TagRefused) else None,
            ) from error

    # One response

    def _put(
        self,
        endpoint: Endpoint,
        key: Key | None,
        index: int,
        data: memoryview,
        end_ns: int,
        never_waits: bool,
    ) -> bool:
        """Return false if a reused connection turned out to have ended and nothing was sent."""
        one, is_new = self._connection(endpoint, key)
        left_s = -1.0 if end_ns == _NEVER_NS else max(0.0, (end_ns - time.monotonic_ns()) / 1e9)
        if not one.putting.acquire(timeout=left_s):
            raise self._refusal(endpoint, never_waits)
        try:
            begun = one.sqn
            return self._put_parts(one, index, data, end_ns, never_waits)
        except OSError as error:
            self._end(one, error)
            if is_new or one.sqn != begun:
                raise
            return False
        finally:
            one.putting.release()

    def _put_parts(
        self, one: ResponseConnection, index: int, data: memoryview, end_ns: int, never_waits: bool
    ) -> bool:
        total, stream_sqn = len(data), one.stream_sqn
        if total <= WHOLE_MAX_BYTES:
            self._await_space(one, end_ns, never_waits)
            one.put(encode_head(index, one.sqn, one.stream, stream_sqn, total), data, is_last=True)
            one.sqn = (one.sqn + 1) % _SQNS
        else:
            first_sqn = one.sqn
            for offset in range(0, total, FRAGMENT_MAX_BYTES):
                part = data[offset : offset + FRAGMENT_MAX_BYTES]
                self._await_space(one, end_ns, never_waits)
                head = encode_fragment_head(
                    index, one.sqn, one.stream, stream_sqn, first_sqn, offset, len(part), total
                )
                one.put(head, part, is_last=offset + len(part) == total)
                one.sqn = (one.sqn + 1) % _SQNS
        one.stream_sqn = (stream_sqn + 1) % _SQNS
        with self._lock:
            self.counters.responses_sent += 1
            self.counters.response_bytes_sent += total
        if one.waiting_bytes and not one.is_watched:
            self._loop.submit(partial(self._watch, one))
        return True

    def _await_space(self, one: ResponseConnection, end_ns: int, never_waits: bool) -> None:
        """Wait until the queue is below the limit. On failure a partly sent response stays incomplete."""
        limit = self._options.response_session_maximum_buffer_bytes
        is_counted = False
        while one.waiting_bytes >= limit:
            one.flush()
            if one.waiting_bytes < limit:
                return
            left_ns = end_ns - time.monotonic_ns()
            if left_ns <= 0:
                if not one.is_watched:
                    self._loop.submit(partial(self._watch, one))
                one.stream_sqn = (one.stream_sqn + 1) % _SQNS
                raise self._refusal(one.endpoint, never_waits)
            if not is_counted:
                is_counted = True
                with self._lock:
                    self.counters.resp_blocked += 1
            self._check_progress(one, time.monotonic_ns())
            one.wait(left_ns / 1e9)
            if self._is_closed:
                raise Closed("the context is closed")

    def _refusal(self, endpoint: Endpoint, never_waits: bool) -> BackPressured:
        if never_waits:
            with self._lock:
                self.counters.resp_would_block += 1
        return BackPressured(
            f"responding to {endpoint.ip}:{endpoint.port}: the requester is behind",
            hint="try again later, give it a longer timeout, or raise response_session_maximum_buffer",
        )

    def _check_progress(self, one: ResponseConnection, now_ns: int) -> None:
        if now_ns - one.progress_ns > self._options.response_tcp_deletion_timeout_ns:
            with self._lock:
                self.counters.response_connections_stalled += one.error is None
            error = TimeoutError(errno.ETIMEDOUT, "the requester reads nothing")
            one.fail(error)
            raise error

    # Connections

    def _connection(self, endpoint: Endpoint, key: Key | None) -> tuple[ResponseConnection, bool]:
        """Return the connection to a requester for responses tagged with a key, and whether it is new."""
        with self._lock:
            if self._is_closed:
                raise Closed("the context is closed")
            known = self._connections.get((endpoint, key))
            if known is not None and known.error is None:
                return known, False
            if len(self._connections) >= self._options.response_connections_maximum:
                self._make_space()
            self._next_stream_id = (self._next_stream_id + 1) % _SQNS
            stream = ResponseStream(self._instance, self._next_stream_id)
            self._begin()
            one = ResponseConnection(endpoint, key, stream, self._options)
            self._connections[endpoint, key] = one
            self.counters.response_connections = len(self._connections)
            self.counters.response_connections_opened += 1
        self._loop.submit(partial(self._watch, one))
        return one, True

    def _begin(self) -> None:
        if self._selector is None:
            self._selector = self._loop.open()
            self._loop.add_work(self._run)

    def _make_space(self) -> None:
        """End the connection that has been idle longest. Raises ResourceLimit if none is idle."""
        idle = [one for one in self._connections.values() if not one.waiting_bytes]
        if not idle:
            raise ResourceLimit(
                f"{len(self._connections)} requesters are connected, and none is idle",
                hint="raise response_connections_maximum",
            )
        oldest = min(idle, key=lambda one: one.active_ns)
        oldest.fail(ConnectionAbortedError(errno.ECONNABORTED, "the connection was replaced by another"))
        del self._connections[oldest.endpoint, oldest.key]
        self._loop.submit(partial(self._close, oldest))

    def _end(self, one: ResponseConnection, error: OSError) -> None:
        """Remove a failed connection; its queued responses are lost."""
        one.fail(error)
        with self._lock:
            if self._connections.get((one.endpoint, one.key)) is not one:
                return
            del self._connections[one.endpoint, one.key]
            if isinstance(error, TagRefused):
                peer = f"{one.endpoint.ip}:{one.endpoint.port}"
                count_refusal(error, self._tag_counters, "responses", peer)
            self.counters.response_connections = len(self._connections)
            self.counters.response_connections_failed += 1
            unsent = one.waiting_responses
            self.counters.responses_unsent += unsent
        if unsent:
            _records.write(
                one.endpoint, logging.WARNING,
                "%d responses to %s:%d were not sent: %s", unsent, *one.endpoint, error.strerror or error,
            )  # fmt: skip
        self._loop.submit(partial(self._close, one))

    # The streams thread

    def _watch(self, one: ResponseConnection) -> None:
        """Watch for the requester's close and, while bytes are queued, for space in the kernel's buffer."""
        assert self._selector is not None
        if one.socket.fileno() < 0:
            return
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if one.sendable_bytes else 0)
        if one.socket.fileno() in self._selector.get_map():
            self._selector.modify(one.socket, interest, partial(self._on_ready, one))
        else:
            self._selector.register(one.socket, interest, partial(self._on_ready, one))
        one.is_watched = bool(interest & selectors.EVENT_WRITE)

    def _on_ready(self, one: ResponseConnection, mask: int, _now_ns: int) -> None:
        try:
            if mask & selectors.EVENT_READ and one.is_ended():
                self._end(one, ConnectionResetError(errno.ECONNRESET, "the requester closed the connection"))
                return
            one.flush()
        except OSError as error:
            self._end(one, error)
            return
        self._watch(one)

    def _close(self, one: ResponseConnection) -> None:
        assert self._selector is not None
        if one.socket.fileno() >= 0:
            if one.socket.fileno() in self._selector.get_map():
                self._selector.unregister(one.socket)
            one.socket.close()

    def _run(self, now_ns: int) -> int | None:
        """End idle and stalled connections. Returns when to call again."""
        timeout_ns = self._options.response_tcp_deletion_timeout_ns
        with self._lock:
            connections = list(self._connections.values())
        for one in connections:
            try:
                if one.waiting_bytes:
                    self._check_progress(one, now_ns)
                elif now_ns - one.active_ns > timeout_ns:
                    self._end_idle(one)
            except OSError as error:
                self._end(one, error)
        return now_ns + timeout_ns // 4 if connections else None

    def _end_idle(self, one: ResponseConnection) -> None:
        if not one.putting.acquire(blocking=False):
            return  # a thread is about to respond
        try:
            if one.waiting_bytes:
                return
            with self._lock:
                one.fail(ConnectionAbortedError(errno.ECONNABORTED, "the connection was idle"))
                self._connections.pop((one.endpoint, one.key), None)
                self.counters.response_connections = len(self._connections)
            self._close(one)
        finally:
            one.putting.release()

    def close(self) -> None:
        """Send queued bytes for at most a second, then close every connection. The loop's thread has ended."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections.values())
            self._connections.clear()
        end_ns = time.monotonic_ns() + _LAST_FLUSH_NS
        for one in connections:
            try:
                one.flush()
                while one.waiting_bytes and (left_ns := end_ns - time.monotonic_ns()) > 0:
                    one.wait(left_ns / 1e9)
                    one.flush()
            except OSError as error:
                one.fail(error)
            self.counters.responses_unsent += one.waiting_responses
            one.fail(ConnectionAbortedError(errno.ECONNABORTED, "the context is closed"))
            if self._selector is not None:
                self._close(one)
        self.counters.response_connections = 0


__all__ = ["Responder"]
