"""Receiver: the ways of reading, several receivers of a topic, starting and ending sessions, closing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from tests.unit.loopback import DATAGRAM, SHARED, collect_events, connect, open_context, payloads
from tests.unit.ways import ITS_FRAGMENTS, ITS_SESSION, UNREAD_END, alone
from tests.waiting import SECONDS, collect, wait_for
from umstack import (
    Batch,
    BeginningOfSession,
    Closed,
    Context,
    EndOfSession,
    Event,
    Message,
    NotConnected,
    Source,
)
from umstack.errors import OptionError, TopicNameError

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture(scope="module")
def context(way: str) -> Iterator[Context]:
    with open_context() as context:
        yield context


# ---- its sources ----


@alone(UNREAD_END)
@pytest.mark.parametrize("mode", ["embedded", "sequential"])
def test_a_receiver_waits_for_its_sources(mode: str) -> None:
    """wait_connected() returns once messages would be received; `sources` has the names that messages carry."""
    with (
        open_context(mode) as own,
        own.receiver("waited", transport_lbtrm_activity_timeout=500) as receiver,
    ):
        with pytest.raises(NotConnected, match="0 of 1 sources of 'waited'") as refused:
            receiver.wait_connected(timeout=0.02)
        assert "resolver_multicast_address" in str(refused.value.hint)
        assert receiver.sources == []
        with own.source("waited") as first, own.source("waited") as second:
            receiver.wait_connected(2, timeout=SECONDS)
            assert len(receiver.sources) == 2
            first.send(b"first", flush=True)
            second.send(b"second", flush=True)
            messages = {message.data: message.source for message in collect(receiver, 2)}
            assert [messages[b"first"], messages[b"second"]] == receiver.sources
            with own.receiver("waited", takes_group=lambda _: False) as other:
                assert len(own.sources_of("waited")) == 2
                assert other.sources == []
        deadline = time.monotonic() + SECONDS
        while receiver.sources or receiver.stats()["delivery_controllers"]:
            assert time.monotonic() < deadline, (receiver.sources, receiver.stats()["delivery_controllers"])
            own.idle(0.001)
        with pytest.raises(NotConnected):
            receiver.wait_connected(timeout=0)
    with pytest.raises(Closed):
        _ = receiver.sources
    with pytest.raises(Closed):
        receiver.wait_connected()


@pytest.mark.parametrize("mode", ["embedded", "sequential"])
def test_a_receiver_takes_the_groups_that_it_chooses(mode: str) -> None:
    """Of two sources on groups of their own, one is received; the other is not listed either."""
    groups = ["239.101.7.1", "239.101.7.2"]
    with open_context(mode) as own:
        sources = [own.source("grouped", transport_lbtrm_multicast_address=group) for group in groups]
        with own.receiver("grouped", takes_group=groups[1].__eq__) as receiver:
            receiver.wait_connected(timeout=SECONDS)
            for number, source in enumerate(sources):
                source.send(b"%d" % number, flush=True)
            (message,) = collect(receiver, 1)
            assert message.data == b"1"
            wait_for(lambda: own.idle(0.001) or len(own.sources_of("grouped")) == 2)
            assert receiver.sources == [message.source]
            assert groups[1] in message.source


@alone(UNREAD_END)
@pytest.mark.parametrize("mode", ["embedded", "sequential"])
@pytest.mark.parametrize("has_sent", [False, True])
def test_a_closed_source_is_no_longer_listed(mode: str, has_sent: bool, context: Context) -> None:
    """Its end is announced, also if it never sent: by itself, in its own context and in others."""
    with open_context(mode) as own, context.receiver("listed") as receiver:
        source = own.source("listed")
        deadline = time.monotonic() + SECONDS
        while not (own.sources_of("listed") and context.sources_of("listed") and receiver.sources):
            assert time.monotonic() < deadline
            own.idle(0.001)
        if has_sent:  # a source is listed a moment before its group is joined
            wait_for(lambda: own.idle(0.001) or receiver._known_sources(), "the connection")
            source.send(b"last", flush=True)
        source.close()
        while own.sources_of("listed") or context.sources_of("listed") or receiver.sources:
            assert time.monotonic() < deadline, (own.sources_of("listed"), context.sources_of("listed"))
            own.idle(0.001)
        if has_sent:
            assert [message.data for message in collect(receiver, 1)] == [b"last"]


def test_a_receiver_waits_in_an_event_loop(context: Context) -> None:
    """wait_connected_async() lets the loop run, which makes the source here."""

    async def wait() -> list[str]:
        async with context.receiver("awaited sources") as receiver:
            made: list[Source] = []
            asyncio.get_running_loop().call_later(
                0.02, lambda: made.append(context.source("awaited sources"))
            )
            await receiver.wait_connected_async(timeout=SECONDS)
            found = receiver.sources
            made[0].close()
            return found

    assert len(asyncio.run(wait())) == 1


# ---- ways of reading ----


def test_a_receiver_is_iterated(context: Context) -> None:
    """`for message in receiver` yields messages; `events()` also yields the session's events."""
    source, receiver = connect(context, "iterate")
    with source, receiver, context.receiver("iterate") as other:
        wait_for(lambda: other.stats()["delivery_controllers"])
        source.send_many([b"1", b"2", b"3"], flush=True)
        assert [message.data for message in islice(receiver, 3)] == [b"1", b"2", b"3"]
        first, *rest = islice(other.events(), 4)
        assert isinstance(first, BeginningOfSession)
        assert [row.data for row in rest if isinstance(row, Message)] == [b"1", b"2", b"3"]


