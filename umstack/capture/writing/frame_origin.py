"""How the frames of an interface came in, as far as the kernel tells a process that only watches."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from umstack._core import lib
from xdp import Interface, XdpError, find_interface
from xdp.attachment import program_ids
from xdp.xsk import queue_count

_XDP_PASS = 2
_AGREEING_LOOKS = 3
_ALL_TIMES_NS = (1 << 63) - 1


class Arrivals(NamedTuple):
    """What is known of the frames that came in up to a time. Nothing has to wait for a time when nothing is known."""

    until_ns: int
    queue: int
    verdict: int


class FrameOrigin:
    """Looks at an interface again and again, and says what holds for the frames between two looks.

    A frame that reaches the kernel while an XDP program is on the interface was passed by it. That is said only of
    frames between looks that all found the same program: one that comes or goes leaves the frames around it unknown.
    The queue is known where the interface has only one.
    """

    __slots__ = ("_interface", "_looks", "_queue")

    def __init__(self, name: str) -> None:
        """Nothing is known of an interface that cannot be looked at."""
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
        """What holds for the frames from the last look until now."""
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
