"""LivePage: shows the contexts of this host in a browser, for `umstack watch --web`.

The page (live_page.html, with umstack.charts in it) is one file without external resources. It receives server-sent
events from `/rows`, each of which is LiveRows as JSON, and draws those received since it was opened.

Threads: those of umstack.telemetry.http_server. The viewers' threads read the contexts, once per interval regardless of
the number of viewers, and not at all without viewers.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from importlib.resources import files

from umstack.charts import chart_library
from umstack.telemetry.exporter_text import program
from umstack.telemetry.http_server import Answer, HttpServer, Request
from umstack.telemetry.live_rows import Report, earlier_of, live_rows
from umstack_xdp.closing import Closing

_CHARTS = "<!-- charts -->"
_HTML = "text/html; charset=utf-8"
_EVENTS = "text/event-stream; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def _page() -> str:
    """Return the page with the library of its charts in it."""
    text = files("umstack.telemetry").joinpath("live_page.html").read_text(encoding="utf-8")
    return text.replace(_CHARTS, chart_library())


class LivePage(Closing):
    """Serves the page and its events until closed."""

    def __init__(self, address: str, read: Callable[[], Sequence[Report]], *, interval: float = 1.0) -> None:
        """Listen on an address (see umstack.telemetry.http_server.parse_address); read every `interval` seconds."""
        self._read = read
        self._interval = interval
        self._reading = threading.Lock()
        self._reports: Sequence[Report] = ()
        self._earlier: Sequence[Report] = ()
        self._event = ""
        self._number = 0
        self._due = 0.0
        self._closing = threading.Event()
        self._page = _page()
        self._server = HttpServer(address, "the live page", self._answer)
        self.port = self._server.port
        self.url = self._server.url + "/"

    def _answer(self, request: Request) -> Answer:
        if request.path == "/":
            return Answer(self._page, _HTML, headers=_HEADERS)
        if request.path == "/rows":
            return Answer(self._events(), _EVENTS, headers=_HEADERS)
        return Answer("the page is at /\n", status=HTTPStatus.NOT_FOUND, headers=_HEADERS)

    def _events(self) -> Iterator[str]:
        seen = 0
        while True:
            number, event = self._next(seen)
            if number == seen:
                return
            seen = number
            yield event

    def _next(self, seen: int) -> tuple[int, str]:
        """Return the newest event after number `seen`, or the same number when the page closes.

        The first thread reads; the others wait for the lock.
        """
        with self._reading:
            if seen == self._number:
                self._closing.wait(self._due - time.monotonic())
            if time.monotonic() >= self._due:
                reports = self._read()
                self._earlier = earlier_of(reports, self._reports, self._earlier)
                self._reports = reports
                rows = live_rows(reports, self._earlier).as_json()
                for context in rows["contexts"]:
                    context["command"] = program(context["command"])  # arguments may contain secrets
                self._event = f"data: {json.dumps({'time': time.time(), **rows})}\n\n"
                self._number += 1
                self._due = time.monotonic() + self._interval
            return self._number, self._event

    def close(self) -> None:
        """Stop listening and end all event streams."""
        self._closing.set()
        self._server.close()
