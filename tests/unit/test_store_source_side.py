"""The source's and the receiver's side of persistence, without sockets and clock: registration, stability, silence."""

from __future__ import annotations

from typing import Any

from tests.flights import put_in_flight
from umstack._engine.endpoint import Endpoint
from umstack.persistence.events import (
    DeliveryConfirmed,
    FlightSize,
    MessageStable,
    NotStable,
    Registered,
    RegistrationRefused,
    SourceBlocked,
    SourceUnblocked,
    StoreBack,
    StoreUnresponsive,
)
from umstack.persistence.messages import data_of
from umstack.persistence.pacing import PACING_NAME, Pacing
from umstack.persistence.receiver_side import ReceiverSide
from umstack.persistence.source_side import SourceLimits, SourceSide, StabilityRule
from umstack.store.wire import (
    ConsumptionAck,
    DeliveryConfirmation,
    Keepalive,
    KeepaliveSender,
    Registration,
    RegistrationError,
    RegistrationResponse,
    SqnRange,
    StabilityAck,
    StoreTerms,
    decode,
    message_bytes,
)

STORES = tuple(Endpoint("10.0.0.1", 14567 + at) for at in range(3))
TOPIC_INDEX = 5
MESSAGE = bytes.fromhex("0200000d0000000500000000") + b"x"
"""The first message as it is repeated."""
SECOND_NS = 1_000_000_000


def sent(side: SourceSide | ReceiverSide, store: int) -> list[Any]:
    """Return what a side has sent to a Store, decoded; repeated data as its bytes."""
    data, found = side.take_output(store), []
    while data:
        one, data = data[: message_bytes(data)], data[message_bytes(data) :]
        found.append(one if one == MESSAGE else decode(one))
    return found


def answer(side: SourceSide | ReceiverSide, store: int, now_ns: int = 0, **fields: Any) -> None:
    """A Store answers a registration; it has no message unless `fields` has another answer."""
    empty = {"low_sqn": 0, "high_sqn": 2**32 - 1}
    response = RegistrationResponse(
        is_source=isinstance(side, SourceSide),
        reg_id=9 + store,
        transport_index=0,
        topic_index=TOPIC_INDEX,
        store_index=store,
        session_id=7,
        **{**empty, **fields},
    )
    side.received(store, response.encode(), now_ns)


def registered(**limits: int) -> SourceSide:
    """A source that three Stores have accepted; its events are taken."""
    side = SourceSide("orders", 7, STORES, limits=SourceLimits(**limits))
    for at in range(3):
        side.connected(at, 0)
        answer(side, at)
    side.attach("session", TOPIC_INDEX, 0)
    for at in range(3):
        answer(side, at)
    assert side.take_events() == [Registered(0, (0, 1))]
    return side


def send(side: SourceSide, sqn: int, now_ns: int = 0) -> None:
    """Send a message."""
    assert side.flight.next_sqn == sqn
    assert put_in_flight(side, b"x", now_ns)


def acknowledge(side: SourceSide, store: int, first: int, last: int) -> None:
    """A Store has these messages."""
    ack = StabilityAck(
        transport_index=0, topic_index=TOPIC_INDEX, store_index=store, ranges=(SqnRange(first, last),)
    )
    side.received(store, ack.encode(), 0)


def block(side: SourceSide, store: int, session_id: int, blocked_ms: int = 0, now_ns: int = 0) -> None:
    """A Store reports the receiver that blocks the source; 0: none does."""
    report = Keepalive(
        sender=KeepaliveSender.STORE,
        transport_index=0,
        topic_index=TOPIC_INDEX,
        reg_id=9 + store,
        store_index=store,
        terms=StoreTerms(blocking_session_id=session_id, blocked_ms=blocked_ms),
    )
    side.received(store, report.encode(), now_ns)


