"""Receiver-paced sources, receivers and Stores over loopback."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.loopback import open_context
from tests.unit.store_thread import PausedStore, running_store
from tests.waiting import SECONDS, collect, wait_for
from umstack import Event, Message, UnrecoverableLoss
from umstack.context import Context
from umstack.errors import BackPressured, NotConnected
from umstack.persistence.events import DeliveryConfirmed, SourceBlocked, SourceEvent, SourceUnblocked
from umstack.persistence.session_ids import session_id_of
from umstack.persistent_source import PersistentSource
from umstack.store.protocol import StoreLimits

pytestmark = pytest.mark.usefixtures("way")

LIMITS = StoreLimits(allows_receiver_pacing=True, state_lifetime_ns=1_000_000_000)
PAYLOAD = 1000


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[PausedStore]]:
    """Three Stores that allow receiver pacing, and forget clients that were away for a second."""
    with contextlib.ExitStack() as running:
        yield [running.enter_context(running_store(tmp_path / str(at), limits=LIMITS)) for at in range(3)]


@pytest.fixture
def context() -> Iterator[Context]:
    """A context on loopback for the receivers."""
    with open_context() as opened:
        yield opened


def _publish(context: Context, stores: list[PausedStore], **options: int) -> PersistentSource:
    chosen = {
        "ume_receiver_paced_persistence": 1,
        "ume_flight_size": 20,
        "ume_flight_size_bytes": 20_000,
        "ume_repository_disk_file_size_limit": 200_000,
        **options,
    }
    endpoints = [store.endpoint for store in stores]
    return context.source("orders", store=endpoints, session_id="desk7", **chosen)  # type: ignore[arg-type]


def _kept(store: PausedStore) -> int:
    return sum(last - first + 1 for first, last in store._repository.ranges(0))


def _send_until_blocked(source: PersistentSource) -> int:
    sent = itertools.count()
    with pytest.raises(BackPressured, match="blocks 'orders'"):
        _send_all(source, sent)
    return next(sent) - 1


def _send_all(source: PersistentSource, count: Iterator[int]) -> None:
    for _ in itertools.takewhile(lambda number: number < 1000, count):
        source.send(bytes(PAYLOAD), flush=True, timeout=2)


def test_a_slow_receiver_stops_the_source_and_loses_nothing(
    stores: list[PausedStore], context: Context
) -> None:
    """UP-90: the source names it in an event; UP-88: acknowledged messages leave the Stores."""
    with (
        open_context() as publishing,
        _publish(publishing, stores) as source,
        context.receiver(
            "orders", session_id="risk3", ume_receiver_paced_persistence=1, ume_explicit_ack_only=1
        ) as receiver,
    ):
        wait_for(lambda: all(store._repository.state.receivers(0) for store in stores))
        sent = _send_until_blocked(source)
        assert 100 < sent < 200
        blocked = [one for one in source.take_events() if isinstance(one, SourceBlocked)]
        assert {one.session_id for one in blocked} == {session_id_of("risk3")}
        assert len({one.store for one in blocked}) == len(blocked) >= 2
        assert source.wait_stable(SECONDS)
        received = collect(receiver, sent)
        assert [one.sequence_number for one in received] == [*range(sent)]
        receiver.acknowledge(received[-1])
        source.send(b"goes on", flush=True, timeout=SECONDS)
        assert any(isinstance(one, SourceUnblocked) for one in source.take_events())
        assert source.wait_stable(SECONDS)
        receiver.acknowledge(collect(receiver, 1)[0])
        wait_for(lambda: not any(map(_kept, stores)))


def test_a_receiver_that_ended_blocks_until_its_lifetime_is_over(
    stores: list[PausedStore], context: Context
) -> None:
    """UP-91: the Store forgets it, and the source continues by itself."""
    with open_context() as publishing, _publish(publishing, stores) as source:
        with context.receiver("orders", session_id="risk3", ume_receiver_paced_persistence=1):
            wait_for(lambda: all(store._repository.state.receivers(0) for store in stores))
        _send_until_blocked(source)
        source.send(b"goes on", flush=True, timeout=4 * SECONDS)


def test_a_receiver_that_does_not_block_is_overrun(stores: list[PausedStore], context: Context) -> None:
    """UP-91: the source is not stopped, and the receiver continues with the messages that are left."""
    options = {"ume_receiver_paced_persistence": 2, "ume_explicit_ack_only": 1}
    with open_context() as publishing, _publish(publishing, stores) as source:
        with context.receiver("orders", session_id="risk3", **options):  # type: ignore[arg-type]
            wait_for(lambda: all(store._repository.state.receivers(0) for store in stores))
        for _ in range(500):
            source.send(bytes(PAYLOAD), flush=True, timeout=SECONDS)
        assert source.wait_stable(SECONDS)
        with context.receiver("orders", session_id="risk3", **options) as receiver:  # type: ignore[arg-type]
            events: list[Event] = []
            while not any(isinstance(one, Message) for one in events):
                events += receiver.poll(1, SECONDS).events()
            lost = [one.sequence_number for one in events if isinstance(one, UnrecoverableLoss)]
            first = events[-1].sequence_number  # type: ignore[union-attr]
            assert lost == [*range(first)]
            assert 250 < first < 499
            assert [one.sequence_number for one in collect(receiver, 499 - first)] == [*range(first + 1, 500)]


def test_a_new_receiver_begins_at_the_live_position(stores: list[PausedStore], context: Context) -> None:
    """UP-36: earlier messages belong to the receivers that were registered then."""
    with open_context() as publishing, _publish(publishing, stores) as source:
        source.send_many([b"%d" % number for number in range(50)], flush=True)
        assert source.wait_stable(SECONDS)
        with context.receiver("orders", session_id="risk3", ume_receiver_paced_persistence=1) as receiver:
            wait_for(lambda: all(store._repository.state.receivers(0) for store in stores))
            source.send(b"live", flush=True)
            assert [one.data for one in collect(receiver, 1)] == [b"live"]


def test_a_store_that_does_not_allow_it_refuses_the_source(tmp_path: Path, context: Context) -> None:
    """UP-87: the error names what to do."""
    with running_store(tmp_path) as store, pytest.raises(NotConnected, match="--allow-receiver-paced"):
        context.source(
            "orders",
            store=[store.endpoint],
            session_id="desk7",
            registration_timeout=1,
            ume_receiver_paced_persistence=1,
        )


def test_a_receiver_of_another_kind_is_refused(
    stores: list[PausedStore], context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    """UP-87: it gets nothing, and the log names what to do."""
    with open_context() as publishing, _publish(publishing, stores) as source:
        with context.receiver("orders", session_id="risk3"):
            wait_for(lambda: "set ume_receiver_paced_persistence to 1 or 2" in caplog.text)
        source.send(b"nobody waits", flush=True)
        assert source.wait_stable(SECONDS)


def test_receivers_confirm_deliveries_to_the_source(stores: list[PausedStore], context: Context) -> None:
    """UP-62: a message leaves flight once two receivers have acknowledged it; one that declines does not count."""
    wanted = {"ume_retention_unique_confirmations": 2, "ume_confirmed_delivery_notification": 1}
    endpoints = [store.endpoint for store in stores]
    with (
        open_context() as publishing,
        publishing.source("orders", store=endpoints, session_id="desk7", **wanted) as source,  # type: ignore[arg-type]
        context.receiver("orders", session_id="one") as one,
        context.receiver("orders", session_id="declines", ume_allow_confirmed_delivery=0) as declining,
    ):
        source.send_many([b"%d" % number for number in range(50)], flush=True)
        for receiver in (one, declining):
            collect(receiver, 50)
            receiver.poll()  # acknowledges
        events: list[SourceEvent] = []
        one_id, two_id = session_id_of("one"), session_id_of("two")
        wait_for(lambda: _confirmed(source, events, one_id) == 49)
        assert not source.wait_stable(0.3)
        assert source.unstable == [*range(50)]
        with open_context() as other, other.receiver("orders", session_id="two") as two:
            collect(two, 50)
            two.poll()
            wait_for(lambda: _confirmed(source, events, two_id) == 49)
            assert source.wait_stable(SECONDS)
        assert _confirmed(source, events, session_id_of("declines")) == -1
        source.close(timeout=0)


def _confirmed(source: PersistentSource, events: list[SourceEvent], session_id: int) -> int:
    """The last message that a receiver has confirmed; its events name each message once."""
    events += source.take_events()
    last = -1
    for event in events:
        if isinstance(event, DeliveryConfirmed) and event.session_id == session_id:
            assert event.first_sqn == last + 1
            last = event.last_sqn
    return last
