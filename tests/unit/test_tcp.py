"""Sources and receivers over TCP: pacing, buffers, segmentation, reconnecting, the end of a session."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.loopback import SMALL_QUEUE, collect_events, connect, connect_contexts, open_context, payloads
from tests.unit.tcp_peers import (
    RawSource,
    control_session_id,
    message,
    ssf_init,
    ssf_request,
    topic_limit,
    tsni,
)
from tests.unit.ways import (
    FROM_AND_TO_A_DRIVER,
    FULL_LOG,
    ITS_COUNTERS,
    ITS_SESSION,
    MAPS_ITSELF,
    alone,
)
from tests.waiting import SECONDS, collect, wait_for
from umstack import (
    BeginningOfSession,
    BurstLoss,
    Context,
    EndOfSession,
    Message,
    Receiver,
    Source,
    UnrecoverableLoss,
)
from umstack._engine.transport_address import TcpAddress
from umstack.errors import BackPressured, NotConnected

pytestmark = pytest.mark.usefixtures("way")
USUAL_WAYS = FROM_AND_TO_A_DRIVER
LONGEST_WHOLE = 65535 - 12
"""Payload of the longest message that LBMC carries in one piece."""


def connected(sending: Context, receiving: Context, topic: str, **options: Any) -> tuple[Source, Receiver]:
    """Return a source over TCP and a receiver of another context that is its client."""
    return connect_contexts(sending, receiving, topic, transport="tcp", **options)


def test_messages_of_every_length_arrive_whole_and_in_order() -> None:
    """Messages from empty to more than 64 KiB arrive, sent one at a time and in batches."""
    lengths = [0, 1, 100, 1472, 8192, LONGEST_WHOLE, LONGEST_WHOLE + 1, 300_000]
    with open_context() as context:
        source, receiver = connect(context, "lengths", transport="tcp")
        sent = [bytes([i]) * length for i, length in enumerate(lengths)]
        for data in sent:
            source.send(data, flush=True)
        assert payloads(collect(receiver, len(sent))) == sent
        many = [b"%d" % i for i in range(20_000)]
        assert source.send_many(many, flush=True, timeout=SECONDS) == len(many)
        assert payloads(collect(receiver, len(many))) == many
        with source.claim(5, flush=True) as view:
            view[:] = b"claim"
        assert payloads(collect(receiver, 1)) == [b"claim"]
        assert source.known_receivers == 1
        assert source.transport.startswith("TCP:127.0.0.1:")


def test_one_thread_runs_both_ends_in_sequential_mode() -> None:
    """UM-14: a waiting send runs the loop, so that its condition can come true."""
    with open_context("sequential") as context:
        receiver = context.receiver("sequential")
        source = context.source("sequential", transport="tcp", transport_tcp_sender_socket_buffer=65536)
        source.wait_connected(timeout=SECONDS)
        many = [b"%d" % i + bytes(100) for i in range(20_000)]
        assert source.send_many(many, flush=True, timeout=SECONDS) == len(many)
        assert payloads(collect(receiver, len(many))) == many


def test_small_messages_are_batched_until_a_flush(sending: Context, receiving: Context) -> None:
    """UM-16, UM-17, UM-27: batching over TCP works as it does over datagrams."""
    source, receiver = connected(sending, receiving, "batched", implicit_batching_interval=60_000)
    with source, receiver:
        source.send(b"a")
        source.send(b"b")
        assert receiver.poll(1, 0.1).messages() == []
        source.flush()
        assert payloads(collect(receiver, 2)) == [b"a", b"b"]
        source.send(bytes(3000))
        assert len(collect(receiver, 1)) == 1
        assert source.stats()["flushes_explicit"] == source.stats()["flushes_length"] == 1


@alone(FULL_LOG)
def test_a_slow_receiver_blocks_the_source_and_loses_nothing(sending: Context, receiving: Context) -> None:
    """A source is receiver-paced: a send without a timeout is refused, and succeeds once
    there is space.
    """
    source, receiver = connected(
        sending,
        receiving,
        "held",
        transport_tcp_sender_socket_buffer=65536,
        flow_control_stall_timeout=0,
        **SMALL_QUEUE,
    )
    with source, receiver:
        sent = _send_until_refused(source)
        assert 0 < source.stats()["bytes_buffered"] <= 131072
        finished = threading.Event()

        def resume() -> None:
            for number in range(sent, sent + 2000):
                source.send(b"%d" % number + bytes(500))
            source.flush()
            finished.set()

        thread = threading.Thread(target=resume)
        thread.start()
        for number, one in enumerate(collect(receiver, sent + 2000, 3 * SECONDS)):
            assert one.data.startswith(b"%d\0" % number)
        thread.join(SECONDS)
        assert finished.is_set()
        assert source.wait_drained(SECONDS)
        assert source.stats()["client_messages_lost"] == 0


def _send_until_refused(source: Source) -> int:
    """Return the number of messages accepted before the first refusal."""
    for number in range(200_000):
        try:
            source.send(b"%d" % number + bytes(500), timeout=0)
        except BackPressured:
            return number
    raise AssertionError("the source never blocked")


@alone(ITS_COUNTERS)
def test_a_slow_receiver_of_a_source_paced_source_loses_whole_messages(
    sending: Context, receiving: Context, both: dict[str, Any]
) -> None:
    """C16: the receiver gets the lost numbers immediately, the source gets an event with the
    receiver, and another receiver loses nothing.
    """
    source, slow = connected(
        sending,
        receiving,
        "paced",
        transport_tcp_multiple_receiver_behavior="source_paced",
        transport_tcp_sender_socket_buffer=65536,
        **SMALL_QUEUE,
    )
    with source, slow, open_context(**both) as other, other.receiver("paced") as fast:
        source.wait_connected(2, SECONDS)
        got: list[Message] = []
        sent = 0
        while source.stats()["client_messages_lost"] < 3000:
            source.send_many([b"%d" % number + bytes(400) for number in range(sent, sent + 100)], flush=True)
            sent += 100
            got += collect(fast, 100)
        rows: list[Any] = []
        # The last message must not be lost, too: until the kernel's buffers are empty, it finds no space.
        while (more := slow.poll(1000, 0.2).events()) or not source.wait_drained(timeout=0):
            rows += more
        source.send(b"last", flush=True)
        assert [one.data.split(b"\0")[0] for one in got] == [b"%d" % number for number in range(sent)]
        assert payloads(collect(fast, 1)) == [b"last"]
        rows += _until_last(slow)
        messages = [row for row in rows if isinstance(row, Message)]
        numbers = [int(one.data.split(b"\0")[0]) for one in messages[:-1]]
        assert numbers == sorted(set(numbers))
        assert all(len(one.data) == len(b"%d" % n) + 400 for one, n in zip(messages, numbers, strict=False))
        lost = sum(_lost_in(row) for row in rows)
        assert lost == sent - len(numbers) > 0
        events = [event for event in source.receiver_events() if event.kind == "receiver_loses"]
        assert events[0].amount > 0
        # A lost burst includes messages that arrived during it and were not delivered yet.
        assert lost >= source.stats()["client_messages_lost"] >= 3000


def _until_last(receiver: Receiver) -> list[Any]:
    rows: list[Any] = []
    deadline = time.monotonic() + SECONDS
    while not rows or not isinstance(rows[-1], Message) or rows[-1].data != b"last":
        rows += receiver.poll(1000, 0.1).events()
        assert time.monotonic() < deadline, rows[-3:]
    return rows


def _lost_in(row: Any) -> int:
    if isinstance(row, UnrecoverableLoss):
        return 1
    if isinstance(row, BurstLoss):
        return row.sequence_number - row.first_sequence_number + 1
    return 0


def test_a_session_starts_and_ends_with_its_source(sending: Context, receiving: Context) -> None:
    """UM-76, UM-105: the first message delivers BOS, and closing the source delivers EOS without a timeout."""
    source, receiver = connected(sending, receiving, "ends")
    with receiver:
        source.send(b"only", flush=True)
        source.close()
        rows = collect_events(receiver, 3)
        assert [type(row) for row in rows] == [BeginningOfSession, Message, EndOfSession]


def test_messages_sent_before_close_arrive(sending: Context, receiving: Context) -> None:
    """Closing a source waits briefly for clients to read the rest."""
    source, receiver = connected(sending, receiving, "closing", transport_tcp_sender_socket_buffer=65536)
    with receiver:
        source.send_many([bytes(1000)] * 2000)
        closing = threading.Thread(target=source.close)
        closing.start()
        assert len(collect(receiver, 2000)) == 2000
        closing.join(SECONDS)


def _break_connections(context: Context, source: Source) -> int:
    """Cut this process' connections to the source, as a broken cable would; return their number."""
    _, address, port, _ = source.transport.split(":")
    cut = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as peer:
                if peer.getpeername() == (address, int(port)):
                    peer.shutdown(socket.SHUT_RDWR)
                    cut += 1
    return cut


