"""Stores copy what they miss from the other Stores of a source."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.loopback import open_context
from tests.unit.store_thread import PausedStore, running_store
from tests.waiting import SECONDS, wait_for
from umstack._engine.endpoint import Endpoint
from umstack.key_file import NO_KEYS
from umstack.persistence.assembly import RecoveredMessage
from umstack.persistence.store_replay import StoreReplay
from umstack.persistent_source import PersistentSource
from umstack.store.peer_copies import PeerCopies
from umstack.store.protocol import MissingMessages


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    with contextlib.ExitStack() as held:
        found = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in found]


@contextlib.contextmanager
def publishing(ports: list[int]) -> Iterator[PersistentSource]:
    """A source with Stores at these ports."""
    with (
        open_context() as context,
        context.source(
            "orders",
            store=[("127.0.0.1", port) for port in ports],
            session_id=7,
            ume_registration_interval=300,
        ) as source,
    ):
        yield source


def send(source: PersistentSource, first: int, end: int) -> None:
    """Send messages, which become stable."""
    source.send_many([b"%d" % number for number in range(first, end)], flush=True)
    assert source.wait_stable(SECONDS)


def held(store: PausedStore) -> list[bytes]:
    """Return the messages that a Store has."""
    state = store.side.repository.state.sources("orders")
    found = store.side.repository.read(state[0].number, 0) if state else []
    return [one.message[12:] for one in found if not one.lost_count]


def numbers(end: int) -> list[bytes]:
    """Payloads."""
    return [b"%d" % number for number in range(end)]


@contextlib.contextmanager
def three(tmp_path: Path) -> Iterator[tuple[list[int], list[contextlib.ExitStack], list[PausedStore]]]:
    """Three Stores at fixed ports, each of which can be closed."""
    ports = free_ports(3)
    with contextlib.ExitStack() as all_of_them:
        runs = [all_of_them.enter_context(contextlib.ExitStack()) for _ in ports]
        stores = [
            run.enter_context(running_store(tmp_path / str(port), port))
            for run, port in zip(runs, ports, strict=True)
        ]
        yield ports, runs, stores


@pytest.mark.parametrize("is_wiped", [False, True], ids=["away", "wiped"])
def test_a_store_that_comes_back_gets_what_it_missed(tmp_path: Path, is_wiped: bool) -> None:
    """UP-83: also what is stable, from the other Stores, if nothing more is sent, too; a reader needs no other Store.

    A Store without its disk gets all that the others have.
    """
    with three(tmp_path) as (ports, runs, stores), publishing(ports) as source:
        send(source, 0, 50)
        wait_for(lambda: len(held(stores[2])) == 50)
        runs[2].close()
        wait_for(lambda: len(source.active_stores) == 2)
        send(source, 50, 150)
        directory = tmp_path / ("empty" if is_wiped else str(ports[2]))
        with running_store(directory, ports[2]) as again:
            wait_for(lambda: held(again) == numbers(150), seconds=4 * SECONDS)
            assert again.status()["copied"] == (150 if is_wiped else 100)
            replay = StoreReplay("orders", [again.endpoint], 9)
            read = [one for items in replay.chunks() for one in items]
            assert [one.data for one in read if isinstance(one, RecoveredMessage)] == numbers(150)
            assert len(read) == 150
            send(source, 150, 160)
            wait_for(lambda: held(again) == numbers(160))


def test_a_store_ends_soon_while_another_does_not_answer(tmp_path: Path) -> None:
    """A peer that accepts connections and sends nothing delays neither messages nor the end of the Store."""
    with socket.create_server(("127.0.0.1", 0)) as silent, contextlib.ExitStack() as run:
        (port,) = free_ports(1)
        store = run.enter_context(running_store(tmp_path, port))
        missing = MissingMessages(0, "orders", 7, (Endpoint(*silent.getsockname()),), ((0, 9),))
        assert store._copies.request(missing, time.monotonic_ns())
        silent.accept()
        with open_context() as context:
            source = context.source("orders", store=[store.endpoint], session_id=7)
            send(source, 0, 10)
            source.close()
        began = time.monotonic()
        run.close()
        assert time.monotonic() - began < SECONDS


def test_attempts_without_a_result_become_rare() -> None:
    """A gap that no Store can fill costs a connection every 30 s at first, then less often."""
    copies = PeerCopies(NO_KEYS, lambda: None)
    copies.start()
    now_ns, pauses = time.monotonic_ns(), []
    for _ in range(9):
        assert copies.request(MissingMessages(0, "orders", 7, (), ((0, 9),)), now_ns)
        wait_for(lambda: copies.ended)
        copies.ended.clear()
        due_ns = copies._due_ns[0]
        pauses.append(round((due_ns - time.monotonic_ns()) / 1e9))
        assert not copies.request(MissingMessages(0, "orders", 7, (), ((0, 9),)), due_ns - 1)
        now_ns = due_ns
    copies.stop()
    assert pauses == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_copies_that_wait_for_space_do_not_delay_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more is read than may wait, and stop() does not wait for space."""
    monkeypatch.setattr("umstack.store.peer_copies._WAITING_MAX", 3)
    with running_store(tmp_path) as store, publishing([store.endpoint.port]) as source:
        send(source, 0, 20)
        copies = PeerCopies(NO_KEYS, lambda: None)
        copies.start()
        assert copies.request(MissingMessages(0, "orders", 7, (store.endpoint,), ((0, 19),)), 0)
        wait_for(lambda: len(copies.found) == 3)
        copies.taken()
        wait_for(lambda: len(copies.found) == 3)
        assert [message.sqn for _, message in copies.found] == [1, 2, 3]
        copies.stop()
        assert len(copies.found) < 20


def test_copies_are_the_stored_messages(tmp_path: Path) -> None:
    """UP-83: with their fragments and properties, byte for byte."""
    with three(tmp_path) as (ports, runs, stores), publishing(ports) as source:
        runs[2].close()
        wait_for(lambda: len(source.active_stores) == 2)
        for at in range(20):
            source.send(bytes([at]) * 5000 * (at % 3), properties={"at": at} if at % 2 else None)
        source.flush()
        assert source.wait_stable(SECONDS)

        def all_of(store: PausedStore) -> list[bytes]:
            state = store.side.repository.state.sources("orders")
            return [one.message for one in store.side.repository.read(state[0].number, 0)] if state else []

        with running_store(tmp_path / "empty", ports[2]) as again:
            wait_for(lambda: len(all_of(again)) == len(all_of(stores[0])), seconds=4 * SECONDS)
            assert all_of(again) == all_of(stores[0])
