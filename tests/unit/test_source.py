"""Source: sending one message, many, packed and in place; blocked sends and refused ones."""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.loopback import DATAGRAM, SHARED, SMALL_QUEUE, connect, open_context, payloads
from tests.unit.ways import FULL_LOG, ITS_FRAGMENTS, ITS_SESSION, ONE_LOG, SMALL_WINDOW, alone
from tests.waiting import SECONDS, collect, wait_for
from umstack import BackPressured, Closed, Context, NotConnected, RateLimited, Source, WouldBlock
from umstack.errors import InvalidArgument, MessageTooLong, OptionError

pytestmark = pytest.mark.usefixtures("way")

FRAGMENT = DATAGRAM - 20 - 12 - 16
"""The payload of a full fragment: the datagram without the headers of LBT-RM, LBMC and the fragment option.
    """


@pytest.fixture(scope="module")
def context(way: str) -> Iterator[Context]:
    with open_context() as context:
        yield context


# ---- one message ----


@alone(ITS_FRAGMENTS)
def test_send_returns_the_number_of_the_last_fragment(context: Context) -> None:
    """UM-42, UM-52, UM-57, UM-80: each fragment uses a topic sequence number; the visible one is the last."""
    source, receiver = connect(context, "numbers")
    with source, receiver:
        sizes = [0, 10, 3 * FRAGMENT, 1, 2 * FRAGMENT + 1]
        returned = [source.send(b"x" * size, flush=True) for size in sizes]
        assert returned == [0, 1, 4, 5, 8]
        messages = collect(receiver, len(sizes))
        assert [len(message.data) for message in messages] == sizes
        assert [message.sequence_number for message in messages] == returned
        assert [message.first_sequence_number for message in messages] == [0, 1, 2, 5, 6]
        assert [message.flags & 4 for message in messages] == [0, 0, 4, 0, 4]


@alone(ITS_FRAGMENTS)
def test_a_message_that_fits_a_datagram_is_never_split(context: Context) -> None:
    """UM-48, UX-25, W4: every header byte is counted, so the datagram can be filled to the last byte."""
    source, receiver = connect(context, "fits")
    with source, receiver:
        largest = DATAGRAM - 20 - 12
        assert source.send(b"a" * largest, flush=True) == 0
        assert source.send(b"b" * (largest + 1), flush=True) == 2
        assert [len(m.data) for m in collect(receiver, 2)] == [largest, largest + 1]


@pytest.mark.parametrize(
    "data",
    [
        b"bytes",
        bytearray(b"array"),
        memoryview(b"view"),
        memoryview(array("I", [1, 2, 3])),
        b"",
        np.arange(5),
    ],
    ids=lambda data: type(data).__name__,
)
def test_anything_with_a_buffer_is_sent_whole(context: Context, data: Any) -> None:
    """Data is any contiguous buffer, measured in bytes, whatever its item type."""
    source, receiver = connect(context, "buffers")
    with source, receiver:
        source.send(data, flush=True)
        source.send(data, batch="complete")
        source.send_many([data, data], flush=True)
        assert payloads(collect(receiver, 4)) == [bytes(memoryview(data))] * 4


def test_text_must_be_encoded_first(context: Context) -> None:
    """A string is not a buffer: the error is also a TypeError, and nothing is sent."""
    with context.source("text") as source:
        with pytest.raises(TypeError):
            source.send("text")  # type: ignore[arg-type]
        assert source.send(b"first") == 0


@alone(ONE_LOG)
def test_a_message_waits_for_a_flush(context: Context) -> None:
    """UM-16, UM-19, UM-27: small messages of all topics of a session are held until one flush sends them all."""
    source, receiver = connect(context, "held", implicit_batching_interval=60000, **SHARED)
    with source, receiver, context.source("held too", flow_control="min", **SHARED) as other:
        assert other.transport == source.transport
        source.send(b"one")
        source.send(b"two")
        before = source.stats()["msgs_sent"]
        assert not receiver.poll(10, 0.1).messages()
        other.send(b"last", flush=True)
        assert payloads(collect(receiver, 2)) == [b"one", b"two"]
        assert (source.stats()["msgs_sent"] or 0) == (before or 0) + 1, "one datagram carries all three"
        source.send(b"three")
        source.flush()
        assert payloads(collect(receiver, 1)) == [b"three"]