@alone(ITS_SESSION)
def test_a_broken_connection_is_reopened_and_the_gap_is_declared(
    sending: Context, receiving: Context
) -> None:
    """UM-108, UM-110: the session continues; messages sent meanwhile are reported lost by number, in order."""
    source, receiver = connected(sending, receiving, "broken")
    with source, receiver:
        source.send(b"before", flush=True)
        assert payloads(collect(receiver, 1)) == [b"before"]
        assert _break_connections(sending, source) == 1
        wait_for(lambda: source.stats()["num_clients"] == 0, "the source misses its client")
        for _ in range(3):
            source.send(b"meanwhile", flush=True)
        source.wait_connected(timeout=SECONDS)
        source.send(b"after", flush=True)
        rows = collect_events(receiver, 4)
        assert [type(row) for row in rows] == [UnrecoverableLoss] * 3 + [Message]
        assert [row.sequence_number for row in rows] == [1, 2, 3, 4]
        kinds = [event.kind for event in source.receiver_events()]
        assert kinds == ["connect", "disconnect", "connect"]
        sessions = receiving.stats()["receiver_transports"]
        (session,) = [one for one in sessions if one["transport"] == source.transport]
        assert (session["connects"], session["disconnects"]) == (2, 1)


@alone(ITS_SESSION)
def test_a_gap_of_a_broken_connection_is_recovered_off_transport(
    sending: Context, receiving: Context
) -> None:
    """UM-108, UM-110, UM-142: a source with late_join delivers the missed messages, in order."""
    source, receiver = connected(sending, receiving, "closed", late_join=1, use_otr=1)
    with source, receiver:
        source.send(b"before", flush=True)
        assert payloads(collect(receiver, 1)) == [b"before"]
        assert _break_connections(sending, source) == 1
        wait_for(lambda: source.stats()["num_clients"] == 0, "the source misses its client")
        missed = [b"missed %d" % i for i in range(50)] + [bytes(70_000)]
        for data in missed:
            source.send(data, flush=True)
        source.wait_connected(timeout=SECONDS)
        source.send(b"after", flush=True)
        assert payloads(collect(receiver, len(missed) + 1)) == [*missed, b"after"]


