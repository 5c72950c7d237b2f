"""MetricsEndpoint: answers Prometheus over HTTP with the metrics of contexts.

A context is reached through umstack.telemetry.serving; `umstack exporter` has an endpoint over the reports of all
processes of the host.

Threads: a listening thread, and one for each scrape under way, at most `_SCRAPES_MAX`; a connection beyond those is
closed at once, one that is slow is closed after `_CONNECTION_SECONDS`. Scrapes read the contexts one after the other.
"""

from __future__ import annotations

import errno
import re
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from umstack.errors import OptionError, SystemFailure, error_from_os
from umstack.telemetry.metrics import SESSIONS_MAX, TOPICS_MAX, Exposition, Report, render
from xdp.closing import Closing

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SCRAPES_MAX = 8
_CONNECTION_SECONDS = 5.0
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]]*)):(?P<port>\d{1,5})")


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[IPv6]:PORT` or `:PORT`, which is every address of the host."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise OptionError(
            f"{text!r} is no address to serve metrics on",
            hint="give HOST:PORT, [IPv6]:PORT, or :PORT for every address of this host",
        )
    return match["six"] or match["host"] or "", int(match["port"])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, host: str, port: int, scrape: Callable[[], str]) -> None:
        self.scrape = scrape
        self._slots = threading.BoundedSemaphore(_SCRAPES_MAX)
        self.address_family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6 and not self.server_address[0]:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer's own would look up the host's name, which may wait for a name server.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "umstack", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that goes away or is slow is its own loss; anything else is a defect, and shows."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CONNECTION_SECONDS
    server_version = "umstack"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(HTTPStatus.OK, CONTENT_TYPE, self.server.scrape())
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", "the metrics are at /metrics\n")

    def _answer(self, status: HTTPStatus, content_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name http.server calls
        """Say nothing: scrapes are many."""


class MetricsEndpoint(Closing):
    """Serves what `read` returns at each scrape, until closed."""

    def __init__(
        self,
        address: str,
        read: Callable[[], Sequence[Report]],
        *,
        topics_max: int = TOPICS_MAX,
        sessions_max: int = SESSIONS_MAX,
    ) -> None:
        """Listen on an address (see parse_address; port 0 takes a free one)."""
        self._read = read
        self._exposition = Exposition(topics_max, sessions_max)
        self._scraping = threading.Lock()
        host, port = parse_address(address)
        try:
            self._server = self._listen(host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise SystemFailure(
                    f"metrics cannot be served on {address}: the port is in use",
                    hint=f"choose another, or see who has it: ss -ltnp 'sport = {port}'",
                    errno=errno.EADDRINUSE,
                ) from error
            if isinstance(error, socket.gaierror):
                raise OptionError(f"metrics cannot be served on {address}: {error.strerror}") from error
            raise error_from_os(error, f"serving metrics on {address}") from error
        self.port: int = self._server.server_port
        self.url = f"http://{f'[{host}]' if ':' in host else host or 'localhost'}:{self.port}/metrics"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="umstack-metrics", daemon=True, args=(0.1,)
        )
        self._thread.start()

    def _listen(self, host: str, port: int) -> _Server:
        try:
            return _Server(host, port, self.scrape)
        except OSError as error:
            if host or error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
        return _Server("0.0.0.0", port, self.scrape)  # a host without IPv6

    def scrape(self) -> str:
        """The metrics as they are now, in the text format."""
        with self._scraping:
            return render(self._exposition.families(self._read()))

    def close(self) -> None:
        """Stop listening. A scrape under way ends by itself."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
