"""Positions, limits and status messages with slow, absent and many receivers (AE-3..AE-49)."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.sim.conftest import DELAY, Pair
from tests.sim.product import product_join, product_session
from umstack.sim import (
    FLOW_MAX,
    FLOW_MIN,
    FLOW_NONE,
    FLOW_TAGGED,
    MS,
    SECOND,
    US,
    Datagram,
    Fate,
    Host,
    Kind,
    Session,
    Source,
    Type,
    World,
)

NOT_CONNECTED, BACK_PRESSURED, CLOSED, RATE_LIMITED = -1001, -1002, -1004, -1006
STATUS_DATA = 32  # DATA header, control message, extended option, then the status


def status_of(datagram: Datagram) -> tuple[int, int, int]:
    """Return flags, next sqn and window of a status message."""
    flags = datagram.data[STATUS_DATA + 1]
    next_sqn, window = struct.unpack_from(">II", datagram.data, STATUS_DATA + 4)
    return flags, next_sqn, window


def open_session(pair: Pair, policy: int = FLOW_MIN, **options) -> Session:
    """Open a session with flow control, small enough to fill."""
    return pair.publisher.session(
        flow_policy=policy, term_length=1 << 17, window_bytes=1 << 17, batch_minimum_bytes=1, **options
    )


def window(size: int = 32768, **options):
    """Return the options of a join that reports a window."""
    return {"window_bytes": size, "status_interval_ns": 20 * MS, **options}


def fill(source: Source, size: int = 1000) -> int:
    """Publish until a message is refused. Return the number of accepted messages."""
    taken = 0
    while (result := source.try_send(bytes(size))) >= 0:
        taken += 1
    assert result == BACK_PRESSURED
    return taken


def another(pair: Pair) -> Host:
    """Add another subscribing host."""
    host = pair.world.host()
    host.set_faults(delay_ns=DELAY)
    return host


# ---- connection ----


def test_without_receivers_publishing_is_refused(pair: Pair) -> None:
    """AE-3, AE-12, AE-14: before a receiver is known, publishing is refused and both positions are 0."""
    session = open_session(pair)
    source = session.source()
    assert source.try_send(b"x") == NOT_CONNECTED
    assert not session.probe.connected
    counters = session.counters
    assert (counters["pub_pos"], counters["pub_lmt"], counters["snd_pos"], counters["snd_lmt"]) == (
        0,
        0,
        0,
        0,
    )
    assert counters["not_connected"] == 1
    assert session.sent() == []


def test_a_receiver_connects(pair: Pair) -> None:
    """AE-15, AE-16, AE-19, AE-21: a receiver without a position requests one. After the answer it sends a
    status message, which connects it and opens the publication limit in one step.
    """
    session = open_session(pair, initial_sqn=77)
    source = session.source()
    pair.subscriber.receiver().join(source, **window())
    pair.world.run_for(10 * MS)
    said = [(d.time_ns, d.type) for d in pair.world.trace(Fate.SENT)]
    assert said == [(0, Type.STATUS), (DELAY, Type.SM), (2 * DELAY, Type.STATUS)]
    first, second = pair.world.trace(Fate.SENT, Type.STATUS)
    assert status_of(first)[0] == 1
    assert status_of(second) == (0, 77, 32768)
    assert session.probe.connected
    assert session.probe.sender_limit == 32768
    assert session.probe.publication_limit == 1 << 16
    assert session.counters["receivers_known"] == 1


def test_without_flow_control_the_source_never_waits(pair: Pair) -> None:
    """AE-9: with policy none, a source sends without receivers, and status messages have no effect."""
    session = pair.publisher.session()
    source = session.source()
    assert source.send(b"x", flush=True) == 0
    pair.subscriber.receiver().join(source, **window())
    pair.world.run_for(1 * SECOND)
    assert session.counters["receivers_known"] == 0
    assert source.send(b"y", flush=True) == 1


# ---- positions ----


def blocked(pair: Pair) -> Source:
    """Return a source whose receiver granted 32768 bytes and then sent no more status messages."""
    source = open_session(pair, flow_receiver_timeout_ns=100 * SECOND).source()
    pair.subscriber.receiver().join(source, **window())
    pair.world.run_for(10 * MS)
    pair.world.rule("drop", Type.STATUS)
    return source


SPAN = 1088
"""Return the log space of a message of 1000 bytes: frame header and message header, rounded up to a cache
line.
"""


def test_publisher_and_sender_stop_at_their_limits(pair: Pair) -> None:
    """AE-6..AE-10, AE-13, AE-20..AE-24: the sender stops at position + window, and the publisher half a term
    ahead of it.
    """
    source = blocked(pair)
    session = source.session
    taken = fill(source)
    counters = session.counters
    assert counters["snd_lmt"] == 32768
    assert counters["snd_pos"] == 32768 // SPAN * SPAN
    assert counters["pub_lmt"] == counters["snd_pos"] + (1 << 16)
    assert counters["pub_pos"] == taken * SPAN
    assert (
        counters["pub_lmt"] <= counters["pub_pos"] < counters["pub_lmt"] + SPAN
    )  # AE-7: the last message straddles the limit
    assert counters["back_pressured"] == 1
    assert counters["snd_bpe"] == 1


def test_a_blocked_episode_is_counted_once(pair: Pair) -> None:
    """AE-10: any number of refused attempts counts as one stop; after a send, the next refusal is another
    stop.
    """
    source = blocked(pair)
    fill(source)
    for _ in range(5):
        source.flush()
        pair.world.run_for(100 * MS)
    assert source.session.counters["snd_bpe"] == 1
    pair.world.clear_rules()
    pair.world.rule("drop", Type.STATUS, skip=1)
    pair.world.run_for(1 * SECOND)  # the receiver's interval has doubled meanwhile
    assert source.session.counters["snd_bpe"] == 2


def test_the_limit_follows_the_received_positions(pair: Pair) -> None:
    """AE-17, AE-19, AE-23, AE-44: each status message moves the sender limit to its position plus its window."""
    session = open_session(pair)
    source = session.source()
    pair.subscriber.receiver().join(source, **window())
    pair.world.run_for(10 * MS)
    for _ in range(10):
        source.send(bytes(1000))
        pair.world.run_for(50 * MS)
        probe = session.probe
        assert probe.sender_limit == probe.sender_position + 32768
        assert probe.publication_limit == probe.sender_position + (1 << 16)


def test_an_older_status_message_never_lowers_the_limit(pair: Pair) -> None:
    """AE-19: the limit never decreases, in whichever order status messages arrive."""
    session = open_session(pair)
    source = session.source()
    pair.subscriber.receiver().join(source, **window())
    pair.world.run_for(10 * MS)
    for _ in range(20):
        source.send(bytes(1000))
    pair.world.run_for(100 * MS)
    limit = session.probe.sender_limit
    old = pair.world.trace(Fate.RECEIVED, Type.STATUS)[1]
    assert status_of(old)[1] == 0
    before = session.counters["status_messages_received"]
    pair.world.inject(old.data, pair.publisher, ("10.0.0.1", session.options.nak_port), ("10.0.0.2", 1))
    pair.world.run_for(1)
    assert session.counters["status_messages_received"] == before + 1
    assert session.probe.sender_limit == limit


def test_an_impossible_position_is_ignored(pair: Pair) -> None:
    """AE-19: a status message beyond the sent position neither adds a receiver nor moves the limit."""
    session = open_session(pair)
    source = session.source()
    pair.subscriber.receiver().join(source, **window())
    pair.world.run_for(10 * MS)
    status = bytearray(pair.world.trace(Fate.SENT, Type.STATUS)[1].data)
    struct.pack_into(">I", status, STATUS_DATA + 4, 1_000_000)
    before = session.probe.sender_limit
    pair.world.inject(bytes(status), pair.publisher, ("10.0.0.1", session.options.nak_port), ("10.0.0.2", 1))
    pair.world.run_for(1)
    assert session.counters["status_out_of_range"] == 1
    assert session.probe.sender_limit == before


def test_status_messages_are_periodic(pair: Pair) -> None:
    """AE-16: a status message is sent at the interval and after a quarter of the window was received, never
    for each datagram.
    """
    source = open_session(pair).source()
    pair.subscriber.receiver().join(source, **window(32768, status_interval_ns=200 * MS))
    pair.world.run_for(10 * MS)
    for _ in range(100):
        source.send(bytes(10))
        pair.world.run_for(10 * MS)
    sent = [d.time_ns for d in pair.world.trace(Fate.SENT, Type.STATUS)]
    assert [b - a for a, b in pairwise(sent[1:])] == [200 * MS] * 5
    before = len(sent)
    for _ in range(16):  # 16 * 1032 bytes: half a window
        source.send(bytes(1000))
    pair.world.run_for(2 * DELAY)
    assert len(pair.world.trace(Fate.SENT, Type.STATUS)) == before + 2


def test_a_status_message_carries_the_first_missing_sqn(pair: Pair) -> None:
    """AE-17: data after a loss does not count: the window starts at the oldest missing datagram."""
    source = open_session(pair).source()
    pair.subscriber.receiver().join(source, **window(send_naks=False))
    pair.world.run_for(10 * MS)
    pair.world.rule("drop", Type.DATA, sqns=3)
    for _ in range(10):
        source.send(bytes(1000))
    pair.world.run_for(100 * MS)
    assert status_of(pair.world.trace(Fate.SENT, Type.STATUS)[-1])[1] == 3
    assert source.session.probe.sender_limit == 3 * SPAN + 32768


# ---- slow, fast and absent receivers ----


def publish_for(pair: Pair, sources: list[Source], span_ns: int, retry_ns: int = 100 * US) -> dict[int, int]:
    """Publish on each source as fast as possible. Return the messages per source."""
    taken = {source.index: 0 for source in sources}
    end = pair.world.now_ns + span_ns
    while pair.world.now_ns < end:
        for source in sources:
            while source.try_send(bytes(1000)) >= 0:
                taken[source.index] += 1
        pair.world.run_for(retry_ns)
    return taken


def test_a_slow_reader_sets_the_pace(pair: Pair) -> None:
    """AE-20: a publisher that is faster than its reader loses nothing and is slowed to the reader's rate."""
    source = open_session(pair).source()
    receiver = pair.subscriber.receiver(
        block_rows=64, block_bytes=1 << 14, message_max_bytes=1 << 16, read_interval_ns=1 * MS, read_rows=2
    )
    receiver.join(source, **window())
    pair.world.run_for(10 * MS)
    taken = publish_for(pair, [source], 1 * SECOND)[source.index]
    queue_and_log = 4 * 16 + 128 + 64
    assert 1990 <= taken <= 2000 + queue_and_log
    pair.world.run_for(1 * SECOND)
    assert len(receiver.messages) == taken
    assert {row.kind for row in receiver.rows} == {Kind.BEGINNING_OF_SESSION, Kind.MESSAGE}
    assert source.session.counters["snd_bpe"] > 0