def test_a_late_joiner_gets_the_past_over_tcp(sending: Context, receiving: Context) -> None:
    """UM-140: late join does not depend on the transport."""
    with sending.source("past", transport="tcp", late_join=1) as source:
        past = [b"%d" % i for i in range(100)]
        source.send_many(past, flush=True)
        with receiving.receiver("past") as receiver:
            source.wait_connected(timeout=SECONDS)
            source.send(b"now", flush=True)
            assert payloads(collect(receiver, 101)) == [*past, b"now"]


def test_topics_share_sessions_as_the_pool_allows(sending: Context) -> None:
    """UX-10: sources get new sessions up to transport_tcp_maximum_ports, then the existing ones in turn; a
    source with an explicit port joins its session.
    """
    with open_context(transport_tcp_maximum_ports=2) as context:
        names = [context.source(f"pool{i}", transport="tcp").transport for i in range(5)]
        assert len(set(names)) == 2
        assert names[2] == names[4] != names[3]
        port = int(names[0].split(":")[2])
        assert context.source("explicit", transport="tcp", transport_tcp_port=port).transport == names[0]


def test_waiting_for_clients_ends(sending: Context) -> None:
    """UX-11: a source over TCP knows its receivers with any flow control."""
    with sending.source("nobody", transport="tcp") as source:
        with pytest.raises(NotConnected):
            source.wait_connected(timeout=0.05)
        source.send(b"to nobody", flush=True)
        assert source.wait_drained(1)


# A source simulated by the test


