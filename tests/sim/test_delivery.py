"""The delivery controller: demultiplexing, ordering, reassembly and loss events (UM-7..UM-12, UM-53..UM-61,
UM-76, UM-81, UM-101, UX-6..UX-9, UX-22, UX-24, UX-25)."""

from __future__ import annotations

import pytest

from tests.sim.conftest import DELAY, Pair
from tests.sim.product import product_join, product_session
from umstack.sim import MS, SECOND, Fate, Join, Kind, Source, Type

NAK_AT_ONCE = {"nak_initial_backoff_ns": 0}


def messages(join: Join) -> list[tuple[int, bytes]]:
    """Return delivery times and messages."""
    return [(row.time_ns, row.payload) for row in join.rows if row.kind is Kind.MESSAGE]


def send_each(source: Source, *payloads: bytes) -> None:
    """Send one datagram for each payload, all at the same time."""
    for payload in payloads:
        source.send(payload, flush=True)


def test_each_subscribed_topic_has_its_controller(pair: Pair) -> None:
    """UM-7: two receivers of a topic both get its message, the receiver of another topic gets its own, and
    messages of other topics are dropped.
    """
    session = pair.publisher.session()
    a, b, c = session.source(), session.source(), session.source()
    first, second, third = (pair.subscriber.receiver() for _ in range(3))
    joins = [first.join(a), second.join(a), third.join(b)]
    for source in (a, b, c):
        source.send(bytes([source.topic_index]))
    a.flush()
    pair.world.run_for(10 * MS)
    assert [receiver.messages for receiver in (first, second, third)] == [[b"\x01"], [b"\x01"], [b"\x02"]]
    assert joins[0].counters["lbm_msgs_rcved"] == 3
    assert joins[0].counters["lbm_msgs_no_topic_rcved"] == 1
    assert pair.subscriber.counters["sessions"] == 1


def test_one_receiver_follows_a_topic_of_two_sessions(pair: Pair) -> None:
    """UM-54: order is kept within one source; a receiver has one controller for each source."""
    first, second = (pair.publisher.session(group=n).source(topic_index=7) for n in range(2))
    receiver = pair.subscriber.receiver()
    joins = [receiver.join(source, **NAK_AT_ONCE) for source in (first, second)]
    pair.world.rule("drop", Type.DATA, sqns=1, retransmission=False, count=1)
    send_each(first, b"a0", b"a1", b"a2")
    send_each(second, b"b0", b"b1", b"b2")
    pair.world.run_for(100 * MS)
    assert [payload for _, payload in messages(joins[0])] == [b"a0", b"a1", b"a2"]
    assert [payload for _, payload in messages(joins[1])] == [b"b0", b"b1", b"b2"]
    assert receiver.messages != sorted(receiver.messages)  # b did not wait for a's retransmission


def test_sequence_order_waits_for_the_missing_one(pair: Pair) -> None:
    """UM-8, UM-9, UM-55: messages after a gap wait in the order map until the missing message is recovered."""
    source = pair.publisher.session().source()
    join = pair.subscriber.receiver().join(source, **NAK_AT_ONCE)
    pair.world.rule("drop", Type.DATA, sqns=1, retransmission=False)
    send_each(source, b"0", b"1", b"2", b"3")
    pair.world.run_for(2 * DELAY)
    assert messages(join) == [(DELAY, b"0")]
    assert join.probe.held_count == pair.subscriber.counters["hold_store_datagrams"] == 2
    pair.world.run_for(10 * MS)
    repaired = 3 * DELAY  # one trip for the data, one for the NAK, one for the retransmission
    assert messages(join) == [(DELAY, b"0"), (repaired, b"1"), (repaired, b"2"), (repaired, b"3")]
    assert join.probe.held_count == 0


def test_arrival_order_delivers_at_once(pair: Pair) -> None:
    """UM-12, UM-56, UM-8: newer messages are delivered immediately and not stored, and the recovered one when it
    arrives.
    """
    source = pair.publisher.session().source()
    join = pair.subscriber.receiver(ordered_delivery=-1).join(source, **NAK_AT_ONCE)
    pair.world.rule("drop", Type.DATA, sqns=1, retransmission=False)
    send_each(source, b"0", b"1", b"2", b"3")
    pair.world.run_for(2 * DELAY)
    assert pair.subscriber.counters["hold_store_datagrams"] == 0
    pair.world.run_for(10 * MS)
    assert messages(join) == [(DELAY, b"0"), (DELAY, b"2"), (DELAY, b"3"), (3 * DELAY, b"1")]


