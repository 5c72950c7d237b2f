"""Receivers that conflate: the newest message per source and key, whatever the reader does (docs/slow-readers.md)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.unit.loopback import open_context
from tests.waiting import SECONDS, wait_for
from umstack import BeginningOfSession, Context, Event, EventQueue, Message, OptionError, Receiver, Source

pytestmark = pytest.mark.usefixtures("way")

SMALL = {"receiver_queue_block_count": 4, "receiver_queue_block_length": 16384}
GROUP = "239.255.49.1"
FLOOD = 20000


@pytest.fixture
def publisher() -> Iterator[Context]:
    with open_context() as opened:
        yield opened


@pytest.fixture
def context() -> Iterator[Context]:
    with open_context() as opened:
        yield opened


def source(publisher: Context, topic: str) -> Source:
    made = publisher.source(topic, transport_lbtrm_multicast_address=GROUP, flow_control="min")
    wait_for(lambda: made.is_connected, f"a receiver of {topic}")
    return made


def flood(sender: Source, count: int = FLOOD) -> bytes:
    """Send far more than the queue holds, without a reader. Returns the last message."""
    for n in range(count):
        sender.send(b"%01000d" % n, flush=True)
    return b"%01000d" % (count - 1)


def all_came(receiver: Receiver, count: int) -> None:
    """Wait until every message has been conflated, or waits."""

    def seen() -> bool:
        stats = receiver.stats()
        return int(stats["messages_delivered"]) == count

    wait_for(seen, "every message at the receiver")


@pytest.mark.parametrize("block", [{}, SMALL])
def test_a_reader_that_comes_late_gets_the_newest_message(
    context: Context, publisher: Context, block: dict[str, int]
) -> None:
    """The source was never held back, nothing is lost, and the rest is counted."""
    quotes = context.receiver("quotes", conflate=True, **block)
    sender = source(publisher, "quotes")
    last = flood(sender)
    all_came(quotes, FLOOD)
    batch = quotes.poll()
    assert [event.data for event in batch.events() if isinstance(event, Message)] == [last]
    stats = quotes.stats()
    assert stats["conflated_messages"] == FLOOD - 1
    assert stats["cut_loose"] == stats["queue_full_pauses"] == stats["queued_messages"] == 0


def read_by_receive(receiver: Receiver, is_last: Callable[[bytes], bool]) -> None:
    while not is_last(receiver.receive(timeout=SECONDS) or b""):
        pass


def read_by_iteration(receiver: Receiver, is_last: Callable[[bytes], bool]) -> None:
    for message in receiver:
        if is_last(message.data):
            break


def read_by_async(receiver: Receiver, is_last: Callable[[bytes], bool]) -> None:
    async def read() -> None:
        async for message in receiver:
            if is_last(message.data):
                break

    asyncio.run(asyncio.wait_for(read(), SECONDS))


@pytest.mark.parametrize("read", [read_by_receive, read_by_iteration, read_by_async])
def test_every_way_of_reading_ends_with_the_newest(
    context: Context, publisher: Context, read: Callable[[Receiver, Callable[[bytes], bool]], None]
) -> None:
    """A reader beside the publisher sees ascending messages, skips some, and always comes to the last."""
    quotes = context.receiver("quotes", conflate=True, **SMALL)
    sender = source(publisher, "quotes")
    came: list[int] = []

    def is_last(data: bytes) -> bool:
        came.append(int(data))
        return came[-1] == FLOOD - 1

    reading = threading.Thread(target=read, args=(quotes, is_last))
    reading.start()
    flood(sender)
    reading.join(SECONDS)
    assert not reading.is_alive()
    assert came == sorted(set(came))
    assert len(came) + int(quotes.stats()["conflated_messages"]) == FLOOD


def test_a_callback_gets_the_newest(context: Context, publisher: Context) -> None:
    """While it runs, messages replace each other."""
    came: list[bytes] = []
    may_go_on = threading.Event()

    def on_message(event: Event) -> None:
        if isinstance(event, Message):
            came.append(event.data)
            may_go_on.wait(SECONDS)

    quotes = context.receiver("quotes", on_message, conflate=True, **SMALL)
    sender = source(publisher, "quotes")
    last = flood(sender)
    all_came(quotes, FLOOD)
    may_go_on.set()
    wait_for(lambda: came[-1:] == [last], "the newest message")
    assert len(came) == 2


def make_queue(context: Context) -> EventQueue:
    queue = context.event_queue(conflate=True, **SMALL)
    for topic in ("quotes.a", "quotes.b"):
        context.receiver(topic, queue=queue)
    return queue


def make_wildcard(context: Context) -> EventQueue:
    return context.wildcard_receiver(prefix="quotes.", conflate=True, **SMALL)


@pytest.mark.parametrize("make", [make_queue, make_wildcard])
def test_a_shared_queue_keeps_the_newest_of_each_topic(
    context: Context, publisher: Context, make: Callable[[Context], EventQueue]
) -> None:
    """An event queue and a wildcard receiver conflate each topic for itself."""
    queue = make(context)
    senders = [source(publisher, topic) for topic in ("quotes.a", "quotes.b")]

    def total(counter: str) -> int:
        return sum(int(receiver[counter]) for receiver in context.stats()["receivers"])

    wait_for(lambda: total("delivery_controllers") == 2, "both topics")
    lasts = {sender.topic: flood(sender, 2000) for sender in senders}
    wait_for(lambda: total("messages_delivered") == 4000, "every message")
    events = list(queue.poll().events())
    assert {e.topic: e.data for e in events if isinstance(e, Message)} == lasts
    assert len([e for e in events if isinstance(e, BeginningOfSession)]) == 2
    assert len(events) == 4


def test_a_key_is_the_start_of_the_payload(context: Context, publisher: Context) -> None:
    """receiver_conflation_key_length: one newest message per key, in the order in which the keys came."""
    quotes = context.receiver("quotes", conflate=True, receiver_conflation_key_length=4)
    sender = source(publisher, "quotes")
    for n in range(1000):
        sender.send(b"%04d %d" % (n % 10, n), flush=True)
    all_came(quotes, 1000)
    came = [event.data for event in quotes.poll().events() if isinstance(event, Message)]
    assert came == [b"%04d %d" % (n % 10, n) for n in range(990, 1000)]


def test_combinations_that_cannot_conflate_are_refused(context: Context) -> None:
    """Fragments, hot failover, and a receiver that conflates in a queue that does not."""
    with pytest.raises(OptionError, match="ordered_delivery 0 delivers fragments"):
        context.receiver("quotes", conflate=True, ordered_delivery=0)
    with pytest.raises(OptionError, match="does not conflate"):
        context.receiver("quotes", conflate=True, queue=context.event_queue())
    with pytest.raises(OptionError, match="conflates whole messages"):
        context.receiver("quotes", queue=context.event_queue(conflate=True), ordered_delivery=0)
    with pytest.raises(OptionError, match="delivers every message"):
        context.hot_failover_receiver("quotes", receiver_full_queue="conflate")
