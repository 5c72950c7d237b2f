"""MetricsEndpoint: answers Prometheus over HTTP with the metrics of contexts.

umstack.telemetry.serving makes one for the contexts of a process; `umstack exporter` serves the reports of all
processes of the host.

Threads: those of umstack.telemetry.http_server. A scrape reads one context after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus

from umstack.telemetry.exporter_text import SESSIONS_MAX, TOPICS_MAX, Exposition, Report, render
from umstack.telemetry.http_server import Answer, HttpServer, Request
from umstack_xdp.closing import Closing

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PATH = "/metrics"


class MetricsEndpoint(Closing):
    """Serves the result of `read` at each scrape, until closed."""

    def __init__(
        self,
        address: str,
        read: Callable[[], Sequence[Report]],
        *,
        topics_max: int = TOPICS_MAX,
        sessions_max: int = SESSIONS_MAX,
    ) -> None:
        """Listen on an address (see umstack.telemetry.http_server.parse_address; port 0 selects a free one)."""
        self._read = read
        self._exposition = Exposition(topics_max, sessions_max)
        self._scraping = threading.Lock()
        self._server = HttpServer(address, "metrics", self._answer)
        self.port = self._server.port
        self.url = self._server.url + _PATH

    def _answer(self, request: Request) -> Answer:
        if request.path != _PATH:
            return Answer(f"the metrics are at {_PATH}\n", status=HTTPStatus.NOT_FOUND)
        return Answer(self.scrape(), CONTENT_TYPE)

    def scrape(self) -> str:
        """Return the current metrics in the text format."""
        with self._scraping:
            return render(self._exposition.families(self._read()))

    def close(self) -> None:
        """Stop listening. A scrape in progress finishes on its own."""
        self._server.close()