def test_poll_waits_for_the_first_row_only(context: Context) -> None:
    """poll(max, timeout) returns the available rows, at most max of them, and nothing after the timeout."""
    source, receiver = connect(context, "poll")
    with source, receiver:
        collect_events(receiver, 1)  # BeginningOfSession
        assert len(receiver.poll()) == 0
        started = time.monotonic()
        assert not receiver.poll(10, 0.15)
        assert 0.15 <= time.monotonic() - started < 1
        source.send_many([b"%d" % i for i in range(10)], flush=True)
        wait_for(lambda: receiver.stats()["queued_messages"] == 10)
        assert payloads(receiver.poll(4, None).messages()) == [b"0", b"1", b"2", b"3"]
        assert payloads(receiver.poll(100, 5).messages()) == [b"%d" % i for i in range(4, 10)]


@pytest.mark.parametrize("mode", ["embedded", "sequential"])
def test_receive_returns_one_payload(mode: str) -> None:
    """W9: the shortest way to read single messages skips events and returns None after the timeout."""
    with open_context(mode) as own, own.receiver("receive") as receiver:
        assert receiver.receive(timeout=0) is None
        started = time.monotonic()
        assert receiver.receive(timeout=0.12) is None
        assert 0.12 <= time.monotonic() - started < 1
        source = own.source("receive", flow_control="min")
        source.send(b"first", flush=True)
        source.send(bytes(3000), flush=True)
        source.send(b"", flush=True)
        assert receiver.receive() == b"first"
        assert receiver.receive(timeout=SECONDS) == bytes(3000)
        assert receiver.receive(timeout=SECONDS) == b""
        assert receiver.receive(timeout=0) is None
        reader, outcome = _in_thread(receiver.receive)
        while reader.is_alive():
            time.sleep(0.02)
            own.unblock()
        assert outcome == [None]


@alone(ITS_FRAGMENTS)
def test_a_message_contains_its_origin(context: Context) -> None:
    """UM-57, UM-59: each message has topic, source, numbers, arrival time and flags."""
    source, receiver = connect(context, "facts")
    with source, receiver:
        before = time.time_ns()
        source.send(b"whole", flush=True)
        source.send(bytes(3000), flush=True)
        whole, fragmented = collect(receiver, 2)
        assert (whole.topic, whole.source) == ("facts", f"{source.transport}[{source.topic_index}]")
        assert before - 1e9 < whole.received_ns < time.time_ns() + 1e9
        assert (whole.sequence_number, whole.first_sequence_number, whole.message_length) == (0, 0, 5)
        assert (fragmented.first_sequence_number, fragmented.sequence_number) == (1, 3)


