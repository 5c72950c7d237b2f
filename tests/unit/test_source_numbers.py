"""Numbers of sources in rows: memory for them does not grow with sources that come and go, and none is confused."""

from __future__ import annotations

import random
from collections import deque

import pytest

from tests.unit.loopback import OWN_ADDRESSES, SHARED, open_context
from tests.waiting import wait_for
from umstack import Batch
from umstack._engine import row_sources
from umstack._engine.row_sources import RowSources, SourceTable
from umstack._engine.transport_address import LbtrmAddress

ADVERTISED = 5_000
RESTARTS = 100_000
GROUP = str(OWN_ADDRESSES["transport_lbtrm_multicast_address_low"])


def test_advertised_sessions_that_send_nothing_leave_no_names() -> None:
    """The core evicts the oldest of them, and their names are forgotten."""
    with open_context() as context:
        receiver = context.receiver("numbered")
        sources, subscription = receiver._memory.sources, receiver._subscription
        for number in range(ADVERTISED):
            address = LbtrmAddress("10.9.8.7", GROUP, number + 1, 14400, 14390)
            context._engine.map_source("numbered", number, address)
        assert context.stats()["context"]["sessions_evicted"] > ADVERTISED - 600
        assert len(sources.table.names) <= 600
        assert len(subscription._mapped) <= 600
        receiver.close()
        assert sources._numbers == {}


def test_numbers_of_receivers_that_come_and_go_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that were read before keep the names of their rows."""
    monkeypatch.setattr(row_sources, "_RECYCLED_TOGETHER", 8)
    rounds = 60
    kept: list[Batch] = []
    with open_context() as context, context.event_queue() as queue:
        for number in range(rounds):
            topic = f"round/{number}"
            with (
                context.source(topic, flow_control="min", **SHARED) as source,
                context.receiver(topic, queue=queue),
            ):
                source.wait_connected(timeout=10)
                source.send(topic.encode(), flush=True)
                found: list[Batch] = []
                while not any(batch.messages() for batch in found):
                    found.append(queue.poll(timeout=0.2))
                kept += found
            if number % 2:
                queue.poll()
        assert len(queue._memory.sources.table.names) <= rounds // 2
        messages = [message for batch in kept for message in batch.messages()]
        assert [message.topic for message in messages] == [message.data.decode() for message in messages]
        assert len(messages) == rounds
        kept.clear()


def test_a_name_that_returns_keeps_its_number() -> None:
    """Also while its rows are unread; then a source that delivered none does not free it."""
    sources = RowSources()
    first = sources.number("t", "a")
    assert sources.retire(first, rows=5) == "a"
    assert sources.number("t", "a") == first
    sources.retire(first)
    sources.recycle(4)
    assert sources.number("t", "b") != first
    sources.recycle(5)
    assert sources.number("t", "c") == first


@pytest.mark.parametrize("seed", range(3))
def test_restarts_confuse_no_row(seed: int) -> None:
    """A model of 100,000 restarts: each row has the name of its source, whenever a batch of it is looked at."""
    print("seed", seed)
    rng = random.Random(seed)
    sources = RowSources()
    unread: deque[tuple[int, str]] = deque()
    batches: deque[tuple[SourceTable, list[tuple[int, str]]]] = deque()
    alive: list[tuple[int, str, bool]] = []
    appended = taken = 0
    for restart in range(RESTARTS // 3):
        name = f"s{restart}" if rng.random() < 0.9 else f"s{rng.randrange(restart + 1)}"
        number, has_rows = sources.number("t", name), False
        for _ in range(rng.randrange(3)):
            unread.append((number, name))
            appended, has_rows = appended + 1, True
        alive.append((number, name, has_rows))
        if len(alive) > 50:
            ended, name, had_rows = alive.pop(rng.randrange(len(alive)))
            assert sources.retire(ended, appended if had_rows else 0) == name
        if rng.random() < 0.3:
            rows = [unread.popleft() for _ in range(rng.randrange(len(unread) + 1))]
            taken += len(rows)
            batches.append((sources.table, rows))
            if sources.is_due:
                sources.recycle(taken)
        if len(batches) > 20:
            table, rows = batches.popleft()
            assert [table.names[one] for one, _ in rows] == [name for _, name in rows]
    assert len(sources.table.names) < 2_000


def test_an_arrow_table_follows_a_number_that_is_used_again() -> None:
    """The dictionaries are made again after a change, not only after growth."""
    pytest.importorskip("pyarrow")
    sources = RowSources()
    sources.retire(sources.number("t", "a"))
    assert sources.table.as_arrow()[1].to_pylist() == [""]
    sources.number("t", "b")
    assert sources.table.as_arrow()[1].to_pylist() == ["b"]


def test_a_source_is_listed_while_it_is_received() -> None:
    """`sources` of a receiver names the transport session of its source."""
    with open_context() as context:
        receiver = context.receiver("numbered")
        source = context.source("numbered")
        wait_for(lambda: receiver.sources, "resolution")
        assert [source.transport in name for name in receiver.sources] == [True]