def test_loss_delays_only_the_topics_it_carried(pair: Pair) -> None:
    """UM-11, UM-54: a loss does not delay another topic of the same session."""
    session = pair.publisher.session()
    a, b = session.source(), session.source()
    join_a, join_b = (pair.subscriber.receiver().join(source) for source in (a, b))
    send_each(a, b"a0")
    send_each(b, b"b0")
    pair.world.rule("drop", Type.DATA, sqns=2, retransmission=False)
    send_each(a, b"a1", b"a2")
    send_each(b, b"b1")
    pair.world.run_for(200 * MS)
    assert [payload for _, payload in messages(join_a)] == [b"a0", b"a1", b"a2"]
    assert messages(join_a)[-1][0] > 25 * MS
    assert messages(join_b) == [(DELAY, b"b0"), (DELAY, b"b1")]


LARGE = bytes(range(200)) * 100  # 20000 bytes: three fragments of at most 8144


@pytest.mark.parametrize("mode", [1, -1])
def test_large_messages_are_one_callback(pair: Pair, mode: int) -> None:
    """UM-5, UM-53, UM-55..UM-57, UM-59: a fragmented message is reassembled; it has the sqn of its last fragment,
    so visible sqns have holes.
    """
    source = pair.publisher.session().source()
    join = pair.subscriber.receiver(ordered_delivery=mode).join(source)
    send_each(source, b"small", LARGE, b"small")
    pair.world.run_for(10 * MS)
    rows = [row for row in join.rows if row.kind is Kind.MESSAGE]
    assert [(row.first_sequence_number, row.sequence_number, row.message_length) for row in rows] == [
        (0, 0, 5),
        (1, 3, 20000),
        (4, 4, 5),
    ]
    assert rows[1].payload == LARGE


def test_mode_0_delivers_fragments_on_arrival(pair: Pair) -> None:
    """UM-53, UM-58: in mode 0 each fragment is delivered with its offset; a small message has no fragment
    information.
    """
    source = pair.publisher.session().source()
    join = pair.subscriber.receiver(ordered_delivery=0).join(source, **NAK_AT_ONCE)
    pair.world.rule("drop", Type.DATA, sqns=2, retransmission=False)
    send_each(source, b"small", LARGE)
    pair.world.run_for(10 * MS)
    rows = [row for row in join.rows if row.kind is Kind.MESSAGE]
    assert [row.sequence_number for row in rows] == [0, 1, 3, 2]  # UM-60: the fragments arrive out of order
    assert {row.first_sequence_number for row in rows[1:]} == {1}
    assert {row.message_length for row in rows[1:]} == {20000}
    rebuilt = bytearray(20000)
    for row in rows[1:]:
        rebuilt[row.fragment_offset : row.fragment_offset + len(row.payload)] = row.payload
    assert bytes(rebuilt) == LARGE
    assert (rows[0].fragment_offset, rows[0].message_length) == (0, 5)


def test_a_lost_fragment(pair: Pair) -> None:
    """UM-60, UM-56: mode 0 reports the lost fragment; modes -1 and 1 drop the message and continue."""
    source = pair.publisher.session().source(tsni_interval_ns=500 * MS)
    options = {"send_naks": False, "nak_generation_ns": 1 * SECOND}
    joins = [pair.subscriber.receiver(ordered_delivery=mode).join(source, **options) for mode in (0, -1, 1)]
    pair.world.rule("drop", Type.DATA, sqns=2)
    send_each(source, b"before", LARGE, b"behind")
    pair.world.run_for(3 * SECOND)
    reported = [[(row.kind, row.sequence_number) for row in join.rows[1:]] for join in joins]
    lost, got = (Kind.UNRECOVERABLE_LOSS, 2), Kind.MESSAGE
    assert reported == [
        [(got, 0), (got, 1), (got, 3), (got, 4), lost],
        [(got, 0), (got, 4), lost],
        [(got, 0), lost, (got, 4)],
    ]


