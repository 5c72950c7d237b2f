"""The account of a chaos run's Stores: each rule finds its fault, and what faults allow is no finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.kept import (
    check_promises,
    check_reader,
    first_of_each_kind,
    promises_of,
    read_store,
)
from tests.chaos.payloads import Stamp, payload
from tests.data_messages import encode_data
from tests.journal import Journal, lines_of
from umstack.store.repository import Repository

ONE, OTHER = b"incarnat", b"restarte"
Held = dict[int, Stamp]


def sent(seconds: float, sqn: int, number: int, incarnation: bytes = ONE) -> str:
    """Return the line of a sent message."""
    return f"sent {seconds} {sqn} {incarnation.hex()} {number}"


def read(sqn: int, source: int = 1) -> str:
    """Return the line of a message that a reader got."""
    return f"read {source} {sqn} {ONE.hex()} {sqn}"


def words(lines: list[str]) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in lines]


def kinds(findings: list[str]) -> list[str]:
    """Return the rules that the findings break."""
    return [finding.split(":")[0] for finding in findings]


def held(*sqns: int, incarnation: bytes = ONE) -> Held:
    """Return a Store's messages: each has its number among all messages of its source."""
    return {sqn: Stamp(incarnation, sqn) for sqn in sqns}


TWO_SENT = [sent(1, 0, 0), sent(2, 1, 1)]


@pytest.mark.parametrize(
    ("lines", "stores", "wiped_seconds", "expected"),
    [
        ([*TWO_SENT, "stable 0 1"], [held(0, 1), held(0, 1), held()], None, []),
        (TWO_SENT, [held(), held(), held()], None, []),
        ([*TWO_SENT, "dropped 0", "stable 1 1"], [held(1), held(1), held()], None, []),
        ([*TWO_SENT, "stable 0 1"], [held(0, 1), held(0), held()], None, ["unkept"]),
        ([*TWO_SENT, "stable 0 1"], [held(0, 1)], None, []),
        ([*TWO_SENT, "stable 0 1"], [held(0)], None, ["unkept"]),
        ([*TWO_SENT, "stable 0 1"], [held(), held(0, 1), held(1)], 1.5, []),
        ([*TWO_SENT, "stable 0 1"], [held(), held(0, 1), held(0)], 1.5, ["unkept"]),
        ([*TWO_SENT, "stable 0 1"], [held(0, 1), held(0), {1: Stamp(OTHER, 1)}], None, ["mixed", "unkept"]),
        ([sent(1, 0, 0), sent(2, 0, 0, OTHER)], [held()], None, []),
        ([sent(1, 0, 0), "stable 0 0", sent(2, 0, 0, OTHER)], [held(0)], None, ["reused"]),
    ],
)
def test_the_account_of_promises(
    lines: list[str], stores: list[Held], wiped_seconds: float | None, expected: list[str]
) -> None:
    """A majority holds what was stable, one Store less if one was wiped since; Stores agree; numbers are used once."""
    named = {f"store{at}": one for at, one in enumerate(stores)}
    assert kinds(check_promises(promises_of(words(lines)), named, wiped_seconds)) == expected


@pytest.mark.parametrize(
    ("lines", "restarts", "expected"),
    [
        (["begin 1 0", read(0), read(1), "end 0", "begin 2 0", read(2), "end 0"], [], []),
        (["begin 1 0", read(0), read(1), "begin 2 0", read(1), read(2), "end 0"], [], []),
        (["begin 1 0", read(0), read(1), "end 0", "begin 3 0", read(0), read(1), read(2), "end 0"], [2], []),
        (["begin 1 0", *map(read, range(3)), "end 0", "begin 3 0", read(2), "end 0"], [0.5], ["repeated"]),
        (["begin 1 0", read(1), read(0), read(2), "end 0"], [], ["repeated"]),
        (["begin 1 0", read(0), read(2), "end 0"], [], ["unread"]),
        (["begin 1 0", read(0), "altered 1 1", read(1), read(2), "end 0"], [], ["altered"]),
        (["begin 1 0", read(0), read(1), f"read 1 2 {OTHER.hex()} 2", "end 0"], [], ["mixed"]),
    ],
)
def test_the_account_of_a_reader(lines: list[str], restarts: list[float], expected: list[str]) -> None:
    """A reader gets all, in order, and again only after an interruption or a restart of the Store."""
    assert kinds(check_reader(words(lines), {"store0": held(0, 1, 2)}, {"store0": restarts})) == expected


def test_what_a_store_holds(tmp_path: Path) -> None:
    """Messages are read by number; one that was never sent and one with a second content are findings."""
    with Repository(tmp_path) as repository:
        source = repository.register_source("kept/a", 7).number
        for sqn in (0, 1):
            repository.append(source, sqn, encode_data(0, sqn, payload(ONE, sqn, 100)))
        repository.append(source, 1, encode_data(0, 1, payload(OTHER, 1, 100)))
        repository.append(source, 2, encode_data(0, 2, b"x" * 100))
        while repository.commit() is not None:
            pass
    found: list[str] = []
    assert read_store(tmp_path, "store0", found) == held(0, 1)
    assert kinds(found) == ["mixed", "altered"]


def test_a_journal_ends_at_its_last_complete_line(tmp_path: Path) -> None:
    """A line that a killed process did not finish is left out, also when the next process adds lines; of many findings
    of a kind some are kept."""
    path = tmp_path / "journal"
    path.write_text("stable 0 1\nstable 2")
    assert lines_of(path) == [["stable", "0", "1"]]
    journal = Journal(path)
    journal.add(["stable 2 3"])
    journal.close()
    assert lines_of(path) == [["stable", "0", "1"], ["stable", "2", "3"]]
    assert first_of_each_kind([f"unread: {at}" for at in range(9)] + ["mixed: 1"]) == [
        *(f"unread: {at}" for at in range(5)),
        "mixed: 1",
    ]