def test_a_batch_is_sent_at_its_length_or_age(context: Context) -> None:
    """UM-17, UM-19a, UM-19b: the minimum length releases a batch; the interval releases one that stays shorter."""
    with open_context() as own:
        source, receiver = connect(
            own, "triggers", implicit_batching_interval=50, implicit_batching_minimum_length=1000
        )
        source.send(b"x" * 999)
        source.send(b"y")
        collect(receiver, 2)
        assert source.stats()["flushes_length"] == 1
        started = time.monotonic()
        source.send(b"z")
        collect(receiver, 1)
        assert 0.04 < time.monotonic() - started < 2
        assert source.stats()["flushes_interval"] == 1


def test_an_explicit_batch_is_held_to_its_end(context: Context) -> None:
    """UM-34, UM-35, UM-37: no message of a group is sent before the group ends; its marks arrive with the
    messages."""
    source, receiver = connect(context, "group", implicit_batching_minimum_length=1)
    with source, receiver:
        numbers = [source.send(b"first", batch="start"), source.send(b"middle")]
        assert not receiver.poll(10, 0.1).messages()
        numbers += [source.send(b"last", batch="end"), source.send(b"whole", batch="complete", flush=True)]
        messages = collect(receiver, 4)
        assert payloads(messages) == [b"first", b"middle", b"last", b"whole"]
        assert [message.flags for message in messages] == [1, 0, 2, 3]
        assert [message.sequence_number for message in messages] == numbers == [0, 1, 2, 3]


def test_a_flush_sends_an_open_group(context: Context) -> None:
    """UM-40: a flush also sends the messages of an open explicit batch."""
    source, receiver = connect(context, "flushed group")
    with source, receiver:
        source.send(b"first", batch="start")
        source.send(b"second")
        source.flush()
        assert payloads(collect(receiver, 2)) == [b"first", b"second"]
        source.send(b"third", batch="end", flush=True)
        assert payloads(collect(receiver, 1)) == [b"third"]


# ---- many messages ----


def test_send_many_accepts_a_list(context: Context) -> None:
    """W9: one call publishes many messages of any length, in order, each with a separate sequence number."""
    source, receiver = connect(context, "list")
    with source, receiver:
        messages = [b"%d" % i * (i % 50) for i in range(1000)] + [b"f" * 4000, b"", b"last"]
        assert source.send_many(messages, flush=True) == len(messages)
        received = collect(receiver, len(messages))
        assert payloads(received) == messages
        assert source.send_many([]) == 0
        assert source.send(b"next") == received[-1].sequence_number + 1


@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
def test_send_many_accepts_an_arrow_array(context: Context, kind: Any) -> None:
    """W9: an Arrow array, or a slice of one, is sent from its own buffers."""
    source, receiver = connect(context, "arrow")
    with source, receiver:
        texts = [f"message {i}" for i in range(100)]
        values = pa.array(texts, kind) if kind == pa.string() else pa.array([t.encode() for t in texts], kind)
        assert source.send_many(values) == 100
        assert source.send_many(values.slice(10, 5)) == 5
        assert source.send_many(values.slice(3, 0)) == 0
        assert source.send_many(pa.array([], kind)) == 0
        source.flush()
        assert [m.data.decode() for m in collect(receiver, 105)] == texts + texts[10:15]


@pytest.mark.parametrize(
    "values",
    [pa.array([b"a", None], pa.binary()), pa.array([b"a"], pa.large_binary()), pa.array([1, 2])],
    ids=["null", "64-bit offsets", "numbers"],
)
def test_other_arrow_arrays_are_refused(context: Context, values: Any) -> None:
    """An array that cannot be sent from its own buffers is refused; the error lists the types that can."""
    with context.source("arrow errors") as source, pytest.raises(OptionError, match="32-bit offsets"):
        source.send_many(values)


def test_send_packed_accepts_offsets(context: Context) -> None:
    """W9: messages that are contiguous in one buffer are sent without creating a list."""
    source, receiver = connect(context, "packed")
    with source, receiver:
        assert source.send_packed(b"onetwothree", array("i", [0, 3, 6, 11])) == 3
        assert source.send_packed(bytearray(b"xxfour"), np.array([2, 2, 6], np.int32), flush=True) == 2
        assert source.send_packed(b"none", array("i", [0])) == 0
        assert payloads(collect(receiver, 5)) == [b"one", b"two", b"three", b"", b"four"]


