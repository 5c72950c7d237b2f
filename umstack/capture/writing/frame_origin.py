"""Queue and XDP verdict of an interface's incoming frames, as far as an observing process can derive them."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from umstack._core import lib
from umstack_xdp import Interface, XdpError, find_interface
from umstack_xdp.attachment import program_ids
from umstack_xdp.xsk import queue_count

_XDP_PASS = 2
_AGREEING_LOOKS = 3
_ALL_TIMES_NS = (1 << 63) - 1


class Arrivals(NamedTuple):
    """Facts of the frames that arrived up to a time; if nothing is known, that time is infinite."""

    until_ns: int
    queue: int
    verdict: int


class FrameOrigin:
    """Polls an interface and derives facts that hold for the frames between two polls.

    A frame that reaches the kernel while an XDP program is attached was passed by that program. This is reported only
    for frames between polls that all found the same program; when a program is attached or detached, the frames around
    that time stay unknown. The queue is known if the interface has only one.
    """

    __slots__ = ("_interface", "_looks", "_queue")

    def __init__(self, name: str) -> None:
        """Find the interface. If that fails, nothing is known about its frames."""
        self._interface: Interface | None = None
        self._looks: deque[tuple[int, ...]] = deque(maxlen=_AGREEING_LOOKS)
        self._queue: int = lib.UM_PCAPNG_UNKNOWN
        try:
            self._interface = find_interface(name)
        except XdpError:
            return
        if queue_count(self._interface) == 1:
            self._queue = 0

    def look(self) -> Arrivals:
        """Return the facts of the frames since the last call."""
        now_ns = time.time_ns()
        self._looks.append(self._programs())
        agree = len(self._looks) == _AGREEING_LOOKS and len(set(self._looks)) == 1
        if agree and self._looks[0]:
            return Arrivals(now_ns, self._queue, _XDP_PASS)
        return Arrivals(_ALL_TIMES_NS, self._queue, lib.UM_PCAPNG_UNKNOWN)

    def _programs(self) -> tuple[int, ...]:
        if self._interface is None:
            return ()
        try:
            return program_ids(self._interface)
        except XdpError:
            return ()
