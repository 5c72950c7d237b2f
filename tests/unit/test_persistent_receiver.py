"""Persistent receivers: what a session id has not acknowledged comes from the Stores, in order with the live stream."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.loopback import open_context
from tests.unit.store_thread import PausedStore, running_store
from tests.unit.ways import ITS_SESSION, alone
from tests.waiting import SECONDS, collect, wait_for
from umstack import Message
from umstack._engine import engine
from umstack._engine.subscription import Mapped, map_sources
from umstack.context import Context
from umstack.errors import InvalidArgument, OptionError
from umstack.persistent_receiver import PersistentReceiver
from umstack.persistent_source import PersistentSource

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[PausedStore]]:
    """Three Stores of this process."""
    with contextlib.ExitStack() as running:
        yield [running.enter_context(running_store(tmp_path / str(at))) for at in range(3)]


@pytest.fixture
def context() -> Iterator[Context]:
    """A context on loopback for the receivers."""
    with open_context() as opened:
        yield opened


def _publish(context: Context, stores: list[PausedStore]) -> PersistentSource:
    return context.source("orders", store=[store.endpoint for store in stores], session_id="desk7")


def _payloads(receiver: PersistentReceiver, count: int) -> list[bytes]:
    return [message.data for message in collect(receiver, count)]


def _numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def test_a_restarted_receiver_goes_on_in_order_with_the_live_stream(
    stores: list[PausedStore], context: Context
) -> None:
    """UP-5, UP-14, UP-33, UP-35, UP-39, UP-42, UP-48: a new one gets the past first; a restarted one what it missed."""
    with open_context() as publishing, _publish(publishing, stores) as source:
        source.send_many(_numbers(0, 500), flush=True)
        assert source.wait_stable(SECONDS)
        with context.receiver("orders", session_id="risk3") as receiver:
            source.send_many(_numbers(500, 600), flush=True)
            assert _payloads(receiver, 600) == _numbers(0, 600)
        source.send_many(_numbers(600, 1000), flush=True)
        assert source.wait_stable(SECONDS)
        with context.receiver("orders", session_id="risk3") as receiver:
            source.send_many(_numbers(1000, 1100), flush=True)
            assert _payloads(receiver, 500) == _numbers(600, 1100)
            assert receiver.poll(timeout=0.2).messages() == []


def test_a_restarted_source_is_one_stream_to_its_receivers(
    stores: list[PausedStore], context: Context
) -> None:
    """UP-24, UP-25: in another session, its numbers go on, and nothing comes twice or is lost between its lives."""
    received: list[int] = []
    with context.receiver("orders", session_id="risk3") as receiver:
        for life in range(3):
            with open_context() as publishing, _publish(publishing, stores) as source:
                assert source.first_sequence_number == 100 * life
                assert source.send_many(_numbers(100 * life, 100 * life + 100), flush=True) == 100
            received += [message.sequence_number for message in collect(receiver, 100)]
    assert received == list(range(300))


@alone(ITS_SESSION)
def test_a_source_that_cannot_be_joined_at_first_is_received_from_where_it_was(
    stores: list[PausedStore],
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An interface may have no address for a moment: that is a record, and the next advertisement tries again."""
    failures = [-errno.EADDRNOTAVAIL] * 2
    with open_context() as publishing, _publish(publishing, stores) as source:
        source.send_many(_numbers(0, 100), flush=True)
        assert source.wait_stable(SECONDS)
        with open_context() as former, former.receiver("orders", session_id="risk3") as receiver:
            assert [receiver.receive(timeout=SECONDS) for _ in range(40)] == _numbers(0, 40)
        monkeypatch.setattr(
            engine,
            "map_sources",
            lambda requests: (
                [Mapped(requests[0], failures.pop())] if requests and failures else map_sources(requests)
            ),
        )
        with context.receiver("orders", session_id="risk3") as receiver:
            assert _payloads(receiver, 60) == _numbers(40, 100)
    assert not failures
    assert "it is tried again" in caplog.text
    assert "Traceback" not in caplog.text


