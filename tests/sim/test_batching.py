"""Implicit, intelligent and explicit batching, with byte counts of Ultra Messaging (UM-16..UM-40, C2..C4, UX-25)."""

from __future__ import annotations

from tests.sim.conftest import Pair
from umstack.sim import MS, SECOND, Datagram, Kind, Session, Type

HEADER = 20  # the overhead of a DATA datagram
MESSAGE = 12  # the overhead of each message in it
OPTION = 4  # the overhead of the START or END of an explicit batch


def data(session: Session) -> list[Datagram]:
    """Return the datagrams with messages that a session has sent."""
    return [datagram for datagram in session.sent(Type.DATA) if datagram.fragments]


def sizes(session: Session) -> list[list[int]]:
    """Return the payload sizes in each of them."""
    return [[len(f.payload) for f in datagram.fragments] for datagram in data(session)]


def test_messages_of_any_topics_share_a_datagram(pair: Pair) -> None:
    """UM-16, UM-4, UM-22: small messages of three topics are sent as one datagram."""
    session = pair.publisher.session()
    sources = [session.source() for _ in range(3)]
    for source in sources:
        source.send(b"x" * 10)
    pair.world.run_for(1 * SECOND)
    assert [f.topic_index for f in data(session)[0].fragments] == [s.topic_index for s in sources]
    assert len(data(session)) == 1
    assert len(data(session)[0].data) == HEADER + 3 * (MESSAGE + 10)


def test_the_oldest_message_waits_the_interval(pair: Pair) -> None:
    """UM-17, UM-19b, UM-22: the interval, 200 ms by default, runs from the first message held, of any topic."""
    session = pair.publisher.session()
    first, second = session.source(), session.source()
    pair.world.run_for(10 * MS)
    first.send(b"1")
    pair.world.run_for(150 * MS)
    second.send(b"2")
    pair.world.run_for(1 * SECOND)
    assert [d.time_ns for d in data(session)] == [210 * MS]
    second.send(b"3")
    pair.world.run_for(1 * SECOND)
    assert data(session)[1].time_ns == 1160 * MS + 200 * MS
    assert session.counters["flushes_interval"] == 2


def test_minimum_length_is_tested_after_appending(pair: Pair) -> None:
    """UM-19a, UM-20, UM-32, C2, C3: the message that reaches the minimum length sends the batch; only user bytes
    count.
    """
    session = pair.publisher.session(batch_minimum_bytes=2048)
    source = session.source()
    for length in (1000, 1000, 47):
        source.send(bytes(length))
    assert data(session) == []
    source.send(b"x")  # 2048: the minimum is reached, not exceeded
    assert sizes(session) == [[1000, 1000, 47, 1]]
    source.send(bytes(2047))
    source.send(bytes(2047))
    assert sizes(session)[1] == [2047, 2047]  # longer than the minimum
    assert session.counters["flushes_length"] == 2


def test_two_messages_of_1900(pair: Pair) -> None:
    """UM-24: with a minimum of 2000, the first 1900 bytes are held, and the next 1900 bytes complete a
    datagram of 3800 bytes plus overhead.
    """
    session = pair.publisher.session(batch_minimum_bytes=2000)
    source = session.source()
    receiver = pair.subscriber.receiver()
    receiver.join(source)
    source.send(b"a" * 1900)
    assert data(session) == []
    source.send(b"b" * 1900)
    assert [len(d.data) for d in data(session)] == [HEADER + 2 * MESSAGE + 3800]
    pair.world.run_for(10 * MS)
    assert receiver.messages == [b"a" * 1900, b"b" * 1900]


def test_the_datagram_maximum_is_tested_before_appending(pair: Pair) -> None:
    """UM-19c, UM-21: a message that does not fit sends the batch first; no datagram exceeds the maximum."""
    session = pair.publisher.session(batch_minimum_bytes=8000, datagram_max_bytes=1472)
    source = session.source()
    for length in (700, 700, 30, 1):
        source.send(bytes(length))
    assert sizes(session) == [[700, 700]]
    assert session.counters["flushes_full"] == 1
    source.flush()
    assert sizes(session) == [[700, 700], [30, 1]]
    assert max(len(d.data) for d in data(session)) <= 1472


