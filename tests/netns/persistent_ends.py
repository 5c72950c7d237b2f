"""The two ends of a persistent topic, in processes that a test kills, and the account of what they did.

`python -m tests.netns.persistent_ends INTERFACE` forks them; an order is
`publish|subscribe JOURNAL PACING ARGUMENT...`, with the number of a Pacing: if it is not 0, the source is
receiver-paced. A process works until SIGTERM, and adds a line to its journal when it is true, so that a killed one
leaves a journal of its past:

| role | line | meaning |
|---|---|---|
| publish | `begin SQN` | it registered at the Stores; this is the number of its first message |
| publish | `stable FIRST LAST` | these messages are stable |
| publish | `end SQN` | every message is stable; SQN is behind the last one |
| subscribe | `begin SQN` | the receiver exists; it must not get messages below this one, which is its argument |
| subscribe | `got SQN` | this message arrived unchanged; it is acknowledged later, or with the ones behind it |
| subscribe | `lost FIRST LAST` | these messages were reported as lost |

The message of a number is always the same, also if a restarted publisher sends the number again.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.forked_processes import serve_forks
from tests.journal import Journal
from umstack import BurstLoss, Context, Message, UnrecoverableLoss
from umstack.errors import BackPressured
from umstack.events import Event
from umstack.persistence.events import MessageStable, NotStable
from umstack.persistent_source import PersistentSource

TOPIC = "orders"
SUBSCRIBER = 3
"""Session id of the subscriber."""
_PUBLISHER = 7
_BURST = 5
_PAUSE_SECONDS = 0.005
_CLOSE_SECONDS = 30.0
_SEND_SECONDS = 0.2
"""Maximum wait of a send; then the publisher looks if it is over."""
_PACED = {
    "ume_receiver_paced_persistence": 1,
    "ume_flight_size": 200,
    "ume_flight_size_bytes": 15_000,
    "ume_repository_disk_file_size_limit": 100_000,
}
"""A Store keeps about 700 messages: those of a second."""
_READ_ROWS = 20
"""Maximum number of messages that are written at once."""
_READS_PER_ACKNOWLEDGEMENT = 5
_READ_SECONDS = 0.1


def content(sqn: int) -> bytes:
    """Return the message with this number."""
    return b"%08d" % sqn * (1 + sqn % 20)


def _publish(
    context: Context, journal: Journal, is_over: threading.Event, pacing: int, stores: Sequence[str]
) -> None:
    limits = _PACED if pacing else {}
    with context.source(
        TOPIC,
        store=stores,
        session_id=_PUBLISHER,
        ume_message_stability_timeout=200,
        **limits,  # type: ignore[arg-type]
    ) as source:
        sqn = source.first_sequence_number
        journal.add([f"begin {sqn}"])
        while not is_over.wait(_PAUSE_SECONDS):
            for _ in range(_BURST):
                with contextlib.suppress(BackPressured):
                    assert source.send(content(sqn), flush=True, timeout=_SEND_SECONDS) == sqn
                    sqn += 1
            journal.add(stable_lines(source))
        assert source.close(_CLOSE_SECONDS) == []
        journal.add([*stable_lines(source), f"end {sqn}"])


def stable_lines(source: PersistentSource) -> list[str]:
    """Return the journal's lines of the numbers that became stable since the last call."""
    events = source.take_events()
    assert not [event for event in events if isinstance(event, NotStable)]
    return [
        f"stable {event.first_sqn} {event.last_sqn}" for event in events if isinstance(event, MessageStable)
    ]


def _subscribe(
    context: Context, journal: Journal, is_over: threading.Event, pacing: int, arguments: Sequence[str]
) -> None:
    with context.receiver(
        TOPIC, session_id=SUBSCRIBER, ume_explicit_ack_only=1, ume_receiver_paced_persistence=pacing
    ) as receiver:
        journal.add([f"begin {arguments[0]}"])
        while not is_over.is_set():
            events = receiver.poll(_READ_ROWS, _READ_SECONDS).events()
            journal.add(_lines(events))
            messages = [event for event in events if isinstance(event, Message)]
            if messages and random.randrange(_READS_PER_ACKNOWLEDGEMENT) == 0:
                receiver.acknowledge(messages[-1])


