"""The persistent source and the reader of a chaos run. Each writes a journal of what its Stores promised and returned.

Every line of a journal is written when it is true, so that a killed process leaves a journal of its past:

| journal | line | meaning |
|---|---|---|
| source | `sent SECONDS SQN INCARNATION NUMBER` | the message was sent |
| source | `stable FIRST LAST` | these messages are stable |
| source | `dropped SQN` | the message was given up before it was stable |
| reader | `begin SECONDS STORE` | a replay from this Store begins |
| reader | `read SOURCE SQN INCARNATION NUMBER` | it returned this message; SOURCE: its registration id |
| reader | `altered SOURCE SQN` | it returned a message that differs from every sent one |
| reader | `end STORE` | the replay is complete |

SECONDS are those of the monotonic clock, which all processes of the run share.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

from tests.chaos.part import Part
from tests.chaos.payloads import HEADER_BYTES, payload, stamp_of
from tests.journal import Journal
from umstack import BackPressured, Context, NotConnected, WouldBlock
from umstack.persistence.events import MessageStable, NotStable
from umstack.persistent_source import PersistentSource
from umstack.store.client import replay

_SEND_SECONDS = 0.2
_PAUSE_SECONDS = 0.1
_REPLAY_PAUSE_SECONDS = 0.5
_OPEN_SECONDS = 5.0
"""Maximum wait of one attempt to register, or for one answer to the reader."""
SOURCE_SESSION = 7
READER_SESSION = 3


def open_source(context: Context, config: dict[str, Any]) -> PersistentSource:
    """Register the persistent source at its Stores."""
    stores = [(address, port) for address, port in config["stores"]]
    return context.source(
        config["topic"],
        store=stores,
        session_id=SOURCE_SESSION,
        registration_timeout=_OPEN_SECONDS,
        **config["options"],
    )


class Keeping(Part):
    """Sends numbered messages that Stores keep."""

    def __init__(self, context: Context, config: dict[str, Any]) -> None:
        super().__init__(context, config)
        self.random = random.Random(config["seed"])
        self.sent_count = 0
        self.unstable: set[int] = set()
        """Numbers of this source object that are neither stable nor dropped."""
        self.is_open = False

    def live(self) -> None:
        """Send until it is finished, renewed or closed."""
        journal = Journal(self.config["journal"])
        try:
            source = open_source(self.context, self.config)
            try:
                self.is_open = True
                self._send(source, journal)
            finally:
                source.close()
                self._note_events(source, journal, [])
        finally:
            self.is_open = False
            self.unstable.clear()
            journal.close()

    def _send(self, source: PersistentSource, journal: Journal) -> None:
        incarnation, number = os.urandom(8), 0
        while self.goes_on:
            lines: list[str] = []
            if not self.finished.is_set():
                number = self._send_burst(source, incarnation, number, lines)
            self._note_events(source, journal, lines)
            pause = self.random.expovariate(self.config["bursts_per_second"])
            self.closed.wait(_PAUSE_SECONDS if self.finished.is_set() else pause)

    def _send_burst(self, source: PersistentSource, incarnation: bytes, number: int, lines: list[str]) -> int:
        """Send some messages; return the number of the next one."""
        for _ in range(self.random.choice((1, 1, 2, 5, 40))):
            length = self.random.choice(
                (HEADER_BYTES, 64, 200, 1000, source._source._publication.fragment_bytes)
            )
            message = payload(incarnation, number, length)
            try:
                sqn = source.send(message, timeout=_SEND_SECONDS)
            except (BackPressured, WouldBlock):
                return number
            lines.append(f"sent {time.monotonic():.6f} {sqn} {incarnation.hex()} {number}")
            self.unstable.add(sqn)
            self.sent_count += 1
            number += 1
        return number

    def _note_events(self, source: PersistentSource, journal: Journal, lines: list[str]) -> None:
        """Add these lines and the source's events to the journal."""
        for event in source.take_events():
            match event:
                case MessageStable():
                    lines.append(f"stable {event.first_sqn} {event.last_sqn}")
                    self.unstable.difference_update(range(event.first_sqn, event.last_sqn + 1))
                case NotStable():
                    lines.append(f"dropped {event.sqn}")
                    self.unstable.discard(event.sqn)
        journal.add(lines)

    def report(self) -> dict[str, Any]:
        """Return how many messages were sent, and which are not stable."""
        return {
            "topic": self.config["topic"],
            "is_open": self.is_open,
            "sent": self.sent_count,
            "unstable": sorted(self.unstable.copy()),
        }


class Replaying(Part):
    """Replays the topic from each Store in turn, again and again."""

    def __init__(self, context: Context, config: dict[str, Any]) -> None:
        super().__init__(context, config)
        self.passes = [0] * len(config["stores"])
        """Complete replays, by Store."""
        self.read_count = 0
        self._key_file = context.options.authentication_key_file or None
        self._encryption = context.options.encryption

    def live(self) -> None:
        """Replay until it is renewed or closed."""
        journal = Journal(self.config["journal"])
        try:
            while self.goes_on:
                for at in range(len(self.passes)):
                    if self.goes_on:
                        self._replay(at, journal)
                self.closed.wait(_REPLAY_PAUSE_SECONDS)
        finally:
            journal.close()

    def _replay(self, at: int, journal: Journal) -> None:
        lines = [f"begin {time.monotonic():.6f} {at}"]
        journal.add(lines)
        address, port = self.config["stores"][at]
        try:
            for message in replay(
                self.config["topic"],
                (address, port),
                READER_SESSION,
                timeout=_OPEN_SECONDS,
                authentication_key_file=self._key_file,
                encryption=self._encryption,
            ):
                # Written one by one: the next step acknowledges the message.
                where = f"{message.source_reg_id} {message.sqn}"
                stamp = stamp_of(message.data)
                read = "" if stamp is None else f"read {where} {stamp.incarnation.hex()} {stamp.number}"
                journal.add([read or f"altered {where}"])
                self.read_count += 1
        except NotConnected:
            return  # A Store that is away, stopped, or behind a blocked port: another replay follows.
        journal.add([f"end {at}"])
        self.passes[at] += 1

    def report(self) -> dict[str, Any]:
        """Return the number of complete replays of each Store, and of messages."""
        return {"topic": self.config["topic"], "passes": self.passes, "read": self.read_count}
