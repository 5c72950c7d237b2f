"""As tests/netns/persistent_ends.py, with messages of up to four fragments, whose publisher may be killed inside one.

| role | line | meaning |
|---|---|---|
| publish | `sent INDEX FIRST LAST` | the message with this index was sent with these numbers |
| publish | `stable FIRST LAST` | these numbers are stable |
| publish | `end INDEX` | every message before this one is stable |
| subscribe | `begin` | the receiver exists |
| subscribe | `got INDEX FIRST LAST` | this message arrived unchanged, with these numbers; it is acknowledged later |

A publisher that restarts sends again, under new numbers, from the first message on that its journal does not have as
stable.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.forked_processes import serve_forks
from tests.journal import Journal, lines_of
from tests.netns.persistent_ends import SUBSCRIBER, TOPIC, stable_lines
from umstack import Context, Message

_PUBLISHER = 7
_BURST = 5
_PAUSE_SECONDS = 0.005
_CLOSE_SECONDS = 30.0
_READ_ROWS = 20
_READS_PER_ACKNOWLEDGEMENT = 5
_READ_SECONDS = 0.1
_PATTERN = bytes(range(256)) * 24


def content(index: int) -> bytes:
    """Return a message: short, or of two to four fragments."""
    return b"%08d" % index + _PATTERN[index % 256 :][: index % 5 * 1300]


def stable_messages(lines: Iterable[Sequence[str]]) -> dict[int, tuple[int, int]]:
    """Return the first and last number of each message of a publisher's journal that is stable, by index."""
    sent: list[tuple[int, int, int]] = []
    stable: set[int] = set()
    for kind, *values in lines:
        numbers = [int(value) for value in values]
        if kind == "sent":
            sent.append((numbers[0], numbers[1], numbers[2]))
        elif kind == "stable":
            stable.update(range(numbers[0], numbers[1] + 1))
    return {index: (first, last) for index, first, last in sent if stable.issuperset(range(first, last + 1))}


def _publish(context: Context, path: str, is_over: threading.Event, stores: Sequence[str]) -> None:
    known = stable_messages(lines_of(Path(path)))
    index = next(index for index in range(len(known) + 1) if index not in known)
    journal = Journal(path)
    with context.source(
        TOPIC, store=stores, session_id=_PUBLISHER, ume_message_stability_timeout=200
    ) as source:
        first = source.first_sequence_number
        while not is_over.wait(_PAUSE_SECONDS):
            lines = []
            for _ in range(_BURST):
                last = source.send(content(index), flush=True)
                lines.append(f"sent {index} {first} {last}")
                first, index = last + 1, index + 1
            journal.add([*lines, *stable_lines(source)])
        assert source.close(_CLOSE_SECONDS) == []
        journal.add([*stable_lines(source), f"end {index}"])


def _subscribe(context: Context, path: str, is_over: threading.Event) -> None:
    journal = Journal(path)
    with context.receiver(TOPIC, session_id=SUBSCRIBER, ume_explicit_ack_only=1) as receiver:
        journal.add(["begin"])
        while not is_over.is_set():
            events = receiver.poll(_READ_ROWS, _READ_SECONDS).events()
            messages = [event for event in events if isinstance(event, Message)]
            journal.add([_line(message) for message in messages])
            if messages and random.randrange(_READS_PER_ACKNOWLEDGEMENT) == 0:
                receiver.acknowledge(messages[-1])


def _line(message: Message) -> str:
    index = int(message.data[:8])
    assert message.data == content(index)
    return f"got {index} {message.first_sequence_number} {message.sequence_number}"


def check(published: Iterable[Sequence[str]], subscribed: Iterable[Sequence[str]]) -> str:
    """Check that every stable message arrived, and that the numbers of a life ascend. Return a summary."""
    stable = stable_messages(published)
    got: set[tuple[int, int, int]] = set()
    next_sqn = received = lives = 0
    for kind, *values in subscribed:
        if kind == "begin":
            next_sqn, lives = 0, lives + 1
            continue
        index, first, last = map(int, values)
        assert next_sqn <= first <= last, f"numbers {first} to {last} came behind {next_sqn - 1}"
        next_sqn, received = last + 1, received + 1
        got.add((index, first, last))
    missing = [index for index, (first, last) in stable.items() if (index, first, last) not in got]
    assert not missing, f"messages {missing[:9]} are stable and did not arrive"
    assert sorted(stable) == list(range(len(stable)))
    return f"{len(stable)} messages are stable, {received} were received in {lives} lives"


def _work(words: list[str], answer: Callable[[str], None]) -> None:
    role, path, *arguments = words
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    answer("started")
    with Context(sys.argv[1]) as context:
        if role == "publish":
            _publish(context, path, is_over, arguments)
        else:
            _subscribe(context, path, is_over)


if __name__ == "__main__":
    serve_forks(_work)
