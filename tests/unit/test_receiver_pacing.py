"""Receiver-paced persistence at a Store, without sockets: consent, the messages kept for receivers, and blocking."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.unit.test_store_lifetimes import LIFETIME_S, SECOND, Store, registration
from umstack.persistence.pacing import (
    FLIGHT_BYTES_NAME,
    FLIGHT_MESSAGES_NAME,
    PACING_NAME,
    REPLAY_NAME,
    RETAINED_BYTES_NAME,
    Pacing,
)
from umstack.persistence.source_side import FIRST_SQN_NAME, TRANSPORT_NAME
from umstack.store.protocol import StoreLimits, StoreSide
from umstack.store.repository import ReceivedRows
from umstack.store.wire import (
    ConfigurationValue,
    ConsumptionAck,
    DeliveryConfirmation,
    Keepalive,
    KeepaliveSender,
    RegistrationError,
    RegistrationResponse,
    StabilityAck,
)
from umstack.store.wire.decoding import ControlMessage

SOURCE, READER = 1, 2
FLIGHT = 5_000
RETAINED = 40_000
"""Bytes kept of the source; one of its messages is a record of 1,048 bytes."""
FLIGHT_MESSAGES = 5
LIMITS = {FLIGHT_BYTES_NAME: FLIGHT, FLIGHT_MESSAGES_NAME: FLIGHT_MESSAGES, RETAINED_BYTES_NAME: RETAINED}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A Store with two connections."""
    one = Store(tmp_path)
    one.connect(SOURCE, READER)
    yield one
    one.repository.close()


def source(store: Store, **limits: int) -> RegistrationResponse:
    """Register a receiver-paced source."""
    return store.source(SOURCE, "orders", more=LIMITS | limits, is_receiver_paced=True)


def receiver(
    store: Store, reg_id: int, session_id: int, pacing: Pacing = Pacing.BLOCKING, **fields: object
) -> RegistrationResponse:
    """Register a receiver."""
    values = (ConfigurationValue(PACING_NAME, str(pacing.value), 2),)
    return store.receiver(
        READER, "orders", reg_id, session_id, is_receiver_paced=True, configuration=values, **fields
    )


def acknowledge(store: Store, source_id: int, receiver_id: int, sqn: int, *, is_start: bool = False) -> None:
    """A receiver has consumed every message up to this one, or begins behind it."""
    ack = ConsumptionAck(
        transport_index=0,
        source_reg_id=source_id,
        receiver_reg_id=receiver_id,
        sqn=sqn,
        store_index=0,
        is_start=is_start,
    )
    store.side.received(READER, ack.encode())
    store.side.write_consumption()


def kept(store: Store) -> list[tuple[int, int]]:
    """The ranges that the Store keeps of the source."""
    return store.repository.ranges(0)


def blocked_by(store: Store) -> list[tuple[int, int]]:
    """Who blocks the source and for how long, by each keepalive that the source got."""
    found = [one.terms for one in store.output(SOURCE) if isinstance(one, Keepalive)]
    return [(one.blocking_session_id, one.blocked_ms) for one in found]


def test_a_message_is_kept_until_all_receivers_have_acknowledged_it(store: Store, tmp_path: Path) -> None:
    """UP-88: then it is dropped; without receivers nothing is kept. The numbering goes on, also after a restart."""
    reg_id = source(store).reg_id
    one, other = receiver(store, reg_id, 3), receiver(store, reg_id, 4, Pacing.NON_BLOCKING)
    store.keep(*range(10))
    acknowledge(store, reg_id, one.reg_id, 7)
    assert kept(store) == [(0, 9)]
    acknowledge(store, reg_id, other.reg_id, 4)
    assert kept(store) == [(5, 9)]
    acknowledge(store, reg_id, other.reg_id, 9)
    assert kept(store) == [(8, 9)]
    acknowledge(store, reg_id, one.reg_id, 9)
    assert kept(store) == []
    store.repository.close()
    again = Store(tmp_path)
    again.connect(SOURCE, READER)
    answer = source(again)
    assert (answer.is_known, answer.high_sqn) == (True, 9)
    again.keep(10)
    assert kept(again) == [(10, 10)]
    again.keep(3, 9)  # a source that did not get the acknowledgements repeats the messages
    assert kept(again) == [(10, 10)]
    assert again.side.counters["duplicates"] == 2
    again.repository.close()