def test_maximum_wins_over_minimum(pair: Pair) -> None:
    """UM-21: with a minimum above the maximum, datagrams are filled to the maximum."""
    session = pair.publisher.session(batch_minimum_bytes=8000, datagram_max_bytes=1000)
    source = session.source()
    for _ in range(100):
        source.send(bytes(80))
    full = (1000 - HEADER) // (MESSAGE + 80)
    assert sizes(session) == [[80] * full] * (99 // full)  # the last messages are still held


def test_a_flush_sends_everything_of_the_session(pair: Pair) -> None:
    """UM-19d, UM-27, UM-30, UM-32: FLUSH on the last of several sends sends the whole batch immediately."""
    session = pair.publisher.session()
    first, second = session.source(), session.source()
    pair.world.run_for(5 * MS)
    first.send(b"1")
    first.send(b"2")
    second.send(b"3", flush=True)
    assert [(d.time_ns, len(d.fragments)) for d in data(session)] == [(5 * MS, 3)]
    first.send(b"4")
    second.flush()  # UM-27: not a message of this source
    assert sizes(session)[1:] == [[1]]


def test_a_flushed_message_that_does_not_fit_follows_the_batch(pair: Pair) -> None:
    """C4: the batch is sent first and the message follows; neither is delayed."""
    session = pair.publisher.session(batch_minimum_bytes=8000, datagram_max_bytes=1472)
    source = session.source()
    source.send(bytes(1000))
    source.send(bytes(800), flush=True)
    assert sizes(session) == [[1000], [800]]


def test_a_minimum_of_one_turns_batching_off(pair: Pair) -> None:
    """UM-25: every message is sent immediately in its own datagram."""
    session = pair.publisher.session(batch_minimum_bytes=1)
    source = session.source()
    for _ in range(3):
        source.send(b"x")
    assert sizes(session) == [[1], [1], [1]]


def test_options_of_the_session_hold_for_later_sources(pair: Pair) -> None:
    """UM-18: batching belongs to the session: the same minimum holds a second source's messages."""
    session = pair.publisher.session(batch_minimum_bytes=100)
    first = session.source()
    first.send(bytes(60))
    session.source().send(bytes(60))
    assert sizes(session) == [[60, 60]]


def test_a_message_that_fits_is_not_split(pair: Pair) -> None:
    """UM-42, UM-47, UX-25: a message of the maximum size fits one datagram; one more byte does not."""
    session = pair.publisher.session(datagram_max_bytes=1472, batch_minimum_bytes=1)
    source = session.source()
    most = 1472 - HEADER - MESSAGE
    assert source.send(bytes(most)) == 0
    assert source.send(bytes(most + 1)) == 2
    chunk = most - 16
    assert sizes(session) == [[most], [chunk], [most + 1 - chunk]]
    assert [f.fragment for d in data(session)[1:] for f in d.fragments] == [
        (1, 0, most + 1),
        (1, chunk, most + 1),
    ]
    assert len(data(session)[1].data) == 1472


# ---- explicit batches ----


def test_a_group_is_withheld_until_its_end(pair: Pair) -> None:
    """UM-34, UM-35: neither the minimum length nor the interval releases a group before END."""
    session = pair.publisher.session(batch_minimum_bytes=2048)
    source = session.source()
    source.send(bytes(3000), batch="start")
    source.send(bytes(3000))
    pair.world.run_for(1 * SECOND)
    assert data(session) == []
    source.send(bytes(3000), batch="end")
    pair.world.run_for(1 * SECOND)
    assert sorted(size for row in sizes(session) for size in row) == [3000] * 3
    assert {d.time_ns for d in data(session)} == {1 * SECOND}


def test_the_end_of_a_group_starts_implicit_batching(pair: Pair) -> None:
    """UM-36: a small group still waits for the interval, together with the messages sent before it."""
    session = pair.publisher.session()
    source, other = session.source(), session.source()
    other.send(b"before")
    pair.world.run_for(50 * MS)
    source.send(b"1", batch="start")
    source.send(b"2", batch="end")
    assert data(session) == []
    pair.world.run_for(1 * SECOND)
    assert [(d.time_ns, [f.payload for f in d.fragments]) for d in data(session)] == [
        (200 * MS, [b"before", b"1", b"2"])
    ]


def test_ten_messages_end_a_batch(pair: Pair) -> None:
    """UM-38: with a minimum of 8000, a maximum of 8192 and 7899 bytes held, the second of ten messages makes
    8099 bytes and the batch is sent; eight messages wait.
    """
    session = pair.publisher.session(batch_minimum_bytes=8000, datagram_max_bytes=8192)
    source, other = session.source(), session.source()
    other.send(bytes(7899))
    for number in range(10):
        batch = {0: "start", 9: "end"}.get(number)
        source.send(bytes([number]) * 100, batch=batch)
    assert sizes(session) == [[7899, 100, 100]]
    assert sum(sizes(session)[0]) == 8099
    assert len(data(session)[0].data) == HEADER + 3 * MESSAGE + OPTION + 8099
    pair.world.run_for(1 * SECOND)
    assert sizes(session)[1:] == [[100] * 8]
    assert data(session)[1].time_ns == 200 * MS


def test_the_marks_of_a_group_reach_the_receiver(pair: Pair) -> None:
    """UM-37: START and END are fields of the message that the receiver sees; COMPLETE sets both (UM-34)."""
    source = pair.publisher.session(batch_minimum_bytes=1).source()
    receiver = pair.subscriber.receiver()
    receiver.join(source)
    source.send(b"1", batch="start")
    source.send(b"2")
    source.send(b"3", batch="end")
    source.send(b"4", batch="complete")
    source.send(b"5")
    pair.world.run_for(10 * MS)
    messages = [row for row in receiver.rows if row.kind is Kind.MESSAGE]
    assert [(row.payload, row.flags) for row in messages] == [
        (b"1", 1),
        (b"2", 0),
        (b"3", 2),
        (b"4", 3),
        (b"5", 0),
    ]


def test_a_flush_sends_an_open_group(pair: Pair) -> None:
    """UM-40: FLUSH on a send, or a separate flush, sends the messages of an open group."""
    session = pair.publisher.session()
    source = session.source()
    source.send(b"1", batch="start")
    source.send(b"2", flush=True)
    assert sizes(session) == [[1, 1]]
    source.send(b"3")
    assert sizes(session) == [[1, 1]]
    source.flush()
    assert sizes(session) == [[1, 1], [1]]


def test_a_group_may_be_lost_in_part(pair: Pair) -> None:
    """UM-39: a group that fills several datagrams is not a transaction: the receiver can lose its middle and
    still get its end.
    """
    session = pair.publisher.session(batch_minimum_bytes=1, datagram_max_bytes=1000)
    source = session.source(tsni_interval_ns=0)
    receiver = pair.subscriber.receiver(loss_check_interval_ns=100 * MS)
    receiver.join(source, nak_generation_ns=1 * SECOND)
    source.send(b"0", flush=True)
    pair.world.rule("drop", Type.DATA, sqns=2)
    for batch in ("start", None, "end"):
        source.send(bytes(900), batch=batch)
    pair.world.run_for(3 * SECOND)
    kinds = [(row.kind, row.sequence_number) for row in receiver.rows[2:]]
    assert kinds == [(Kind.MESSAGE, 1), (Kind.UNRECOVERABLE_LOSS, 2), (Kind.MESSAGE, 3)]


def test_many_messages_in_one_call_follow_the_same_rules(pair: Pair) -> None:
    """UM-19a, UM-19c: sending a list fills datagrams in the same way as sending its messages one by one."""
    session = pair.publisher.session(batch_minimum_bytes=2048, datagram_max_bytes=1472)
    one, many = (
        session.source(),
        pair.publisher.session(batch_minimum_bytes=2048, datagram_max_bytes=1472).source(),
    )
    messages = [bytes(50 + 7 * i % 300) for i in range(60)]
    for message in messages:
        one.send(message)
    assert many.send_many(messages) == 60
    one.flush()
    many.flush()
    assert sizes(session) == sizes(many.session)