def test_unread_data_reduces_the_window(pair: Pair) -> None:
    """AE-44: received but unread data reduces the window by its size."""
    source = open_session(pair).source()
    receiver = pair.subscriber.receiver(
        block_rows=64, block_bytes=1 << 13, message_max_bytes=1 << 16, read_interval_ns=3600 * SECOND
    )
    receiver.join(source, **window())
    pair.world.run_for(10 * MS)
    windows = []
    for _ in range(3):
        for _ in range(8):
            source.send(bytes(1000))
        pair.world.run_for(100 * MS)
        windows.append(status_of(pair.world.trace(Fate.SENT, Type.STATUS)[-1])[2])
    for earlier, later in pairwise(windows):
        assert 7000 <= earlier - later <= 9000  # the queue rounds up to blocks
    receiver.set_reading(0)
    pair.world.run_for(100 * MS)
    assert status_of(pair.world.trace(Fate.SENT, Type.STATUS)[-1])[2] > windows[2] + 16000


def two_receivers(
    pair: Pair, policy: int, tag_slow: int = 0, tag_fast: int = 0
) -> tuple[Source, Callable[[], list[int]]]:
    """Run a receiver that never reads and one that reads immediately. Return the number of messages that each
    has read.
    """
    source = open_session(pair, policy, flow_group_tag=9).source()
    small = {"block_rows": 64, "block_bytes": 1 << 14, "message_max_bytes": 1 << 16}
    slow = pair.subscriber.receiver(**small, read_interval_ns=3600 * SECOND)
    fast = another(pair).receiver(**small)
    slow.join(source, **window(group_tag=tag_slow))
    fast.join(source, **window(group_tag=tag_fast))
    pair.world.run_for(10 * MS)
    return source, lambda: [len(slow.messages), len(fast.messages)]


