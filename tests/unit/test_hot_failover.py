"""Hot failover: one stream that several sources send copies of, over one context or two."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import umstack
from tests.unit.loopback import open_context
from tests.unit.ways import EVERY_WAY, ITS_LOSSES, ITS_SESSION, alone
from tests.waiting import SECONDS, collect, wait_for
from umstack import Context, HotFailoverReceiver, HotFailoverReset, Message, Source, UnrecoverableLoss
from umstack.errors import InvalidArgument, OptionError

pytestmark = pytest.mark.usefixtures("way")
USUAL_WAYS = ("alone",)
"""Lines that share a driver share its session: the rows of one may all come before those of the other."""

LONG = bytes(range(256)) * 20
LOST = bytes(1410)
SHORT_ONLY: dict[str, Any] = {"transport_lbtrm_receiver_datagram_max_size": 1440}
"""A subscriber that loses LOST, for good: what is longer than it takes is dropped (UX-26). No other message fits the
datagram of LOST, and no number of those of _short() makes one as long."""
Lines = tuple[list[Source], HotFailoverReceiver]


@pytest.fixture
def contexts() -> Iterator[list[Context]]:
    """Two publishers and two subscribers."""
    with ExitStack() as stack:
        yield [stack.enter_context(open_context()) for _ in range(4)]


def _lines(contexts: list[Context], topic: str = "orders", **options: Any) -> Lines:
    receiver = contexts[2].hot_failover_receiver(topic, **options)
    sources = [context.source(topic, flow_control="min") for context in contexts[:2]]
    for source in sources:
        source.wait_connected(timeout=SECONDS)
    return sources, receiver


def _rows(receiver: HotFailoverReceiver, count: int) -> list[Any]:
    """The next messages, losses and resets, this many of them."""
    rows: list[Any] = []

    def came() -> bool:
        events = receiver.poll(timeout=0.02).events()
        rows.extend(row for row in events if isinstance(row, Message | UnrecoverableLoss | HotFailoverReset))
        return len(rows) >= count

    wait_for(came, f"{count} rows", SECONDS)
    return rows


def _numbers(rows: list[Any]) -> list[int]:
    return [row.hot_failover_sequence_number for row in rows]


def _short(number: int) -> bytes:
    return b"%d" % number + bytes(100)


def _settled(receiver: HotFailoverReceiver, counter: str, count: int) -> None:
    def is_so() -> bool:
        receiver.poll()
        return receiver.stats()[counter] == count

    wait_for(is_so, f"{count} {counter}", SECONDS)


@pytest.mark.parametrize("bits", [32, 64])
def test_the_first_copy_is_delivered_and_the_others_are_dropped(contexts: list[Context], bits: Any) -> None:
    """Two sources send every message of one topic, fragments included, and each message is delivered once."""
    (first, second), receiver = _lines(contexts)
    for number in range(100):
        data = LONG if number % 10 == 5 else b"%d" % number
        for source in (first, second) if number % 3 else (second, first):
            source.send_hot_failover(data, number, flush=True, bits=bits)
    rows = _rows(receiver, 100)
    assert _numbers(rows) == list(range(100))
    assert [row.data for row in rows[4:7]] == [b"4", LONG, b"6"]
    assert {row.flags & ~4 for row in rows} == {0x10}
    _settled(receiver, "hf_duplicates", 100)
    stats = receiver.stats()
    assert (stats["hf_delivered"], stats["hf_lost"], stats["hf_left_out"]) == (100, 0, 0)


def test_numbers_of_64_bits_are_whole(contexts: list[Context]) -> None:
    """Message numbers have 32 or 64 bits, and a number of 32 bits wraps."""
    (first, second), receiver = _lines(contexts)
    high = (1 << 40) + 2**32 - 2
    for number in range(high, high + 5):
        first.send_hot_failover(b"", number, flush=True)
    assert _numbers(_rows(receiver, 5)) == list(range(high, high + 5))
    for number in range(high + 5, high + 8):
        second.send_hot_failover(b"", number & 0xFFFFFFFF, flush=True, bits=32)
    assert _numbers(_rows(receiver, 3)) == list(range(high + 5, high + 8))


@alone(ITS_LOSSES)
def test_what_one_line_loses_the_other_brings_in_order(contexts: list[Context]) -> None:
    """Each line loses different messages: no message waits for a repair and none is lost."""
    with open_context(**SHORT_ONLY) as subscriber:
        sources, receiver = _lines([*contexts[:2], subscriber])
        chosen = random.Random(7)
        for number in range(300):
            losing = chosen.choice([None, *sources]) if number else None
            for source in sources:
                data = LOST if source is losing else _short(number)
                source.send_hot_failover(data, number, flush=True)
        begin = time.monotonic()
        rows = _rows(receiver, 300)
        assert time.monotonic() - begin < SECONDS / 2, "the NAK generation interval was waited for"
        assert _numbers(rows) == list(range(300)), "seed 7"
        assert [row.data for row in rows] == [_short(number) for number in range(300)]
        assert receiver.stats()["hf_lost"] == receiver.stats()["hf_left_out"] == 0
        assert subscriber.stats()["receiver_transports"][0]["dgrams_dropped_too_long"] > 10


def _lost_on_both(contexts: list[Context], **options: Any) -> tuple[list[Source], HotFailoverReceiver]:
    """Message 1 is longer than the subscriber takes, so both lines lose it for good."""
    with open_context(**SHORT_ONLY) as subscriber:
        chosen: dict[str, Any] = {
            "transport_lbtrm_nak_generation_interval": 300,
            "delivery_control_loss_check_interval": 50,
        }
        sources, receiver = _lines([*contexts[:2], subscriber], **chosen, **options)
        for source in sources:
            for number, data in enumerate([b"0", LOST, b"2"]):
                source.send_hot_failover(data, number, flush=True)
        begin = time.monotonic()
        rows = _rows(receiver, 3)
        seconds = time.monotonic() - begin
        assert [type(row) for row in rows] == [Message, UnrecoverableLoss, Message]
        assert rows[1].sequence_number == 1
        assert seconds >= options.get("hf_maximum_delay", 0) / 1000 * 0.9
        assert receiver.stats()["hf_lost"] == 1
        _settled(receiver, "hf_line_losses", 2)
        return sources, receiver


@alone(ITS_LOSSES)
def test_what_no_line_has_is_declared_lost_in_bounded_time(contexts: list[Context]) -> None:
    """UM-101: a missing message is given up hf_maximum_delay after a later message arrived, not earlier."""
    _lost_on_both(contexts, hf_maximum_delay=400)


def test_a_gap_is_declared_lost_while_nothing_comes(contexts: list[Context]) -> None:
    """Giving up a message wakes a waiting reader: poll(), an asyncio task and a callback."""
    got: list[umstack.Event] = []
    (first, second), receiver = _lines(contexts, hf_maximum_delay=300)
    called = contexts[3].hot_failover_receiver("orders", got.append, hf_maximum_delay=300)
    for source in (first, second):
        source.wait_connected(2, timeout=SECONDS)
    first.send_hot_failover(b"0", 0, flush=True)
    wait_for(lambda: called.stats()["hf_delivered"] == 1, "the first")
    second.send_hot_failover(b"2", 2, flush=True)

    async def rows() -> list[Any]:
        found: list[Any] = []
        while not any(isinstance(row, UnrecoverableLoss) for row in found):
            found += (await asyncio.wait_for(receiver.poll_async(), SECONDS)).events()
        return found

    assert [type(row) for row in asyncio.run(rows()) if not isinstance(row, umstack.BeginningOfSession)] == [
        Message,
        UnrecoverableLoss,
        Message,
    ]
    wait_for(lambda: any(isinstance(row, UnrecoverableLoss) for row in got), "the callback")
    assert not called.closed


@EVERY_WAY
def test_numbers_left_out_on_purpose_are_not_lost(contexts: list[Context]) -> None:
    """An intentional gap is recognized at once by the topic's own numbers, up to 2**30 as in Ultra Messaging."""
    (first, second), receiver = _lines(contexts)
    numbers = [0, 1, 10, 11, 500_000, 500_001 + 2**30]
    for number in numbers:
        for source in (first, second):
            source.send_hot_failover(b"", number, flush=True)
    assert _numbers(_rows(receiver, 6)) == numbers
    first.send_hot_failover(b"", numbers[-1] + 2**30 + 2, flush=True)
    _settled(receiver, "hf_out_of_range", 1)
    assert receiver.stats()["hf_lost"] == 0
    assert receiver.stats()["hf_left_out"] == numbers[-1] + 1 - len(numbers)


