"""Serves the metrics of contexts. The contexts of a process with the same address share one endpoint.

Any thread may call serve_metrics() and close its result.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from umstack.errors import Closed
from umstack.telemetry.counters import schema
from umstack_xdp.closing import Closing


class _SharedEndpoint:
    """The endpoint at one address, and the contexts of this process that it serves."""

    def __init__(self, address: str) -> None:
        self._members: dict[int, tuple[float, Callable[[], Mapping[str, Any]]]] = {}
        self._changing = threading.Lock()
        # Importing http.server takes 20 ms, so only a process that serves metrics imports it.
        from umstack.telemetry.endpoint import MetricsEndpoint

        schema()  # parse the file now (10 ms), not during the first scrape
        self.endpoint = MetricsEndpoint(address, self._reports)

    def _reports(self) -> list[Mapping[str, Any]]:
        with self._changing:
            members = list(self._members.items())
        reports: list[Mapping[str, Any]] = []
        for number, (started_at, read) in members:
            with contextlib.suppress(Closed):  # the endpoint was closed in the meantime
                identity = {"pid": os.getpid(), "number": number, "command": " ".join(sys.orig_argv)}
                reports.append({**identity, "started_at": started_at, **read()})
        return reports

    def add(self, read: Callable[[], Mapping[str, Any]]) -> int:
        with self._changing:
            number = next(n for n in range(len(self._members) + 1) if n not in self._members)
            self._members[number] = (time.time(), read)
            return number

    def remove(self, number: int) -> bool:
        """Remove a context; returns true if it was the last."""
        with self._changing:
            del self._members[number]
            return not self._members


_shared: dict[str, _SharedEndpoint] = {}
_sharing = threading.Lock()


class ServedMetrics(Closing):
    """One context's share in an endpoint."""

    def __init__(self, address: str, number: int, url: str) -> None:
        self._address = address
        self._number: int | None = number
        self.url = url

    def close(self) -> None:
        """Remove the context; the last one closes the endpoint."""
        with _sharing:
            number, self._number = self._number, None
            if number is not None and _shared[self._address].remove(number):
                _shared.pop(self._address).endpoint.close()


def serve_metrics(address: str, read: Callable[[], Mapping[str, Any]]) -> ServedMetrics:
    """Serve a context's counters, which `read` returns, at an address until the result is closed."""
    with _sharing:
        shared = _shared.get(address) or _SharedEndpoint(address)
        _shared[address] = shared
        return ServedMetrics(address, shared.add(read), shared.endpoint.url)
