"""Lines: one numbered stream over several interfaces (A/B lines), for `umstack send --hot-failover`.

    in -- carried nothing for a second, another line carried all: source closed, a new one opened --> out
    in <------------------------------ the new source has a receiver -------------------------------- out

A line whose receivers have all left is also out, but that is not counted as an outage.

A line must not skip messages: a receiver takes consecutive topic sqns to mean that none is missing. So a line that is
out restarts with a new source, whose numbering is independent of the old one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from umstack.context import Context
from umstack.errors import WouldBlock
from umstack.message_properties import MessageProperties
from umstack.publisher import OnWait
from umstack.source import Source

_SLICE_SECONDS = 0.02
PATIENCE_SECONDS = 1.0
"""Seconds after which a line that carries nothing is taken out, if another line carries the messages."""
_COUNTED = ("messages_sent", "receivers_timed_out", "receivers_stalled", "datagrams_given_up")


@dataclass(slots=True, eq=False)
class Line:
    """A source of the stream, over one interface."""

    interface: str
    context: Context
    source: Source
    is_out: bool = False
    outages: int = 0
    left_out: int = 0
    """Messages that only other lines carried while this one was out."""
    closed_sources: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTED, 0))

    @property
    def is_whole(self) -> bool:
        """Return true if this line carried every message to each receiver that has not left."""
        counted = self.counters()
        return not (self.outages or counted["datagrams_given_up"] or self._idle_receivers(counted))

    @staticmethod
    def _idle_receivers(counted: dict[str, int]) -> int:
        return counted["receivers_timed_out"] + counted["receivers_stalled"]

    def counters(self) -> dict[str, int]:
        """Return the counters of this source and of those before it, added up."""
        now = self.source.stats()
        return {name: self.closed_sources[name] + int(now[name] or 0) for name in _COUNTED}

    def described(self) -> dict[str, Any]:
        """Return plain values."""
        described = {"interface": self.interface, "is_out": self.is_out, "outages": self.outages}
        return {**described, "left_out": self.left_out, **self.counters()}

    def give_up(self, left_out: int) -> str:
        """Take the line out and return the reason. Its new source stays unused until it has a receiver."""
        before, now = self.closed_sources, self.counters()
        has_idle = self._idle_receivers(now) > self._idle_receivers(before)
        is_left = self.source.stats()["receivers_known"] == 0 and not has_idle
        self.closed_sources = now
        topic = self.source.topic
        self.source.close()
        self.source = self.context.source(topic)
        self.is_out = True
        self.outages += not is_left
        self.left_out += left_out
        if is_left:
            return "its receivers have left"
        return "its receivers are idle" if has_idle else "its receivers take nothing"


class Lines:
    """The lines of a stream. One thread."""

    def __init__(self, lines: Sequence[Line], first_number: int, say: Callable[[str], None]) -> None:
        """Call `say` with a text when a line is taken out or returns."""
        self.all = list(lines)
        self.next_number = first_number
        self._say = say

    def idle(self, seconds: float) -> None:
        """Run contexts in sequential mode, or wait."""
        for line in self.all:
            line.context.idle(seconds)

    def connected(self, receivers: int) -> list[Line]:
        """Return the lines that have at least this many receivers."""
        return [line for line in self.all if line.source.known_receivers >= receivers]

    def send(self, messages: Sequence[bytes], properties: MessageProperties, on_wait: OnWait) -> None:
        """Send the messages with the next numbers over every line that is not out; at least one must carry them."""
        began = time.monotonic()
        while not (lines := self._lines_in()):
            on_wait(time.monotonic() - began, _NoLine("every line is out"))
            self.idle(_SLICE_SECONDS)
        sent = dict.fromkeys(lines, 0)
        took_at = dict.fromkeys(lines, time.monotonic())
        while behind := [line for line in lines if sent[line] < len(messages) and not line.is_out]:
            why: WouldBlock | None = None
            for line in behind:
                count, why = self._send_by(line, messages, sent[line], properties)
                if count:
                    sent[line] += count
                    took_at[line] = time.monotonic()
            is_carried = len(messages) in sent.values()
            for line in behind:
                idle_seconds = time.monotonic() - took_at[line]
                if is_carried and sent[line] < len(messages) and idle_seconds > PATIENCE_SECONDS:
                    why_out = line.give_up(len(messages) - sent[line])
                    self._say(f"line {line.interface} is out: {why_out}")
            if why is not None and not is_carried:
                on_wait(time.monotonic() - max(took_at.values()), why)
        for line in self.all:
            if line not in sent:
                line.left_out += len(messages)
        self.next_number += len(messages)

    def _lines_in(self) -> list[Line]:
        """Return the lines that are in, including those whose new source now has a receiver."""
        for line in self.all:
            if line.is_out and line.source.is_connected:
                line.is_out = False
                self._say(f"line {line.interface} is back")
        return [line for line in self.all if not line.is_out]

    def _send_by(
        self, line: Line, messages: Sequence[bytes], begin: int, properties: MessageProperties
    ) -> tuple[int, WouldBlock | None]:
        """Send from this message until the line blocks; return the count and the reason it stopped."""
        last = len(messages) - 1
        for at in range(begin, len(messages)):
            try:
                line.source.send_hot_failover(
                    messages[at],
                    self.next_number + at,
                    at == last,
                    timeout=_SLICE_SECONDS,
                    properties=properties,
                )
            except WouldBlock as why:
                return at - begin, why
        return len(messages) - begin, None

    def is_drained(self) -> bool:
        """True if every line that is not out is drained. At least one line is always in."""
        return all(line.source.wait_drained(0).is_complete for line in self.all if not line.is_out)

    def has_whole_line(self) -> bool:
        """True if at least one line has carried every message, and all have arrived."""
        return any(line.is_whole and line.source.wait_drained(0) for line in self.all)


class _NoLine(WouldBlock):
    """Raised when no line has a receiver."""

    default_hint = "see that a receiver is there, and its interface up"


__all__ = ["PATIENCE_SECONDS", "Line", "Lines"]
