"""The account of the Stores of a chaos run: what they hold, what the source was promised, and what the reader got.

- Stores hold only messages that were sent, and agree on the message of every number.
- A number that was reported as stable keeps its message, and a majority of the Stores holds it; one Store less, if it
  was sent before a Store was wiped.
- The reader got everything that a Store holds, in the order of the numbers. A replay continues behind the previous
  one, unless that one was interrupted or the Store was restarted since it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tests.chaos.payloads import HEADER_BYTES, Stamp, stamp_of
from umstack.persistence.messages import data_of
from umstack.store.repository.verification import dump, verify

FINDINGS_MAX = 5
"""Findings kept of each rule: one fault often causes thousands."""
Held = Mapping[int, Stamp]
"""By number, the message that a Store holds."""


@dataclass(slots=True)
class Promises:
    """The contents of a source's journal."""

    stable: dict[int, Stamp] = field(default_factory=dict)
    """By number, the message that was reported as stable."""
    sent_seconds: dict[Stamp, float] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)


def promises_of(lines: Iterable[Sequence[str]]) -> Promises:
    """Return what a source sent and saw as stable; a number that was stable and is used again is a finding."""
    promises = Promises()
    sent: dict[int, Stamp] = {}
    for kind, *values in lines:
        if kind == "sent":
            stamp = Stamp(bytes.fromhex(values[2]), int(values[3]))
            sqn = int(values[1])
            if sqn in promises.stable:
                promises.findings.append(f"reused: number {sqn} was stable and was sent again")
            sent[sqn] = stamp
            promises.sent_seconds[stamp] = float(values[0])
        elif kind == "stable":
            for sqn in range(int(values[0]), int(values[1]) + 1):
                promises.stable[sqn] = sent[sqn]
    return promises


def read_store(folder: Path, name: str, report: list[str]) -> dict[int, Stamp]:
    """Return what a Store holds; damaged segments and messages that were never sent are findings."""
    for segment in verify(folder):
        report += [f"damaged: {name}: {segment.name}: {problem}" for problem in segment.problems]
    held: dict[int, Stamp] = {}
    for record in dump(folder):
        if record.is_lost:
            continue
        stamp = stamp_of(data_of(record.message).payload) if len(record.message) > HEADER_BYTES else None
        if stamp is None:
            report.append(f"altered: {name}: number {record.sqn}")
        elif held.setdefault(record.sqn, stamp) != stamp:
            report.append(f"mixed: {name}: number {record.sqn} has two messages")
    return held


def check_promises(
    promises: Promises, stores: Mapping[str, Held], wiped_seconds: float | None = None
) -> list[str]:
    """Return findings of what the Stores hold; `wiped_seconds`: when one of them was wiped last."""
    found = list(promises.findings)
    everything: dict[int, tuple[str, Stamp]] = {}
    for name, held in stores.items():
        for sqn, stamp in held.items():
            other, first = everything.setdefault(sqn, (name, stamp))
            if first != stamp:
                found.append(f"mixed: {other} and {name} hold different messages of number {sqn}")
    for sqn, stamp in promises.stable.items():
        holders = [name for name, held in stores.items() if held.get(sqn) == stamp]
        needed = len(stores) // 2 + 1
        if wiped_seconds is not None and promises.sent_seconds[stamp] < wiped_seconds:
            needed -= 1
        if len(holders) < needed:
            found.append(f"unkept: number {sqn} was stable; it is held by {holders or 'no Store'}")
    return found


@dataclass(slots=True)
class _Reading:
    """The replays from one Store."""

    got: dict[int, Stamp] = field(default_factory=dict)
    next_sqns: dict[str, int] = field(default_factory=dict)
    """By source, the number behind the newest message of the current or the last replay."""
    began: float = 0.0
    is_complete: bool = True


def check_reader(
    lines: Iterable[Sequence[str]], stores: Mapping[str, Held], restarts: Mapping[str, Sequence[float]]
) -> list[str]:
    """Return findings of what the reader got; `restarts`: when each Store ended, by name. Stores are in order."""
    names = list(stores)
    readings = {name: _Reading() for name in names}
    found: list[str] = []
    name = names[0]
    for kind, *values in lines:
        if kind == "begin":
            name = names[int(values[1])]
            _begin(readings[name], float(values[0]), restarts[name])
        elif kind == "end":
            readings[name].is_complete = True
        elif kind == "altered":
            found.append(f"altered: reader of {name}: number {values[1]}")
        else:
            reading, source, sqn = readings[name], values[0], int(values[1])
            if sqn < reading.next_sqns.get(source, 0):
                found.append(
                    f"repeated: reader of {name}: number {sqn}, expected {reading.next_sqns[source]}"
                )
            reading.next_sqns[source] = sqn + 1
            reading.got[sqn] = Stamp(bytes.fromhex(values[2]), int(values[3]))
    for name, held in stores.items():
        for sqn, stamp in held.items():
            if (got := readings[name].got.get(sqn)) is None:
                found.append(f"unread: reader of {name}: number {sqn}")
            elif got != stamp:
                found.append(f"mixed: reader of {name}: number {sqn} is another message than the Store holds")
    return found


def _begin(reading: _Reading, seconds: float, restarts: Sequence[float]) -> None:
    """A replay begins; after an interruption it may repeat messages."""
    if not reading.is_complete or any(reading.began <= at <= seconds for at in restarts):
        reading.next_sqns.clear()
    reading.began, reading.is_complete = seconds, False


def first_of_each_kind(findings: Iterable[str]) -> list[str]:
    """Return at most FINDINGS_MAX findings of each rule."""
    kinds: dict[str, list[str]] = {}
    for finding in findings:
        kinds.setdefault(finding.split(":")[0], []).append(finding)
    return [finding for some in kinds.values() for finding in islice(some, FINDINGS_MAX)]