def test_a_single_number_far_ahead_does_not_carry_the_stream_off(contexts: list[Context]) -> None:
    """As in a session, an unbounded jump is accepted once a second message confirms it."""
    (first, second), receiver = _lines(contexts, hf_maximum_waiting_messages=256, hf_maximum_delay=100)
    unknown = contexts[3].source("orders", flow_control="min")
    unknown.wait_connected(timeout=SECONDS)
    for source in (first, second):
        source.send_hot_failover(b"", 0, flush=True)
    assert _numbers(_rows(receiver, 1)) == [0]
    unknown.send_hot_failover(b"", 1_000_000, flush=True)
    _settled(receiver, "hf_out_of_range", 1)
    first.send_hot_failover(b"", 1, flush=True)
    assert _numbers(_rows(receiver, 1)) == [1]
    unknown.send_hot_failover(b"", 2_000_000, flush=True)
    _settled(receiver, "hf_out_of_range", 2)
    unknown.send_hot_failover(b"", 2_000_001, flush=True)
    _settled(receiver, "hf_delivered", 3)
    assert receiver.stats()["hf_lost"] == 2_000_001 - 2


@EVERY_WAY
def test_the_past_and_what_is_fetched_have_their_numbers(contexts: list[Context]) -> None:
    """UM-136: late join over two lines: each message of the past once, in order, fragments included."""
    sources = [context.source("orders", late_join=1) for context in contexts[:2]]
    for number in range(20):
        for source in sources:
            source.send_hot_failover(LONG if number == 7 else b"%d" % number, number, flush=True)
    receiver = contexts[2].hot_failover_receiver("orders")
    rows = _rows(receiver, 20)
    assert _numbers(rows) == list(range(20))
    assert [row.data for row in rows[6:9]] == [b"6", LONG, b"8"]
    _settled(receiver, "hf_duplicates", 20)