def test_a_source_stops_while_too_few_stores_have_space() -> None:
    """UP-90: each Store is reported once; one of three is not needed for a quorum, unless all active ones are."""
    side = registered(is_receiver_paced=True)
    send(side, 0)
    block(side, 1, 3, blocked_ms=2, now_ns=5_000_000)
    assert side.take_events() == [SourceBlocked(1, 3, 3_000_000)]
    assert side.blocked is None
    send(side, 1)
    block(side, 2, 4)
    assert side.blocked == SourceBlocked(1, 3, 3_000_000)
    assert not put_in_flight(side, b"x", 0)
    block(side, 2, 4, blocked_ms=9)
    assert side.take_events() == [SourceBlocked(2, 4, 0)]
    block(side, 1, 0)
    send(side, 2)
    side.rule = StabilityRule.ALL_ACTIVE
    assert side.blocked == SourceBlocked(2, 4, 0)
    side.disconnected(2)
    assert side.take_events() == [SourceUnblocked(1), SourceUnblocked(2), StoreUnresponsive(2, True)]
    assert side.blocked is None
    send(side, 3)


def confirm(side: SourceSide, session_id: int, sqn: int, topic_index: int = TOPIC_INDEX) -> list[Any]:
    """A Store forwards the acknowledgement of a receiver; returns the events."""
    confirmed = DeliveryConfirmation(
        transport_index=0, topic_index=topic_index, user_reg_id=0, sqn=sqn, ack_id=1, session_id=session_id
    )
    side.received(0, confirmed.encode(), 0)
    return side.take_events()


def test_a_message_stays_in_flight_until_enough_receivers_have_confirmed_it() -> None:
    """UP-62: each receiver counts once, whichever Stores forward its acknowledgements, which cover earlier messages."""
    side = registered(confirmations=2, reports_confirmations=True)
    for sqn in range(4):
        send(side, sqn)
    for at in (0, 1):
        acknowledge(side, at, 0, 2)
    assert side.take_events() == []
    assert confirm(side, 3, 2) == [DeliveryConfirmed(3, 0, 2)]
    assert confirm(side, 3, 2) == confirm(side, 3, 1) == []
    assert confirm(side, 4, 1) == [DeliveryConfirmed(4, 0, 1), MessageStable(0, 1)]
    assert confirm(side, 4, 3) == [DeliveryConfirmed(4, 2, 3), MessageStable(2, 2)]
    assert confirm(side, 3, 3) == [DeliveryConfirmed(3, 3, 3)]
    for at in (0, 1):
        acknowledge(side, at, 3, 3)
    assert side.take_events() == [MessageStable(3, 3)]


def test_confirmations_that_cannot_be_true_are_ignored() -> None:
    """UP-62: of messages that were never sent, of another source, and of nobody."""
    side = registered(confirmations=1)
    send(side, 0)
    for at in (0, 1):
        acknowledge(side, at, 0, 0)
    assert confirm(side, 3, 1) == confirm(side, 0, 0) == confirm(side, 3, 0, TOPIC_INDEX + 1) == []
    assert (side.forged_count, side.unstable) == (3, [0])
    assert confirm(side, 3, 0) == [MessageStable(0, 0)]


def test_only_a_source_that_wants_confirmations_has_them_forwarded() -> None:
    """UP-62: the registration of any other one carries the flag that forbids it."""
    for limits, forwards in (
        (SourceLimits(), False),
        (SourceLimits(confirmations=1), True),
        (SourceLimits(reports_confirmations=True), True),
    ):
        side = SourceSide("orders", 7, STORES, limits=limits)
        side.connected(0, 0)
        assert sent(side, 0)[0].forwards_acks is forwards


def test_a_new_receiver_with_pacing_begins_at_the_live_position_of_all_stores() -> None:
    """UP-36: the newest one. A known receiver continues behind its highest acknowledgement, or where it began."""
    for is_known, has_no_acks, start in ((False, False, 10), (True, False, 5), (True, True, 4)):
        side = ReceiverSide("orders", 3, "session", TOPIC_INDEX, STORES, pacing=Pacing.NON_BLOCKING)
        for at, low in enumerate((10, 5, 4)):
            side.connected(at, 0)
            (asked,) = sent(side, at)
            assert asked.is_receiver_paced
            assert asked.configuration[-1] == (PACING_NAME, "2", 2)
            known = is_known and at > 0
            answer(side, at, low_sqn=low, high_sqn=9, is_known=known, has_no_acks=known and has_no_acks)
        assert side.start_sqn == start
        begun = [one for one in sent(side, 2) if isinstance(one, ConsumptionAck)]
        assert [(one.sqn, one.is_start) for one in begun] == [(start - 1, True)]  # known to all Stores
        side.acknowledge(start)
        assert [one.is_start for one in sent(side, 2) if isinstance(one, ConsumptionAck)] == [False]


