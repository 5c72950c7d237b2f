"""Acknowledgements of a replay: nothing is lost or played twice after an end, a cut or a failure."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.loopback import open_context
from tests.unit.store_thread import running_store
from tests.unit.stored_messages import fill, fill_with, items, sqns
from tests.unit.test_files_transfer import send
from tests.waiting import SECONDS
from umstack.cli import command
from umstack.errors import NotConnected, OptionError
from umstack.events import Message
from umstack.persistence.reader_side import LostRange
from umstack.persistence.replay_start import replay_start
from umstack.persistence.store_replay import StoreReplay
from umstack.store import connections
from umstack.store.repository import Repository

pytestmark = pytest.mark.usefixtures("way")

_SESSION = 3
_AWAY = ("127.0.0.1", 1)


def _left(endpoint: tuple[str, int]) -> list[int]:
    """The messages of a Store that the session did not acknowledge."""
    return sqns(StoreReplay("orders", [endpoint], _SESSION, is_explicit=True))


def _recv(endpoint: tuple[str, int]) -> list[str]:
    """The command that plays the messages of a Store as the session."""
    ip, port = endpoint
    return ["recv", "orders", "--from-store", f"{ip}:{port}", "--session-id", str(_SESSION)]


def test_a_message_is_acknowledged_after_it_was_written(tmp_path: Path) -> None:
    """A disk that is full: the next run gets every message, also those of chunks before the failure."""
    fill(tmp_path, range(3000))
    with running_store(tmp_path) as store:
        line = [*_recv(store.endpoint), "--until-end"]
        done = CliRunner().invoke(command, [*line, "--output", "/dev/full"])
        assert done.exit_code == 1
        assert _left(store.endpoint) == list(range(3000))
        done = CliRunner().invoke(command, [*line, "--output", str(tmp_path / "out")])
        assert done.exit_code == 0
        assert (tmp_path / "out").read_text().split() == [str(sqn) for sqn in range(3000)]
        assert _left(store.endpoint) == []


def test_a_count_ends_between_two_messages(tmp_path: Path) -> None:
    """`--count` acknowledges what it counted, and nothing behind it; the next run continues there."""
    fill(tmp_path, range(10))
    with running_store(tmp_path) as store:
        line = [*_recv(store.endpoint), "--until-end"]
        for first in (0, 3, 6):
            done = CliRunner().invoke(command, [*line, "--count", "3"])
            assert (done.exit_code, done.stdout.split()) == (0, [str(first + at) for at in range(3)])
        assert _left(store.endpoint) == [9]


def test_a_stored_tree_is_counted_as_one(tmp_path: Path) -> None:
    """`--files` ends after a tree of many messages, not after one message; the tree behind it stays."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(20):
        (tree / f"{number}").write_bytes(b"x" * 3000)
    records, _ = send(str(tree))
    again, _ = send(str(tree))
    assert len(records) > 1
    fill_with(tmp_path / "store", enumerate([*records, *again]))
    with running_store(tmp_path / "store") as store:
        line = [*_recv(store.endpoint), "--json"]
        done = CliRunner().invoke(command, [*line, "--files", str(tmp_path / "target")])
        assert done.exit_code == 0, done.output
        assert [one["files"] for one in json.loads(done.stdout)["trees"]] == [20]
        assert _left(store.endpoint)[0] == len(records)