def test_optional_messages_and_duplicates_as_the_options_have_it(contexts: list[Context]) -> None:
    """hf_optional_messages 0 drops optional messages and hf_duplicate_delivery 1 delivers every copy."""
    (first, second), receiver = _lines(contexts, hf_optional_messages=0, hf_duplicate_delivery=1)
    for source in (first, second):
        for number in range(4):
            source.send_hot_failover(b"", number, flush=True, optional=number == 2)
        wait_for(lambda: receiver.stats()["events_tot"] is not None, "the queue")
    rows = _rows(receiver, 7)
    fresh = [row for row in rows if not row.flags & 0x80]
    assert _numbers(fresh) == [0, 1, 3]
    assert receiver.stats()["hf_optional_dropped"] == 1
    assert receiver.stats()["hf_duplicates"] == 4


def test_a_reset_restarts_the_numbers_once(contexts: list[Context]) -> None:
    """HF_RESET (27): the first reset counts, and messages that a source sent before its own reset are dropped."""
    (first, second), receiver = _lines(contexts)
    for source in (first, second):
        source.send_hot_failover(b"old", 1000, flush=True)
    assert _numbers(_rows(receiver, 1)) == [1000]
    # The first messages of a source count as sent after the resets of others that came before it.
    _settled(receiver, "hf_duplicates", 1)
    first.send_hot_failover_reset(5)
    first.send_hot_failover(b"new", 5, flush=True)
    rows = _rows(receiver, 2)
    assert isinstance(rows[0], HotFailoverReset)
    assert (rows[0].sequence_number, rows[1].hot_failover_sequence_number) == (5, 5)
    second.send_hot_failover(b"late", 1001, flush=True)
    second.send_hot_failover_reset(5)
    second.send_hot_failover(b"new", 5, flush=True)
    second.send_hot_failover(b"new", 6, flush=True)
    assert _numbers(_rows(receiver, 1)) == [6]
    assert receiver.stats()["hf_resets"] == 1


