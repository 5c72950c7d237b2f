"""Messages played again from Stores: by number and by time, without a source, from several Stores, and then live."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.loopback import configuration_file, open_context
from tests.unit.store_thread import PausedStore, running_store
from tests.unit.stored_messages import fill, items
from tests.waiting import SECONDS, wait_for
from umstack.cli import command
from umstack.errors import InvalidArgument, NotConnected, OptionError
from umstack.events import BurstLoss, Message
from umstack.persistence.assembly import RecoveredMessage
from umstack.persistence.reader_side import LostRange
from umstack.persistence.store_replay import StoreReplay, replay

pytestmark = pytest.mark.usefixtures("way")


def _numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@contextlib.contextmanager
def _stores(tmp_path: Path, count: int = 3) -> Iterator[list[PausedStore]]:
    with contextlib.ExitStack() as running:
        yield [running.enter_context(running_store(tmp_path / str(at))) for at in range(count)]


def test_a_replay_begins_at_a_number_or_a_time(tmp_path: Path) -> None:
    """By number, by a time between two messages, before the oldest and behind the newest."""
    fill(tmp_path, itertools.chain(range(10), range(15, 20)), 10**18, range(10, 15))
    with running_store(tmp_path) as store:

        def read(start: int | str | datetime | None) -> list[int]:
            found = replay("orders", store.endpoint, session_id=start_of_session(), start=start)
            return [message.sqn for message in found]

        sessions = itertools.count(1)

        def start_of_session() -> int:
            return next(sessions)

        held = [*range(10), *range(15, 20)]
        second = 10**18 // 10**9
        assert read(None) == held
        assert read(7) == [7, 8, 9, *range(15, 20)]
        assert read(19) == [19]
        assert read(20) == []
        assert read(datetime.fromtimestamp(second + 8.5, UTC)) == [9, *range(15, 20)]
        assert read(datetime.fromtimestamp(second + 12, UTC)) == list(range(15, 20))
        assert read(datetime.fromtimestamp(second + 19, UTC).isoformat()) == [19]
        assert read("1990-01-01") == held
        assert read("2099-01-01") == []
        for wrong in ("yesterday", 1 << 32, -1):
            with pytest.raises(InvalidArgument):
                read(wrong)


def test_several_stores_complete_each_other(tmp_path: Path) -> None:
    """One that lost messages, one without the last ones, one that is away: everything that any has arrives in order."""
    fill(tmp_path / "0", itertools.chain(range(3), range(6, 8)), lost=range(3, 6))
    fill(tmp_path / "1", itertools.chain(range(4), range(5, 12)), lost=range(4, 5))
    fill(tmp_path / "2", range(4))
    with _stores(tmp_path) as stores:
        away = ("127.0.0.1", 1)
        endpoints = [away, *(store.endpoint for store in stores)]
        found = items(StoreReplay("orders", endpoints, 3))
        read = [item.sqn for item in found if isinstance(item, RecoveredMessage)]
        lost = [item for item in found if isinstance(item, LostRange)]
        assert read == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
        assert lost == [LostRange(7, 4, 4)]
        assert items(StoreReplay("orders", endpoints[1:2], 3)) == []
        with pytest.raises(NotConnected):
            items(StoreReplay("orders", [away], 3, timeout=0.5))


def test_a_temporary_reader_is_forgotten(tmp_path: Path) -> None:
    """A reader without a session id of its own leaves no state at the Store."""
    fill(tmp_path, range(3))
    with running_store(tmp_path) as store:
        assert len(items(StoreReplay("orders", [store.endpoint], 3, is_temporary=True))) == 3
        assert store.side.counters["deregistered"] == 1
        assert store.side.repository.state.receivers(0) == []


def test_a_replay_continues_with_the_live_stream(tmp_path: Path) -> None:
    """Stored messages come first, then those that the source sends meanwhile and later: each message once, in order."""
    with _stores(tmp_path, 1) as stores, open_context() as publishing, open_context() as context:
        endpoints = [store.endpoint for store in stores]
        with publishing.source("orders", store=endpoints, session_id="desk7") as source:
            source.send_many(_numbers(0, 300), flush=True)
            assert source.wait_stable(SECONDS)
            with context.receiver("orders", from_store=endpoints, start=100) as receiver:
                events = receiver.events(timeout=SECONDS)
                read = [next(events) for _ in range(50)]
                source.send_many(_numbers(300, 400), flush=True)
                assert source.wait_stable(SECONDS)
                read += itertools.islice(events, 200)
                source.send_many(_numbers(400, 500), flush=True)
                messages = [event.data for event in read if isinstance(event, Message)]
                while len(messages) < 400:
                    event = next(events)
                    if isinstance(event, Message):
                        messages.append(event.data)
                assert messages == _numbers(100, 500)
                assert receiver.is_live


@pytest.mark.parametrize("stored", [0, 30, 300])
@pytest.mark.parametrize("is_replay", [True, False], ids=["replay", "session"])
def test_a_number_to_begin_at_holds_for_live_messages(tmp_path: Path, stored: int, is_replay: bool) -> None:
    """A number that the Stores do not have yet, also for a receiver that only has a session id."""
    with _stores(tmp_path, 1) as stores, open_context() as publishing, open_context() as context:
        endpoints = [store.endpoint for store in stores]
        with publishing.source("orders", store=endpoints, session_id="desk7") as source:
            source.send_many(_numbers(0, stored), flush=True)
            assert source.wait_stable(SECONDS)
            wanted = {"from_store": endpoints} if is_replay else {"session_id": 3}
            with context.receiver("orders", start=100, **wanted) as receiver:  # type: ignore[call-overload]
                if is_replay:
                    assert len(list(receiver.events(timeout=0))) == max(0, stored - 100)
                messages = iter(receiver)
                read = []
                for first in range(stored, stored + 200, 50):
                    source.send_many(_numbers(first, first + 50), flush=True)
                    assert source.wait_stable(SECONDS)
                begin = max(stored, 100) if is_replay else 100
                read = [next(messages).data for _ in range(begin, stored + 200)]
                assert read == _numbers(begin, stored + 200)


def test_conflation_holds_for_live_messages(tmp_path: Path) -> None:
    """The stored messages are all played, and of the live ones that wait only the newest is delivered."""
    with _stores(tmp_path, 1) as stores, open_context() as publishing, open_context() as context:
        endpoints = [store.endpoint for store in stores]
        with publishing.source("orders", store=endpoints, session_id="desk7") as source:
            source.send_many(_numbers(0, 300), flush=True)
            assert source.wait_stable(SECONDS)
            with context.receiver("orders", from_store=endpoints, conflate=True) as receiver:
                messages = iter(receiver)
                assert [next(messages).data for _ in range(300)] == _numbers(0, 300)
                source.send(b"300", flush=True)
                assert next(messages).data == b"300"
                source.send_many(_numbers(301, 500), flush=True)

                def delivered() -> int:
                    (live,) = context.stats()["receivers"]
                    return int(live["messages_delivered"])

                wait_for(lambda: delivered() == 200, "every live message at the receiver")
                assert next(messages).data == b"499"


def test_losses_are_events_of_the_receiver(tmp_path: Path) -> None:
    """A lost range is a BurstLoss; without a live source the iteration ends after its timeout."""
    fill(tmp_path, itertools.chain(range(2), range(4, 6)), lost=range(2, 4))
    with running_store(tmp_path) as store, open_context() as context:
        with context.receiver("orders", from_store=[store.endpoint]) as receiver:
            found = list(receiver.events(timeout=0))
        assert [event.sequence_number for event in found] == [0, 1, 3, 4, 5]  # type: ignore[union-attr]
        assert found[2] == BurstLoss("orders", "STORE:0x7", 2, 3)
        for wrong in (
            {"start": 3},
            {"start": "1990-01-01", "session_id": 3},
            {"from_store": ["10.0.0.1:1"], "on_message": print},
        ):
            with pytest.raises(OptionError):
                context.receiver("orders", **wrong)  # type: ignore[call-overload]
        with pytest.raises(InvalidArgument):
            context.receiver("orders", from_store=["10.0.0.1"])


def test_the_command_plays_messages_again(tmp_path: Path) -> None:
    """`umstack recv --from-store`: lines, JSON, a start, the end of the replay, and status 1 for losses. UX-1."""
    fill(tmp_path / "0", itertools.chain(range(4), range(6, 8)), lost=range(4, 6))
    with running_store(tmp_path / "0") as store:
        ip, port = store.endpoint
        line = ["recv", "orders", "--from-store", f"{ip}:{port}", "--until-end"]
        done = CliRunner().invoke(command, [*line, "--start", "6"])
        assert (done.exit_code, done.stdout) == (0, "6\n7\n")
        done = CliRunner().invoke(
            command, [*line, "--start", "1", "--json", "--output", str(tmp_path / "out")]
        )
        summary = json.loads(done.stdout)
        assert done.exit_code == 1
        assert (summary["ok"], summary["messages"], summary["losses"]) == (False, 5, 1)
        assert (tmp_path / "out").read_text() == "1\n2\n3\n6\n7\n"
        assert "sequence numbers 4 to 5 of STORE:0x7" in done.stderr
        done = CliRunner().invoke(command, [*line, "--json-lines", "--count", "1"])
        assert json.loads(done.stdout)["sequence_number"] == 0
        done = CliRunner().invoke(command, [*line, "--start", "yesterday"])
        assert done.exit_code == 2
        live = ["-i", "lo", "-c", str(configuration_file(tmp_path)), "--timeout", "0.3"]
        begin = time.monotonic()
        done = CliRunner().invoke(command, [*line[:-1], *live, "--start", "6"])
        assert (done.exit_code, done.stdout) == (0, "6\n7\n")
        assert time.monotonic() - begin >= 0.3
    done = CliRunner().invoke(command, [*line, "--timeout", "1"])
    assert done.exit_code == 1
    assert "Store" in done.stderr


def test_the_command_begins_at_a_number_of_the_live_stream(tmp_path: Path) -> None:
    """`--start` with a number that the Store does not have yet."""
    with (
        running_store(tmp_path / "0") as store,
        open_context() as publishing,
        publishing.source("orders", store=[store.endpoint], session_id="desk7") as source,
    ):
        is_over = threading.Event()

        def send() -> None:
            number = 0
            while not is_over.wait(0.001):
                source.send(b"%d" % number, flush=True)
                number += 1

        sender = threading.Thread(target=send)
        sender.start()
        try:
            ip, port = store.endpoint
            line = ["recv", "orders", "--from-store", f"{ip}:{port}", "--start", "3000", "--count", "3"]
            configured = ["-i", "lo", "-c", str(configuration_file(tmp_path)), "--timeout", str(SECONDS)]
            done = CliRunner().invoke(command, [*line, *configured])
        finally:
            is_over.set()
            sender.join()
        assert (done.exit_code, done.stdout) == (0, "3000\n3001\n3002\n")


@pytest.mark.parametrize("first", [1 << 31, (1 << 31) + 5, (1 << 32) - (1 << 21), (1 << 32) + (1 << 31) + 9])
def test_a_start_before_the_oldest_message_gets_all_whatever_their_numbers(
    tmp_path: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beyond 2^31, where number 0 is nearer to the numbers that come next; and the live stream follows."""
    monkeypatch.setattr("umstack.store.protocol.store_gaps.AWAY_NS", 1)  # nothing before `first` is expected
    held = range(first, first + 10)
    fill(tmp_path, held)
    with running_store(tmp_path) as store, open_context() as context:
        read = replay("orders", store.endpoint, session_id=1, start=0)
        assert [message.sqn for message in read] == [sqn % (1 << 32) for sqn in held]
        with (
            context.source("orders", store=[store.endpoint], session_id=7) as source,
            context.receiver("orders", from_store=[store.endpoint], start=0) as receiver,
        ):
            source.send(b"live", flush=True)
            assert source.wait_stable(SECONDS)
            found = [one.data for one in itertools.islice(receiver, 11)]
            assert found == [*_numbers(first, first + 10), b"live"]
            source.send(b"more", flush=True)
            assert next(iter(receiver)).data == b"more"


def test_a_start_behind_the_wrap_of_the_numbers_is_the_next_message(tmp_path: Path) -> None:
    """A reader that continues behind the last number before the wrap gets nothing again."""
    fill(tmp_path, range((1 << 32) - 10, 1 << 32))
    with running_store(tmp_path) as store:
        assert list(replay("orders", store.endpoint, session_id=1, start=0)) == []