def _lines(events: Iterable[Event]) -> list[str]:
    lines = []
    for event in events:
        match event:
            case Message():
                assert event.data == content(event.sequence_number)
                lines.append(f"got {event.sequence_number}")
            case UnrecoverableLoss():
                lines.append(f"lost {event.sequence_number} {event.sequence_number}")
            case BurstLoss():
                lines.append(f"lost {event.first_sequence_number} {event.sequence_number}")
    return lines


@dataclass(slots=True)
class Account:
    """Sums over the journals of both ends."""

    end: int
    """Behind the last message that was published."""
    lives: int = 0
    """Receivers that got messages."""
    delivered: set[int] = field(default_factory=set)
    repeated: int = 0
    """Messages that a subscriber got again, because its former life was killed before a majority of the Stores had its
    acknowledgement."""
    lost: set[int] = field(default_factory=set)
    """Numbers that were reported as lost: they were not sent, or their publisher was killed before they were stable."""


def stable_sqns(lines: Iterable[Sequence[str]]) -> tuple[set[int], int | None]:
    """Return the numbers that a publisher's journal names as stable, and the end of the last life, if it has ended.

    A restarted publisher begins behind every stable message.
    """
    stable: set[int] = set()
    end = None
    for kind, *values in lines:
        numbers = [int(value) for value in values]
        if kind == "begin":
            assert numbers[0] > max(stable, default=-1), f"number {numbers[0]} is used again"
        elif kind == "stable":
            stable.update(range(numbers[0], numbers[1] + 1))
        else:
            end = numbers[0]
    return stable, end


def next_sqn_of(lines: Iterable[Sequence[str]]) -> int:
    """Return the number behind the newest message or loss in a subscriber's journal."""
    return max((int(values[-1]) + 1 for kind, *values in lines if kind != "begin"), default=0)


def account_of(
    published: Iterable[Sequence[str]], subscribed: Iterable[Sequence[str]], *, begins_live: bool = False
) -> Account:
    """Check that the subscriber got every stable message once and in order; with `begins_live`, from its first one on.

    Within one life the numbers have no gap and no repetition. A life continues where the former ones ended, or before
    it, with messages that were written but not acknowledged at a majority of the Stores when the life began.
    """
    stable, end = stable_sqns(published)
    assert end is not None
    account = Account(end)
    newest_next, life_next, first_allowed = 0, None, 0
    for kind, *values in subscribed:
        first, last = int(values[0]), int(values[-1])
        if kind == "begin":
            life_next, first_allowed = None, first
            continue
        if life_next is None:
            if begins_live and account.lives == 0:
                newest_next = first
                stable = {sqn for sqn in stable if sqn >= first}
            assert first_allowed <= first <= newest_next, (
                f"a life began with {kind} {first}; {first_allowed} to {newest_next} are allowed"
            )
            account.lives += 1
        else:
            assert first == life_next, f"{kind} {first} came instead of {life_next}"
        life_next = last + 1
        newest_next = max(newest_next, life_next)
        if kind == "lost":
            account.lost.update(range(first, last + 1))
        else:
            account.repeated += first in account.delivered
            account.delivered.add(first)
    assert not stable - account.delivered, (
        f"{sorted(stable - account.delivered)[:9]} are stable and did not arrive"
    )
    assert newest_next == end
    return account


def _work(words: list[str], answer: Callable[[str], None]) -> None:
    role, path, pacing, *arguments = words
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    answer("started")
    with Context(sys.argv[1]) as context:
        work = {"publish": _publish, "subscribe": _subscribe}[role]
        work(context, Journal(path), is_over, int(pacing), arguments)


if __name__ == "__main__":
    serve_forks(_work)
