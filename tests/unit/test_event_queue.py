"""EventQueue: many receivers, one queue that one thread reads; whose rows they are, and closing in any order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import select
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest

from tests.held import held, wait_until_released
from tests.unit.loopback import SHARED, open_context
from tests.unit.ways import FULL_LOG, LONG, ONE_LOG, alone
from tests.waiting import SECONDS, wait_for
from umstack import (
    Batch,
    BeginningOfSession,
    Closed,
    Context,
    EndOfSession,
    Event,
    EventQueue,
    Message,
    Receiver,
    Source,
)
from umstack.errors import OptionError

pytestmark = pytest.mark.usefixtures("way")

TOPICS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def context(way: str) -> Iterator[Context]:
    with open_context() as context:
        yield context


class Palette:
    """Sources and receivers of several topics, all on one session and into one queue."""

    def __init__(self, context: Context, name: str, queue: EventQueue, flow_control: str = "min") -> None:
        self.queue = queue
        self.topics = [f"{name}.{topic}" for topic in TOPICS]
        self.receivers = [context.receiver(topic, queue=queue) for topic in self.topics]
        self.sources = [context.source(topic, flow_control=flow_control, **SHARED) for topic in self.topics]
        await_resolution(self.receivers)
        if flow_control != "none":
            self.sources[0].wait_connected(timeout=SECONDS)

    def close(self) -> None:
        """Close all of it."""
        for source in self.sources:
            source.close()
        for receiver in self.receivers:
            receiver.close()
        self.queue.close()


def await_resolution(receivers: Sequence[Receiver]) -> None:
    """Each receiver follows a source, which has accepted it."""
    for receiver in receivers:
        receiver.wait_connected(timeout=SECONDS)


def take_events(queue: EventQueue, count: int) -> list[Event]:
    """So many rows."""
    events: list[Event] = []
    while len(events) < count:
        batch = queue.poll(count - len(events), SECONDS)
        assert batch, f"{len(events)} of {count} rows came"
        events += batch.events()
    return events


def messages_of(events: list[Event]) -> list[Message]:
    """Those of the rows that are messages."""
    return [event for event in events if isinstance(event, Message)]


# ---- whose rows they are ----


@alone(ONE_LOG)
def test_rows_of_many_topics_come_in_the_order_they_were_sent(context: Context) -> None:
    """Issue "flat from 1 to 1000 topics": the topics of one session share a queue, in arrival order, each row named."""
    palette = Palette(context, "order", context.event_queue())
    begun = take_events(palette.queue, 3)
    assert all(isinstance(event, BeginningOfSession) for event in begun)
    assert {event.topic for event in begun} == set(palette.topics)
    for number in range(30):
        palette.sources[number * 7 % 3].send(b"%d" % number)
    palette.sources[0].flush()
    found = messages_of(take_events(palette.queue, 30))
    assert [message.data for message in found] == [b"%d" % number for number in range(30)]
    assert [message.topic for message in found] == [palette.topics[number * 7 % 3] for number in range(30)]
    for message, number in zip(found, range(30), strict=True):
        source = palette.sources[number * 7 % 3]
        assert message.source == f"{source.transport}[{source.topic_index}]"
    palette.close()


def _mixed_batch(palette: Palette, per_topic: int) -> Batch:
    take_events(palette.queue, 3)
    for number in range(3 * per_topic):
        palette.sources[number % 3].send(b"%05d" % number)
    palette.sources[0].flush()
    wait_for(lambda: palette.receivers[0].stats()["queued_messages"] == 3 * per_topic, "all rows")
    return palette.queue.poll()


@alone(ONE_LOG)
def test_a_batch_of_many_topics_becomes_arrow(context: Context) -> None:
    """W9: topic and source of every row, whichever receiver delivered it; so do the numbers in `sources`."""
    palette = Palette(context, "arrow", context.event_queue())
    batch = _mixed_batch(palette, 50)
    table = batch.to_arrow()
    assert table.column("topic").to_pylist() == [palette.topics[number % 3] for number in range(150)]
    assert table.column("source").to_pylist() == [message.source for message in batch]
    assert table.column("payload").to_pylist() == [b"%05d" % number for number in range(150)]
    assert len(table.column("topic").dictionary) == 3
    assert [batch.topic_of(number) for number in batch.sources] == table.column("topic").to_pylist()
    assert [batch.source_of(number) for number in batch.sources] == table.column("source").to_pylist()
    del batch, table
    palette.close()


def test_two_receivers_of_a_topic_share_its_name(context: Context) -> None:
    """One topic twice in a queue: every message comes twice, and Arrow's dictionary of topics has it once."""
    with context.event_queue() as queue:
        first, second = (context.receiver("twice", queue=queue) for _ in range(2))
        with context.source("twice", flow_control="min") as source:
            await_resolution([first, second])
            source.wait_connected(timeout=SECONDS)
            source.send(b"once", flush=True)
            found = messages_of(take_events(queue, 4))
            assert [(message.topic, message.data) for message in found] == [("twice", b"once")] * 2


