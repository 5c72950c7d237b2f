"""The account and the plan of chaos runs: each rule finds its fault, and a seed repeats a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet
import pytest

from tests.chaos import run as runs
from tests.chaos.ledger import FRAGMENTS_MAX, Ledger
from tests.chaos.payloads import payload
from tests.chaos.plan import Fault, make_plan
from tests.chaos.recorded import check_recording
from tests.chaos.run import ChaosRun
from umstack import BurstLoss, EndOfSession, Event, Message, UnrecoverableLoss
from umstack.sim import SECOND, Kind, Row, Type, World

ONE, OTHER = b"incarnat", b"restarte"
SOURCE, NEXT_SOURCE = "LBTRM:one[1]", "LBTRM:two[1]"


def message(number: int, incarnation: bytes = ONE, source: str = SOURCE, **changes: Any) -> Message:
    """Return the message of this number, at sequence number 100 + number."""
    sqn = 100 + number
    row = Message(payload(incarnation, number, 200), "t", source, sqn, sqn, 0, 0, 0, 200)
    return row._replace(**changes)


def findings(*rows: Event) -> list[str]:
    """Return the kinds of findings for these rows."""
    ledger = Ledger("t")
    for row in rows:
        ledger.enter(row)
    return [finding.split(":")[0] for finding in ledger.findings]


RIGHT: dict[str, list[Event]] = {
    "in order": [message(3), message(4), message(5)],
    "lost by name": [
        message(0),
        UnrecoverableLoss("t", SOURCE, 101),
        BurstLoss("t", SOURCE, 102, 104),
        message(5),
    ],
    "lost at first": [BurstLoss("t", SOURCE, 90, 99), message(0), message(1)],
    "one fragment of the first message is lost, and a later one arrives": [
        UnrecoverableLoss("t", SOURCE, 98),
        message(0),
    ],
    "fragments": [
        message(0),
        message(1, first_sequence_number=101, sequence_number=103),
        message(2)._replace(first_sequence_number=104, sequence_number=104),
    ],
    "one fragment of three is lost": [
        message(0),
        UnrecoverableLoss("t", SOURCE, 102),
        message(2)._replace(first_sequence_number=104, sequence_number=104),
    ],
    "joined again": [message(0), EndOfSession("t", SOURCE), message(1)],
    "another session": [message(0), message(5, source=NEXT_SOURCE), message(6, source=NEXT_SOURCE)],
    "restarted": [message(7), message(0, OTHER, NEXT_SOURCE), message(1, OTHER, NEXT_SOURCE)],
}

WRONG: dict[str, tuple[str, list[Event]]] = {
    "a message is missing": ("missing", [message(0), message(2)]),
    "a message is repeated": ("repeated", [message(0), message(0)]),
    "more is missing before the first message than the fragments of one": (
        "missing",
        [UnrecoverableLoss("t", SOURCE, 100 - FRAGMENTS_MAX - 1), message(0)],
    ),
    "messages are swapped": ("missing", [message(0), message(2), message(1)]),
    "one byte is altered": ("altered", [message(0, data=payload(ONE, 0, 200)[:-1] + b"?")]),
    "a message is cut": ("altered", [message(0, data=payload(ONE, 0, 200)[:-1])]),
    "a message is empty": ("altered", [message(0, data=b"")]),
    "a message is left out although none is lost": (
        "misnumbered",
        [message(0), message(2, first_sequence_number=101, sequence_number=101)],
    ),
    "more is left out than is lost": (
        "misnumbered",
        [
            message(0),
            UnrecoverableLoss("t", SOURCE, 101),
            message(5, first_sequence_number=102, sequence_number=102),
        ],
    ),
    "a loss is named late": ("misnumbered", [message(0), UnrecoverableLoss("t", SOURCE, 300), message(201)]),
    "messages are missing beside a loss": (
        "misnumbered",
        [message(0), UnrecoverableLoss("t", SOURCE, 102), message(4)],
    ),
    "a delivered message is named as lost": ("repeated", [message(0), UnrecoverableLoss("t", SOURCE, 100)]),
    "a session mixes sources": ("mixed", [message(0), message(1, OTHER)]),
}


@pytest.mark.parametrize("rows", RIGHT.values(), ids=RIGHT.keys())
def test_what_is_allowed_is_no_finding(rows: list[Event]) -> None:
    """Messages in order, losses by name, and sessions that follow each other are right."""
    assert findings(*rows) == []


@pytest.mark.parametrize(("kind", "rows"), WRONG.values(), ids=WRONG.keys())
def test_each_rule_finds_its_fault(kind: str, rows: list[Event]) -> None:
    """A fault of a single row is reported by the rule that it breaks."""
    assert kind in findings(*rows)


def test_a_first_message_that_loses_a_fragment_is_no_finding() -> None:
    """A real receiver names the lost fragment of the first message it sees and drops the later ones unnamed."""
    with World() as world:
        source = world.host().session(datagram_max_bytes=1472).source()
        subscriber = world.host()
        receiver = subscriber.receiver()
        receiver.join(source)
        world.rule("drop", Type.DATA, receiver=subscriber, sqns=1)
        for number, length in ((0, 4000), (1, 200)):
            source.send(payload(ONE, number, length), flush=True)
        world.run_for(60 * SECOND)
        source.send(payload(ONE, 2, 200), flush=True)
        world.run_for(SECOND)
        rows = receiver.rows
    losses = [row.sequence_number for row in rows if row.kind is Kind.UNRECOVERABLE_LOSS]
    messages = [row.sequence_number for row in rows if row.kind is Kind.MESSAGE]
    assert (losses, messages) == ([1], [3, 4])
    events: dict[Kind, Callable[[Row], Event]] = {
        Kind.UNRECOVERABLE_LOSS: lambda row: UnrecoverableLoss("t", SOURCE, row.sequence_number),
        Kind.MESSAGE: lambda row: Message(
            row.payload, "t", SOURCE, row.sequence_number, row.first_sequence_number, 0, 0, 0, 200
        ),
    }
    assert findings(*(events[row.kind](row) for row in rows if row.kind in events)) == []


def test_positions_count_what_is_delivered_or_named() -> None:
    """A loss at the end of a stream advances its position, so that nothing more is owed."""
    ledger = Ledger("t")
    rows: list[Event] = [message(0), message(1), BurstLoss("t", SOURCE, 102, 104)]
    for row in rows:
        ledger.enter(row)
    assert ledger.positions == {ONE: 5}
    assert (ledger.messages, ledger.lost) == (2, 3)


@pytest.mark.parametrize("of", [lambda plan: plan.processes, lambda plan: plan.faults])
def test_a_seed_repeats_a_plan(of: Callable[[Any], Any]) -> None:
    """Processes, options and faults are the same for a seed, and others for another one."""
    assert of(make_plan(5, 60)) == of(make_plan(5, 60))
    assert of(make_plan(5, 60)) != of(make_plan(6, 60))


def test_plans_have_every_fault_and_no_conflict() -> None:
    """Within a hundred seeds each fault occurs; one process or interface has one at a time, and the end is calm."""
    kinds = set()
    for seed in range(100):
        plan = make_plan(seed, 60)
        kinds |= {fault.kind for fault in plan.faults}
        assert all(0 < fault.start < fault.end < 54 for fault in plan.faults)
        disturbed = [
            fault for fault in plan.faults if fault.kind in ("kill", "stop", "restart", "full", "wipe")
        ]
        for target in {fault.target for fault in disturbed}:
            own = sorted(fault for fault in disturbed if fault.target == target)
            assert all(one.end <= other.start for one, other in pairwise(own))
    assert kinds == {
        *("lossy", "block", "unplug", "link", "mtu", "path_mtu", "address"),
        *("kill", "stop", "restart", "clock", "renew", "disk", "rotate", "full", "wipe"),
    }


Rows = list[tuple[str, int, int]]
"""Source, topic sequence number and number of recorded messages."""


def played_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float
) -> tuple[list[tuple[str, bool]], float, int]:
    """Play a run in which the second fault takes 0.7 of the run to begin. Return the faults that were begun and ended,
    the seconds that it took, and the number of dropped faults."""
    starts = {"first": 0.1, "second": 0.3, "third": 0.45, "fourth": 0.5}
    faults = tuple(Fault(at * seconds, (at + 0.3) * seconds, "kill", name) for name, at in starts.items())
    run = ChaosRun(replace(make_plan(1, 20), seconds=seconds, faults=faults), tmp_path)
    now = [100.0]
    applied: list[tuple[str, bool]] = []

    def apply(fault: Fault, is_start: bool) -> None:
        applied.append((fault.target, is_start))
        now[0] += 0.7 * seconds if fault.target == "second" and is_start else 0

    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(run, "_wait_until", lambda end: now.append(max(now.pop(), end)))
    monkeypatch.setattr(run, "_apply", apply)
    run._play()
    return applied, now[0] - 100.0, run.outcome.counts["dropped faults"]


def test_late_faults_do_not_make_a_run_longer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A fault that would begin in the calm at the end of the run is dropped; one that has begun is ended."""
    applied, seconds, dropped = played_late(monkeypatch, tmp_path, 100)
    assert applied == [("first", True), ("second", True), ("first", False), ("second", False)]
    assert seconds == pytest.approx(120)
    assert dropped == 2