def test_min_waits_for_the_slowest(pair: Pair) -> None:
    """AE-9, AE-20, AE-44: a receiver that does not read stops all receivers."""
    source, read = two_receivers(pair, FLOW_MIN)
    publish_for(pair, [source], 200 * MS)
    assert source.session.counters["receivers_known"] == 2
    assert 30 <= read()[1] < 100


def test_max_follows_the_fastest(pair: Pair) -> None:
    """AE-9: only the receiver that does not read loses data."""
    source, read = two_receivers(pair, FLOW_MAX)
    publish_for(pair, [source], 200 * MS)
    assert read()[1] > 1000


def test_tagged_waits_for_its_group_only(pair: Pair) -> None:
    """AE-9: receivers without the tag get the data, but the source does not wait for them."""
    source, read = two_receivers(pair, FLOW_TAGGED, tag_slow=0, tag_fast=9)
    publish_for(pair, [source], 200 * MS)
    assert read()[1] > 1000


def test_tagged_waits_for_the_slowest_of_its_group(pair: Pair) -> None:
    """AE-9: the slowest receiver of the group sets the rate."""
    source, read = two_receivers(pair, FLOW_TAGGED, tag_slow=9, tag_fast=9)
    publish_for(pair, [source], 200 * MS)
    assert read()[1] < 100


