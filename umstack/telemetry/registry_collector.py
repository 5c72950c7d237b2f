"""Collector: the metrics of contexts for a process that already has a prometheus_client registry.

    registry.register(umstack.telemetry.registry_collector.Collector([context]))

Needs the extra `metrics`. Without a registry, `Context(metrics=":9464")` serves the metrics in a fifth of the time and
without a further package: prometheus_client formats every label of every sample again.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from umstack.errors import Closed, Unsupported
from umstack.telemetry.exporter_text import Exposition, render

try:
    from prometheus_client import Metric
    from prometheus_client.parser import text_string_to_metric_families
    from prometheus_client.registry import Collector as _Base
except ImportError as error:
    raise Unsupported("prometheus_client is not installed", hint="pip install 'umstack[metrics]'") from error


class Reporting(Protocol):
    """An object with readable counters: a Context, which is in a layer above this module."""

    def stats(self) -> dict[str, Any]:
        """Return every counter by name; raises Closed after the object was closed."""


class Collector(_Base):
    """Yields the metrics of these contexts, without those that were closed."""

    def __init__(self, contexts: Sequence[Reporting]) -> None:
        self._contexts = [(context, time.time()) for context in contexts]
        self._exposition = Exposition()
        self._collecting = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        """Return the current metrics. Any thread may call it."""
        reports = []
        identity = {"pid": os.getpid(), "command": " ".join(sys.orig_argv)}
        for number, (context, started_at) in enumerate(self._contexts):
            with contextlib.suppress(Closed):
                reports.append({**identity, "number": number, "started_at": started_at, **context.stats()})
        with self._collecting:
            text = render(self._exposition.families(reports))
        return text_string_to_metric_families(text)
