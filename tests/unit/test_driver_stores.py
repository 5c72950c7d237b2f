"""Stores through a driver: sources and receivers with Stores continue over restarts of the driver, and without one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.unit.driver_ends import RunningDriver, attached, driver
from tests.unit.loopback import DATAGRAM, OWN_ADDRESSES, open_context
from tests.unit.store_thread import PausedStore, running_store
from tests.waiting import SECONDS, collect, wait_for
from umstack import Context, Message
from umstack.driver import client
from umstack.errors import OptionError
from umstack.persistent_source import PersistentSource

ROUND = 200
SIZES = {"transport_lbtrm_datagram_max_size": DATAGRAM}


def following() -> Context:
    """A context that continues without a driver if it ends."""
    return Context("lo", driver="auto", driver_search_timeout=300, **{**OWN_ADDRESSES, **SIZES})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PausedStore]:
    """A Store of this process."""
    with running_store(tmp_path / "store") as running:
        yield running


def source_at(context: Context, store: PausedStore) -> PersistentSource:
    """A source with this Store."""
    return context.source("orders", store=[store.endpoint], session_id="desk7")


def send_round(source: PersistentSource, number: int, restart_of: RunningDriver | None = None) -> None:
    """Send the messages of a round, of one fragment and of several; each becomes stable.

    A driver is killed and started again while messages wait in the source's log.
    """
    for at in range(ROUND):
        if restart_of is not None and at == ROUND // 2:
            restart(restart_of, source)
        source.send(b"%d" % (ROUND * number + at) + bytes(2 * DATAGRAM if at % 10 == 0 else 0))
    source.flush()
    assert source.wait_stable(SECONDS)


def numbers(messages: list[Message]) -> list[int]:
    """The numbers in the messages."""
    return [int(one.data.rstrip(b"\0")) for one in messages]


def restart(one: RunningDriver, source: PersistentSource) -> None:
    """Kill the driver and start it again; the source then has another session."""
    before = source.transport
    one.restart()
    wait_for(lambda: source.transport != before, "another session")


@pytest.mark.parametrize("is_local", [True, False], ids=["one host", "two hosts"])
def test_a_source_keeps_its_numbers_over_a_restart_of_the_driver(store: PausedStore, is_local: bool) -> None:
    """W13 UP-24: its next session continues them, and its receivers get every message once, in order."""
    with (
        driver(**SIZES) as one,
        attached(one.path, **SIZES) as publishing,
        attached(one.path, **SIZES) if is_local else open_context() as receiving,
    ):
        receiver = receiving.receiver("orders", session_id="risk3")
        with source_at(publishing, store) as source:
            send_round(source, 0)
            assert numbers(collect(receiver, ROUND)) == list(range(ROUND))
            for number in (1, 2):
                send_round(source, number, one)
                expected = list(range(ROUND * number, ROUND * number + ROUND))
                assert numbers(collect(receiver, ROUND)) == expected
            sqns = [record.sequence_number for record in _stored(receiving, store)]
        receiver.close()
    assert sqns == sorted(set(sqns))
    assert len(sqns) == 3 * ROUND


def _stored(context: Context, store: PausedStore) -> list[Message]:
    with context.receiver("orders", from_store=[store.endpoint]) as replay:
        return list(islice(replay, 3 * ROUND))


def test_a_receiver_continues_after_its_driver_was_away(store: PausedStore) -> None:
    """W13 UP-33: it gets from the Store the messages that were sent while no driver received for it."""
    with (
        driver(**SIZES) as one,
        open_context() as publishing,
        source_at(publishing, store) as source,
        attached(one.path, **SIZES) as receiving,
        receiving.receiver("orders", session_id="risk3") as receiver,
    ):
        send_round(source, 0)
        assert numbers(collect(receiver, ROUND)) == list(range(ROUND))
        one.kill()
        send_round(source, 1)
        one.restart()
        assert numbers(collect(receiver, ROUND)) == list(range(ROUND, 2 * ROUND))
        send_round(source, 2)
        assert numbers(collect(receiver, ROUND)) == list(range(2 * ROUND, 3 * ROUND))


def test_source_and_receiver_continue_without_a_driver(
    store: PausedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W13: no driver came back: the numbers continue on sockets of the process, and nothing is lost."""
    with driver(**SIZES) as one:
        monkeypatch.setattr(client, "default_path", lambda _interface: str(one.path))
        with following() as publishing, following() as receiving:
            receiver = receiving.receiver("orders", session_id="risk3")
            with source_at(publishing, store) as source:
                send_round(source, 0)
                assert numbers(collect(receiver, ROUND)) == list(range(ROUND))
                one.kill()
                wait_for(lambda: publishing._driver is None and receiving._driver is None, "no driver")
                send_round(source, 1)
                assert numbers(collect(receiver, ROUND)) == list(range(ROUND, 2 * ROUND))
            receiver.close()


def test_fragments_that_the_driver_cannot_send_are_refused(store: PausedStore) -> None:
    """Application and driver need the same sizes: the error names the remedy."""
    with driver(transport_lbtrm_datagram_max_size=1000) as one, attached(one.path, **SIZES) as context:
        with pytest.raises(OptionError, match="do not fit the driver's datagrams") as caught:
            source_at(context, store)
        assert "same datagram sizes" in str(caught.value.hint)


def test_a_receiver_gets_no_message_twice_when_drivers_follow_fast(store: PausedStore) -> None:
    """UP-33: the second driver replaces the first before the receiver has mapped the log that this one announced."""
    with (
        driver(**SIZES) as one,
        attached(one.path, **SIZES) as publishing,
        attached(one.path, **SIZES) as receiving,
        receiving.receiver("orders", session_id="risk3") as receiver,
        source_at(publishing, store) as source,
    ):
        for first in range(0, 5 * ROUND, ROUND):
            expected = list(range(first, first + ROUND))
            source.send_many([b"%d" % number for number in expected], flush=True)
            assert numbers(collect(receiver, ROUND)) == expected
            restart(one, source)


def test_a_source_that_the_next_driver_refuses_can_be_closed(store: PausedStore) -> None:
    """The Stores get its messages from the application, and its connections to them end."""
    with driver(**SIZES) as one, attached(one.path, **SIZES) as context:
        source = source_at(context, store)
        source.send(b"first", flush=True)
        one.kill()
        one.begin_with(transport_lbtrm_datagram_max_size=1000)
        with pytest.raises(OptionError, match="do not fit"):
            source.send(b"second", flush=True, timeout=SECONDS)
        assert source.close() == []
        assert not source._thread.is_alive()
