"""ResponseConnection: the TCP connection to one requester, and what the kernel does not take of it yet."""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections import deque

from umstack._engine.endpoint import Endpoint
from umstack.config import ContextOptions
from umstack.requests.codec import ResponseStream

_CONNECTING = (0, errno.EINPROGRESS)
_WAIT_MS = 100


class ResponseConnection:
    """One stream of responses. Any thread; one response at a time is put, by the holder of `putting`."""

    __slots__ = (
        "_buffer",
        "_buffer_begin",
        "_buffering",
        "_ends",
        "_given",
        "active_ns",
        "endpoint",
        "error",
        "is_watched",
        "progress_ns",
        "putting",
        "socket",
        "sqn",
        "stream",
        "stream_sqn",
    )

    def __init__(self, endpoint: Endpoint, stream: ResponseStream, options: ContextOptions) -> None:
        """Begin to connect. Raises OSError."""
        self.endpoint = endpoint
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
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._connect(options)
        except BaseException:
            self.socket.close()
            raise

    def _connect(self, options: ContextOptions) -> None:
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, options.response_tcp_nodelay)
        if options.response_session_sender_socket_buffer_bytes:
            self.socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, options.response_session_sender_socket_buffer_bytes
            )
        if options.response_tcp_interface != "0.0.0.0":
            self.socket.bind((options.response_tcp_interface, 0))
        result = self.socket.connect_ex(self.endpoint)
        if result not in _CONNECTING:
            raise OSError(result, f"connecting to {self.endpoint.ip}:{self.endpoint.port}")

    @property
    def waiting_bytes(self) -> int:
        """What waits for the kernel to take it."""
        return len(self._buffer) - self._buffer_begin

    @property
    def waiting_responses(self) -> int:
        """How many responses are not with the kernel whole."""
        with self._buffering:
            return len(self._ends)

    def put(self, head: bytes, payload: memoryview, *, is_last: bool) -> None:
        """Send a part of a response, or have it wait. Raises OSError once the connection has failed."""
        with self._buffering:
            if self.error is not None:
                raise self.error
            self.active_ns = time.monotonic_ns()
            sent = 0
            if not self.waiting_bytes:
                self.progress_ns = self.active_ns
                sent = self._send([head, payload])
            if sent < len(head) + len(payload):
                self._buffer += memoryview(head + payload)[sent:]
                if is_last:
                    self._ends.append(self._given + self.waiting_bytes)

    def flush(self) -> None:
        """Send what the kernel takes. Raises OSError once the connection has failed."""
        with self._buffering:
            if self.error is not None:
                raise self.error
            while self.waiting_bytes:
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

    def _send(self, parts: list[bytes | memoryview]) -> int:
        try:
            sent = self.socket.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self.error = error
            raise
        self._given += sent
        return sent

    def wait_writable(self, seconds: float) -> None:
        """Wait until the kernel takes more, or for a moment."""
        poll = select.poll()
        poll.register(self.socket.fileno(), select.POLLOUT)
        poll.poll(min(_WAIT_MS, max(0, int(seconds * 1000))))

    def fail(self, error: OSError) -> None:
        """No more is sent; a thread that puts gets this error."""
        with self._buffering:
            self.error = self.error or error

    def is_ended(self) -> bool:
        """Whether the requester has closed it. What it sends is not part of the protocol, and ends it, too."""
        try:
            self.socket.recv(1)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True
        return True


__all__ = ["ResponseConnection"]
