"""Streams: the parts that the TCP streams of one context share: the loop, the request port, and the counters."""

from __future__ import annotations

import threading

from umstack.config import ContextOptions
from umstack.streams.counters import StreamCounters
from umstack.streams.loop import StreamLoop
from umstack.streams.request_port import RequestPort
from umstack_xdp.closing import Closing


class Streams(Closing):
    """Usable by any thread. It is closed after its users, which end their connections after the loop's thread."""

    def __init__(self, options: ContextOptions, address: str, *, is_threaded: bool) -> None:
        """`address` is the IPv4 address of the context's interface."""
        self.loop = StreamLoop(is_threaded=is_threaded)
        self.counters = StreamCounters()
        self._options = options
        self._address = address
        self._opening = threading.Lock()
        self._port: RequestPort | None = None

    def port(self) -> RequestPort:
        """Return the request port, opened by the first call. Raises ResourceLimit, OptionError, Closed."""
        with self._opening:
            if self._port is None:
                self._port = RequestPort(self._options, self._address, self.loop, self.counters)
            return self._port

    def follow_address(self, address: str) -> bool:
        """Open the request port at this address. Returns false if it is open at another one, where it stays."""
        with self._opening:
            former, self._address = self._address, address
            return self._port is None or address in (former, self._port.endpoint.ip)

    def stats(self) -> dict[str, int]:
        """Return the counters by name."""
        return self.counters.as_dict()

    def process(self, now_ns: int) -> None:
        """Run due work on a donated thread."""
        self.loop.process(now_ns)

    def close(self) -> None:
        """Close the port and the loop."""
        self.loop.end_thread()
        with self._opening:
            port, self._port = self._port, None
        if port is not None:
            port.close()
        self.loop.close()


__all__ = ["Streams"]
