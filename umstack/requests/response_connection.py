"""ResponseConnection: the TCP connection to one requester, and the bytes queued for it."""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence

from umstack._core import ffi
from umstack._engine.endpoint import Endpoint
from umstack._engine.interface_addresses import interface_address
from umstack.config import ContextOptions
from umstack.key_file import Key
from umstack.requests.codec import ResponseStream
from umstack.streams.tags import (
    PROOF,
    RECORD_HEADER_BYTES,
    Greeting,
    Refusal,
    StreamKind,
    StreamTags,
    TagRefused,
    VerifiedWindow,
    decode_greeting,
    encode_greeting,
    key_check,
)

_CONNECTING = (0, errno.EINPROGRESS)
_WAIT_MS = 100
_PROOF_WINDOW_BYTES = 256
"""Bytes for a greeting and an empty record; a requester that sends more is disconnected."""


class ResponseConnection:
    """One stream of responses. Any thread; the holder of `putting` puts one response at a time.

    With a key, responses are held until the requester has proved that it has the key too: by its first record, whose
    tag covers the nonce of this connection's greeting.
    """

    __slots__ = (
        "_buffer",
        "_buffer_begin",
        "_buffering",
        "_ends",
        "_given",
        "_greeting",
        "_held",
        "_held_bytes",
        "_proof",
        "_tags",
        "active_ns",
        "endpoint",
        "error",
        "is_watched",
        "key",
        "progress_ns",
        "putting",
        "socket",
        "sqn",
        "stream",
        "stream_sqn",
    )

    def __init__(
        self, endpoint: Endpoint, key: Key | None, stream: ResponseStream, options: ContextOptions
    ) -> None:
        """Start to connect. Responses carry tags of `key`, or none if it is None. Raises OSError."""
        self.endpoint = endpoint
        self.key = key
        self.stream = stream
        self.stream_sqn = 0
        self.sqn = 0
        self.putting = threading.Lock()
        self.error: OSError | None = None
        self.is_watched = False
        self.active_ns = self.progress_ns = time.monotonic_ns()
        self._buffering = threading.Lock()
        self._buffer = bytearray()
        self._buffer_begin = 0
        self._given = 0
        self._ends: deque[int] = deque()
        self._tags: StreamTags | None = None
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        self._greeting = b""
        self._proof: VerifiedWindow | None = None
        """Data from the requester before it has proved that it has the key."""
        if key is not None:
            self._greeting = encode_greeting(
                Greeting(StreamKind.RESPONSES, key_check(key), key.id, key.encrypts)
            )
            self._proof = VerifiedWindow(_PROOF_WINDOW_BYTES)
            self._buffer += self._greeting
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._connect(options)
        except BaseException:
            self.socket.close()
            raise

    def _connect(self, options: ContextOptions) -> None:
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, options.response_tcp_nodelay)
        self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, options.traffic_class)
        if options.response_session_sender_socket_buffer_bytes:
            self.socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, options.response_session_sender_socket_buffer_bytes
            )
        if chosen := interface_address("response_tcp_interface", options.response_tcp_interface):
            self.socket.bind((chosen, 0))
        result = self.socket.connect_ex(self.endpoint)
        if result not in _CONNECTING:
            raise OSError(result, f"connecting to {self.endpoint.ip}:{self.endpoint.port}")

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes waiting for the requester's proof or for the kernel."""
        return self.sendable_bytes + self._held_bytes

    @property
    def sendable_bytes(self) -> int:
        """Number of bytes waiting for the kernel only."""
        return len(self._buffer) - self._buffer_begin

    @property
    def waiting_responses(self) -> int:
        """Number of responses that the kernel does not have completely."""
        with self._buffering:
            return len(self._ends)

    def put(self, head: bytes, payload: memoryview, *, is_last: bool) -> None:
        """Send or queue a part of a response. Raises OSError once the connection has failed."""
        with self._buffering:
            if self.error is not None:
                raise self.error
            self.active_ns = time.monotonic_ns()
            if not self.waiting_bytes:
                self.progress_ns = self.active_ns
            if self._proof is not None:
                self._held.append(b"".join((head, payload)))
                self._held_bytes += RECORD_HEADER_BYTES + len(head) + len(payload)
            elif self._tags is not None:
                self._send_or_keep([self._record(head, payload)])
            else:
                self._send_or_keep([head, payload])
            if is_last and self.waiting_bytes:
                self._ends.append(self._given + self.waiting_bytes)

    def _record(self, *parts: bytes | memoryview) -> bytearray:
        assert self._tags is not None
        record = bytearray(RECORD_HEADER_BYTES)
        for part in parts:
            record += part
        with ffi.from_buffer("char[]", record, require_writable=True) as made:
            self._tags.seal(made, len(record) - RECORD_HEADER_BYTES)
        return record

    def _send_or_keep(self, parts: list[bytes | bytearray | memoryview]) -> None:
        sent = 0 if self.sendable_bytes else self._send(parts)
        for part in parts:
            self._buffer += memoryview(part)[sent:]
            sent = max(0, sent - len(part))

    def flush(self) -> None:
        """Send as much as the kernel accepts. Raises OSError once the connection has failed."""
        with self._buffering:
            if self.error is not None:
                raise self.error
            while self.sendable_bytes:
                view = memoryview(self._buffer)[self._buffer_begin :]
                sent = self._send([view])
                view.release()
                if sent == 0:
                    break
                self._buffer_begin += sent
                self.progress_ns = time.monotonic_ns()
            if self._buffer_begin > len(self._buffer) // 2:
                del self._buffer[: self._buffer_begin]
                self._buffer_begin = 0
            while self._ends and self._ends[0] <= self._given:
                self._ends.popleft()

    def _send(self, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        try:
            sent = self.socket.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self.error = error
            raise
        self._given += sent
        return sent

    def wait(self, seconds: float) -> None:
        """Wait until more can be sent, at most 100 ms. Raises OSError once the connection has failed."""
        poll = select.poll()
        has_proof_to_come = self._proof is not None
        poll.register(
            self.socket.fileno(),
            (select.POLLIN if has_proof_to_come else 0) | (select.POLLOUT if self.sendable_bytes else 0),
        )
        poll.poll(min(_WAIT_MS, max(0, int(seconds * 1000))))
        if has_proof_to_come and self.is_ended():
            raise ConnectionResetError(errno.ECONNRESET, "the requester closed the connection")

    def fail(self, error: OSError) -> None:
        """Stop sending; a thread in put() gets this error."""
        with self._buffering:
            self.error = self.error or error

    def is_ended(self) -> bool:
        """Read the requester's data; return true if the connection has ended.

        Apart from the proof that the requester has the key, any data violates the protocol and ends the connection.
        Raises TagRefused if the requester does not have the key.
        """
        with self._buffering:
            try:
                if self._proof is not None:
                    if self._proof.receive(self.socket) == 0:
                        return True
                    self._take_proof(self._proof)
                if self._proof is None:
                    self.socket.recv(1)
                    return True
            except TagRefused as refusal:
                self.error = self.error or refusal
                raise
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                return True
            return False

    def _take_proof(self, proof: VerifiedWindow) -> None:
        """Send held responses once the requester has proved that it has the key. Raises TagRefused."""
        assert self.key is not None
        if self._tags is None:
            theirs = proof.take_greeting()
            if theirs is None:
                return
            if decode_greeting(theirs) != decode_greeting(self._greeting):
                raise TagRefused(Refusal.KEY)
            key = self.key
            greetings = self._greeting, theirs
            self._tags = StreamTags(
                key, lambda used: used == key, StreamKind.RESPONSES, greetings, self.endpoint, is_server=False
            )
            proof.begin(self._tags)
        else:
            proof.show_next()
        if not len(proof):
            return
        if proof.filled != PROOF or proof.held > len(PROOF):
            raise TagRefused(Refusal.MISSING)
        self._proof = None
        for message in self._held:
            self._buffer += self._record(message)
        self._held.clear()
        self._held_bytes = 0


__all__ = ["ResponseConnection"]