@pytest.mark.parametrize("offsets", [[0, 5], [-1, 3], [0, 100, 3], [0, 3, 2]])
def test_offsets_outside_the_data_are_refused(context: Context, offsets: list[int]) -> None:
    """Offsets beyond the buffer, negative or decreasing, never cause a read outside it."""
    with context.source("bad offsets") as source:
        with pytest.raises((OptionError, InvalidArgument)):
            source.send_packed(b"four", array("i", offsets))
        assert source.stats()["messages_sent"] == 0


def test_a_message_too_long_in_the_middle_raises_after_the_earlier_ones(context: Context) -> None:
    """Nothing is dropped silently, because the error has the index of the message."""
    source, receiver = connect(context, "long one")
    with source, receiver:
        too_long = bytes(source.message_maximum_bytes + 1)
        with pytest.raises(MessageTooLong, match="message 2 of 4"):
            source.send_many([b"a", b"b", too_long, b"c"])
        source.flush()
        assert payloads(collect(receiver, 2)) == [b"a", b"b"]


@alone(ITS_FRAGMENTS)
def test_the_longest_message_arrives_and_one_byte_more_is_refused(context: Context) -> None:
    """UX-23: a refused send uses no sequence number."""
    source, receiver = connect(context, "longest", receiver_maximum_message_length=8 << 20)
    with source, receiver:
        longest = source.message_maximum_bytes
        with pytest.raises(MessageTooLong):
            source.send(bytes(longest + 1))
        last = source.send(b"m" * longest, flush=True)
        (message,) = collect(receiver, 1)
        assert (len(message.data), message.first_sequence_number) == (longest, 0)
        assert message.sequence_number == last == -(-longest // FRAGMENT) - 1


# ---- in place ----


@alone(ITS_FRAGMENTS)
def test_a_claim_is_written_in_place(context: Context) -> None:
    """AE-32, AE-33: the bytes are written where they are sent from; leaving the block commits them."""
    source, receiver = connect(context, "claim")
    with source, receiver:
        with source.claim(5, flush=True) as view:
            view[:] = b"hello"
        assert payloads(collect(receiver, 1)) == [b"hello"]
        with pytest.raises(MessageTooLong), source.claim(DATAGRAM):
            pass
        with source.claim(0, flush=True) as view:
            assert len(view) == 0
        assert payloads(collect(receiver, 1)) == [b""]
        with pytest.raises(ValueError, match="released"):
            view[:0] = b""


def test_an_exception_aborts_the_claim(context: Context) -> None:
    """AE-35, AE-36, UX-23: an aborted claim becomes padding, is never delivered, and uses no sequence number."""
    source, receiver = connect(context, "abort")
    with source, receiver:

        def fail() -> None:
            with source.claim(5) as view:
                view[:] = b"never"
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        with source.claim(3, flush=True) as view:
            view[:] = b"yes"
        (message,) = collect(receiver, 1)
        assert (message.data, message.sequence_number) == (b"yes", 0)
        assert source.stats()["claims_aborted"] == 1


def test_a_claim_still_referenced_is_not_sent(context: Context) -> None:
    """Bytes that a view can still modify must not be sent: the claim is aborted, with a reason."""
    source, receiver = connect(context, "kept view")
    with source, receiver:
        with pytest.raises(InvalidArgument, match="still refers"), source.claim(8) as view:
            kept = pa.py_buffer(view)
        del kept
        source.send(b"next", flush=True)
        assert payloads(collect(receiver, 1)) == [b"next"]


def test_an_unfinished_claim_is_skipped(context: Context) -> None:
    """AE-34, AE-35: an open claim blocks later messages until publication_unblock_timeout and is then
    skipped.
    """
    with open_context() as own:
        source, receiver = connect(own, "stuck", publication_unblock_timeout=200)

        def dawdle() -> None:
            with source.claim(10) as view:
                view[:] = b"abandoned!"
                source.send(b"behind", flush=True)
                (message,) = collect(receiver, 1)
                assert (message.data, message.sequence_number) == (b"behind", 0)

        with pytest.raises(Closed):
            dawdle()
        assert source.stats()["unblocked_publications"] == 1


def test_closing_the_source_under_a_claim_is_safe(context: Context) -> None:
    """The claimed bytes stay writable; the commit reports that the source is closed."""
    source = context.source("closed claim")

    def close_inside() -> None:
        with source.claim(1000) as view:
            source.close()
            view[:] = bytes(1000)

    with pytest.raises(Closed):
        close_inside()


# ---- blocked ----


@alone(FULL_LOG)
def test_without_a_receiver_a_source_with_flow_control_is_not_connected(context: Context) -> None:
    """AE-12, AE-14, UX-23: NOT_CONNECTED is a result; nothing was sent and no number was used."""
    with open_context() as own, own.source("nobody", flow_control="min") as source:
        assert not source.is_connected
        for attempt in (
            lambda: source.send(b"x", timeout=0),
            lambda: source.send_many([b"x", b"y"], timeout=0),
            lambda: source.send_packed(b"xy", array("i", [0, 1, 2]), timeout=0),
            lambda: source.send_packed(b"xy", array("i", [0, 1, 2]), timeout=-1),
            lambda: source.claim(1, timeout=0).__enter__(),
            lambda: source.send(b"x", timeout=0.05),
        ):
            with pytest.raises(NotConnected, match="start a receiver"):
                attempt()
        assert issubclass(NotConnected, WouldBlock)
        with pytest.raises(NotConnected, match=r"0 of 2 receivers.*flow_control_receiver_window"):
            source.wait_connected(2, timeout=0.02)
        receiver = own.receiver("nobody")
        assert source.send(b"now", flush=True) == 0, "a blocking send waits for the receiver"
        assert payloads(collect(receiver, 1)) == [b"now"]
        assert source.is_connected


@alone(SMALL_WINDOW)
@pytest.mark.parametrize("transport", ["lbtrm", "lbtru"])
def test_a_source_can_publish_without_receivers_and_then_follow_them(transport: str) -> None:
    """AE-12, AE-20: more than the window is sent to nobody; the first receiver that comes holds the source back."""
    message = bytes(1000)
    with (
        open_context() as own,
        own.source(
            "anybody",
            transport=transport,
            flow_control="min",
            flow_control_without_receivers="publish",
            transport_lbtrm_transmission_window_size=1 << 18,
            transport_lbtru_transmission_window_size=1 << 18,
        ) as source,
    ):
        assert source.is_connected
        for _ in range(1000):
            source.send(message, flush=True, timeout=SECONDS)
        assert source.wait_drained(timeout=SECONDS)
        with own.receiver("anybody", **SMALL_QUEUE) as receiver:
            source.wait_connected(timeout=SECONDS)
            sent = 0

            def fill() -> None:
                nonlocal sent
                while sent < 100_000:
                    source.send(message, flush=True, timeout=1)
                    sent += 1

            with pytest.raises(BackPressured):
                fill()
            assert len(collect(receiver, sent)) == sent
        wait_for(lambda: source.known_receivers == 0, "the end of the receiver")
        for _ in range(1000):
            source.send(message, flush=True, timeout=SECONDS)


@alone(SMALL_WINDOW)
def test_a_full_window_is_back_pressure(context: Context) -> None:
    """AE-7, AE-13, AE-20: a reader that stops reading stops the publisher, and nothing is lost."""
    with open_context() as own:
        source, receiver = connect(
            own,
            "full",
            transport_lbtrm_transmission_window_size=1 << 18,
            **SMALL_QUEUE,
        )
        sent = 0

        def fill(timeout: float) -> None:
            nonlocal sent
            while sent < 100_000:
                source.send(b"%06d" % sent + bytes(1000), flush=True, timeout=timeout)
                sent += 1

        for timeout in (0, 0.5):  # shortly afterwards the queue has received the messages in flight
            with pytest.raises(BackPressured, match="receivers catch up"):
                fill(timeout)
        assert 50 < sent < 1000, "about a window, the queue and half a term"
        before = own.stats()["context"]
        assert before["send_would_block"] == 1
        with pytest.raises(BackPressured):
            source.send(b"still", timeout=0.25)
        assert own.stats()["context"]["send_blocked"] == before["send_blocked"] + 1
        assert not source.wait_drained(timeout=0.02)
        assert [int(m.data[:6]) for m in collect(receiver, sent)] == list(range(sent))
        assert source.wait_drained(timeout=SECONDS)


@alone(SMALL_WINDOW)
def test_send_many_reports_how_many_were_accepted_in_time(context: Context) -> None:
    """With a timeout, part of a list may be accepted; the rest can be sent again without duplicates."""
    with open_context() as own:
        source, receiver = connect(
            own,
            "partly",
            transport_lbtrm_transmission_window_size=1 << 18,
            **SMALL_QUEUE,
        )
        messages = [b"%06d" % i + bytes(1000) for i in range(2000)]
        started = time.monotonic()
        taken = source.send_many(messages, flush=True, timeout=0.15)
        assert 0 < taken < 2000
        assert 0.15 <= time.monotonic() - started < 1, "100 ms in a first attempt, the rest in a second"
        received: list[bytes] = []
        reader = threading.Thread(target=lambda: received.extend(payloads(collect(receiver, 2000))))
        reader.start()
        assert source.send_many(messages[taken:], flush=True) == 2000 - taken
        reader.join()
        assert received == messages


@alone(FULL_LOG)
def test_the_rate_limit_blocks(context: Context) -> None:
    """UX-1, UX-3: the limit is per context; beyond it, sends wait for the next slice or are refused."""
    with open_context(transport_lbtrm_data_rate_limit=8_000_000, transport_lbtrm_rate_interval=20) as own:
        source, receiver = connect(own, "limited", flow_control="none")
        started = time.monotonic()

        def exceed() -> None:
            for _ in range(1000):
                source.send(bytes(1400), flush=True, timeout=0)

        with pytest.raises(RateLimited, match="data_rate_limit"):
            exceed()
        for _ in range(400):
            source.send(bytes(1400), flush=True)
        elapsed = time.monotonic() - started
        assert 0.25 < elapsed < 3, (
            "8 Mbit/s are a million bytes per second, minus the bytes queued in the log"
        )
        collect(receiver, 400)


# ---- threads and ending ----


def test_the_first_messages_of_several_threads_arrive() -> None:
    """AE-26: the first sends back the log with pages; meanwhile no message gets behind one with a later number.

    A receiver starts with the first message that arrives, so an earlier number after it would be lost without an event.
    """
    for _ in range(60):
        with open_context() as context:
            receiver, source = context.receiver("first"), context.source("first")
            wait_for(lambda found=receiver: found.stats()["delivery_controllers"])
            together = threading.Barrier(4)

            def publish(source: Source = source, together: threading.Barrier = together) -> None:
                together.wait()
                source.send(b"x", flush=True)

            workers = [threading.Thread(target=publish) for _ in range(4)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            assert [message.sequence_number for message in collect(receiver, 4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("shared", [True, False], ids=["one source", "a source each"])
def test_four_threads_publish(context: Context, shared: bool) -> None:
    """AE-26, W3: any number of threads publish; every message arrives once, and each thread's messages in order."""
    threads, each = 4, 2000
    topic = f"threads, {shared=}"
    receiver = context.receiver(topic)
    sources = [context.source(topic, flow_control="min", **SHARED) for _ in range(1 if shared else threads)]
    for source in sources:
        source.wait_connected(timeout=SECONDS)
    wait_for(lambda: receiver.stats()["delivery_controllers"] == len(sources))
    returned: list[list[int]] = [[] for _ in range(threads)]

    def publish(thread: int) -> None:
        source = sources[thread % len(sources)]
        for i in range(each):
            returned[thread].append(source.send(b"%d %d" % (thread, i) + bytes(i % 3 * 1000)))
        source.flush()

    workers = [threading.Thread(target=publish, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    messages = collect(receiver, threads * each)
    for worker in workers:
        worker.join()
    assert not receiver.poll(1, 0.05).messages()
    for thread in range(threads):
        own = [m for m in messages if m.data.startswith(b"%d " % thread)]
        assert [int(m.data.rstrip(b"\0").split()[1]) for m in own] == list(range(each))
        assert [m.sequence_number for m in own] == returned[thread]
    receiver.close()
    for source in sources:
        source.close()


@alone(FULL_LOG)
def test_other_threads_run_while_a_send_waits(context: Context) -> None:
    """W8: a waiting call does not hold the interpreter lock."""
    turns = 0
    waiting = True

    def count() -> None:
        nonlocal turns
        while waiting:
            turns += 1
            time.sleep(0)

    with open_context() as own, own.source("alone", flow_control="min") as source:
        other = threading.Thread(target=count)
        other.start()
        with pytest.raises(NotConnected):
            source.send(b"x", timeout=0.3)
        waiting = False
        other.join()
    assert turns > 100


@alone(FULL_LOG)
def test_closing_ends_a_waiting_send() -> None:
    """A sender in another thread gets Closed immediately when its source closes, without a crash."""
    with open_context() as own:
        source = own.source("closing", flow_control="min")
        outcome: list[BaseException] = []

        def send() -> None:
            try:
                source.send(b"never taken")
            except Closed as error:
                outcome.append(error)

        sender = threading.Thread(target=send)
        sender.start()
        wait_for(lambda: own.stats()["context"]["send_blocked"] == 1)
        started = time.monotonic()
        source.close()
        sender.join(SECONDS)
        assert time.monotonic() - started < 0.5
        assert [type(error) for error in outcome] == [Closed]


def test_sources_close_while_threads_send() -> None:
    """Closing waits for calls in progress: threads that race with it get an error and no crash."""
    with open_context() as own:
        for _ in range(30):
            source = own.source("race")
            stopped: list[bool] = []

            def send(source: Any = source, stopped: list[bool] = stopped) -> None:
                try:
                    while True:
                        source.send(b"racing")
                        source.send_many([b"racing", b"too"])
                        with source.claim(6):
                            pass
                except Closed:
                    stopped.append(True)

            senders = [threading.Thread(target=send) for _ in range(3)]
            for sender in senders:
                sender.start()
            time.sleep(0.002)
            source.close()
            for sender in senders:
                sender.join(SECONDS)
            assert stopped == [True] * 3


def test_a_closed_source_raises(context: Context) -> None:
    """Every call on a closed source raises Closed, with a hint; closing it again does nothing."""
    source = context.source("closed")
    source.close()
    source.close()
    assert source.closed
    for call in (
        lambda: source.send(b"x"),
        lambda: source.send(b"x", timeout=0),
        lambda: source.send_many([b"x"]),
        lambda: source.send_packed(b"x", array("i", [0, 1])),
        lambda: source.claim(1).__enter__(),
        source.flush,
        source.stats,
        lambda: source.wait_drained(0.1),
        lambda: source.is_connected,
        lambda: source.message_maximum_bytes,
    ):
        with pytest.raises(Closed, match="create a new one"):
            call()
    assert "closed" in repr(source)


def test_closing_sends_held_messages(context: Context) -> None:
    """UX-17: closing a source first sends the messages held back, including an explicit batch."""
    source, receiver = connect(context, "last words", implicit_batching_interval=60000)
    source.send(b"held")
    source.send(b"grouped", batch="start")
    source.close()
    assert payloads(collect(receiver, 2)) == [b"held", b"grouped"]
    receiver.close()


@alone(FULL_LOG)
@pytest.mark.parametrize(
    "send",
    [
        lambda source: source.send(b"x", timeout=0.3),
        lambda source: source.send_many([b"x", b"y"], timeout=0.3),
        lambda source: source.send(b"x", timeout=0.3, properties={"a": 1}),
    ],
)
def test_a_send_that_waits_for_long_is_logged(
    send: Callable[[Source], int], caplog: pytest.LogCaptureFixture
) -> None:
    """AE-12: the warning names topic, session and cause, once for the interval; 0 switches it off."""
    with open_context() as context:
        quiet = context.source("quiet", flow_control="min", blocked_send_warning_interval=0)
        with pytest.raises(NotConnected):
            send(quiet)
        assert not caplog.records
        source = context.source("alone", flow_control="min", blocked_send_warning_interval=50)
        with pytest.raises(NotConnected):
            send(source)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        for part in ("'alone'", source.transport, "no receiver is connected", "start a receiver"):
            assert part in record.getMessage()


@alone(ITS_SESSION)
def test_wait_drained_does_not_wait_for_reports_of_idle_topics() -> None:
    """TSNIs behind the last message do not change its answer, though receivers report them seldom (UM-62, UM-83)."""
    options: dict[str, Any] = {
        "transport_lbtrm_multicast_address": "239.255.61.77",
        "flow_control": "min",
        "transport_topic_sequence_number_info_interval": 20,
    }
    with open_context() as subscriber, open_context() as publisher, subscriber.receiver("idle") as receiver:
        source = publisher.source("idle", **options)
        source.wait_connected(timeout=SECONDS)
        source.send(b"last")
        assert source.wait_drained(timeout=SECONDS)
        assert collect(receiver, 1)
        answers = []

        def is_long_idle() -> bool:
            answers.append(source.wait_drained(timeout=0).is_complete)
            return source.stats()["tsnis_sent"] > 50

        wait_for(is_long_idle, "TSNIs of an idle source")
        assert all(answers)
