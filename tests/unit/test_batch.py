"""Batch: columns over the receiver's queue, views that keep it, and what the queue gets back (W9)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.loopback import SMALL_QUEUE, collect_events, connect, open_context, payloads
from tests.unit.ways import ITS_FRAGMENTS, alone
from tests.waiting import SECONDS, collect, wait_for
from umstack import Batch, BeginningOfSession, Context, Message, Receiver, Source

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture(scope="module")
def context(way: str) -> Iterator[Context]:
    with open_context() as context:
        yield context


def take(source: Source, receiver: Receiver, messages: list[bytes]) -> Batch:
    """One batch with just these messages."""
    source.send_many(messages, flush=True)
    wait_for(lambda: receiver.stats()["queued_messages"] == len(messages))
    return receiver.poll(len(messages))


@pytest.fixture
def batch(context: Context) -> Iterator[Batch]:
    """A batch of messages of different lengths, without events."""
    source, receiver = connect(context, "batch")
    with source, receiver:
        collect_events(receiver, 1)
        yield take(source, receiver, [b"one", b"", b"three", b"4" * 5000])


EXPECTED = [b"one", b"", b"three", b"4" * 5000]


@alone(ITS_FRAGMENTS)
def test_the_columns_describe_the_rows(batch: Batch) -> None:
    """Payloads lie end to end, with offsets; the other columns have one value a row."""
    assert len(batch) == 4
    assert batch
    assert bytes(batch.payload) == b"".join(EXPECTED)
    assert list(batch.offsets) == [0, 3, 3, 8, 5008]
    assert batch.payloads() == EXPECTED
    assert [bytes(view) for view in batch.views()] == EXPECTED
    assert list(batch.sequence_numbers) == [0, 1, 2, 6]
    assert [flags & 0xFF for flags in batch.flags] == [0, 0, 0, 4]
    assert len(set(batch.received_ns)) >= 1
    assert batch.event_count == 0


@alone(ITS_FRAGMENTS)
def test_rows_become_messages(batch: Batch) -> None:
    """The objects are made on request: messages, events, by index, by iteration."""
    messages = batch.messages()
    assert payloads(messages) == EXPECTED
    assert list(batch) == batch.events() == messages
    last = batch[3]
    assert isinstance(last, Message)
    assert (last.first_sequence_number, last.sequence_number) == (3, 6)
    with pytest.raises(IndexError):
        batch[4]


def test_what_is_read_cannot_be_written(batch: Batch) -> None:
    """The views are of memory that is not the application's."""
    for view in (batch.payload, batch.sequence_numbers, batch.received_ns, batch.flags):
        assert view.readonly
    assert not np.frombuffer(batch.payload, np.uint8).flags.writeable


def test_events_are_rows_in_their_place(context: Context) -> None:
    """The order of events against messages is kept; messages() and to_arrow() leave them out."""
    source, receiver = connect(context, "events")
    with source, receiver:
        wait_for(lambda: receiver.stats()["bos_events"] == 1)
        source.send_many([b"a", b"b"], flush=True)
        wait_for(lambda: receiver.stats()["queued_messages"] == 3)
        batch = receiver.poll(10)
        name = f"{source.transport}[{source.topic_index}]"
        assert batch.event_count == 1
        assert batch[0] == BeginningOfSession("events", name)
        assert payloads(batch.messages()) == [b"a", b"b"]
        assert [bytes(view) for view in batch.views()] == [b"", b"a", b"b"]
        assert batch.to_arrow()["payload"].to_pylist() == [b"a", b"b"]


@pytest.mark.parametrize("lengths", [[10] * 100, list(range(100))], ids=["equal", "different"])
def test_arrow_without_a_copy(context: Context, lengths: list[int]) -> None:
    """W9: the record batch has its columns, and its payload buffer is the queue's own memory."""
    source, receiver = connect(context, "to arrow")
    with source, receiver:
        collect_events(receiver, 1)
        messages = [b"%d" % (i % 10) * length for i, length in enumerate(lengths)]
        batch = take(source, receiver, messages)
        table = batch.to_arrow()
        assert table.schema.names == [
            "topic",
            "sequence_number",
            "source",
            "received_ns",
            "payload",
            "sent_ns",
        ]
        assert table.schema.field("payload").type == pa.binary()
        assert table.schema.field("received_ns").type == pa.timestamp("ns", "UTC")
        assert table["payload"].to_pylist() == messages
        assert table["sequence_number"].to_pylist() == list(range(100))
        assert set(table["topic"].to_pylist()) == {"to arrow"}
        assert set(table["source"].to_pylist()) == {f"{source.transport}[{source.topic_index}]"}
        table.validate(full=True)
        address = np.frombuffer(batch.payload, np.uint8).ctypes.data
        assert table["payload"].buffers()[2].address == address
        numbers = np.frombuffer(batch.sequence_numbers, np.uint32).ctypes.data
        assert table["sequence_number"].buffers()[1].address == numbers