@pytest.mark.parametrize("mode", ["embedded", "sequential"])
def test_a_callback_gets_every_row_in_order(mode: str) -> None:
    """W8, UM-13, UM-14: on_message runs on a dispatch thread, or inside process_events in sequential mode."""
    rows: list[Event] = []
    threads: set[int] = set()

    def on_message(event: Event) -> None:
        rows.append(event)
        threads.add(threading.get_ident())

    with open_context(mode) as own:
        own.receiver("callback", on_message)
        source = own.source("callback", flow_control="min")
        source.wait_connected(timeout=SECONDS)
        source.send_many([b"%d" % i for i in range(1000)], flush=True)
        deadline = time.monotonic() + SECONDS
        while len(rows) < 1001 and time.monotonic() < deadline:
            own.process_events(0.01) if mode == "sequential" else time.sleep(0.001)
        source.close()
    assert isinstance(rows[0], BeginningOfSession)
    assert [row.data for row in rows if isinstance(row, Message)] == [b"%d" % i for i in range(1000)]
    assert (threads == {threading.get_ident()}) == (mode == "sequential")


@pytest.mark.parametrize("mode", ["embedded", "sequential"])
def test_a_callback_that_raises_loses_nothing(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    """The exception is logged with its traceback, and the callback still gets the next message."""
    seen: list[bytes] = []

    def on_message(event: Event) -> None:
        if isinstance(event, Message):
            seen.append(event.data)
            if len(seen) % 2:
                raise ZeroDivisionError

    with open_context(mode) as own:
        own.receiver("raises", on_message)
        source = own.source("raises", flow_control="min")
        source.wait_connected(timeout=SECONDS)
        source.send_many([b"a", b"b", b"c", b"d"], flush=True)
        deadline = time.monotonic() + SECONDS
        while len(seen) < 4 and time.monotonic() < deadline:
            own.process_events(0.01) if mode == "sequential" else time.sleep(0.001)
    assert seen == [b"a", b"b", b"c", b"d"]
    assert len(caplog.records) == 2
    assert all(r.exc_info and r.exc_info[0] is ZeroDivisionError for r in caplog.records)


def test_a_callback_may_close_its_receiver_and_its_context() -> None:
    """Closing from inside a callback cannot deadlock and ends the delivery there."""
    own = open_context()
    seen: list[bytes] = []
    closed = threading.Event()

    def on_message(event: Event) -> None:
        if isinstance(event, Message):
            seen.append(event.data)
            receiver.close()
            own.close()
            closed.set()

    receiver = own.receiver("self", on_message)
    source = own.source("self", flow_control="min")
    source.wait_connected(timeout=SECONDS)
    source.send_many([b"only", b"never"], flush=True)
    assert closed.wait(SECONDS)
    assert own.closed
    assert seen == [b"only"]


# ---- topics and receivers ----


@alone(ITS_SESSION)
def test_every_receiver_of_a_topic_gets_every_message(context: Context) -> None:
    """Several receivers of a topic are independent: each gets everything, and closing one stops only that one."""
    receivers = [context.receiver("several") for _ in range(3)]
    with context.source("several", flow_control="min") as source:
        source.wait_connected(timeout=SECONDS)
        wait_for(lambda: all(r.stats()["delivery_controllers"] for r in receivers))
        source.send_many([b"x%d" % i for i in range(100)], flush=True)
        for receiver in receivers:
            assert payloads(collect(receiver, 100)) == [b"x%d" % i for i in range(100)]
        transports = [t for t in context.stats()["receiver_transports"] if t["transport"] == source.transport]
        assert len(transports) == 1, "one session, received once (UM-73)"
        receivers[0].close()
        source.send(b"after", flush=True)
        assert [payloads(collect(receiver, 1)) for receiver in receivers[1:]] == [[b"after"]] * 2
    for receiver in receivers:
        receiver.close()


def test_a_late_receiver_gets_bos_at_once(context: Context) -> None:
    """UM-81, UM-113: on an active session, BOS is delivered immediately, but earlier messages are not."""
    source, receiver = connect(context, "late")
    with source, receiver:
        source.send(b"early", flush=True)
        collect(receiver, 1)
        with context.receiver("late") as late:
            (event,) = collect_events(late, 1, seconds=2)
            assert event == BeginningOfSession("late", f"{source.transport}[{source.topic_index}]")
            source.send(b"now", flush=True)
            assert payloads(collect(late, 1)) == [b"now"]


@alone(ITS_SESSION)
def test_many_topics_share_a_session(context: Context) -> None:
    """UM-4, UM-7, UM-54: one session carries all topics; each receiver gets its own topic, and messages of
    other topics are counted.
    """
    wanted = [f"shared.{i}" for i in range(20)]
    receivers = {topic: context.receiver(topic) for topic in wanted}
    sources = {t: context.source(t, flow_control="min", **SHARED) for t in [*wanted, "unwanted"]}
    sources[wanted[0]].wait_connected(timeout=SECONDS)
    wait_for(lambda: all(r.stats()["delivery_controllers"] for r in receivers.values()))
    assert len({source.transport for source in sources.values()}) == 1
    for i in range(50):
        for topic, source in sources.items():
            source.send(f"{topic} {i}".encode())
    sources[wanted[0]].flush()
    for topic, receiver in receivers.items():
        assert payloads(collect(receiver, 50)) == [f"{topic} {i}".encode() for i in range(50)]
    transport = next(
        t for t in context.stats()["receiver_transports"] if t["transport"] == sources["unwanted"].transport
    )
    assert transport["lbm_msgs_no_topic_rcved"] == 50
    assert transport["lbm_msgs_rcved"] == 21 * 50
    for closing in [*receivers.values(), *sources.values()]:
        closing.close()


def test_two_sources_of_a_topic_are_distinguished() -> None:
    """UM-54, UM-106: order is kept within each source; a receiver follows all sources, including later ones."""
    with open_context() as first, open_context() as second, first.receiver("two") as receiver:
        sources = [first.source("two", flow_control="min"), second.source("two", flow_control="min")]
        for source in sources:
            source.wait_connected(timeout=SECONDS)
        for i in range(100):
            for number, source in enumerate(sources):
                source.send(b"%d %d" % (number, i), flush=True)
        by_source: dict[str, list[bytes]] = {}
        for message in collect(receiver, 200):
            by_source.setdefault(message.source, []).append(message.data)
        assert sorted(by_source.values()) == [[b"%d %d" % (n, i) for i in range(100)] for n in (0, 1)]


@alone(ITS_FRAGMENTS)
@pytest.mark.parametrize("ordered_delivery", [1, -1, 0])
def test_the_three_kinds_of_delivery(context: Context, ordered_delivery: int) -> None:
    """UM-53, UM-56, UM-58: modes 1 and -1 deliver whole messages; mode 0 delivers fragments with the fields
    to reassemble them.
    """
    source, receiver = connect(context, f"mode {ordered_delivery}", ordered_delivery=ordered_delivery)
    with source, receiver:
        content = bytes(range(256)) * 20
        source.send(b"small", flush=True)
        source.send(content, flush=True)
        if ordered_delivery != 0:
            assert payloads(collect(receiver, 2)) == [b"small", content]
            return
        small, *fragments = collect(receiver, 1 + -(-len(content) // (DATAGRAM - 48)))
        assert small.data == b"small"
        rebuilt = bytearray(fragments[0].message_length)
        for fragment in fragments:
            assert fragment.first_sequence_number == 1
            rebuilt[fragment.fragment_offset : fragment.fragment_offset + len(fragment.data)] = fragment.data
        assert rebuilt == content


def test_the_end_of_a_session_reaches_every_receiver_of_it() -> None:
    """UM-104, UM-105, UM-106, UX-9: the activity timeout without data ends the session; a receiver outlives it and
    finds the topic's next source."""
    with open_context() as own:
        options = {"transport_lbtrm_activity_timeout": 1000}
        idle = {"transport_lbtrm_sm_minimum_interval": 50, "transport_lbtrm_sm_maximum_interval": 100}
        with open_context(transport_lbtrm_source_port_low=29000) as publisher:
            receivers = [own.receiver("ending", **options), own.receiver("ending", **options)]
            source = publisher.source("ending", flow_control="min", **idle)
            source.wait_connected(timeout=SECONDS)
            wait_for(lambda: all(r.stats()["delivery_controllers"] for r in receivers))
            source.send(b"last", flush=True)
            name = f"{source.transport}[{source.topic_index}]"
            for receiver in receivers:
                begin, message = collect_events(receiver, 2)
                assert begin == BeginningOfSession("ending", name)
                assert isinstance(message, Message)
            time.sleep(1.3)  # session messages keep it alive beyond the timeout
            assert not any(receiver.poll() for receiver in receivers)
        for receiver in receivers:
            assert collect_events(receiver, 1, seconds=5) == [EndOfSession("ending", name)]
        again = own.source("ending", flow_control="min", **idle)
        wait_for(lambda: all(r.stats()["delivery_controllers"] for r in receivers))
        again.send(b"again", flush=True)
        for receiver in receivers:
            begin, message = collect_events(receiver, 2)
            assert isinstance(begin, BeginningOfSession)
            assert isinstance(message, Message)
            assert message.data == b"again"


@pytest.mark.parametrize("topic", ["", "x" * 247, "nul\0", "€" * 100])
def test_topic_names_are_checked(context: Context, topic: str) -> None:
    """UM: a topic has 1 to 246 bytes; sources and receivers report the same error."""
    for make in (context.source, context.receiver):
        with pytest.raises(TopicNameError, match="1 to 246 bytes"):
            make(topic)


# ---- closing and interrupting ----


def _in_thread(call: Any) -> tuple[threading.Thread, list[Any]]:
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Closed as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


@pytest.mark.parametrize("mode", ["embedded", "sequential"])
@pytest.mark.parametrize("what", ["receiver", "context"])
@pytest.mark.parametrize("call", ["poll", "receive"])
def test_closing_ends_a_waiting_read(mode: str, what: str, call: str) -> None:
    """A reader in another thread returns immediately, empty or with an error, without a crash or a hang."""
    own = open_context(mode)
    receiver = own.receiver("closing")
    reader, outcome = _in_thread(receiver.receive if call == "receive" else lambda: receiver.poll(10, None))
    time.sleep(0.02)  # works whether or not it is waiting already
    started = time.monotonic()
    (receiver if what == "receiver" else own).close()
    reader.join(SECONDS)
    assert time.monotonic() - started < 0.5
    (found,) = outcome
    assert isinstance(found, Closed) or not found
    own.close()


@pytest.mark.parametrize("mode", ["embedded", "sequential"])
def test_unblock_ends_a_waiting_poll(mode: str) -> None:
    """UM's lbm_context_unblock: waiting calls return early and can be repeated."""
    with open_context(mode) as own, own.receiver("unblock") as receiver:
        reader, outcome = _in_thread(lambda: receiver.poll(10, None))
        while reader.is_alive():  # a reader that has not started to wait needs another call
            time.sleep(0.02)
            own.unblock()
        reader.join(SECONDS)
        assert [len(batch) for batch in outcome] == [0]


def test_closing_ends_an_iteration() -> None:
    """`for message in receiver` in another thread ends without an error."""
    with open_context() as own:
        source, receiver = connect(own, "ends")
        reader, outcome = _in_thread(lambda: [message.data for message in receiver])
        source.send(b"one", flush=True)
        wait_for(lambda: receiver.stats()["messages_delivered"] == 1)
        wait_for(lambda: receiver.stats()["queued_messages"] == 0)
        receiver.close()
        reader.join(SECONDS)
        assert outcome == [[b"one"]]


def test_receivers_close_while_threads_poll_and_messages_arrive() -> None:
    """Closing waits for calls in progress at any moment."""
    with open_context() as own, own.source("race") as source:
        stop = threading.Event()

        def publish() -> None:
            while not stop.is_set():
                source.send(b"x", flush=True)

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            for _ in range(30):
                receiver = own.receiver("race")
                reader, _ = _in_thread(lambda receiver=receiver: list(receiver))
                time.sleep(0.003)
                receiver.close()
                reader.join(SECONDS)
                assert not reader.is_alive()
        finally:
            stop.set()
            publisher.join()


def test_a_receiver_has_one_reader_at_a_time(context: Context) -> None:
    """A second thread that reads is refused with a hint; after the first has finished, any thread may read."""
    source, receiver = connect(context, "one reader")
    with source, receiver:
        collect_events(receiver, 1)
        reader, outcome = _in_thread(lambda: receiver.poll(10, None))
        second: list[OptionError] = []

        def refused() -> bool:
            for read in (receiver.poll, lambda: receiver.receive(0)):
                try:
                    read()
                except OptionError as error:
                    second.append(error)
            return bool(second)

        wait_for(refused)
        assert all("one thread at a time" in str(error) for error in second)
        source.send(b"x", flush=True)
        reader.join(SECONDS)
        assert [payloads(batch.messages()) for batch in outcome] == [[b"x"]]
        assert not receiver.poll()


def test_concurrent_readers_lose_and_duplicate_nothing(context: Context) -> None:
    """With any interleaving, each message goes to one thread, or a thread is refused."""
    source, receiver = connect(context, "readers")
    with source, receiver:
        found: list[bytes] = []
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                with contextlib.suppress(OptionError):
                    found.extend(payloads(receiver.poll(100, 0.001).messages()))

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        for first in range(0, 50_000, 1000):
            source.send_many([b"%d" % i for i in range(first, first + 1000)], flush=True)
        wait_for(lambda: len(found) >= 50_000)
        stop.set()
        for reader in readers:
            reader.join()
        assert sorted(found, key=int) == [b"%d" % i for i in range(50_000)]


def test_a_receiver_with_a_callback_is_not_read(context: Context) -> None:
    """The messages of a receiver with a callback go to the callback; reading them is refused."""
    with context.receiver("callback only", lambda event: None) as receiver:
        for read in (receiver.poll, receiver.receive, lambda: next(iter(receiver))):
            with pytest.raises(OptionError, match="on_message"):
                read()


def test_a_closed_receiver_raises(context: Context) -> None:
    """Every call on a closed receiver raises Closed; iteration ends immediately."""
    receiver = context.receiver("closed")
    batch = receiver.poll()
    receiver.close()
    receiver.close()
    for call in (receiver.poll, lambda: receiver.poll(1, None), receiver.receive, receiver.stats):
        with pytest.raises(Closed, match="create a new one"):
            call()
    assert list(receiver) == list(receiver.events()) == []
    assert len(batch) == 0
    assert receiver.arm(), "an application's event loop must call poll, which returns the rest"
    assert "closed" in repr(receiver)


def _batch_of_something_closed() -> tuple[Batch, memoryview]:
    with open_context() as own:
        source, receiver = connect(own, "outlive")
        source.send_many([b"%d" % i for i in range(100)], flush=True)
        collect_events(receiver, 1)
        wait_for(lambda: receiver.stats()["queued_messages"] == 100)
        batch = receiver.poll(100)
        return batch, batch.payload


def test_batches_outlive_receiver_and_context() -> None:
    """W9: rows stay readable after their receiver and context are closed and deleted."""
    batch, view = _batch_of_something_closed()
    gc.collect()
    assert payloads(batch.messages()) == [b"%d" % i for i in range(100)]
    del batch
    assert bytes(view[:4]) == b"0123"


def test_wrong_modes_are_refused(context: Context) -> None:
    """process_events belongs to sequential mode; the error explains how to enable it."""
    with pytest.raises(OptionError, match="mode='sequential'"):
        context.process_events(0)


def test_the_longest_message_of_a_default_source_is_delivered_by_default() -> None:
    """W14: the limits of a source and a receiver agree; what is accepted is not dropped at the other end."""
    with open_context() as context:
        source, receiver = connect(context, "longest by default")
        source.send(bytes(source.message_maximum_bytes), flush=True)
        (message,) = collect(receiver, 1)
        assert len(message.data) == source.message_maximum_bytes
        assert receiver.stats()["messages_too_long"] == 0