def test_nothing_is_kept_for_no_receiver(store: Store) -> None:
    """UP-36: a new receiver begins at the live position, so nobody can want earlier messages."""
    reg_id = source(store).reg_id
    store.keep(*range(10))
    store.side.write_consumption()
    assert kept(store) == []
    answer = receiver(store, reg_id, 3)
    assert (answer.low_sqn, answer.high_sqn, answer.is_known, answer.is_receiver_paced) == (
        10,
        9,
        False,
        True,
    )
    store.keep(10, 11)
    again = receiver(store, reg_id, 3)
    assert (again.low_sqn, again.high_sqn, again.is_known, again.has_no_acks) == (10, 11, True, True)
    acknowledge(store, reg_id, again.reg_id, 10)
    again = receiver(store, reg_id, 3)
    assert (again.low_sqn, again.is_known, again.has_no_acks) == (11, True, False)


def test_a_receiver_begins_where_it_began_at_another_store(store: Store) -> None:
    """UP-36: not at the live position of this Store, which may be later; an acknowledgement counts more."""
    reg_id = source(store).reg_id
    store.keep(*range(10))
    one = receiver(store, reg_id, 3)
    assert one.low_sqn == 10
    for sqn, low in ((6, 7), (20, 10), ((1 << 32) - 1, 0)):
        acknowledge(store, reg_id, one.reg_id, sqn, is_start=True)
        again = receiver(store, reg_id, 3)
        assert (again.low_sqn, again.is_known, again.has_no_acks) == (low, True, True)
    acknowledge(store, reg_id, one.reg_id, 8)
    acknowledge(store, reg_id, one.reg_id, 4, is_start=True)
    assert receiver(store, reg_id, 3).low_sqn == 9
    assert confirmed(store) == [(3, 8)]


@pytest.mark.parametrize("is_start", [False, True])
def test_a_position_before_the_first_number_of_a_new_store_releases_nothing(
    store: Store, is_start: bool
) -> None:
    """UP-36 UP-88: the Store replaced another, and the lower 32 bits of earlier numbers are higher."""
    reg_id = store.source(SOURCE, "orders", more=LIMITS, first_sqn=5, is_receiver_paced=True).reg_id
    store.keep(5, 6)
    one = receiver(store, reg_id, 3)
    assert one.low_sqn == 7
    store.keep(7, 8)
    acknowledge(store, reg_id, one.reg_id, (1 << 32) - 60, is_start=is_start)
    again = receiver(store, reg_id, 3)
    assert (again.low_sqn, again.high_sqn) == ((1 << 32) - 59, 8)
    assert [(first % (1 << 32), last % (1 << 32)) for first, last in kept(store)] == [(5, 8)]