def _follow(receiving: Context, raw: RawSource, topic: str, **options: Any) -> Receiver:
    """Return a receiver that is mapped to the simulated source as if by an advertisement."""
    receiver = receiving.receiver(topic, **options)
    receiving._engine.map_source(topic, 7, TcpAddress("127.0.0.1", raw.session_id, raw.port))
    return receiver


@alone(MAPS_ITSELF)
def test_a_stream_cut_anywhere_is_read(receiving: Context) -> None:
    """Segments of one byte and of any length, including the longest message."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    sent = [bytes([i % 256]) * choose.choice([0, 1, 50, 5000]) for i in range(300)] + [bytes(LONGEST_WHOLE)]
    stream = b"".join(message(7, sqn, data) for sqn, data in enumerate(sent))
    with RawSource() as raw, _follow(receiving, raw, "cut") as receiver:
        peer = raw.accept()
        assert raw.greeting(peer) == control_session_id(raw.session_id)
        at = 0
        while at < len(stream):
            size = 1 if at < 2000 else choose.randrange(1, 40_000)
            peer.sendall(stream[at : at + size])
            at += size
        assert payloads(collect(receiver, len(sent))) == sent


@alone(MAPS_ITSELF)
@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\x00\x00\x00\x05hello", b"\xff" * 100]
)
def test_a_source_that_sends_garbage_is_disconnected(receiving: Context, garbage: bytes) -> None:
    """The connection is closed and counted and retried with a back-off; then the session ends."""
    options: dict[str, Any] = {"transport_tcp_reconnect_interval": 5, "transport_tcp_reconnect_timeout": 200}
    with RawSource() as raw, _follow(receiving, raw, f"garbage{garbage[0]}", **options) as receiver:
        begun = time.monotonic()
        while time.monotonic() < begun + 0.6:
            with contextlib.suppress(TimeoutError):
                raw.accept(0.1).sendall(garbage)
        assert 3 <= raw.accepted <= 60
        wait_for(lambda: not receiver.stats()["delivery_controllers"], "the session has ended")


@alone(MAPS_ITSELF)
def test_an_announced_end_ends_the_session(receiving: Context) -> None:
    """UM-105: messages before the end are delivered, and the receiver does not reconnect."""
    with RawSource() as raw, _follow(receiving, raw, "said") as receiver:
        peer = raw.accept()
        peer.sendall(message(7, 0, b"x") + bytes.fromhex("01ff0004"))
        rows = collect_events(receiver, 3)
        assert [type(row) for row in rows] == [BeginningOfSession, Message, EndOfSession]
        with pytest.raises(TimeoutError):
            raw.accept(0.3)


@alone(MAPS_ITSELF)
def test_a_tsni_after_a_reconnect_reveals_losses(receiving: Context) -> None:
    """UM-63, UM-108: the last number of an idle topic reveals its loss."""
    with RawSource() as raw, _follow(receiving, raw, "idle", transport_tcp_reconnect_interval=5) as receiver:
        peer = raw.accept()
        peer.sendall(message(7, 0, b"x"))
        assert payloads(collect(receiver, 1)) == [b"x"]
        peer.close()
        peer = raw.accept()
        peer.sendall(tsni(7, 3))
        rows = collect_events(receiver, 3)
        assert [(type(row), row.sequence_number) for row in rows] == [
            (UnrecoverableLoss, n) for n in (1, 2, 3)
        ]
        peer.sendall(message(7, 500_000_000, b"y"))
        burst, after = collect_events(receiver, 2)
        assert isinstance(burst, BurstLoss), "a long outage is one event, for any number of messages"
        assert (burst.first_sequence_number, burst.sequence_number) == (4, 499_999_999)
        assert isinstance(after, Message)


@alone(MAPS_ITSELF)
def test_a_missing_source_ends_its_session(receiving: Context) -> None:
    """A forged advertisement causes only a few attempts, and the session ends."""
    with RawSource() as raw:
        port = raw.port
    options: dict[str, Any] = {"transport_tcp_reconnect_interval": 5, "transport_tcp_reconnect_timeout": 100}
    with receiving.receiver("lied", **options) as receiver:
        receiving._engine.map_source("lied", 7, TcpAddress("127.0.0.1", 1, port))
        (row,) = collect_events(receiver, 1)
        assert isinstance(row, EndOfSession)


def test_a_topic_requested_again_starts_without_losses(sending: Context, receiving: Context) -> None:
    """UX-27: messages that a source skipped between two receivers of a topic are not reported lost to the
    second, which gets none of the messages in flight to the first."""
    options = {
        "transport": "tcp",
        "transport_session_name": "again",
        "transport_source_side_filtering_behavior": "inclusion",
    }
    with (
        sending.source("again", **options) as source,
        sending.source("kept", **options) as kept,
        receiving.receiver("kept", **SMALL_QUEUE) as holding,
    ):
        assert source.transport == kept.transport
        kept.wait_connected(timeout=SECONDS)
        numbers = iter(range(1_000_000))

        def send(count: int) -> None:
            for _ in range(count):
                source.send(b"%d" % next(numbers), flush=True)

        def controllers(receiver: Receiver) -> bool:
            return bool(receiver.stats()["delivery_controllers"])

        for _ in range(20):
            first = receiving.receiver("again")
            wait_for(partial(controllers, first), "the first receiver knows the source")
            wait_for(lambda: send(1) or len(first.poll(100, 0.01)) > 0, "messages of the topic")  # noqa: B023
            kept.send_many([bytes(1000)] * 100, flush=True, timeout=SECONDS)  # more than its queue can hold
            send(20)
            first.close()
            passing_over = time.monotonic() + 0.005
            while time.monotonic() < passing_over:
                send(1)
            with receiving.receiver("again") as second:
                wait_for(partial(controllers, second), "the second receiver knows the source")
                send(50)
                collect(holding, 100)
                rows: list[Any] = []
                while not any(isinstance(row, Message) and row.data == b"last" for row in rows):
                    source.send(b"last", flush=True)
                    rows += second.poll(1000, 0.05).events()
            assert not [row for row in rows if isinstance(row, (UnrecoverableLoss, BurstLoss))]


@alone(MAPS_ITSELF)
@pytest.mark.parametrize("answering", [True, False])
def test_a_topic_requested_again_waits_for_its_own_answer(receiving: Context, answering: bool) -> None:
    """UX-27: a topic that is requested again waits neither for the answer to an earlier request nor for a
    source that sends no answers.
    """
    names = f"answer-kept-{answering}", f"answer-{answering}"
    raw = RawSource()

    def request(topic: int, *, included: bool = True) -> bytes:
        limit = topic_limit(topic, 2**21 if included else 0)  # to a source that answers, which is ours
        return ssf_request(raw.session_id, 0, topic, included=included) + (limit if answering else b"")

    length = len(request(8))
    with raw, _follow(receiving, raw, names[0]), receiving.receiver(names[1]) as first:
        where = TcpAddress("127.0.0.1", raw.session_id, raw.port)
        receiving._engine.map_source(names[1], 8, where)
        peer = raw.accept()
        raw.greeting(peer)
        peer.sendall(ssf_init(raw.session_id, answering=answering))
        said = raw.read(peer, 2 * length)
        assert {said[:length], said[length:]} == {request(7), request(8)}
        first.close()
        assert raw.read(peer, length) == request(8, included=False)
        with receiving.receiver(names[1]) as second:
            receiving._engine.map_source(names[1], 8, where)
            assert raw.read(peer, length) == request(8)
            peer.sendall(message(8, 5, b"old"))
            for count in (2, 3) if answering else ():
                peer.sendall(ssf_request(raw.session_id, count, 8) + tsni(8, 5) + message(8, 6, b"old"))
            if answering:
                peer.sendall(ssf_request(raw.session_id, 4, 8))
            sqn = 9 if answering else 6
            peer.sendall(message(8, sqn, b"new") + message(8, sqn + 1, b"end"))
            rows = collect_events(second, 3 if answering else 4)
            assert [row.data for row in rows if isinstance(row, Message)] == [
                *([] if answering else [b"old"]),
                b"new",
                b"end",
            ]
            assert isinstance(rows[0], BeginningOfSession)
            assert not [row for row in rows if isinstance(row, (UnrecoverableLoss, BurstLoss))]
            if answering:
                (session,) = [
                    one
                    for one in receiving.stats()["receiver_transports"]
                    if one["transport"].endswith(f"{raw.session_id:08x}")
                ]
                assert session["msgs_before_interest"] == 3