def test_a_source_registers_everywhere_before_it_names_its_session() -> None:
    """UP-20: the second registration, with the transport session, follows the agreement on the first number."""
    side = SourceSide("orders", 7, STORES)
    for at in range(3):
        side.connected(at, 0)
        (first,) = sent(side, at)
        assert isinstance(first, Registration)
        assert (first.store_index, [one.endpoint for one in first.stores]) == (at, [*STORES])
        assert not first.configuration
        answer(side, at)
    assert side.first_sqn == 0
    assert not any(sent(side, at) for at in range(3))
    side.attach("session", TOPIC_INDEX, 0)
    for at in range(3):
        (second,) = sent(side, at)
        assert [value.value for value in second.configuration] == ["session", "0"]


def test_a_registration_is_repeated_and_a_quorum_suffices_later() -> None:
    """UP-21: in the first interval all Stores must answer."""
    side = SourceSide("orders", 7, STORES)
    interval_ns = side.limits.registration_interval_ns
    for at in range(3):
        side.connected(at, 0)
        sent(side, at)
    for at in (0, 1):
        answer(side, at, is_known=True, low_sqn=0, high_sqn=41)
    side.tick(interval_ns - 1)
    assert (side.first_sqn, sent(side, 2)) == (None, [])
    side.tick(interval_ns)
    # The third may hold numbers that were never stable.
    assert side.first_sqn == 42 + side.limits.flight_messages
    (again,) = sent(side, 2)
    assert isinstance(again, Registration)


def test_a_source_may_send_once_it_is_registered() -> None:
    """UP-22: one event with the consensus, and no message before."""
    side = SourceSide("orders", 7, STORES)
    known = {"is_known": True, "low_sqn": 0}
    for at, high in enumerate((41, 43, 40)):
        side.connected(at, 0)
        answer(side, at, high_sqn=high, **known)
    side.attach("session", TOPIC_INDEX, 0)
    assert not put_in_flight(side, b"x", 0)
    answer(side, 0, high_sqn=41, **known)
    assert not put_in_flight(side, b"x", 0)
    assert not side.take_events()
    answer(side, 1, high_sqn=43, **known)
    assert put_in_flight(side, b"x", 0)
    assert side.take_events() == [Registered(44, (0, 1))]


def test_stability_is_reported_by_ranges() -> None:
    """UP-52: once for each message, when enough Stores have it."""
    side = registered()
    for sqn in range(10):
        send(side, sqn)
    acknowledge(side, 0, 0, 9)
    assert not side.take_events()
    acknowledge(side, 1, 0, 3)
    acknowledge(side, 1, 6, 9)
    assert side.take_events() == [MessageStable(0, 3), MessageStable(6, 9)]
    acknowledge(side, 2, 0, 9)
    assert side.take_events() == [MessageStable(4, 5)]
    acknowledge(side, 1, 0, 9)
    assert not side.take_events()


def test_a_message_is_kept_and_repeated_until_it_is_stable() -> None:
    """UP-53: then it is forgotten."""
    side = registered()
    send(side, 0)
    acknowledge(side, 0, 0, 0)
    repeat_ns = side.limits.repeat_ns

    def repeated(now_ns: int) -> list[int]:
        side.tick(now_ns)
        return [at for at in range(3) if MESSAGE in sent(side, at)]

    assert repeated(repeat_ns) == [1, 2]
    assert repeated(2 * repeat_ns) == [1, 2]
    acknowledge(side, 1, 0, 0)
    assert repeated(3 * repeat_ns) == []
    assert side.unstable == []


def test_a_message_is_given_up_after_its_lifetime() -> None:
    """UP-54: with an event, because it may be lost."""
    side = registered(lifetime_ns=60 * SECOND_NS)
    send(side, 0)
    side.tick(60 * SECOND_NS - 1)
    assert side.unstable == [0]
    side.tick(60 * SECOND_NS)
    assert side.unstable == []
    assert NotStable(0) in side.take_events()