def test_a_short_run_waits_for_late_faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a busy machine it may take a minute."""
    applied, seconds, dropped = played_late(monkeypatch, tmp_path, 10)
    assert sorted(applied) == sorted(
        (name, is_start) for name in ("first", "second", "third", "fourth") for is_start in (True, False)
    )
    assert seconds == pytest.approx(16)
    assert dropped == 0


def recorded(folder: Path, rows: Rows, lost: Rows) -> list[str]:
    """Return the kinds of findings for a recording of these messages and of these losses: source, first, last."""
    messages = [
        {"source": source, "sequence_number": sqn, "payload": payload(ONE, number, 100)}
        for source, sqn, number in rows
    ]
    events = [
        {"source": source, "first_sequence_number": first, "sequence_number": last, "lost": last - first + 1}
        for source, first, last in lost
    ]
    for table, content in (("messages", messages), ("events", events)):
        (folder / table).mkdir()
        if content:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content), folder / table / "part-1.parquet")
    found: list[str] = []
    assert check_recording(folder, found.append) == len(rows)
    return [finding.split(":")[0] for finding in found]


@pytest.mark.parametrize(
    ("rows", "lost", "expected"),
    [
        ([("a", 0, 0), ("a", 1, 1), ("a", 0, 0), ("a", 1, 1), ("a", 2, 2)], [], []),
        ([("a", 0, 0), ("a", 3, 3)], [("a", 1, 2)], []),
        ([("a", 0, 0), ("b", 1, 1), ("a", 2, 2)], [], []),
        ([("a", 0, 0), ("b", 0, 0), ("b", 1, 1)], [], []),
        ([("a", 0, 0), ("a", 3, 3)], [], ["missing"]),
        ([("a", 0, 0), ("a", 3, 3)], [("b", 1, 2)], ["missing"]),
        ([("a", 0, 0), ("a", 1, 0)], [], ["repeated"]),
        ([("a", 0, 0), ("a", 0, 1)], [], ["mixed"]),
    ],
)
def test_the_account_of_a_recording(tmp_path: Path, rows: Rows, lost: Rows, expected: list[str]) -> None:
    """Rows recorded again, named losses and a session that was away are right; everything else is a finding."""
    assert recorded(tmp_path, rows, lost) == expected