@alone(ITS_SESSION)
def test_two_contexts_are_two_lines_of_one_stream(contexts: list[Context]) -> None:
    """Over two interfaces, rows of the second context enter the same queue and wake its reader."""
    line_a, line_b = open_line("a"), open_line("b")
    with line_a[0], line_a[1], line_b[0], line_b[1]:
        receiver = line_a[1].hot_failover_receiver("orders", others=[line_b[1]])
        sources = [line[0].source("orders", flow_control="min") for line in (line_a, line_b)]
        for source in sources:
            source.wait_connected(timeout=SECONDS)
        for number in range(60):
            for at, source in enumerate(sources):
                data = LOST if number and number % 3 == at else _short(number)
                source.send_hot_failover(data, number, flush=True)
        rows = _rows(receiver, 60)
        assert _numbers(rows) == list(range(60))
        assert len({row.source for row in rows}) == 2
        sources[0].close()
        line_a[0].close()  # a line that ends is nothing that the stream notices
        sources[1].send_hot_failover(b"60", 60, flush=True)
        assert receiver.receive(SECONDS) == b"60"
        line_b[1].close()
        receiver.close()


def open_line(name: str) -> tuple[Context, Context]:
    """A publisher and a subscriber that hear of nobody else."""
    port = 20100 + ord(name)
    return open_context(resolver_multicast_port=port), open_context(
        resolver_multicast_port=port, **SHORT_ONLY
    )


def test_messages_without_a_number_come_as_they_are(contexts: list[Context]) -> None:
    """A plain source may share the topic, and a plain receiver gets every copy with flag 0x10."""
    (first, second), receiver = _lines(contexts)
    plain = contexts[3].receiver("orders")
    first.wait_connected(2, timeout=SECONDS)
    second.wait_connected(2, timeout=SECONDS)
    first.send(b"plain", flush=True)
    assert receiver.receive(SECONDS) == b"plain"
    for source in (first, second):
        source.send_hot_failover(b"numbered", 3, flush=True)
    assert receiver.receive(SECONDS) == b"numbered"
    got = sorted((message.data, message.flags) for message in collect(plain, 3))
    assert got == [(b"numbered", 16), (b"numbered", 16), (b"plain", 0)]


def test_what_is_no_number_is_refused(contexts: list[Context]) -> None:
    """Numbers that do not fit and a context named twice are refused."""
    source = contexts[0].source("orders")
    for number, bits in ((-1, 64), (1 << 64, 64), (1 << 32, 32), (1, 16)):
        with pytest.raises(InvalidArgument, match="no hot failover sequence number"):
            source.send_hot_failover(b"", number, bits=bits)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="names a context twice"):
        contexts[2].hot_failover_receiver("orders", others=[contexts[2]])


@alone(ITS_SESSION)
@pytest.mark.parametrize("mode", ["embedded", "sequential"])
@pytest.mark.parametrize("transport", ["lbtrm", "lbtru", "tcp", "lbtipc"])
def test_every_transport_and_mode_brings_one_stream(transport: str, mode: str) -> None:
    """Lines run over multicast, unicast and TCP connections, with and without a context thread."""
    with ExitStack() as stack:
        publishers = [stack.enter_context(open_context(mode)) for _ in range(2)]
        subscriber = stack.enter_context(open_context(mode))
        receiver = subscriber.hot_failover_receiver("carried")
        sources = [
            context.source("carried", flow_control="min", transport=transport) for context in publishers
        ]

        def are_connected() -> bool:
            for context in (*publishers, subscriber):
                if mode == "sequential":
                    context.process_events(0.001)
            return all(
                source.stats()["num_clients" if transport in ("tcp", "lbtipc") else "receivers_known"]
                for source in sources
            )

        wait_for(are_connected, "both lines", SECONDS)
        rows: list[Any] = []
        for number in range(60):
            for at, source in enumerate(sources):
                data = LONG if number == 7 else b"%d" % number
                if number < 30 or at == 1:  # then the first line has nothing more
                    source.send_hot_failover(data, number, flush=True, properties={"number": number})
            are_connected()
            rows += receiver.poll(100, 0).messages()
        while len(rows) < 60:
            are_connected()
            rows += receiver.poll(100, 0.01).messages()
        assert _numbers(rows) == list(range(60))
        assert [row.data for row in rows] == [LONG if n == 7 else b"%d" % n for n in range(60)]
        assert [dict(row.properties) for row in rows] == [{"number": n} for n in range(60)]
        assert receiver.stats()["hf_lost"] == 0