def test_duplicates_are_dropped_in_every_mode(pair: Pair) -> None:
    """UM-61, C9: a datagram that arrives again, immediately or much later, is delivered once, also in modes
    -1 and 0.
    """
    source = pair.publisher.session().source()
    joins = [pair.subscriber.receiver(ordered_delivery=mode).join(source) for mode in (1, -1, 0)]
    pair.world.rule("duplicate", Type.DATA)
    send_each(source, b"0", LARGE, b"2")
    pair.world.run_for(10 * MS)
    again = pair.world.trace(Fate.RECEIVED, Type.DATA)[0]
    group = ("224.10.10.10", 14400)
    pair.world.inject(again.data, pair.subscriber, group, ("10.0.0.1", 40000))
    pair.world.run_for(10 * MS)
    for join in joins:
        assert len(messages(join)) in (3, 5)
        assert len(set(messages(join))) == len(messages(join))
    assert joins[0].counters["duplicate_data"] == 6


def test_one_event_for_each_lost_message(pair: Pair) -> None:
    """UM-101: a gap of five messages causes five loss events, at their place in the order."""
    source = pair.publisher.session().source(tsni_interval_ns=500 * MS)
    join = pair.subscriber.receiver().join(source, send_naks=False, nak_generation_ns=1 * SECOND)
    pair.world.rule("drop", Type.DATA, sqns=(3, 7))
    send_each(source, *(bytes([n]) for n in range(10)))
    pair.world.run_for(3 * SECOND)
    reported = [(row.kind, row.sequence_number) for row in join.rows[1:]]
    assert reported == [
        *((Kind.MESSAGE, n) for n in range(3)),
        *((Kind.UNRECOVERABLE_LOSS, n) for n in range(3, 8)),
        *((Kind.MESSAGE, n) for n in (8, 9)),
    ]
    assert join.receiver.counters["unrecoverable_loss_events"] == 5


def test_a_long_gap_is_one_event(pair: Pair) -> None:
    """UX-7, UM-101: 10 is lost, 11 to 30 wait, then 1055 arrives. The application gets 9, one burst event and
    1055; later retransmissions are dropped.
    """
    source = pair.publisher.session().source()
    join = pair.subscriber.receiver(burst_loss_max=1024).join(source)
    pair.world.rule("drop", Type.DATA, sqns=10, retransmission=False)
    pair.world.rule("drop", Type.DATA, sqns=(31, 1054), retransmission=False)
    send_each(source, *(n.to_bytes(2, "big") for n in range(1056)))
    pair.world.run_for(2 * SECOND)
    reported = [(row.kind, row.first_sequence_number, row.sequence_number) for row in join.rows[10:]]
    assert reported == [(Kind.MESSAGE, 9, 9), (Kind.BURST_LOSS, 10, 1054), (Kind.MESSAGE, 1055, 1055)]
    assert join.rows[-1].time_ns == DELAY
    assert join.counters["rxs_rcved"] == 1025
    assert join.probe.loss_count == 0


def test_a_gap_at_the_threshold_is_not_a_burst(pair: Pair) -> None:
    """UX-7: a gap of 1024 missing messages is still recovered."""
    source = pair.publisher.session().source()
    join = pair.subscriber.receiver(burst_loss_max=1024).join(source)
    pair.world.rule("drop", Type.DATA, sqns=(10, 1032), retransmission=False)
    send_each(source, *(n.to_bytes(2, "big") for n in range(1034)))
    pair.world.run_for(2 * SECOND)
    assert [row.sequence_number for row in join.rows[1:]] == list(range(1034))
    assert {row.kind for row in join.rows[1:]} == {Kind.MESSAGE}


def test_a_full_order_map_gives_up_the_oldest_gap(pair: Pair) -> None:
    """UM-10, UX-6: beyond the bound, the oldest gaps are declared lost and the messages after them are
    delivered.
    """
    source = pair.publisher.session().source()
    join = pair.subscriber.receiver(map_entries_max=10).join(source, send_naks=False)
    pair.world.rule("drop", Type.DATA, sqns=2)
    pair.world.rule("drop", Type.DATA, sqns=8)
    send_each(source, *(bytes([n]) for n in range(13)))
    pair.world.run_for(10 * MS)
    assert [row.sequence_number for row in join.rows[1:]] == [0, 1]
    assert join.probe.held_count == 9
    send_each(source, bytes([13]), bytes([14]))
    pair.world.run_for(10 * MS)
    reported = [(row.kind, row.sequence_number) for row in join.rows[3:]]
    assert reported == [(Kind.UNRECOVERABLE_LOSS, 2), *((Kind.MESSAGE, n) for n in range(3, 8))]
    assert join.probe.held_count == 6  # 9 to 14 still wait for 8
    assert join.receiver.counters["order_map_overflows"] == 1


