"""Watch: the live page and the metrics of the demo's processes, served on this host while the demo runs."""

from __future__ import annotations

import re
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from umstack.telemetry.endpoint import MetricsEndpoint
from umstack.telemetry.live_page import LivePage
from umstack.telemetry.statistics_reader import read_statistics
from umstack_xdp.closing import Closing

_SCRAPE_SECONDS = 5.0
_CONTEXT = re.compile(r"^umstack_context_info\{", re.MULTILINE)
_SAMPLE = re.compile(r"^umstack_", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Scrape:
    """Samples and contexts of one scrape."""

    samples: int
    contexts: int


class Watch(Closing):
    """Serves until closed. Shows every readable context of this user, including the demo's."""

    def __init__(self) -> None:
        """Take two free ports of the loopback interface."""
        with ExitStack() as opening:
            self._page = opening.enter_context(LivePage("127.0.0.1:0", read_statistics))
            self._metrics = opening.enter_context(MetricsEndpoint("127.0.0.1:0", read_statistics))
            self._open = opening.pop_all()
        self.page_url = self._page.url
        self.metrics_url = self._metrics.url
        self.scrapes: dict[str, Scrape] = {}
        """The last scrape made during the transfer, by link."""

    def scrape(self, link: str, contexts: int) -> None:
        """Scrape over HTTP as Prometheus does, for each link until that many busy contexts have answered."""
        if link in self.scrapes and self.scrapes[link].contexts >= contexts:
            return
        # Ignore proxies from the environment: they cannot reach this host's loopback interface.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(self.metrics_url, timeout=_SCRAPE_SECONDS) as answer:
            text = answer.read().decode()
        self.scrapes[link] = Scrape(len(_SAMPLE.findall(text)), len(_CONTEXT.findall(text)))

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        scrapes = {
            link: {"samples": one.samples, "contexts": one.contexts} for link, one in self.scrapes.items()
        }
        return {"page_url": self.page_url, "metrics_url": self.metrics_url, "scrapes": scrapes}

    def close(self) -> None:
        """Stop serving."""
        self._open.close()