def test_an_idle_reader_continues_and_acknowledges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Store ends a connection while the application works: nothing is lost, and its end is acknowledged."""
    monkeypatch.setattr(connections, "_IDLE_NS", 200_000_000)
    fill(tmp_path / "0", [3000], lost=range(3000))
    fill(tmp_path / "1", range(3000))
    with running_store(tmp_path / "0") as lossy, running_store(tmp_path / "1") as whole:
        found: list[int] = []
        replay = StoreReplay("orders", [lossy.endpoint, whole.endpoint], _SESSION)
        for number, chunk in enumerate(replay.chunks()):
            assert not any(isinstance(item, LostRange) for item in chunk)
            found += [item.sqn for item in chunk]  # type: ignore[union-attr]
            if number == 0 or found[-1] == 3000:
                time.sleep(1.5)
        assert found == list(range(3001))
        assert replay.failures == []
        assert (_left(lossy.endpoint), _left(whole.endpoint)) == ([], [])


def test_each_store_is_acknowledged(tmp_path: Path) -> None:
    """One Store delivers everything; the next run gets nothing of the other one, and a new message of either."""
    for name in ("0", "1"):
        fill(tmp_path / name, range(6))
    with running_store(tmp_path / "0") as one, running_store(tmp_path / "1") as other:
        endpoints = [one.endpoint, other.endpoint]
        assert sqns(StoreReplay("orders", endpoints, _SESSION)) == list(range(6))
        assert _left(other.endpoint) == []
    fill(tmp_path / "1", range(6, 8))
    with running_store(tmp_path / "0") as one, running_store(tmp_path / "1") as other:
        assert sqns(StoreReplay("orders", [one.endpoint, other.endpoint], _SESSION)) == [6, 7]


def test_a_start_without_messages_is_acknowledged(tmp_path: Path) -> None:
    """A start behind the newest message, and lost messages at the end: the next reader does not begin at the oldest."""
    fill(tmp_path / "0", range(6))
    fill(tmp_path / "1", range(6), lost=range(6, 9))
    with running_store(tmp_path / "0") as store:
        assert sqns(StoreReplay("orders", [store.endpoint], _SESSION, replay_start("2099-01-01"))) == []
        assert _left(store.endpoint) == []
    with running_store(tmp_path / "1") as store:
        assert items(StoreReplay("orders", [store.endpoint], _SESSION))[-1] == LostRange(7, 6, 8)
        assert items(StoreReplay("orders", [store.endpoint], _SESSION)) == []


def test_a_store_with_nothing_to_deliver_decides_nothing(tmp_path: Path) -> None:
    """One without messages, and one that ended before the start: the next Store is read as if it were the first."""
    fill(tmp_path / "empty", [])
    fill(tmp_path / "old", range(4), 10**18)
    fill(tmp_path / "new", range(10), 10**18)
    with Repository(tmp_path / "new") as repository:
        repository.release({repository.state.sources()[0].number: 2})
    with (
        running_store(tmp_path / "empty") as empty,
        running_store(tmp_path / "old") as old,
        running_store(tmp_path / "new") as new,
    ):
        found = items(StoreReplay("orders", [empty.endpoint, new.endpoint], 1))
        assert [getattr(item, "sqn", item) for item in found] == list(range(2, 10))
        start = replay_start("2001-09-09T01:46:46+00:00")  # 10**9 s since 1970, and 6 s
        assert sqns(StoreReplay("orders", [old.endpoint, new.endpoint], 2, start)) == list(range(6, 10))


def test_an_acknowledgement_counts_at_each_store(tmp_path: Path) -> None:
    """A message that is acknowledged at one Store is not played from another one, in either order."""
    fill(tmp_path / "0", range(4))
    fill(tmp_path / "1", range(10))
    with running_store(tmp_path / "0") as one, running_store(tmp_path / "1") as other:
        assert sqns(StoreReplay("orders", [one.endpoint], 1)) == list(range(4))
        assert sqns(StoreReplay("orders", [one.endpoint, other.endpoint], 1)) == list(range(4, 10))
        for endpoint in (one.endpoint, other.endpoint):
            sqns(StoreReplay("orders", [endpoint], 2))
        assert items(StoreReplay("orders", [one.endpoint, other.endpoint], 2)) == []


def test_a_store_that_failed_is_not_asked_for_each_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A Store that does not answer: one wait for all losses, one at its turn, and a failure that is reported."""
    fill(tmp_path / "0", range(0, 60, 2))
    for sqn in range(1, 59, 2):
        fill(tmp_path / "0", [], lost=range(sqn, sqn + 1))
    with socket.create_server(("127.0.0.1", 0)) as silent, running_store(tmp_path / "0") as store:
        endpoints = [store.endpoint, silent.getsockname()]
        replay = StoreReplay("orders", endpoints, _SESSION, timeout=0.3)
        with caplog.at_level(logging.WARNING, "umstack.persistence.store_replay"):
            assert len(items(replay)) == 59
        silent.setblocking(False)
        asked = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                asked += 1
        assert asked == 2
        (failure,) = replay.failures
        assert str(silent.getsockname()[1]) in str(failure)
        assert str(failure) in caplog.text