def test_a_full_reorder_buffer_gives_up_the_oldest_gap(pair: Pair) -> None:
    """UM-10, UX-6: the buffer shared by all order maps is also bounded; messages that do not fit are reported
    as lost.
    """
    small = pair.world.host(hold_datagrams=4, hold_messages=64)
    small.set_faults(delay_ns=DELAY)
    source = pair.publisher.session().source()
    join = small.receiver().join(source, send_naks=False)
    pair.world.rule("drop", Type.DATA, sqns=2)
    send_each(source, *(bytes([n]) for n in range(20)))
    pair.world.run_for(10 * MS)
    reported = [(row.kind, row.sequence_number) for row in join.rows[1:]]
    assert reported == [
        (Kind.MESSAGE, 0),
        (Kind.MESSAGE, 1),
        (Kind.UNRECOVERABLE_LOSS, 2),
        *((Kind.MESSAGE, n) for n in range(3, 20)),
    ]
    assert small.counters["hold_store_full"] == 1


def test_the_loss_of_the_last_message_is_reported(pair: Pair) -> None:
    """UX-8: if the publisher stops, a loss check reports the loss in time; without a loss check, the end of
    the session reports it.
    """
    source = pair.publisher.session().source()
    plain = pair.subscriber.receiver().join(source)
    checking = pair.subscriber.receiver(loss_check_interval_ns=2500 * MS).join(source)
    send_each(source, b"0")
    pair.world.rule("drop", Type.DATA, sqns=1)
    send_each(source, b"1", b"2")
    source.delete()
    pair.world.run_for(13 * SECOND)
    expected = [(Kind.UNRECOVERABLE_LOSS, 1), (Kind.MESSAGE, 2)]
    assert [(row.kind, row.sequence_number) for row in checking.rows[2:]] == expected
    assert len(plain.rows) == 2
    pair.world.run_for(50 * SECOND)
    for join in (plain, checking):
        assert [(row.kind, row.sequence_number) for row in join.rows[2:4]] == expected
        assert join.rows[-1].kind is Kind.END_OF_SESSION
        assert len(join.rows) == 5


@pytest.mark.parametrize(
    ("timing", "begins_at_ns"),
    [("fixed", 10 * MS + DELAY), ("adaptive", 2 * DELAY)],
    ids=["fixed", "adaptive"],
)
def test_the_session_starts_with_its_first_datagram(pair: Pair, timing: str, begins_at_ns: int) -> None:
    """UM-76, UM-81: every controller gets BOS before any data; a controller created later gets it
    immediately. With adaptive timing the first datagram is the answer to the receiver, before any data is sent.
    """
    session = pair.publisher.session(**product_session(recovery_timing=timing))
    join = product_join(recovery_timing=timing)
    a, b = session.source(), session.source()
    join_a, join_b = (pair.subscriber.receiver().join(source, **join) for source in (a, b))
    pair.world.run_for(10 * MS)
    assert len(pair.world.rows()) == (0 if timing == "fixed" else 2)
    send_each(a, b"0")
    pair.world.run_for(10 * MS)
    late = pair.subscriber.receiver().join(b, **join)
    pair.world.run_for(1)
    assert [(row.time_ns, row.kind) for row in join_a.rows + join_b.rows + late.rows] == [
        (begins_at_ns, Kind.BEGINNING_OF_SESSION),
        (10 * MS + DELAY, Kind.MESSAGE),
        (begins_at_ns, Kind.BEGINNING_OF_SESSION),
        (20 * MS, Kind.BEGINNING_OF_SESSION),
    ]