def test_a_topic_that_is_opened_again_keeps_its_number(context: Context) -> None:
    """A queue that receivers come and go on does not grow with them."""
    with context.event_queue() as queue, context.source("again", **SHARED) as source:
        for _ in range(5):
            with context.receiver("again", queue=queue) as receiver:
                await_resolution([receiver])
                source.send(b"x", flush=True)
                while not messages_of(take_events(queue, 1)):
                    pass
        assert queue._memory.sources.table.topics == ["again"]


# ---- ways of reading ----


@pytest.mark.parametrize("mode", ["embedded", "sequential"])
def test_a_queue_is_read_as_a_receiver_is(mode: str) -> None:
    """The public API: poll, receive, iteration and a callback, with one queue for several topics."""
    with open_context(mode) as own:
        queue = own.event_queue()
        receivers = [own.receiver(topic, queue=queue) for topic in TOPICS]
        sources = [own.source(topic, flow_control="min", **SHARED) for topic in TOPICS]
        for receiver in receivers:
            while not receiver.stats()["delivery_controllers"]:
                own.idle(0.001)
        for source in sources:
            source.send(source.topic.encode(), flush=True)
        assert [queue.receive(SECONDS) for _ in TOPICS] == [topic.encode() for topic in TOPICS]
        assert queue.receive(0) is None
        for source in sources:
            source.send(b"again", flush=True)
        assert [message.topic for message in islice(queue, 3)] == list(TOPICS)
        rows: list[Event] = []
        called = own.event_queue(on_message=rows.append)
        more = [own.receiver(topic, queue=called) for topic in TOPICS]
        for receiver in more:
            while not receiver.stats()["delivery_controllers"]:
                own.idle(0.001)
        for source in sources:
            source.send(b"called", flush=True)
        while len(messages_of(list(rows))) < 3:
            own.idle(0.001)
        assert [message.topic for message in messages_of(rows)] == list(TOPICS)
        with pytest.raises(OptionError, match="on_message"):
            called.poll()


def test_a_queue_is_awaited(context: Context) -> None:
    """W8: the event loop sleeps on the queue's descriptor, which any of its topics makes readable."""
    palette = Palette(context, "await", context.event_queue())
    take_events(palette.queue, 3)

    async def read() -> list[str]:
        found: list[str] = []
        async for message in palette.queue:
            found.append(message.topic)
            if len(found) == 3:
                return found
            palette.sources[len(found)].send(b"next", flush=True)
        return found

    async def both() -> list[str]:
        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        palette.sources[0].send(b"first", flush=True)
        return await asyncio.wait_for(reading, SECONDS)

    assert asyncio.run(both()) == palette.topics
    assert not palette.queue.arm()
    palette.sources[1].send(b"x", flush=True)
    assert select.select([palette.queue.fileno()], [], [], SECONDS)[0]
    palette.close()


def test_a_receiver_with_a_queue_refuses_to_be_read(context: Context) -> None:
    """The error names the alternative for every way of reading; so does the error for contradicting options."""
    with context.event_queue() as queue, context.receiver("refuse", queue=queue) as receiver:
        for read in (
            receiver.poll,
            receiver.receive,
            receiver.fileno,
            receiver.arm,
            lambda: next(iter(receiver)),
        ):
            with pytest.raises(OptionError, match="read the queue"):
                read()
        with pytest.raises(OptionError, match="give on_message to event_queue"):
            context.receiver("refuse", print, queue=queue)
        with pytest.raises(OptionError, match="receiver_maximum_message_length"):
            context.receiver("refuse", queue=queue, receiver_maximum_message_length=1 << 20)
        with open_context() as other, pytest.raises(OptionError, match="another context"):
            other.receiver("refuse", queue=queue)


# ---- a full queue ----


@alone(FULL_LOG)
def test_a_full_queue_holds_every_topic_back_and_loses_nothing(context: Context) -> None:
    """The window is the shared queue's, counted once; a reader that stops stops all of its topics."""
    queue = context.event_queue(receiver_queue_block_length=4096, receiver_queue_block_count=4)
    palette = Palette(context, "full", queue)
    sent = [0, 0, 0]

    def publish() -> None:
        for number in range(900):
            palette.sources[number % 3].send(b"%08d" % number + bytes(100), timeout=SECONDS)
            sent[number % 3] += 1
        palette.sources[0].flush()

    thread = threading.Thread(target=publish)
    thread.start()
    wait_for(lambda: context.stats()["source_transports"][-1]["snd_bpe"], "the source to stop at the window")
    counters: list[int] = []
    seen: Counter[str] = Counter()
    while len(counters) < 900:
        batch = palette.queue.poll(100, SECONDS)
        assert batch, f"{len(counters)} messages came"
        for message in batch:
            counters.append(int(message.data[:8]))
            seen[message.topic] += 1
    thread.join()
    assert counters == list(range(900))
    assert list(seen.values()) == sent
    palette.close()


# ---- closing ----