def test_a_group_must_be_complete(pair: Pair) -> None:
    """AE-12: with a minimum size of two, one tagged receiver does not connect."""
    session = open_session(pair, FLOW_TAGGED, flow_group_tag=9, flow_group_minimum_size=2)
    source = session.source()
    pair.subscriber.receiver().join(source, **window(group_tag=9))
    another(pair).receiver().join(source, **window(group_tag=8))
    pair.world.run_for(10 * MS)
    assert source.try_send(b"x") == NOT_CONNECTED
    another(pair).receiver().join(source, **window(group_tag=9))
    pair.world.run_for(10 * MS)
    assert source.try_send(b"x") == 0


def test_a_receiver_that_vanishes_stops_counting(pair: Pair) -> None:
    """AE-20, AE-23: when a receiver's host is killed, the others wait only for the timeout and then continue."""
    session = open_session(pair, flow_receiver_timeout_ns=500 * MS)
    source = session.source()
    dead = another(pair)
    receiver = pair.subscriber.receiver()
    for each in (receiver, dead.receiver()):
        each.join(source, **window())
    pair.world.run_for(10 * MS)
    dead.kill()
    before = publish_for(pair, [source], 400 * MS)[source.index]
    assert 32 <= before <= 32 + 65
    after = publish_for(pair, [source], 400 * MS)[source.index]
    assert after > 10 * before
    assert session.counters["receivers_timed_out"] == 1
    pair.world.run_for(100 * MS)
    assert len(receiver.messages) == before + after


def test_the_last_receiver_vanishes(pair: Pair) -> None:
    """AE-12, AE-23: without receivers the source is not connected, and the publication limit returns to the
    sender's position.
    """
    session = open_session(pair, flow_receiver_timeout_ns=500 * MS)
    source = session.source()
    pair.subscriber.receiver().join(source, **window())
    pair.world.run_for(10 * MS)
    source.send(bytes(1000))
    pair.subscriber.kill()
    pair.world.run_for(400 * MS)
    assert source.try_send(bytes(1000)) == 1
    pair.world.run_for(200 * MS)
    assert source.try_send(b"x") == NOT_CONNECTED
    probe = session.probe
    assert not probe.connected
    assert probe.publication_limit == probe.sender_position