def test_a_message_longer_than_the_limit_is_sent_alone() -> None:
    """UP-57: it waits for the messages before it, and not without end."""
    side = registered(flight_bytes=10)
    send(side, 0)
    assert not put_in_flight(side, bytes(1000), 0)
    assert not put_in_flight(side, b"y", 0)
    side.note_full()
    assert side.take_events() == [FlightSize(True, 1, len(MESSAGE))]
    for at in (0, 1):
        acknowledge(side, at, 0, 0)
    assert side.take_events() == [MessageStable(0, 0), FlightSize(False, 0, 0)]
    assert put_in_flight(side, bytes(1000), 0)


def test_silent_stores_are_unresponsive() -> None:
    """UP-64: the source asks for answers, ends the connection of a Store that gives none, and needs a quorum."""
    side = registered()
    limits = side.limits
    for at in range(3):
        sent(side, at)
    side.tick(limits.keepalive_interval_ns)
    for at in range(3):
        (asked,) = sent(side, at)
        assert isinstance(asked, Keepalive)
        assert asked.needs_response
    side.received(0, asked.encode(), 5 * SECOND_NS)
    assert side.tick(limits.activity_timeout_ns) == [1, 2]
    side.disconnected(1)
    side.disconnected(2)
    assert side.take_events() == [StoreUnresponsive(1, True), StoreUnresponsive(2, False)]
    assert not put_in_flight(side, b"x", 0)
    side.connected(1, limits.activity_timeout_ns)
    for _ in range(2):
        answer(side, 1, is_known=True)
    assert side.take_events() == [StoreBack(1)]
    assert put_in_flight(side, b"x", 0)


def test_a_refusal_is_reported_once() -> None:
    """UP-22: with its reason, until the Store accepts the source."""
    side = SourceSide("orders", 7, STORES[:1])
    for _ in range(3):
        side.connected(0, 0)
        answer(side, 0, error=RegistrationError.USED_BY_SOURCE)
        side.disconnected(0)
    assert side.take_events() == [RegistrationRefused(0, "used_by_source")]


def receiver() -> ReceiverSide:
    """A receiver at three connected Stores."""
    side = ReceiverSide("orders", 3, "session", TOPIC_INDEX, STORES)
    for at in range(3):
        side.connected(at, 0)
        sent(side, at)
    return side


def test_a_receiver_that_is_refused_does_not_start() -> None:
    """UP-46: it has no number to start at, and names the Stores that refused it."""
    side = receiver()
    for at in range(3):
        answer(side, at, error=RegistrationError.USED_BY_RECEIVER)
    side.tick(10 * SECOND_NS - 1)
    assert side.start_sqn is None
    assert not side.has_store
    assert set(side.take_refusals()) == {0, 1, 2}


def test_the_last_acknowledgement_is_repeated() -> None:
    """UP-63: every second, so that the Store sees that the receiver is there."""
    side = receiver()
    for at in range(3):
        answer(side, at, is_known=True, low_sqn=4, high_sqn=9)
    assert side.start_sqn == 4
    side.acknowledge(6)
    for at in range(3):
        assert [one.sqn for one in sent(side, at)] == [6]
    for second in (1, 2):
        side.tick(second * SECOND_NS)
        for at in range(3):
            repeated = sent(side, at)
            assert [one.sqn for one in repeated if isinstance(one, ConsumptionAck)] == [6]
            assert any(isinstance(one, Keepalive) and one.needs_response for one in repeated)
    assert side.high_sqn == 9


def test_a_message_is_repeated_with_the_topic_index_of_the_session() -> None:
    """UP-58: a Store refuses another one than its source has registered since."""
    side = registered()
    send(side, 0)
    side.attach("another session", TOPIC_INDEX + 1, 0)
    for at in range(3):
        sent(side, at)
        answer(side, at, is_known=True)
    side.tick(side.limits.repeat_ns)
    assert all(data_of(side.take_output(at)).topic_index == TOPIC_INDEX + 1 for at in range(3))
