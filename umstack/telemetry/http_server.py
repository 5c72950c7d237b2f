"""HttpServer: answers GET requests of a few concurrent clients, for metrics and the live page.

An answer is either a complete text, or an iterator of pieces that are sent as they are produced until the client
disconnects or the server closes.

One thread listens, and each connection has a thread, at most `_CONNECTIONS_MAX`. A request and a complete text must be
transferred within `_CONNECTION_SECONDS`, however the bytes arrive, and a piece as well. A further connection replaces
the oldest of those that have not been answered; if all of them receive pieces, it is closed.

Only requests to an IP address, `localhost`, this host's name, or the name that the server was started with are
answered: a page elsewhere whose name resolves to this host (DNS rebinding) reads nothing.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from umstack.errors import OptionError, SystemFailure, error_from_os
from umstack_xdp.closing import Closing

TEXT = "text/plain; charset=utf-8"
_CONNECTIONS_MAX = 8
_CONNECTION_SECONDS = 5.0
_REPLACEMENT_SECONDS = 1.0
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]]*)):(?P<port>\d{1,5})")


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request."""

    path: str
    """Path without the query."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: a text, or pieces that are sent as they are produced."""

    body: str | Iterator[str]
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[IPv6]:PORT` or `:PORT` (every address of the host)."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise OptionError(
            f"{text!r} is not an address to listen on",
            hint="use HOST:PORT, [IPv6]:PORT, or :PORT for every address of this host",
        )
    return match["six"] or match["host"] or "", int(match["port"])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, host: str, port: int, answer: Callable[[Request], Answer]) -> None:
        self.answer = answer
        self._slots = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self._names = {"localhost", host.lower(), socket.gethostname().lower()} - {""}
        self._lock = threading.Lock()
        self._unanswered: dict[Any, threading.Timer] = {}
        self.address_family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6 and not self.server_address[0]:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer.server_bind would resolve the host's name, which may block on DNS.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "umstack", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self._end_oldest()
            if not self._slots.acquire(timeout=_REPLACEMENT_SECONDS):
                self.shutdown_request(request)
                return
        timer = threading.Timer(_CONNECTION_SECONDS, _shut_down, (request,))
        timer.daemon = True
        with self._lock:
            self._unanswered[request] = timer
        timer.start()
        super().process_request(request, client_address)

    def _end_oldest(self) -> None:
        with self._lock:
            oldest = next(iter(self._unanswered), None)
        if oldest is not None:
            _shut_down(oldest)

    def note_answered(self, request: Any) -> None:
        """End the deadline of a connection."""
        with self._lock:
            timer = self._unanswered.pop(request, None)
        if timer is not None:
            timer.cancel()

    def is_known_as(self, host: str) -> bool:
        """Return true if this host name of a request is ours."""
        if host in self._names:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.note_answered(request)
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect or are slow; report everything else, because it is a defect."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CONNECTION_SECONDS
    server_version = "umstack"
    sys_version = ""

    def do_GET(self) -> None:
        answer = self._answer()
        whole = answer.body.encode() if isinstance(answer.body, str) else None
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if whole is not None:
            self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        if whole is None:
            self.server.note_answered(self.connection)
        for piece in answer.body if whole is None else (whole,):
            self.wfile.write(piece.encode() if isinstance(piece, str) else piece)

    def _answer(self) -> Answer:
        if not self.server.is_known_as(_host_name(self.headers.get("Host", ""))):
            hint = "use the address of this host, or the name that the server listens on\n"
            return Answer(hint, status=HTTPStatus.MISDIRECTED_REQUEST)
        return self.server.answer(Request(self.path.partition("?")[0]))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name http.server calls
        """Log nothing: requests are frequent."""


def _shut_down(connection: socket.socket) -> None:
    """End a connection whose thread may be using it."""
    with contextlib.suppress(OSError):  # it has ended
        connection.shutdown(socket.SHUT_RDWR)


def _host_name(text: str) -> str:
    try:
        return urlsplit(f"//{text}").hostname or ""
    except ValueError:
        return ""


class HttpServer(Closing):
    """Calls `answer` for each request, on the connection's thread, until closed. Errors name the service as `what`."""

    def __init__(self, address: str, what: str, answer: Callable[[Request], Answer]) -> None:
        """Listen on an address (see parse_address; port 0 selects a free one)."""
        host, port = parse_address(address)
        try:
            self._server = _listen(host, port, answer)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise SystemFailure(
                    f"{what} cannot be served on {address}: the port is in use",
                    hint=f"choose another port, or find its owner: ss -ltnp 'sport = {port}'",
                    errno=errno.EADDRINUSE,
                ) from error
            if isinstance(error, socket.gaierror):
                raise OptionError(f"{what} cannot be served on {address}: {error.strerror}") from error
            raise error_from_os(error, f"serving {what} on {address}") from error
        self.port: int = self._server.server_port
        self.url = f"http://{f'[{host}]' if ':' in host else host or 'localhost'}:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="umstack-http", daemon=True, args=(0.1,)
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Answers in progress finish on their own."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _listen(host: str, port: int, answer: Callable[[Request], Answer]) -> _Server:
    try:
        return _Server(host, port, answer)
    except OSError as error:
        if host or error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
    return _Server("0.0.0.0", port, answer)  # a host without IPv6