def test_a_receiver_that_leaves_stops_counting_at_once(pair: Pair) -> None:
    """AE-20: a receiver sends a status message when it leaves."""
    session = open_session(pair, flow_receiver_timeout_ns=100 * SECOND)
    source = session.source()
    join = pair.subscriber.receiver().join(source, **window())
    pair.world.run_for(10 * MS)
    join.leave()
    pair.world.run_for(DELAY)
    assert source.try_send(b"x") == NOT_CONNECTED
    assert session.counters["receivers_known"] == 0


def test_small_datagrams_stay_recoverable(pair: Pair) -> None:
    """AE-9, AE-24: with flow control min every loss is recoverable, even if datagrams are so small that the
    window's table of datagrams fills up before its bytes.
    """
    session = pair.publisher.session(
        flow_policy=FLOW_MIN, term_length=1 << 16, window_bytes=1 << 16, batch_minimum_bytes=1
    )
    source = session.source()
    receiver = pair.subscriber.receiver()
    join = receiver.join(source, **window(60_000))
    pair.world.run_for(10 * MS)
    pair.world.rule("drop", Type.DATA, sqns=0, retransmission=False)
    pair.world.rule("drop", Type.NAK, count=3)
    taken = 0
    while taken < 4000:
        taken += source.try_send(taken.to_bytes(2, "big"), flush=True) >= 0
        if source.session.probe.sender_limit - source.session.probe.sender_position < 100:
            pair.world.run_for(1 * MS)
    pair.world.run_for(5 * SECOND)
    assert join.counters["unrecovered_txw"] == 0
    assert receiver.messages == [n.to_bytes(2, "big") for n in range(4000)]


# ---- the sender and the log ----


def test_a_datagram_takes_the_frames_that_fit(pair: Pair) -> None:
    """AE-38..AE-41: a datagram contains the complete messages that fit, here two of three."""
    session = pair.publisher.session(datagram_max_bytes=1472, batch_minimum_bytes=1 << 15)
    source = session.source()
    for _ in range(3):
        source.send(bytes(600))
    source.flush()
    assert [len(d.fragments) for d in session.sent(Type.DATA)] == [2, 1]


def test_datagrams_refused_by_the_link_are_sent_later(pair: Pair) -> None:
    """AE-42: if the network sends fewer datagrams than offered, the position advances by those only; the rest
    is sent once afterwards.
    """
    host = pair.world.host(link_bps=8_000_000)  # 1 ms for 1000 bytes; the link has no queue
    session = host.session(batch_minimum_bytes=1, datagram_max_bytes=1000)
    source = session.source()
    source.send_many([bytes([n]) * 968 for n in range(5)])
    assert session.probe.next_sqn == 1
    assert session.probe.sender_position < session.probe.tail
    pair.world.run_for(20 * MS)
    sent = session.sent(Type.DATA)
    assert [(d.sqn, d.fragments[0].payload[0]) for d in sent] == [(n, n) for n in range(5)]
    gaps = [b.time_ns - a.time_ns for a, b in pairwise(sent)]
    assert all(1 * MS <= gap <= 1.2 * MS for gap in gaps)
    assert session.probe.sender_position == session.probe.tail


def test_an_uncommitted_claim_blocks_later_messages(pair: Pair) -> None:
    """AE-27..AE-29, AE-32, AE-34: nothing after a claim is sent before its commit; then everything is sent in
    the order of the log.
    """
    session = pair.publisher.session(batch_minimum_bytes=1)
    source, other = session.source(), session.source()
    receiver = pair.subscriber.receiver()
    receiver.join(source)
    receiver.join(other)
    source.claim(b"claimed")
    other.send(b"behind")
    pair.world.run_for(1 * SECOND)
    assert session.sent(Type.DATA) == []
    assert source.commit() == 0
    pair.world.run_for(10 * MS)
    assert receiver.messages == [b"claimed", b"behind"]