def test_messages_that_were_not_acknowledged_come_again(stores: list[PausedStore], context: Context) -> None:
    """UP-47, UP-60, UP-61: acknowledgements are explicit with ume_explicit_ack_only, and cumulative."""
    with open_context() as publishing, _publish(publishing, stores) as source:
        source.send_many(_numbers(0, 10), flush=True)
        assert source.wait_stable(SECONDS)
        for first, acknowledged in ((0, None), (0, 5), (6, None)):
            with context.receiver("orders", session_id=3, ume_explicit_ack_only=1) as receiver:
                messages = collect(receiver, 10 - first)
                assert [message.data for message in messages] == _numbers(first, 10)
                with pytest.raises(InvalidArgument):
                    receiver.acknowledge(messages[0]._replace(topic="trades"))
                if acknowledged is not None:
                    receiver.acknowledge(messages[acknowledged])


def test_the_number_of_messages_to_recover_has_a_limit(stores: list[PausedStore], context: Context) -> None:
    """UP-37: the example of Ultra Messaging: of 0 to 6, with 0 acknowledged, 2 recovers from 4 on; a limit that
    reaches behind the acknowledgement changes nothing."""
    with open_context() as publishing, _publish(publishing, stores) as source:
        source.send(b"0", flush=True)
        assert source.wait_stable(SECONDS)
        for session_id in (3, 4):
            with context.receiver("orders", session_id=session_id) as receiver:
                assert _payloads(receiver, 1) == [b"0"]
        source.send_many(_numbers(1, 7), flush=True)
        assert source.wait_stable(SECONDS)
        for session_id, maximum, first in ((3, 2, 4), (4, 100, 1), (5, 1, 5), (6, 0, 0)):
            with context.receiver(
                "orders", session_id=session_id, retransmit_request_maximum=maximum
            ) as receiver:
                assert _payloads(receiver, 7 - first) == _numbers(first, 7)


def test_every_way_of_reading_acknowledges(stores: list[PausedStore], context: Context) -> None:
    """poll(), receive(), iteration and a callback: the next receiver of the session id continues behind each."""
    with open_context() as publishing, _publish(publishing, stores) as source:
        source.send_many(_numbers(0, 8), flush=True)
        assert source.wait_stable(SECONDS)
        with context.receiver("orders", session_id=3) as receiver:
            assert receiver.receive(timeout=SECONDS) == b"0"
            assert receiver.receive(timeout=SECONDS) == b"1"
        with context.receiver("orders", session_id=3) as receiver:
            assert _payloads(receiver, 1) == [b"2"]
        with context.receiver("orders", session_id=3) as receiver:
            assert next(iter(receiver)).data == b"3"
            assert receiver.poll(1).payloads() == [b"4"]
        called: list[bytes] = []
        with context.receiver(
            "orders", lambda event: isinstance(event, Message) and called.append(event.data), session_id=3
        ):
            wait_for(lambda: len(called) == 3)
        assert called == [b"5", b"6", b"7"]


@pytest.mark.parametrize("loops", [1, 2])
def test_messages_that_no_loop_reached_come_again(
    stores: list[PausedStore], context: Context, loops: int
) -> None:
    """UP-47: a loop that ends early has read what it reached, not the whole batch that it took from the queue."""
    with open_context() as publishing, _publish(publishing, stores) as source:
        source.send_many(_numbers(0, 10), flush=True)
        assert source.wait_stable(SECONDS)
        with context.receiver("orders", session_id=3) as receiver:
            wait_for(lambda: receiver.stats()["queued_messages"] >= 10, "the messages")
            for number in range(loops):
                assert next(iter(receiver)).data == b"%d" % number
        with context.receiver("orders", session_id=3) as receiver:
            assert _payloads(receiver, 10 - loops) == _numbers(loops, 10)


def test_a_receiver_that_cannot_acknowledge_in_order_is_refused(context: Context) -> None:
    """An acknowledgement covers all earlier messages, so delivery must be in order."""
    with pytest.raises(OptionError, match="ordered_delivery"):
        context.receiver("orders", session_id=3, ordered_delivery=0)