def test_an_empty_batch_has_everything_a_full_one_has(context: Context) -> None:
    """The result of a poll that timed out is used without asking first."""
    receiver = context.receiver("empty")
    batch = receiver.poll()
    assert not batch
    assert (
        len(batch.payload) == len(batch.sequence_numbers) == len(batch.received_ns) == len(batch.flags) == 0
    )
    assert list(batch.offsets) == [0]
    assert batch.views() == batch.payloads() == batch.messages() == batch.events() == list(batch) == []
    assert batch.event_count == 0
    table = batch.to_arrow()
    assert table.num_rows == 0
    table.validate(full=True)
    batch.release()
    receiver.close()


# ---- whose memory it is ----


def small_queue(own: Context, topic: str) -> tuple[Source, Receiver]:
    """A pair whose queue is four blocks of 16 KB: held rows are felt soon."""
    source, receiver = connect(
        own,
        topic,
        **SMALL_QUEUE,
    )
    collect_events(receiver, 1)
    return source, receiver


def pattern(number: int) -> bytes:
    return number.to_bytes(4, "big") * 250


@pytest.mark.parametrize("hold", ["batch", "view", "arrow"])
def test_held_rows_are_never_written_over(hold: str) -> None:
    """W9: messages that are held keep their content, however many pass through the queue."""
    with open_context() as own:
        source, receiver = small_queue(own, "held")
        held: Any = None
        kept: list[bytes] = []
        received = 0
        for first in range(0, 3000, 10):
            source.send_many([pattern(first + i) for i in range(10)], flush=True)
            while received < first + 10:
                batch = receiver.poll(10, SECONDS)
                assert batch.payloads() == [pattern(received + i) for i in range(len(batch))]
                received += len(batch)
                if held is None and first == 300:
                    kept = batch.payloads()
                    held = batch if hold == "batch" else batch.payload if hold == "view" else batch.to_arrow()
                del batch
        if isinstance(held, Batch):
            assert held.payloads() == kept
        elif isinstance(held, memoryview):
            assert bytes(held) == b"".join(kept)
        else:
            assert held["payload"].to_pylist() == kept


@pytest.mark.parametrize("hold", ["batch", "view", "slice", "arrow", "numpy"])
def test_the_queue_gets_its_memory_back(hold: str) -> None:
    """W9: rows are released with the last object that refers to them, and delivery resumes without a call."""
    with open_context() as own:
        source, receiver = small_queue(own, hold)
        held: list[Any] = []
        sent = received = 0
        while sent < received + 40:
            source.send(pattern(sent), flush=True)
            sent += 1
            assert sent < 1000, "the queue never filled up"
            batch = receiver.poll(1000, 0.005)
            received += len(batch)
            if not batch:
                continue
            held.append(
                {
                    "batch": lambda batch=batch: batch,
                    "view": lambda batch=batch: batch.payload,
                    "slice": lambda batch=batch: batch.views()[0][2:3],
                    "arrow": lambda batch=batch: batch.to_arrow()["payload"].slice(0, 1),
                    "numpy": lambda batch=batch: np.frombuffer(batch.sequence_numbers, np.uint32)[:1],
                }[hold]()
            )
            del batch
        assert received > 30
        held.clear()
        gc.collect()
        waiting = collect(receiver, sent - received)
        assert payloads(waiting) == [pattern(number) for number in range(received, sent)]


def test_release_gives_rows_back_at_once(context: Context) -> None:
    """A batch that is released is empty; one that gave views away keeps its rows for them."""
    source, receiver = connect(context, "release")
    with source, receiver:
        collect_events(receiver, 1)
        with take(source, receiver, [b"a", b"b"]) as batch:
            assert batch.payloads() == [b"a", b"b"]
        assert (len(batch), batch.messages()) == (0, [])
        batch = take(source, receiver, [b"kept"])
        view = batch.payload
        batch.release()
        assert len(batch) == 1
        assert bytes(view) == b"kept"


def test_views_outlive_their_batch(context: Context) -> None:
    """W9: a view is enough to keep the memory it looks at."""
    source, receiver = connect(context, "views")
    with source, receiver:
        collect_events(receiver, 1)
        views = take(source, receiver, [b"%03d" % i for i in range(100)]).views()
        gc.collect()
        source.send_many([b"x" * 3] * 1000, flush=True)
        collect(receiver, 1000)
        assert [bytes(view) for view in views] == [b"%03d" % i for i in range(100)]