def test_an_abandoned_claim_becomes_padding(pair: Pair) -> None:
    """AE-35, AE-36, UX-23: a claim is aborted after 15 s; waiting messages are sent without a gap, and the
    late commit fails.
    """
    session = pair.publisher.session(batch_minimum_bytes=1)
    source = session.source()
    receiver = pair.subscriber.receiver(loss_check_interval_ns=1 * SECOND)
    receiver.join(source)
    source.send(b"before")
    source.claim(b"abandoned")
    source.send(b"behind")
    pair.world.run_for(14 * SECOND)
    assert receiver.messages == [b"before"]
    pair.world.run_for(2 * SECOND)
    assert receiver.messages == [b"before", b"behind"]
    assert session.counters["unblocked_publications"] == 1
    assert source.commit() == CLOSED
    source.send(b"after")
    pair.world.run_for(60 * SECOND)
    assert [(row.kind, row.sequence_number) for row in receiver.rows[1:]] == [
        (Kind.MESSAGE, n) for n in range(3)
    ]


def test_an_aborted_claim_is_skipped(pair: Pair) -> None:
    """AE-36: an abort turns the claimed space into padding immediately."""
    session = pair.publisher.session(batch_minimum_bytes=1)
    source = session.source()
    receiver = pair.subscriber.receiver()
    receiver.join(source)
    source.claim(b"no")
    source.send(b"yes")
    source.abort()
    pair.world.run_for(10 * MS)
    assert receiver.messages == [b"yes"]
    assert source.counters["claims_aborted"] == 1


def test_terms_rotate_under_load(pair: Pair) -> None:
    """AE-2, AE-30, AE-45..AE-49: the data fills many terms, the terms are cleaned after the sender has passed
    them, and nothing is lost or duplicated.
    """
    session = pair.publisher.session(flow_policy=FLOW_MIN, term_length=1 << 16, window_bytes=1 << 16)
    source = session.source()
    receiver = pair.subscriber.receiver()
    receiver.join(source, **window(16384))
    pair.world.run_for(10 * MS)
    sent: list[bytes] = []
    while len(sent) < 2000:
        payload = len(sent).to_bytes(4, "big") * (1 + 7 * len(sent) % 90)
        if source.try_send(payload) >= 0:
            sent.append(payload)
        else:
            pair.world.run_for(1 * MS)
    source.flush()
    pair.world.run_for(1 * SECOND)
    assert receiver.messages == sent
    assert session.counters["term_rotations"] > 4


# ---- quiet receivers ----

PRODUCT = {"window_bytes": 2 << 20}