@pytest.mark.parametrize(
    ("timing", "begins_at_ns"),
    [("fixed", 200 * MS + DELAY), ("adaptive", 100 * MS + 2 * DELAY)],
    ids=["fixed", "adaptive"],
)
def test_a_session_can_start_with_a_session_message(pair: Pair, timing: str, begins_at_ns: int) -> None:
    """UM-76, UM-113: a receiver that joins too late for the data starts with the next datagram and misses
    nothing after it. With adaptive timing it asks for that datagram, and does not wait for the next session message.
    """
    source = pair.publisher.session(**product_session(recovery_timing=timing)).source()
    send_each(source, b"0", b"1")
    pair.world.run_for(100 * MS)
    join = pair.subscriber.receiver().join(source, **product_join(recovery_timing=timing))
    pair.world.run_for(200 * MS)
    assert [(row.time_ns, row.kind) for row in join.rows] == [(begins_at_ns, Kind.BEGINNING_OF_SESSION)]
    send_each(source, b"2")
    pair.world.run_for(10 * MS)
    assert [payload for _, payload in messages(join)] == [b"2"]
    assert join.counters["lost"] == 0


def test_a_lost_answer_costs_no_status_interval(pair: Pair) -> None:
    """UM-76, UM-84: a switch that does not forward the group yet loses the first answers. The receiver asks again soon,
    less and less often, and the time to the answer is its round trip.
    """
    source = pair.publisher.session(**product_session()).source()
    send_each(source, b"0")
    pair.world.run_for(100 * MS)
    pair.world.rule("drop", Type.SM)
    begin_ns = pair.world.now_ns
    join = pair.subscriber.receiver().join(source, **product_join())
    pair.world.run_for(60 * MS)
    asked = [d.time_ns - begin_ns for d in pair.world.trace(Fate.SENT, Type.STATUS)]
    assert asked == [0, 10 * MS, 30 * MS]
    pair.world.clear_rules()
    pair.world.run_for(20 * MS)
    assert [(row.time_ns - begin_ns, row.kind) for row in join.rows] == [
        (70 * MS + 2 * DELAY, Kind.BEGINNING_OF_SESSION)
    ]
    assert join.counters["round_trip"] == 2 * DELAY


def test_the_activity_timeout_is_reset_by_data_and_session_messages(pair: Pair) -> None:
    """UX-9, UM-104: EOS follows one timeout after the last data or session message, not earlier."""
    source = pair.publisher.session().source(tsni_interval_ns=0)
    join = pair.subscriber.receiver().join(source, activity_timeout_ns=3 * SECOND)
    send_each(source, b"0")
    pair.world.run_for(2900 * MS)
    send_each(source, b"1")
    pair.world.run_for(2900 * MS)
    assert join.probe.mapped
    pair.world.rule("drop", Type.SM)
    last_ns = max(d.time_ns for d in pair.world.trace(Fate.RECEIVED, Type.SM, Type.DATA))
    pair.world.run_until(last_ns + 3 * SECOND - 1)
    assert join.probe.mapped
    pair.world.run_for(1)
    assert (join.rows[-1].time_ns, join.rows[-1].kind) == (last_ns + 3 * SECOND, Kind.END_OF_SESSION)


def test_the_end_of_a_session_that_never_started(pair: Pair) -> None:
    """UX-9: a receiver that joins a dead session gets EOS without BOS, after the preactivity timeout."""
    source = pair.publisher.session().source()
    join = pair.subscriber.receiver().join(source)
    pair.publisher.kill()
    pair.world.run_for(61 * SECOND)
    assert [(row.time_ns, row.kind) for row in join.rows] == [(30 * SECOND, Kind.END_OF_SESSION)]