def test_a_blocking_receiver_that_lags_stops_the_source(store: Store) -> None:
    """UP-90: the Store reports it before it acknowledges the message after which there is space for one flight only.

    What the source has in flight then is kept, more is not, and everything continues when the receiver does.
    """
    reg_id = source(store).reg_id
    slow = receiver(store, reg_id, 3)
    sent = 0
    while not store.side.counters["no_space"]:
        store.output(SOURCE)
        store.keep(sent)
        answers = store.output(SOURCE)
        sent += 1
        if any(isinstance(one, Keepalive) for one in answers):
            break
    assert [type(one) for one in answers] == [Keepalive, StabilityAck]
    assert RETAINED - FLIGHT - 40 * FLIGHT_MESSAGES < 1048 * sent <= RETAINED - FLIGHT + 1048
    store.now_ns += 2 * SECOND
    store.side.received(SOURCE, _asked(reg_id).encode())
    assert blocked_by(store) == [(3, 2000)]
    store.keep(*range(sent, sent + 20))
    last_kept = kept(store)[0][1]
    assert last_kept >= sent + FLIGHT // 1012 - 1
    assert store.repository.retained_bytes(0) <= RETAINED
    assert store.side.counters["no_space"] == sent + 19 - last_kept
    assert not list(store.side.missing())
    assert (
        store.side.rows("session orders", 1, cast("ReceivedRows", None), 0) == 0
    )  # they are checked one by one
    acknowledge(store, reg_id, slow.reg_id, 1500 * FLIGHT_MESSAGES // 1048)
    assert RETAINED - store.repository.retained_bytes(0) > FLIGHT + 40 * FLIGHT_MESSAGES
    assert blocked_by(store) == []  # not until there is space for two flights
    acknowledge(store, reg_id, slow.reg_id, last_kept)
    assert blocked_by(store) == [(0, 0)]
    store.keep(*range(last_kept + 1, sent + 20))
    assert kept(store) == [(last_kept + 1, sent + 19)]


def _asked(reg_id: int) -> Keepalive:
    return Keepalive(
        sender=KeepaliveSender.SOURCE,
        transport_index=0,
        topic_index=1,
        reg_id=reg_id,
        store_index=0,
        needs_response=True,
    )


def test_a_receiver_blocks_until_its_lifetime_ends(store: Store) -> None:
    """UP-91: then it counts as having acknowledged everything. A connected one is alive."""
    reg_id = source(store).reg_id
    receiver(store, reg_id, 3)
    for sqn in range(50):
        store.keep(sqn)
    assert store.side.counters["no_space"] > 0
    store.pass_seconds(2 * LIFETIME_S)
    store.side.write_consumption()
    assert kept(store)
    store.side.disconnected(READER)
    store.output(SOURCE)
    store.pass_seconds(LIFETIME_S - 1)
    store.side.write_consumption()
    assert blocked_by(store) == []
    store.pass_seconds(2)
    store.side.write_consumption()
    assert blocked_by(store) == [(0, 0)]
    assert kept(store) == []


def test_a_receiver_that_does_not_block_is_overrun(store: Store) -> None:
    """UP-91: its oldest messages are dropped for new ones, as far as no blocking receiver wants them."""
    reg_id = source(store).reg_id
    receiver(store, reg_id, 3, Pacing.NON_BLOCKING)
    store.keep(*range(100))
    store.side.write_consumption()
    ((low, high),) = kept(store)
    assert low > 0
    assert high == 99
    assert blocked_by(store) == []
    blocking = receiver(store, reg_id, 4)
    store.keep(*range(100, 120))
    ((low, high),) = kept(store)
    assert high == 119
    assert 60 < low <= 100
    store.keep(*range(120, 150))
    assert kept(store)[0][0] == 100
    assert blocked_by(store)[-1][0] == 4
    acknowledge(store, reg_id, blocking.reg_id, kept(store)[0][1])
    assert blocked_by(store)[-1][0] == 0


def test_store_source_and_receiver_must_consent(store: Store) -> None:
    """UP-87: a refusal has an error code and a text that names the remedy; kinds cannot change."""
    streaming = store.source(SOURCE, "trades")
    refused = store.receiver(READER, "trades", streaming.reg_id, is_receiver_paced=True)
    _assert_refused(refused, "set ume_receiver_paced_persistence to 0")
    _assert_refused(store.source(SOURCE, "trades", is_receiver_paced=True, more=LIMITS), "another session id")
    reg_id = source(store).reg_id
    _assert_refused(store.source(SOURCE, "orders"), "registered as receiver-paced")
    _assert_refused(store.receiver(READER, "orders", reg_id), "set ume_receiver_paced_persistence to 1 or 2")
    assert receiver(store, reg_id, 3).error is None
    _assert_refused(receiver(store, reg_id, 3, Pacing.NON_BLOCKING), "1: keep it")
    store.side = StoreSide(
        store.repository, store.side.endpoint, lambda: store.now_ns, lambda *_: True, StoreLimits()
    )
    store.connect(SOURCE)
    _assert_refused(source(store), "--allow-receiver-paced-persistence")


def test_a_source_may_lower_the_limits_of_its_store(store: Store) -> None:
    """UP-93: above them it is refused. UP-90: its flight must be limited, to a quarter of the bytes kept."""
    most = store.repository.settings.source_bytes
    _assert_refused(source(store, **{RETAINED_BYTES_NAME: most + 1}), f"at most {most}")
    for name, value in (
        (FLIGHT_BYTES_NAME, 0),
        (FLIGHT_BYTES_NAME, RETAINED // 4),
        (FLIGHT_MESSAGES_NAME, 300),
    ):
        _assert_refused(source(store, **{name: value}), "limit the messages in flight")
    assert source(store, **{RETAINED_BYTES_NAME: 0}).error is None


def test_nothing_is_kept_for_a_replay(store: Store) -> None:
    """It gets the messages that are left; its session may register as a receiver afterwards, and continue."""
    reg_id = source(store).reg_id
    one = receiver(store, reg_id, 3)
    store.keep(*range(10))
    value = (ConfigurationValue(REPLAY_NAME, "1", 2),)
    replay = store.receiver(READER, "orders", reg_id, 4, configuration=value)
    assert (replay.error, replay.low_sqn, replay.is_receiver_paced) == (None, 0, False)
    acknowledge(store, reg_id, replay.reg_id, 2)
    acknowledge(store, reg_id, one.reg_id, 5)
    assert kept(store) == [(6, 9)]
    store.side.disconnected(READER)
    store.connect(READER)
    assert receiver(store, reg_id, 3).low_sqn == 6
    assert receiver(store, reg_id, 4).low_sqn == 3
    acknowledge(store, reg_id, one.reg_id, 9)
    store.keep(10)
    acknowledge(store, reg_id, one.reg_id, 10)
    assert kept(store) == [(6, 10)]


def _assert_refused(answer: RegistrationResponse, text: str) -> None:
    assert answer.error is RegistrationError.CONFIGURATION
    assert text in answer.reason


def test_acknowledgements_are_forwarded_to_a_source_that_wants_them(store: Store) -> None:
    """UP-62: written ones, each once, of receivers that allow it; and again when the source registers again."""
    reg_id = source(store).reg_id
    one, other = receiver(store, reg_id, 3), receiver(store, reg_id, 4, forwards_acks=False)
    store.keep(*range(10))
    assert confirmed(store) == []
    for receiver_id in (one.reg_id, other.reg_id, one.reg_id):
        acknowledge(store, reg_id, receiver_id, 7)
    assert confirmed(store) == [(3, 7)]
    acknowledge(store, reg_id, one.reg_id, 9)
    assert confirmed(store) == [(3, 9)]
    store.side.disconnected(SOURCE)
    store.connect(SOURCE)
    assert [type(one) for one in again(store)] == [RegistrationResponse, DeliveryConfirmation]
    store.source(SOURCE, "orders", more=LIMITS, is_receiver_paced=True, forwards_acks=False)
    store.keep(10)
    acknowledge(store, reg_id, one.reg_id, 10)
    assert confirmed(store) == []


def again(store: Store) -> list[ControlMessage]:
    """The answers to another registration of the source."""
    values = LIMITS | {TRANSPORT_NAME: "session orders", FIRST_SQN_NAME: 0}
    configuration = tuple(ConfigurationValue(name, str(value)) for name, value in values.items())
    return store.ask(SOURCE, registration("orders", 7, is_receiver_paced=True, configuration=configuration))


def confirmed(store: Store) -> list[tuple[int, int]]:
    """The receivers and numbers of the acknowledgements that were forwarded to the source."""
    found = [one for one in store.output(SOURCE) if isinstance(one, DeliveryConfirmation)]
    return [(one.session_id, one.sqn) for one in found]