def test_the_command_reports_a_store_that_failed(tmp_path: Path) -> None:
    """The messages of the other Stores are written, and the status is 1: a message may be missing."""
    fill(tmp_path, range(3))
    with running_store(tmp_path) as store:
        ip, port = store.endpoint
        line = [
            "recv",
            "orders",
            "--until-end",
            "--from-store",
            f"{ip}:{port}",
            "--from-store",
            "127.0.0.1:1",
        ]
        done = CliRunner().invoke(command, line)
        assert (done.exit_code, done.stdout) == (1, "0\n1\n2\n")
        assert done.stderr.count("127.0.0.1") == 1


def test_a_receiver_that_is_closed_acknowledges_what_it_read(tmp_path: Path) -> None:
    """In the middle of a chunk of the replay: the next receiver continues behind the last message read."""
    fill(tmp_path, range(10))
    with running_store(tmp_path) as store, open_context() as context:
        wanted = {"from_store": [store.endpoint], "session_id": _SESSION}
        for first in (0, 4):
            with context.receiver("orders", **wanted) as receiver:  # type: ignore[call-overload]
                read = list(itertools.islice(receiver, 4))
            assert [message.sequence_number for message in read] == list(range(first, first + 4))
        context.receiver("orders", **wanted).close()  # type: ignore[call-overload]
        assert _left(store.endpoint) == [8, 9]
        with pytest.raises(OptionError, match="ume_explicit_ack_only"):
            context.receiver("orders", ume_explicit_ack_only=True, **wanted)  # type: ignore[call-overload]


def test_a_receiver_tries_the_stores_again(tmp_path: Path) -> None:
    """It does not go live without the stored messages: each reading raises until a Store answers."""
    fill(tmp_path, range(3))
    with running_store(tmp_path) as store:
        endpoint = store.endpoint
    with open_context() as context, context.receiver("orders", from_store=[endpoint]) as receiver:
        for _ in range(2):
            with pytest.raises(NotConnected):
                list(receiver.events(timeout=0))
            assert not receiver.is_live
        with running_store(tmp_path, endpoint[1]):
            assert len(list(receiver.events(timeout=0))) == 3


def test_an_iterator_that_is_left_loses_nothing(tmp_path: Path) -> None:
    """Live, each message with an iterator of its own; the session continues behind the last one read."""
    with (
        running_store(tmp_path) as store,
        open_context() as context,
        open_context() as publishing,
        publishing.source("orders", store=[store.endpoint], session_id="desk7") as source,
    ):
        source.send_many([b"%d" % number for number in range(3)], flush=True)
        assert source.wait_stable(SECONDS)
        with context.receiver("orders", from_store=[store.endpoint], session_id=_SESSION) as receiver:
            assert len(list(receiver.events(timeout=0))) == 3
            source.send_many([b"%d" % number for number in range(3, 60)], flush=True)
            assert source.wait_stable(SECONDS)
            read = []
            while len(read) < 20:
                event = next(receiver.events(timeout=SECONDS))
                read += [event.data] if isinstance(event, Message) else []
            assert read == [b"%d" % number for number in range(3, 23)]
        deadline = time.monotonic() + SECONDS
        while (left := _left(store.endpoint)) != list(range(23, 60)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == list(range(23, 60))


def test_a_live_receiver_begins_behind_a_start_without_messages(tmp_path: Path) -> None:
    """A start in the future: none of the stored messages is delivered, and then each new one."""
    with (
        running_store(tmp_path) as store,
        open_context() as context,
        open_context() as publishing,
        publishing.source("orders", store=[store.endpoint], session_id="desk7") as source,
    ):
        source.send_many([b"%d" % number for number in range(5)], flush=True)
        assert source.wait_stable(SECONDS)
        wanted = {"from_store": [store.endpoint], "start": "2099-01-01"}
        with context.receiver("orders", **wanted) as receiver:  # type: ignore[call-overload]
            assert list(receiver.events(timeout=0)) == []
            source.send_many([b"5", b"6"], flush=True)
            read = list(itertools.islice(receiver, 2))
            assert [message.data for message in read] == [b"5", b"6"]