@pytest.mark.parametrize("topic_sqn", [0, 2**32 - 20])
@pytest.mark.parametrize("transport_sqn", [0, 2**32 - 20, 2**31 - 20])
@pytest.mark.parametrize("mode", [1, -1, 0])
def test_sequence_numbers_wrap(pair: Pair, mode: int, transport_sqn: int, topic_sqn: int) -> None:
    """UX-22: losses, retransmissions and session messages work across the 32-bit wrap of both kinds of sqn."""
    source = pair.publisher.session(initial_sqn=transport_sqn).source(initial_sqn=topic_sqn)
    join = pair.subscriber.receiver(ordered_delivery=mode).join(source, **NAK_AT_ONCE)
    pair.world.host().receiver(ordered_delivery=mode).join(source)
    for number in range(3, 40, 3):
        pair.world.rule("drop", Type.DATA, sqns=transport_sqn + number, retransmission=False)
    payloads = [bytes([n]) for n in range(40)]
    for payload in payloads:
        send_each(source, payload)
        pair.world.run_for(MS // 4)
    pair.world.run_for(1 * SECOND)
    got = [row for row in join.rows if row.kind is Kind.MESSAGE]
    assert sorted(row.payload for row in got) == payloads
    assert all(row.sequence_number == (topic_sqn + row.payload[0]) % 2**32 for row in got)
    assert ([row.payload for row in got] == payloads) is (mode == 1)
    assert all(row.kind is not Kind.UNRECOVERABLE_LOSS for row in join.rows)
    assert join.probe.transport_next_sqn == (transport_sqn + 40) % 2**32


def test_receiving_in_batches(pair: Pair) -> None:
    """Datagrams that arrive together are delivered together, and nothing else changes."""
    rows = []
    for batch in (1, 7, 64):
        host = pair.world.host(receive_batch=batch)
        host.set_faults(delay_ns=DELAY)
        rows.append(host.receiver())
    source = pair.publisher.session(batch_minimum_bytes=1).source()
    for receiver in rows:
        receiver.join(source)
    source.send_many([bytes([n]) for n in range(100)])
    pair.world.run_for(10 * MS)
    assert [receiver.messages for receiver in rows] == [[bytes([n]) for n in range(100)]] * 3


def test_a_refused_send_takes_no_sequence_number(pair: Pair) -> None:
    """UX-23: an oversized message, a full log and an aborted claim leave no hole in the sqns."""
    session = pair.publisher.session(term_length=1 << 16, window_bytes=1 << 16, flow_policy=1)
    source = session.source()
    assert source.try_send(b"x") == -1001
    assert source.try_send(bytes(1 << 16)) < 0
    receiver = pair.subscriber.receiver()
    receiver.join(source, window_bytes=1 << 15, status_interval_ns=1 * MS)
    pair.world.run_for(10 * MS)
    pair.world.rule("drop", Type.STATUS)
    sent = 0
    while source.try_send(bytes([sent]) * 1000, flush=True) >= 0:
        sent += 1
    assert source.next_sqn == sent
    pair.world.clear_rules()
    pair.world.run_for(100 * MS)
    source.claim(b"never")
    source.abort()
    source.send(b"last", flush=True)
    pair.world.run_for(100 * MS)
    assert source.next_sqn == sent + 1
    assert receiver.messages == [bytes([n]) * 1000 for n in range(sent)] + [b"last"]
    assert {row.kind for row in receiver.rows} == {Kind.BEGINNING_OF_SESSION, Kind.MESSAGE}


def test_giving_up_a_gap_keeps_messages_that_can_be_completed(pair: Pair) -> None:
    """UM-99, UM-101: the first fragment of a message fills part of a gap. The message waits for its missing
    fragment, which has not timed out yet, and is delivered after the retransmission.
    """
    source = pair.publisher.session(datagram_max_bytes=1000, ignore_interval_ns=0).source()
    join = pair.subscriber.receiver().join(source, nak_backoff_ns=20 * MS, nak_suppress_ns=0)
    world = pair.world
    world.run_until(12 * MS)  # the session has started: no session message is elicited, which would reveal 5
    world.rule("drop", Type.DATA, sqns=(2, 3), retransmission=False)
    world.rule("drop", Type.DATA, sqns=2, retransmission=True)
    world.rule("drop", Type.DATA, sqns=5)
    large = bytes(range(250)) * 10  # sqns 3, 4 and 5
    send_each(source, b"0", b"1", b"2", large)
    world.run_until(5060 * MS)
    send_each(source, b"6")  # reveals 5
    world.run_until(10_060 * MS + DELAY)  # the TSNI, after the time of 2 and before that of 5
    assert [(row.kind, row.sequence_number) for row in join.rows[3:]] == [(Kind.UNRECOVERABLE_LOSS, 2)]
    world.clear_rules()
    world.run_for(100 * MS)
    assert [(row.kind, row.payload) for row in join.rows[4:]] == [(Kind.MESSAGE, large), (Kind.MESSAGE, b"6")]