def test_what_a_closed_receiver_delivered_is_still_read(context: Context) -> None:
    """Closing a receiver takes nothing out of the queue, and leaves its other receivers alone."""
    palette = Palette(context, "leave", context.event_queue())
    take_events(palette.queue, 3)
    for source in palette.sources:
        source.send(b"before", flush=True)
    wait_for(lambda: palette.receivers[0].stats()["queued_messages"] == 3)
    palette.receivers[1].close()
    for source in palette.sources:
        source.send(b"after", flush=True)
    found = messages_of(take_events(palette.queue, 5))
    before, after = found[:3], found[3:]
    assert [message.topic for message in before] == palette.topics
    assert [message.topic for message in after] == [palette.topics[0], palette.topics[2]]
    palette.close()


def test_closing_the_queue_closes_its_receivers(context: Context) -> None:
    """The queue first: its receivers are closed with it, a waiting reader returns, and batches stay readable."""
    palette = Palette(context, "first", context.event_queue())
    take_events(palette.queue, 3)
    for source in palette.sources:
        source.send(b"kept", flush=True)
    wait_for(lambda: palette.receivers[0].stats()["queued_messages"] == 3)
    batch = palette.queue.poll()
    ended = threading.Event()

    def read() -> None:
        for _ in palette.queue:
            pass
        ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    palette.queue.close()
    reader.join(SECONDS)
    assert ended.is_set()
    assert all(receiver.closed for receiver in palette.receivers)
    assert batch.payloads() == [b"kept"] * 3
    for closed in (palette.queue.poll, palette.receivers[0].stats):
        with pytest.raises(Closed):
            closed()
    with pytest.raises(Closed):
        context.receiver("late", queue=palette.queue)
    palette.close()


def test_a_callback_may_close_its_queue(context: Context) -> None:
    """Nothing waits for itself, and no row comes after."""
    rows: list[Event] = []

    def on_message(event: Event) -> None:
        rows.append(event)
        if isinstance(event, Message):
            queue.close()

    queue = context.event_queue(on_message)
    receiver = context.receiver("suicide", queue=queue)
    with context.source("suicide", flow_control="min") as source:
        wait_for(lambda: receiver.stats()["delivery_controllers"])
        source.wait_connected(timeout=SECONDS)
        source.send_many([b"1", b"2", b"3"], flush=True)
        wait_for(lambda: queue.closed and receiver.closed)
    assert [message.data for message in messages_of(rows)] == [b"1"]


def test_the_end_of_a_session_comes_through_the_queue() -> None:
    """UM-105: every topic of a session that ends gets an event."""
    with open_context() as own, own.event_queue() as queue:
        receivers = [
            own.receiver(topic, queue=queue, transport_lbtrm_activity_timeout=600) for topic in TOPICS
        ]
        with open_context() as other:
            sources = [other.source(topic, **SHARED) for topic in TOPICS]
            await_resolution(receivers)
            sources[0].send(b"x", flush=True)
            take_events(queue, 4)
        ended = take_events(queue, 3)
        assert [type(event) for event in ended] == [EndOfSession] * 3
        assert {event.topic for event in ended} == set(TOPICS)


def _mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


@alone(LONG)
@pytest.mark.parametrize("order", ["receivers first", "queue first", "neither"])
def test_nothing_is_left_behind(order: str) -> None:
    """Closing in any order, or leaving it to the context: descriptors and mappings are those of before."""

    def once() -> None:
        with open_context() as own:
            queue = own.event_queue()
            receivers: list[Receiver] = [own.receiver(f"leak.{n}", queue=queue) for n in range(20)]
            sources: list[Source] = [own.source(f"leak.{n}", **SHARED) for n in range(20)]
            await_resolution(receivers)
            for source in sources:
                source.send(b"x", flush=True)
            batch = queue.poll(5, SECONDS)
            if order == "receivers first":
                for receiver in receivers:
                    receiver.close()
            if order == "queue first":
                queue.close()
            batch.release()

    once()
    before, mappings = held(), _mappings()
    for _ in range(5):
        once()
    gc.collect()
    wait_until_released(before)
    assert _mappings() <= mappings + 4  # the heap's own


def test_receivers_and_the_queue_are_closed_while_rows_come(context: Context) -> None:
    """The context thread delivers all the while; closers in two threads meet nobody's memory."""
    for turn in range(10):
        palette = Palette(context, f"race.{turn}", context.event_queue(), flow_control="none")
        done = threading.Event()

        def publish(palette: Palette = palette, done: threading.Event = done) -> None:
            while not done.is_set():
                for source in palette.sources:
                    source.send(b"x" * 50, flush=True)
                with contextlib.suppress(Closed):
                    palette.queue.poll()

        thread = threading.Thread(target=publish)
        thread.start()
        closers = [threading.Thread(target=thing.close) for thing in (*palette.receivers, palette.queue)]
        for closer in closers if turn % 2 else reversed(closers):
            closer.start()
        for closer in closers:
            closer.join(SECONDS)
            assert not closer.is_alive()
        done.set()
        thread.join(SECONDS)
        palette.close()
