"""Persistent sources: session ids, limits of messages in flight, and what a send does while it waits."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.loopback import open_context
from tests.unit.store_thread import PausedStore, running_store
from tests.unit.ways import FULL_LOG, alone
from tests.waiting import SECONDS, wait_for
from umstack._engine.endpoint import Endpoint
from umstack.context import Context
from umstack.errors import BackPressured, Closed, InvalidArgument, MessageTooLong, OptionError
from umstack.persistence.advertised import store_endpoint, store_topic_options, stores_of
from umstack.persistence.events import FlightSize, MessageStable
from umstack.persistence.session_ids import SESSION_ID_MAXIMUM, session_id_of
from umstack.resolution.codec import WireOption

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PausedStore]:
    """A Store of this process."""
    with running_store(tmp_path) as running:
        yield running


@pytest.fixture
def context() -> Iterator[Context]:
    """A context on loopback."""
    with open_context() as opened:
        yield opened


@pytest.mark.parametrize(
    ("wanted", "number"),
    [(7, 7), ("7", 7), ("0x10", 16), ("010", 8), (SESSION_ID_MAXIMUM, SESSION_ID_MAXIMUM)],
)
def test_a_session_id_is_a_number_or_names_one(wanted: int | str, number: int) -> None:
    """UP-13: decimal, hexadecimal and octal; other texts are hashed to valid numbers."""
    assert session_id_of(wanted) == number
    named = {session_id_of(f"desk{desk}") for desk in range(1000)}
    assert len(named) == 1000
    assert all(1 <= one <= SESSION_ID_MAXIMUM for one in named)


@pytest.mark.parametrize("wanted", [0, -1, SESSION_ID_MAXIMUM + 1, "", "0", "18446744073709551615"])
def test_a_session_id_out_of_range_is_refused(wanted: int | str) -> None:
    """0 and 2^64 - 1 are not session ids (UP-13)."""
    with pytest.raises(InvalidArgument):
        session_id_of(wanted)


@pytest.mark.parametrize(
    "wanted", ["", "10.9.0.11", "10.9.0.11:0", "store:14567", "10.9.0.11:65536", ("store", 1)]
)
def test_a_wrong_address_of_a_store_is_refused(wanted: str | tuple[str, int]) -> None:
    """The error shows how an address is written."""
    with pytest.raises(InvalidArgument, match="address of a Store") as caught:
        store_endpoint(wanted)
    assert "10.9.0.11:14567" in str(caught.value.hint)


def test_advertisements_name_the_stores_in_order() -> None:
    """UP-5: receivers learn the Stores from the source. A list with a hole or an impossible address is ignored."""
    stores = (Endpoint("10.9.0.11", 14567), Endpoint("10.9.0.12", 14568))
    options = store_topic_options(stores)
    assert stores_of(reversed(options)) == stores
    assert stores_of(options[:1]) == ()
    assert stores_of(options[:1] + options[2:]) == ()
    assert stores_of((WireOption(2, options[1].body[:-1]),)) == ()
    assert stores_of(store_topic_options([Endpoint("239.1.1.1", 14567)])) == ()


def test_a_blocked_send_leaves_the_source_usable(store: PausedStore, context: Context) -> None:
    """UP-56: while one send waits, acknowledgements are handled and states are read; FlightSize reports its end."""
    with context.source("orders", store=[store.endpoint], session_id=7, ume_flight_size=2) as source:
        store.pause()
        source.send(b"0")
        source.send(b"1")
        with pytest.raises(BackPressured, match="2 messages are not stable"):
            source.send(b"refused", timeout=0)
        sent: list[int] = []
        sender = threading.Thread(target=lambda: sent.append(source.send(b"2", flush=True)))
        sender.start()
        wait_for(lambda: FlightSize(True, 2, 26) in source.take_events(), "the limit is reported")
        assert source.unstable == [0, 1]
        assert sent == []
        store.resume()
        sender.join()
        assert sent == [2]
        assert source.wait_stable(timeout=10)
        events = source.take_events()
        assert any(isinstance(event, FlightSize) and not event.is_over for event in events)


@alone(FULL_LOG)
def test_a_send_of_many_counts_what_the_rate_let_through(store: PausedStore) -> None:
    """A caller that sends the rest again repeats no message."""
    flight = {"ume_flight_size": 1000, "ume_flight_size_bytes": 0}
    with (
        open_context(transport_lbtrm_data_rate_limit=2_000_000) as limited,
        limited.source("orders", store=[store.endpoint], session_id=7, **flight) as source,
    ):
        count = source.send_many([bytes(1000)] * 900, flush=True, timeout=0.3)
        assert 0 < count < 900
        assert source.send(b"next", timeout=SECONDS) == count


def test_offsets_outside_the_data_are_refused(store: PausedStore, context: Context) -> None:
    """As a Source does: no shortened message is sent."""
    with context.source("orders", store=[store.endpoint], session_id=7) as source:
        for offsets in ([0, 3, 100], [0, 6, 3], [-1, 3]):
            with pytest.raises(OptionError, match="outside the data"):
                source.send_packed(b"onetwo", array("i", offsets))
        assert source.send_packed(b"onetwo", array("i", [0, 3, 6])) == 2


def test_notify_sends_beyond_the_limits(store: PausedStore, context: Context) -> None:
    """UP-56: the send succeeds, and events report when the limit is passed and when there is space again."""
    with context.source(
        "orders", store=[store.endpoint], session_id=7, ume_flight_size=2, ume_flight_size_behavior="notify"
    ) as source:
        store.pause()
        assert source.send_many([b"message"] * 10, flush=True) == 10
        wait_for(
            lambda: any(isinstance(event, FlightSize) and event.is_over for event in source.take_events())
        )
        store.resume()
        assert source.wait_stable(timeout=10)
        assert any(isinstance(event, FlightSize) and not event.is_over for event in source.take_events())


def test_events_of_the_last_messages_outlive_the_source(store: PausedStore, context: Context) -> None:
    """Every message that close() waited for is in a MessageStable event afterwards."""
    source = context.source("orders", store=[store.endpoint], session_id="desk7")
    for _ in range(20):
        last = source.send(b"data")
    assert source.close() == []
    stable = [event for event in source.take_events() if isinstance(event, MessageStable)]
    assert sum(event.last_sqn - event.first_sqn + 1 for event in stable) == last + 1
    assert source.close() == []


def test_a_batch_beyond_the_limits_is_sent_in_parts(store: PausedStore, context: Context) -> None:
    """UP-56: a part waits until the one before it is stable, and every message is reported stable once."""
    with context.source("orders", store=[store.endpoint], session_id=7, ume_flight_size=10) as source:
        assert source.send_many([b"%d" % at for at in range(205)], flush=True, timeout=SECONDS) == 205
        assert source.send(b"next") == source.first_sequence_number + 205
        assert source.wait_stable(SECONDS)
        stable = [event for event in source.take_events() if isinstance(event, MessageStable)]
    numbers = [sqn for event in stable for sqn in range(event.first_sqn, event.last_sqn + 1)]
    assert numbers == list(range(source.first_sequence_number, source.first_sequence_number + 206))
    assert store.status()["messages"] == 206


def test_messages_before_one_that_is_too_long_are_sent(store: PausedStore, context: Context) -> None:
    """The error names its length; nothing behind it is sent."""
    with context.source("orders", store=[store.endpoint], session_id=7) as source:
        longest = source.message_maximum_bytes
        with pytest.raises(MessageTooLong, match=str(longest + 1)):
            source.send_many([b"one", b"two", bytes(longest + 1), b"four"], timeout=SECONDS)
        assert source.send(b"next") == source.first_sequence_number + 2
        with pytest.raises(MessageTooLong):
            source.send_many([bytes(longest + 1), b"two"])
        assert source.wait_stable(SECONDS)


def test_a_batch_that_must_wait_too_long_ends_early(store: PausedStore, context: Context) -> None:
    """Its result counts the messages sent; without any, BackPressured is raised."""
    with context.source("orders", store=[store.endpoint], session_id=7, ume_flight_size=10) as source:
        store.pause()
        assert source.send_many([b"message"] * 25, timeout=0.2) == 10
        with pytest.raises(BackPressured, match="10 messages are not stable"):
            source.send_many([b"message"] * 25, timeout=0.2)
        store.resume()
        assert source.send_many([b"message"] * 25, flush=True, timeout=SECONDS) == 25
        assert source.wait_stable(SECONDS)


@pytest.mark.parametrize("behavior", ["block", "notify"])
def test_nothing_is_sent_once_close_has_listed_the_messages_in_flight(
    store: PausedStore, context: Context, monkeypatch: pytest.MonkeyPatch, behavior: str
) -> None:
    """UP-52: a message sent while close() ends the connections would be in neither its result nor an event."""
    source = context.source("orders", store=[store.endpoint], session_id=7, ume_flight_size_behavior=behavior)
    refused: list[BaseException] = []
    end_thread = source._end_thread

    def send_meanwhile() -> None:
        for send in (lambda: source.send(b"late"), lambda: source.send_many([b"late"] * 3)):
            with pytest.raises(Closed) as caught:
                send()
            refused.append(caught.value)
        end_thread()

    monkeypatch.setattr(source, "_end_thread", send_meanwhile)
    assert source.send(b"first") == source.first_sequence_number
    assert source.close(SECONDS) == []
    assert len(refused) == 2


@alone(FULL_LOG)
def test_messages_that_the_transport_does_not_take_are_not_in_flight(store: PausedStore) -> None:
    """UP-55: a long batch enters the flight in parts: the whole of it, at each attempt, takes longer than a timeout."""
    options = {"ume_flight_size": 10, "ume_flight_size_behavior": "notify"}
    with (
        open_context(transport_lbtrm_data_rate_limit=8_000_000) as limited,
        limited.source("orders", store=[store.endpoint], session_id=7, **options) as source,
    ):
        store.pause()
        batch, sent = [bytes(100)] * 100_000, list[int]()
        assert source.send_many(batch[:10]) == 10
        sender = threading.Thread(target=lambda: sent.append(source.send_many(batch, timeout=0.3)))
        sender.start()
        most = 0
        while sender.is_alive():
            most = max(most, len(source._side.flight))
        assert 0 < most <= sent[0] + 2000
        store.resume()
        assert source.wait_stable(SECONDS)