@pytest.mark.parametrize(
    ("timing", "flow_control", "reporting"),
    [("adaptive", "none", 1000), ("adaptive", "min", 1000), ("fixed", "none", 0)],
)
def test_a_thousand_idle_receivers_cause_few_datagrams(
    world: World, timing: str, flow_control: str, reporting: int
) -> None:
    """AE-15, AE-16: a thousand receivers that started together send an idle source at most 50 datagrams per second,
    over any five seconds, and every one of them still reports. With recovery_timing fixed they send nothing.
    """
    small = {"path_bytes": 2048, "datagram_max_bytes": 2048, "hold_datagrams": 16, "hold_messages": 64}
    publisher = world.host(**small)
    publisher.set_faults(delay_ns=DELAY)
    options = product_session(recovery_timing=timing, flow_control=flow_control)
    source = publisher.session(**options, datagram_max_bytes=1472).source()
    join = product_join(recovery_timing=timing)
    join["window_bytes"] = min(join["window_bytes"], 1 << 16)  # the small queues of a thousand receivers
    for number in range(1000):
        host = world.host(**small, inbox_datagrams=64)
        host.set_faults(delay_ns=DELAY)
        receiver = host.receiver(block_rows=64, block_bytes=1 << 14, message_max_bytes=1 << 16)
        receiver.join(source, **join, loss_capacity=64, topic_capacity=2, random_seed=number + 1)
    world.run_for(200 * MS)
    source.send(b"x", flush=True)
    world.run_for(150 * SECOND)
    arrivals = [d for d in world.trace(Fate.RECEIVED) if d.receiver == publisher.index]
    per_five_seconds = Counter(d.time_ns // (5 * SECOND) for d in arrivals)
    assert max((per_five_seconds[number] for number in range(6, 30)), default=0) <= 5 * 50
    assert len({d.sender for d in arrivals if d.time_ns > 100 * SECOND}) == reporting
    assert {d.type for d in arrivals} <= {Type.STATUS}


def test_data_ends_the_quiet_of_idle_receivers(pair: Pair) -> None:
    """AE-16: idle receivers stay connected, and data makes each of them report within the interval of 200 ms."""
    session = open_session(pair)
    source = session.source()
    receivers = 20
    for _ in range(receivers):
        another(pair).receiver().join(source, **PRODUCT)
    pair.world.run_for(100 * MS)
    source.send(b"x", flush=True)
    pair.world.run_for(360 * SECOND)
    assert session.counters["receivers_known"] == receivers
    assert session.counters["receivers_timed_out"] == 0
    before = len(pair.world.trace(Fate.SENT, Type.STATUS))
    source.send(b"y", flush=True)
    pair.world.run_for(200 * MS + 2 * DELAY)
    assert len(pair.world.trace(Fate.SENT, Type.STATUS)) - before == receivers


def test_a_receiver_that_died_idle_stops_counting_soon_after_data(pair: Pair) -> None:
    """AE-16, AE-20: a quiet receiver that is dead holds the sender for little longer than its timeout."""
    session = open_session(pair, flow_receiver_timeout_ns=2 * SECOND)
    source = session.source()
    pair.subscriber.receiver().join(source, **PRODUCT)
    other = another(pair)
    dying = other.receiver().join(source, **PRODUCT)
    pair.world.run_for(100 * MS)
    source.send(b"x", flush=True)
    pair.world.run_for(120 * SECOND)
    before = dying.counters["status_messages_sent"]
    while dying.counters["status_messages_sent"] == before:  # its next status message is due in at least 26 s
        pair.world.run_for(100 * MS)
    other.kill()
    pair.world.run_for(10 * SECOND)
    assert session.counters["receivers_known"] == 2
    source.send(b"y", flush=True)
    pair.world.run_for(3 * SECOND)
    assert session.counters["receivers_known"] == 1
    assert session.counters["receivers_timed_out"] == 1


def test_without_flow_control_data_causes_few_status_messages(pair: Pair) -> None:
    """AE-9, AE-16: a source without flow control announces it in its group report, and its receivers stay quiet."""
    session = open_session(pair, FLOW_NONE, adaptive_timers=7)
    source = session.source()
    pair.subscriber.receiver().join(source, **PRODUCT)
    for _ in range(120 * 20):
        source.send(bytes(100), flush=True)
        pair.world.run_for(50 * MS)
    assert len(pair.world.trace(Fate.SENT, Type.STATUS)) <= 20
    assert session.counters["group_receivers"] == 1


def test_a_receiver_that_was_away_reports_when_session_messages_return(pair: Pair) -> None:
    """AE-16, AE-20: a receiver removed while its path was away counts again with the first session message."""
    session = open_session(pair)
    source = session.source(tsni_interval_ns=0)
    pair.subscriber.receiver().join(source, **PRODUCT)
    pair.world.run_for(100 * MS)
    source.send(b"x", flush=True)
    pair.world.run_for(60 * SECOND)
    pair.subscriber.set_faults(partitioned=True)
    pair.world.run_for(
        40 * SECOND
    )  # a session message every 10 s: the session, which ends after 60 s, goes on
    assert session.counters["receivers_known"] == 0
    pair.subscriber.set_faults(partitioned=False, delay_ns=DELAY)
    pair.world.run_for(10 * SECOND + 300 * MS)
    assert session.counters["receivers_known"] == 1
