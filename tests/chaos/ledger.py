"""The account of one receiver: every message is delivered once, in order and equal, or named as lost by an event.

Rules, for each source (a transport session and a topic index) of the receiver:

- A message equals the one that its header describes (tests/chaos/payloads.py); a source carries one incarnation.
- Rows continue at the next topic sequence number. A lower one is a duplicate, a higher one an unnamed loss; but of a
  fragmented message that is lost, only the fragments that were lost are named.
- Between two messages are at most as many others as sequence numbers named as lost.

The first row of a source may have any number: messages sent before a receiver joined is not owed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.chaos.payloads import stamp_of
from umstack import BurstLoss, EndOfSession, Event, Message, UnrecoverableLoss

FRAGMENTS_MAX = 64
"""Maximum number of fragments of a message in a chaos run."""
FINDINGS_MAX = 20
"""Findings kept by one ledger: one fault often causes thousands."""


@dataclass(slots=True)
class _Stream:
    """The account of one source."""

    incarnation: bytes = b""
    next_sequence_number: int | None = None
    last_number: int | None = None
    lost_since: int = 0
    """Sequence numbers named as lost since the last message."""
    unnamed_since: int = 0
    """Sequence numbers since the last message that are neither delivered nor named."""


@dataclass(slots=True)
class Ledger:
    """The account of one receiver."""

    name: str
    findings: list[str] = field(default_factory=list)
    messages: int = 0
    lost: int = 0
    ended: int = 0
    positions: dict[bytes, int] = field(default_factory=dict)
    """By incarnation, the number of its first messages that are delivered, named as lost or from before the join."""
    repeated: int = 0
    """Messages that a second session of the same source object delivered again."""
    skipped: int = 0
    """Numbers between the last message of a session and the first of the next one of the same source object."""
    _streams: dict[str, _Stream] = field(default_factory=dict)

    def enter(self, row: Event) -> None:
        """Account for the next row of the receiver."""
        match row:
            case Message():
                self._message(row)
            case UnrecoverableLoss():
                self._loss(row.source, row.sequence_number, row.sequence_number)
            case BurstLoss():
                self._loss(row.source, row.first_sequence_number, row.sequence_number)
            case EndOfSession():
                self.ended += 1

    def _message(self, row: Message) -> None:
        self.messages += 1
        stream = self._streams.setdefault(row.source, _Stream())
        stamp = stamp_of(row.data)
        where = f"{row.source} sqn {row.first_sequence_number}..{row.sequence_number}"
        if stamp is None:
            self._report("altered", f"{where}: {len(row.data)} bytes differ from the sent ones")
            return
        self._continue(stream, row.first_sequence_number, row.sequence_number, where)
        if stream.last_number is None:
            stream.incarnation = stamp.incarnation
            self._note_session_change(stamp.incarnation, stamp.number)
        elif stream.incarnation != stamp.incarnation:
            self._report("mixed", f"{where}: a message of another source object")
        elif not 1 <= stamp.number - stream.last_number <= 1 + stream.lost_since:
            self._report(
                "misnumbered",
                f"{where}: message {stamp.number} follows {stream.last_number} with {stream.lost_since} lost",
            )
        # How many messages were lost before the first one is unknown; each has at least one fragment that is named.
        left_out = stream.lost_since if stream.last_number is None else stamp.number - stream.last_number - 1
        if stream.unnamed_since > left_out * (FRAGMENTS_MAX - 1) or (
            stream.unnamed_since and not stream.lost_since
        ):
            self._report(
                "missing", f"{where}: {stream.unnamed_since} before it neither delivered nor named as lost"
            )
        stream.last_number, stream.lost_since, stream.unnamed_since = stamp.number, 0, 0
        self._advance(stamp.incarnation, stamp.number + 1)

    def _note_session_change(self, incarnation: bytes, number: int) -> None:
        """A source object whose context moved continues in another session: a receiver cannot relate the two."""
        if (before := self.positions.get(incarnation)) is not None:
            self.repeated += max(0, before - number)
            self.skipped += max(0, number - before)

    def _loss(self, source: str, first: int, last: int) -> None:
        self.lost += last - first + 1
        stream = self._streams.setdefault(source, _Stream())
        self._continue(stream, first, last, f"{source} loss {first}..{last}")
        stream.lost_since += last - first + 1
        if stream.last_number is not None:
            self._advance(stream.incarnation, stream.last_number + 1 + stream.lost_since)

    def _continue(self, stream: _Stream, first: int, last: int, where: str) -> None:
        expected = stream.next_sequence_number
        if expected is not None and first < expected:
            self._report("repeated", f"{where}: expected {expected}")
        elif expected is not None:
            stream.unnamed_since += first - expected
        stream.next_sequence_number = last + 1 if expected is None else max(expected, last + 1)

    def _advance(self, incarnation: bytes, position: int) -> None:
        self.positions[incarnation] = max(position, self.positions.get(incarnation, 0))

    def _report(self, kind: str, text: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(f"{kind}: {self.name}: {text}")
